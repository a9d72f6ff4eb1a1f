"""1F1B as it is run: each stage begins a forward as soon as it may have one more in flight.

Stage s of S, counted from 0, keeps at most S - s micro-batches (Narayanan et al. 2019, section
3.2). The least period at which that is possible is that of 1F1B*, which keeps the fewest (Beaumont
et al. 2021, Theorem 3). 1F1B keeps more at the same period: it does not wait with a forward until
its result is needed, and does not slow down where this takes more memory than there is.

All patterns here are 1-periodic. Where both directions share a link, a run of 1F1B may alternate
between several orders of transfers, and be faster or slower than this; elsewhere it is no faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solving.run import Run
from schedopt.solving.stage_chain import StageChain
from schedopt.stage import Stage
from schedopt.units import format_bytes


def report_eager(problem: Problem, stages: Sequence[Stage], run: Run) -> None:
    """Report the plan of 1F1B on stages, one for each GPU, if it fits.

    Raises
    ------
    InputError
        If transfers at several cuts meet on a link.
    """
    chain = EagerChain(problem, stages)
    if chain.shares_links:
        raise InputError(
            "1F1B is not made for links that several cuts share",
            field="network",
            way_out="Use the same stages with 1F1B* (without _1f1b), or contiguous",
        )
    limit = problem.scope.period_ns
    longest = chain.longest_period() if limit is None else min(limit, chain.longest_period())
    if not chain.fits(longest):
        return
    period = chain.shorten(longest, run)
    for number, (need, room) in enumerate(zip(chain.needs(period), chain.rooms, strict=True)):
        if need > room:
            run.leave_out(f"1F1B needs {format_bytes(need - room)} more for stage {number}")
            return
    run.report(chain.plan(period))


class EagerChain(StageChain):
    """Stages that recompute nothing, as 1F1B sees them. A period fits by the micro-batches kept."""

    def fits(self, period: int) -> bool:
        """Whether the stages run with this period and at most S - s micro-batches in flight."""
        return period >= self.least_period() and min(self._spare(period)) >= 0

    def needs(self, period: int) -> list[int]:
        """Return the memory of each stage, bytes."""
        rows = zip(self.costs, self.spans(period)[::2], self.ahead(period), strict=True)
        return [
            cost.memory_bytes(max(1, -(-span // period) + periods)) for cost, span, periods in rows
        ]

    def plan(self, period: int) -> Plan:
        """Return the pattern of 1F1B*, each forward as many periods earlier as it may be."""
        ahead = self.ahead(period)
        begins = [
            item._replace(forward_ns=item.forward_ns - ahead[place // 2] * period)
            for place, item in enumerate(self.starts(period))
        ]
        return self.plan_from(begins, period)

    def ahead(self, period: int) -> list[int]:
        """Return how many periods earlier than under 1F1B* each stage runs its forwards.

        No more than the stages before it, whose results it needs.
        """
        return list(accumulate(self._spare(period), min))

    def _spare(self, period: int) -> list[int]:
        """Return how many micro-batches more each stage may have in flight than under 1F1B*."""
        most = range(len(self.stages), 0, -1)
        spans = self.spans(period)[::2]
        return [count - max(1, -(-span // period)) for count, span in zip(most, spans, strict=True)]
