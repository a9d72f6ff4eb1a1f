"""The steps of cuts for an engine: laid out, reported, or waiting for that where it takes long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from time import sleep
from typing import Final

from schedopt.account import fits
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solving.clock import Pace
from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import (
    count_of_grid,
    find_fold,
    has_expert_copies,
    is_spelled_out,
    lay_out_step,
)
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.local_search.compilation import COMPILATIONS, LOADING_S
from schedopt.solving.replicas.layout import ITEM_S, LayoutTime
from schedopt.solving.run import Run

CLOSE: Final = 1000
"""A fold that is longer than its bound by at most such a part is not spelled out."""
QUICK_S: Final = 0.5
"""Steps that are laid out in less are laid out at once."""
LEAST_MEASURED: Final = 4_000
"""The least items of a step whose time tells how long others take to be laid out."""
MOST_SPELLED_OUT: Final = 1_000_000
"""Of a step that is no fold: what has more operations and transfers is not laid out."""
HOPE: Final = 500
"""A step that waits may turn out longer by such a part of itself: what is longer is not sought."""
POLL_S: Final = 0.05
"""How often it is seen whether a shorter step beside is laid out."""

Waiting = tuple[int, int, EngineCuts, FirstLayers]


class EngineAnswers:
    """The best step of an engine so far, and those that wait to be laid out.

    Parameters
    ----------
    problem : Problem
    run : Run
    """

    def __init__(self, problem: Problem, run: Run) -> None:
        self.problem, self.run, self.pace = problem, run, Pace(run.clock)
        self.seen: set[tuple[Grid, FirstLayers]] = set()
        self.unseen: list[int] = []
        """What steps are not shorter than on grids, or of cuts, that are left out, ns."""
        self.pending: list[Waiting] = []
        """Steps that fit as far as is known and take long to lay out, with lower bounds, ns.

        The number tells those apart that are as long.
        """
        self._laying_out = LayoutTime(LEAST_MEASURED)
        self._reporting = LayoutTime(LEAST_MEASURED)
        """What steps take to be laid out, and beyond that to be checked and reported."""
        self._folded: set[int] = set()
        """The numbers of those that were laid out as a fold."""
        asked, count = problem.scope.period_ns, problem.scope.microbatches or 1
        self._limit = None if asked is None else asked * count + 1
        if (known := run.best()) is not None:
            self._limit = known.pattern.period_total_ns
        self.open: int | None = None
        """The least that another order of transfers might give of a cut that was laid out, ns."""

    @property
    def limit(self) -> int | None:
        """A step of this length or more, ns, is of no use."""
        limits = [limit for limit in (self._limit, self.run.cutoff()) if limit is not None]
        return min(limits, default=None)

    @property
    def hoped(self) -> int | None:
        """The limit, ns, as it will be when what waits, here or beside, is laid out, or more."""
        expected = [least for least, *_ in self.pending[:1]]
        if (beside := self.run.hopes.beside()) is not None:
            expected.append(beside)
        limits = [least + least // HOPE for least in expected]
        if (limit := self.limit) is not None:
            limits.append(limit)
        return min(limits, default=None)

    def is_late(self, length: int) -> bool:
        """Whether a step of a length, ns, is of no use."""
        limit = self.limit
        return limit is not None and length >= limit

    def is_hopeless(self, length: int) -> bool:
        """Whether a step of a length, ns, is not looked for as long as shorter ones wait."""
        hoped = self.hoped
        return hoped is not None and length >= hoped

    @property
    def suffice(self) -> bool:
        """Whether there are any, or none must be found beyond the limit of time."""
        return bool(self.pending) or self.limit is not None or not self.run.must_answer

    @property
    def left_ns(self) -> list[int]:
        """What steps are not shorter than that were not looked at, or not laid out, ns."""
        return [*self.unseen, *(least for least, *_ in self.pending)]

    def is_long(self, grid: Grid) -> bool:
        """Whether it takes long to spell out a step on a grid."""
        return ITEM_S * count_of_grid(self.problem, grid) > QUICK_S

    def _is_too_long(self, grid: Grid) -> bool:
        """Whether a step that is no fold for its copies of experts cannot be spelled out."""
        items = count_of_grid(self.problem, grid)
        return has_expert_copies(self.problem, grid) and items > MOST_SPELLED_OUT

    def is_time(self) -> bool:
        """Whether there is just time for the shortest step that waits to be laid out."""
        left = self.run.remaining()
        if left is None or not self.pending:
            return False
        least, _, cuts, _ = self.pending[0]
        beside = self.run.hopes.beside()
        is_wanted = not self.is_late(least) and (beside is None or least < beside)
        return is_wanted and left <= 2 * self._seconds(cuts.grid)

    def _seconds(self, grid: Grid, *, folded: bool | None = None) -> float:
        """Return how long it takes to lay out a step on a grid; by default as it will be kept."""
        if folded is None:
            folded = not is_spelled_out(self.problem, grid)
        items = count_of_grid(self.problem, grid, folded=folded)
        return self._laying_out.needed_s(items) + self._reporting.needed_s(items)

    def offer(self, cuts: EngineCuts, begins: FirstLayers) -> None:
        """Lay out a step, once, and report it if it is better and fits; later if it takes long.

        Many a better one is found in the time that it takes to lay out a long one.
        """
        key = cuts.grid, begins
        if key in self.seen or (self.run.stopped() and self.suffice):
            return
        if self.is_late(cuts.bound(begins)) or not cuts.may_fit(begins):
            return
        least = cuts.schedule_bound(begins)
        if self.is_late(least):
            return
        self.seen.add(key)
        if self._is_too_long(cuts.grid) or not self.has_time(cuts.grid):
            self.unseen.append(least)
            return
        if not self.is_long(cuts.grid):
            self._lay_out(cuts, begins, least)
            return
        heappush(self.pending, (least, len(self.seen), cuts, begins))
        self._tell()

    def needs_quick(self) -> bool:
        """Whether nothing is known, and there may not be time to lay out what waits.

        That may take twice as long as it is thought to.
        """
        left = self._left_s()
        if left is None or self._is_known:
            return False
        return not self.pending or 2 * self._least_s(self.pending[0][2].grid) >= left

    def are_ready(self, shapes: Sequence[EngineShape]) -> bool:
        """Whether there are any shapes, and what is compiled to look at their steps is there.

        A first answer comes before it is waited for, if time is short.
        """
        if not shapes:
            return False
        compilation, left = COMPILATIONS["engines"], self.run.remaining()
        compilation.start()
        is_long = compilation.is_under_way() or (left is not None and left <= LOADING_S)
        if is_long and self.needs_quick():
            self.lay_out_quick(shapes)
        return compilation.wait(self.run, late=False)

    def lay_out_quick(self, shapes: Sequence[EngineShape]) -> None:
        """Lay out the balanced cut of a grid, until one fits: a first answer where time is short.

        Of those for which there is time what may be shortest; then those that take least time. They
        may be looked at again: nothing is said of what else they could be.
        """
        quick = [shape for shape in shapes if self.has_time(shape.grid)]
        others = [shape for shape in shapes if shape not in quick]
        quick.sort(key=lambda shape: shape.cuts.bound(shape.balanced))
        others.sort(key=lambda shape: self._least_s(shape.grid))
        for shape in (*quick, *(others if self.run.must_answer else ())):
            with self.run.hopes.turn:
                if not self.needs_quick():
                    return
                if shape.cuts.may_fit(shape.balanced) and not self._is_too_long(shape.grid):
                    folded = find_fold(self.problem, shape.grid) > 1
                    self._lay_out(shape.cuts, shape.balanced, None, folded=folded)

    @property
    def _is_known(self) -> bool:
        """Whether there is a plan, here or of another problem."""
        return self.run.best() is not None or self.run.cutoff() is not None

    def has_time(self, grid: Grid) -> bool:
        """Whether there is time to lay out a step on a grid, as a fold where it may be one."""
        left = self._left_s()
        return left is None or self._least_s(grid) < left

    def _left_s(self) -> float | None:
        """Return the seconds that are left; whoever asks to end waits for a quick answer alone."""
        left = self.run.remaining()
        if self.run.clock.stop_requested():
            return QUICK_S if left is None else min(QUICK_S, left)
        return left

    def _least_s(self, grid: Grid) -> float:
        """Return how long that takes, next to other threads."""
        return self.pace() * self._seconds(grid, folded=True)

    def _tell(self) -> None:
        """Tell those who search beside how short a step may be here."""
        known = [least for least, *_ in self.pending[:1]]
        known += [] if self._limit is None or self.run.best() is None else [self._limit]
        self.run.hopes.tell(min(known, default=None))

    def lay_out_pending(self, most: int | None = None) -> None:
        """Spell out steps that take long, the shortest first, as far as there is time.

        Up to one that is no shorter, or `most` of them: of these none that is hardly shorter than
        what is known, or longer than what waits beside. They are left for the end. Where nothing is
        known, the one that takes least is laid out however little time there is.
        """
        while self.pending and most != 0 and not self._is_over():
            if most is not None and not self._is_clearly_shorter(self.pending[0][0]):
                return
            if self.needs_quick():
                self.pending.sort(key=lambda row: self._least_s(row[2].grid))
                row = self.pending.pop(0)
                heapify(self.pending)
            else:
                row = heappop(self.pending)
            least, _, cuts, _ = row
            # Waiting is no sign of being slow.
            pace = self.pace()
            if most is None:
                self._wait_for_shorter(least, pace * self._seconds(cuts.grid))
            left = self.run.remaining()
            has_time = left is None or pace * self._seconds(cuts.grid, folded=True) < left
            if has_time or (self.run.must_answer and not self._is_known):
                if not self.is_late(least):
                    self._lay_out_long(row, early=most is not None)
            else:
                self.unseen.append(least)
            self._tell()
            most = None if most is None else most - 1

    def _wait_for_shorter(self, least: int, needed_s: float) -> None:
        """Wait while a step of less than `least` ns may be laid out in another thread.

        Laying out that one, too, would take the time of the other, and most often be in vain. Twice
        the seconds that it needs are left, unless that one will be the first of all; and without a
        limit of time there is no need to wait.
        """
        while not self.is_late(least) and not self._is_over():
            left, beside = self.run.remaining(), self.run.hopes.beside()
            kept_s = 0.0 if self.limit is None else 2 * needed_s
            if beside is None or beside >= least or left is None or left <= kept_s:
                return
            sleep(POLL_S)

    def _is_over(self) -> bool:
        """Whether no step is laid out any more."""
        is_known = self.limit is not None
        return self.run.clock.stop_requested() or (self.run.stopped() and is_known)

    def _is_clearly_shorter(self, least: int) -> bool:
        """Whether a step of at least `least` ns is worth being laid out before the end."""
        beside, limit = self.run.hopes.beside(), self.limit
        if beside is not None and beside < least:
            return False
        return limit is None or least + least // HOPE < limit

    def _lay_out_long(self, row: Waiting, *, early: bool) -> None:
        """Lay out a step that takes long: first as a fold, which may be as good.

        Early it waits then, if it is not, to be spelled out.
        """
        least, number, cuts, begins = row
        is_spelled = is_spelled_out(self.problem, cuts.grid)
        if find_fold(self.problem, cuts.grid) > 1 and number not in self._folded:
            self._folded.add(number)
            length = self._lay_out(cuts, begins, least, folded=True)
            if not is_spelled or (length is not None and length - least <= least // CLOSE):
                return
            if early:
                heappush(self.pending, row)
                return
            left = self.run.remaining()
            if left is not None and self.pace() * self._seconds(cuts.grid) >= left:
                self.unseen.append(least)
                return
        if is_spelled and not self._is_over():
            self._lay_out(cuts, begins, least)

    def _lay_out(
        self, cuts: EngineCuts, begins: FirstLayers, least: int | None, *, folded: bool = False
    ) -> int | None:
        """Lay out a step, and report it if it is better and fits; return its length then, ns.

        `least` is its bound, ns, if another order of its transfers is to be thought of.
        """
        items = count_of_grid(self.problem, cuts.grid, folded=folded)
        with self._laying_out.measure(items):
            plan = lay_out_step(self.problem, cuts.grid, cuts.stages(begins), folded=folded)
            has_room = fits(plan)
        length = plan.pattern.period_total_ns
        # Without what waits a fold fits as far as it is known, and looking anew takes long.
        if not has_room and not folded:
            if not fits(plan, buffers=False):
                return None
            has_room = not check_sent_late(plan)[1]
        if least is not None and (least < length or not has_room):
            self.open = least if self.open is None else min(self.open, least)
        if not has_room:
            return None
        if not self.is_late(length):
            if least is not None:
                plan = self._in_one_group(cuts, begins, plan, folded=folded)
            with self._reporting.measure(items):
                self.run.report(plan)
            self._limit = plan.pattern.period_total_ns
        return length

    def _in_one_group(
        self, cuts: EngineCuts, begins: FirstLayers, plan: Plan, *, folded: bool
    ) -> Plan:
        """Return a plan whose replicas all share, and so hold less, if that is as short."""
        length = plan.pattern.period_total_ns
        if cuts.grid.copies == 1:
            return plan
        other = EngineCuts(self.problem, replace(cuts.grid, copies=1), cuts.order)
        if other.schedule_bound(begins) > length:
            return plan
        found = lay_out_step(self.problem, other.grid, other.stages(begins), folded=folded)
        return found if found.pattern.period_total_ns <= length and fits(found) else plan
