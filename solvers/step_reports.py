"""Laying out and reporting the steps that a search for a training step finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from schedopt.account import traffic
from schedopt.plan import Plan
from schedopt.solving.clock import Pace
from schedopt.solving.replicas.arrays import CLOSE
from schedopt.solving.replicas.layout import LayoutTime, count_candidate, fold_of, lay_out
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.systems.list_scheduler import TooManyTasks

if TYPE_CHECKING:
    from schedopt.solving.replicas.candidates import Candidate
    from schedopt.solving.replicas.search import StepSearch

REST: Final = 4
"""How much longer than it takes to lay a step out the search goes on before the next one is.

So much longer it must be able to go on then, too, or only the last one is laid out.
"""
LATE_S: Final = 0.4
"""How much later than time is up the best may be laid out."""
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
        self._followed: list[Candidate] = []

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
            self._followed.append(candidate)
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

    def is_soon_laid_out(self) -> bool:
        """Whether the best one leaves the search enough time for a better one to be laid out, too.

        As it does where it is all that will be found. Without a plan it is not waited for better.
        """
        left, best = self.run.remaining(), self.search.candidates.best
        if left is None or not best or self.search.is_through or self.run.best() is None:
            return True
        return (1 + REST) * self._needed_s(best[0]) <= left

    def lay_out_best(self, behind_s: float = 0.0) -> None:
        """Report candidates that may be shorter: nodes share links, which the search leaves out.

        The first one where the run, with some seconds that perhaps are behind it, has the time for
        it but for `LATE_S`, and others where the search has. Those that were the best before may
        take less. Where there is no plan and no time for any of them, the one that takes least.
        """
        candidates, run, first = self.search.candidates, self.run, True
        every = [*candidates.best, *reversed(self._followed)]
        count = self.search.step.problem.scope.microbatches or 1
        self.needed_s = 0.0
        for candidate in every:
            clock, best = (run if first else self.search.run).clock, run.period()
            left = clock.remaining()
            if not first and clock.stopped():
                return
            late_s = LATE_S + behind_s if first else 0.0
            if left is not None and left + late_s < self._needed_s(candidate):
                continue
            first = False
            if best is None or candidate.makespan_ns < best * count:
                self._lay_out(candidates.lighten(candidate))
        if first and every and run.best() is None:
            self._lay_out(candidates.lighten(min(every, key=self._needed_s)))

    def _needed_s(self, candidate: Candidate) -> float:
        return self._layout.needed_s(self._count_items(candidate))

    def _count_items(self, candidate: Candidate) -> int:
        step = self.search.step
        return count_candidate(step, candidate, fold_of(step, candidate))

    def _lay_out(self, candidate: Candidate) -> None:
        """Lay a candidate out and report it; one with too many transfers is left out."""
        if candidate in self._laid_out:
            return
        self._laid_out.add(candidate)
        step, orders = self.search.step, self.search.candidates.orders(candidate)
        items = self._count_items(candidate)
        with suppress(TooManyTasks), self._layout.measure(items):
            if step.problem.scope.split_backward:
                # What a weight half needs may have no room.
                report_valid(lay_out(step, candidate, orders, split=True), self.run)
            report(lay_out(step, candidate, orders), self.run)


def report(plan: Plan, run: Run) -> None:
    """Report a step of ours, if it is of use.

    Where a stage takes no time, all its micro-batches may lie there at one instant, which the
    search does not see, nor that in the reading *sum* all layers of a stage that runs layer by
    layer have copies at once, nor what comes from groups that, against the rule, send more than
    others; such a step is left out if it does not fit.
    """
    mixed = len({stage.tensor for stage in plan.stages}) > 1
    if mixed or any(_is_instant(plan, one) or _is_added_up(plan, one) for one in plan.stages):
        report_valid(plan, run)
    elif _is_of_use(plan, run):
        run.report(plan, is_late=True)


def report_valid(plan: Plan, run: Run) -> None:
    """Report a step that was laid out with transfers as late as can be, if of use and valid."""
    if _is_of_use(plan, run):
        run.report_if_valid(plan, is_late=True)


def _is_of_use(plan: Plan, run: Run) -> bool:
    """Whether a step is as short as was asked for, and no longer than the best.

    One that sends more than the best must be shorter by more than 0.1 %. Of folds that differ it is
    not compared.
    """
    asked, best = plan.scope.period_ns, run.best()
    if asked is not None and plan.pattern.period > asked:
        return False
    if best is None or CLOSE * plan.pattern.period <= (CLOSE - 1) * best.pattern.period:
        return True
    if plan.pattern.period > best.pattern.period:
        return False
    if plan.pattern.fold != best.pattern.fold:
        return True
    sent, least = (sum(traffic(one).values()) for one in (plan, best))
    return sent <= least


def _is_added_up(plan: Plan, stage: Stage) -> bool:
    return plan.scope.memory == "sum" and stage.shard in ("gradient", "parameter")


def _is_instant(plan: Plan, stage: Stage) -> bool:
    layers = plan.costs.layers[stage.first : stage.last + 1]
    return not any(layer.forward_ns or layer.backward_ns for layer in layers)
