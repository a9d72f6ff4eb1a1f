"""Laying out and reporting the steps that a search for a training step finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from schedopt.account import traffic
from schedopt.plan import Plan
from schedopt.solving.clock import Pace
from schedopt.solving.replicas.arrays import CLOSE, keeps_all
from schedopt.solving.replicas.layout import (
    CHUNK,
    LayoutTime,
    count_chunks,
    lay_out,
    list_parts,
)
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.list_scheduler import TooManyTasks

if TYPE_CHECKING:
    from schedopt.solving.replicas.arrays import StepData
    from schedopt.solving.replicas.candidates import Candidate
    from schedopt.solving.replicas.search import StepSearch

REST: Final = 4
"""How much longer than it takes to lay a step out the search goes on before the next one is.

So much longer it must be able to go on then, too, or only the last one is laid out.
"""
FAR_MORE: Final = 3
"""Times the time that is left: the first estimate is twice what many operations take."""
MOST_KEPT: Final = 0.75
"""Of the time, for laying the last one out: a search that has next to none finds bad ones."""


class StepReports:
    """What a search finds, laid out as far as there is time, and reported.

    Parameters
    ----------
    search : StepSearch
    run : Run
        Where steps are reported.
    layout : LayoutTime, optional
        What others measured, too.
    laid_out : set of Candidate, optional
        What others laid out, too; no candidate is laid out twice.

    Attributes
    ----------
    needed_s : float
        How long it takes to lay the best one out, about, seconds; 0: that is done.
    """

    def __init__(
        self,
        search: StepSearch,
        run: Run,
        layout: LayoutTime | None = None,
        laid_out: set[Candidate] | None = None,
    ) -> None:
        self.search, self.run = search, run
        self._layout = layout or LayoutTime()
        self._laid_out = set() if laid_out is None else laid_out
        self.needed_s = 0.0

    def follow(self, found: Iterator[Candidate], behind_s: float = 0.0) -> None:
        """Let a search go on; lay out each best step so far, but not all where that takes long.

        Time for the last one is kept for `lay_out_best`, but not all that there is. It takes the
        longer, the more runs beside it, in this process and in others. Perhaps there are some
        seconds behind the time of the search.
        """
        clock, whole = self.search.run.clock, self.search.run.remaining()
        most = None if whole is None else MOST_KEPT * max(0.0, whole)
        kept, ended, pace = 0.0, clock.seconds(), Pace(clock)
        for candidate in found:
            needed, now = self._needed_s(candidate) * pace(), clock.seconds()
            self.needed_s = needed
            within = max(0.0, needed - behind_s)
            within = within if most is None else min(most, within)
            clock.shorten(within - kept)
            kept, left = within, clock.remaining()
            if now - ended < REST * needed or (left is not None and left < (REST - 1) * needed):
                continue
            self._lay_out(candidate)
            ended = clock.seconds()
        clock.shorten(-kept)

    def lay_out_best(self) -> None:
        """Report candidates that may be shorter: nodes share links, which the search leaves out.

        All but the first one only where there is time for them. Where stages may recompute layer by
        layer the first one is left out, too, if it takes far longer and there is another plan.
        """
        step, candidates, clock = self.search.step, self.search.candidates, self.search.run.clock
        self.needed_s = 0.0
        for number, candidate in enumerate(candidates.best):
            left, best = clock.remaining(), self.run.period()
            needed = self._needed_s(candidate)
            if number and (clock.stopped() or (left is not None and left < needed)):
                return
            whole = self.run.remaining() if step.may_redo_layers and best is not None else None
            if whole is not None and FAR_MORE * whole < needed:
                return
            if best is None or candidate.makespan_ns < best * (
                step.problem.scope.microbatches or 1
            ):
                self._lay_out(candidates.lighten(candidate))

    def _needed_s(self, candidate: Candidate) -> float:
        return self._layout.needed_s(_count_operations(self.search.step, candidate))

    def _lay_out(self, candidate: Candidate) -> None:
        """Lay a candidate out and report it; one with too many transfers is left out."""
        if candidate in self._laid_out:
            return
        self._laid_out.add(candidate)
        step, orders = self.search.step, self.search.candidates.orders(candidate)
        operations = _count_operations(step, candidate)
        with suppress(TooManyTasks), self._layout.measure(operations):
            if step.problem.scope.split_backward:
                # What a weight half needs may have no room.
                report_valid(lay_out(step, candidate, orders, split=True), self.run)
            report(lay_out(step, candidate, orders), self.run)


def _count_operations(step: StepData, candidate: Candidate) -> int:
    """Return how many operations a candidate has, about, as `LayoutTime` counts them.

    Where a stage runs layer by layer each layer has its own, and where it shares gradients each
    comes with transfers of weights and gradients from and to all replicas.
    """
    total = 0
    for stage, again in zip(candidate.stages, candidate.recompute, strict=True):
        each = (2 + bool(again.runs)) * (1 if keeps_all(stage.shard) else stage.replicas)
        rings = CHUNK * count_chunks(stage.replicas)
        total += len(list_parts(step.problem, stage, again)) * (each * step.count + rings)
    return total


def report(plan: Plan, run: Run) -> None:
    """Report a step of ours, if it is of use.

    Where a stage takes no time, all its micro-batches may lie there at one instant, which the
    search does not see, nor that in the reading *sum* all layers of a stage that runs layer by
    layer have copies at once; such a step is left out if it does not fit.
    """
    if any(_is_instant(plan, stage) or _is_added_up(plan, stage) for stage in plan.stages):
        report_valid(plan, run)
    elif _is_of_use(plan, run):
        run.report(plan)


def report_valid(plan: Plan, run: Run) -> None:
    """Report a step, if it is of use and valid."""
    if _is_of_use(plan, run):
        run.report_if_valid(plan)


def _is_of_use(plan: Plan, run: Run) -> bool:
    """Whether a step is as short as was asked for.

    One that sends more than the best must be shorter by more than 0.1 %.
    """
    asked, best = plan.scope.period_ns, run.best()
    if asked is not None and plan.pattern.period > asked:
        return False
    if best is None or CLOSE * plan.pattern.period <= (CLOSE - 1) * best.pattern.period:
        return True
    sent, least = (sum(traffic(one).values()) for one in (plan, best))
    return sent <= least


def _is_added_up(plan: Plan, stage: Stage) -> bool:
    return plan.scope.memory == "sum" and stage.shard in ("gradient", "parameter")


def _is_instant(plan: Plan, stage: Stage) -> bool:
    layers = plan.costs.layers[stage.first : stage.last + 1]
    return not any(layer.forward_ns or layer.backward_ns for layer in layers)
