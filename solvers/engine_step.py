"""The shortest step that an engine with an order of its own can run.

What is left to choose is where to cut, on how many of the GPUs, and how many stages each has. The
order does not depend on the cuts, so a step is the longest path of operations that wait for each
other, and each path bounds the steps of all cuts. From balanced cuts the search goes to better
neighbours. Where few cuts are left that may beat the best step, all are laid out. Else CP-SAT looks
for a cut of which all known paths are short enough; its longest path is added, until there is none.

Transfers are in the order in which they could go. Where the two directions of a link are in each
other's way, or a step does not fit for what comes before it is read, another order might be better:
then the bound is what the step would take if no transfer were in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import islice
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.account import fits
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving.engine_cuts import EngineCuts, FirstLayers
from schedopt.solving.engine_order import CriticalPath
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.models.engine_cuts import EngineCutModel
from schedopt.solving.run import Run
from schedopt.solving.suggestions import suggest
from schedopt.systems.steps import engine_step

MOST_CUTS: Final = 2_000
"""Cuts of one shape that are all looked at; for more CP-SAT is asked."""
BETWEEN: Final = (2, 6, 13, 22, 38)
"""Where else paths are looked for: between the best cut, 0, and one that CP-SAT proposes, 64."""
MOST_NEIGHBOURS: Final = 300
"""Of a cut, whose longest paths are taken at first."""
SHORT_S: Final = 1.0
"""How long CP-SAT is asked at first, s."""
RISE: Final = 2000
"""A bound is reported when it has risen by such a part of itself."""
SHARE_OF_STARTS: Final = 0.25
"""Of the time, for neighbours of balanced cuts."""
FAR: Final = 1.25
"""How much longer than the best step a balanced cut may be for its neighbours to be looked at."""
NEAR: Final = 1.05
"""The same for a cut that CP-SAT proposes; and a step so close to its bound is good enough."""


def solve(problem: Problem, run: Run) -> None:
    """Report the shortest step found, and its proof where no cut is left.

    Raises
    ------
    InputError
        If no engine is asked for, or there is a rule with updates.
    """
    scope = problem.scope
    if scope.engine is None:
        raise InputError(
            "engine_step needs an engine",
            field="solver",
            way_out="Name one (Scope.engine), or use another solver",
        )
    if scope.allocation == "fixed":
        raise InputError(
            "engine_step chooses the stages itself",
            field="scope.allocation",
            way_out="Leave the stages out",
        )
    if not problem.rule.is_given:
        raise InputError(
            "engine_step takes weight_bytes as all that a flush needs",
            field="rule",
            way_out="Leave the rule out",
        )
    _Search(problem, run).run_all()


class _Search:
    """The best step so far, and what may still beat it."""

    def __init__(self, problem: Problem, run: Run) -> None:
        assert problem.scope.microbatches is not None
        assert problem.scope.engine is not None
        self.problem, self.run = problem, run
        self.count = problem.scope.microbatches
        self.seen: set[tuple[int, FirstLayers]] = set()
        # A step of this length or more is of no use.
        asked = problem.scope.period_ns
        self.limit = None if asked is None else asked * self.count + 1
        if (known := run.best()) is not None:
            self.limit = known.pattern.period_total_ns
        # The least that another order of transfers might give of a cut that was laid out.
        self.open: int | None = None

    def run_all(self) -> None:
        """Look at every shape: first near a balanced cut, then everywhere."""
        shapes = sorted(map(_Shape, self._shapes()), key=lambda shape: shape.estimate_ns)
        clock = self.run.fork(self.run.workers, SHARE_OF_STARTS)
        for shape in shapes:
            # Even what is known of a long step takes time, and without a plan there is no answer.
            if self.limit is not None and (clock.stopped() or self._is_far(shape)):
                break
            self._descend(shape, shape.balanced)
        for shape in shapes:
            if not self.run.stopped() and self._compare_all(shape.cuts):
                shape.is_open = False
        self._refute(shapes)
        self._conclude(shapes)

    def _is_far(self, shape: _Shape) -> bool:
        """Whether a balanced cut takes so much longer than the best that others hardly beat it."""
        return self.limit is not None and shape.estimate_ns > FAR * self.limit

    def _refute(self, shapes: list[_Shape]) -> None:
        """Ask CP-SAT about the shape whose bound is least, again and again."""
        reported, turns = 0, False
        while not self.run.stopped() and not self.run.settled():
            for shape in shapes:
                shape.is_open &= not self._is_late(shape.low)
            left = [shape for shape in shapes if shape.is_open]
            if not left:
                return
            shape = min(left, key=lambda shape: shape.low)
            best = min(left, key=lambda shape: shape.known_ns)
            # By turns the one that limits the bound, and the one with the best step, while that
            # may be far from its own bound.
            turns = not turns
            if turns and NEAR * best.low < best.known_ns:
                shape = best
            self._ask(shape)
            least = self._least(shapes)
            if least is not None and least > reported + reported // RISE:
                reported = least
                self._report_bound(least, ProofKind.ENGINE_PATHS)

    def _ask(self, shape: _Shape) -> None:
        """Look for a shorter cut of a shape, or refute that there is one."""
        goal = shape.next_goal(self.limit)
        known, begins = shape.model(self.limit).ask(goal, self.run, shape.most_s)
        if not known:
            shape.give_more_time(goal)
        elif begins is None:
            shape.refuted(goal)
        else:
            length = shape.learn(begins)
            self._try(shape.cuts, begins)
            if self.limit is None or length < NEAR * self.limit:
                self._descend(shape, begins)

    def _least(self, shapes: list[_Shape]) -> int | None:
        """Return what no step is shorter than, ns, as far as it is known; None if there is none."""
        lengths = [shape.low for shape in shapes if shape.is_open]
        if self.open is not None:
            lengths.append(self.open)
        if (best := self.run.best()) is not None:
            lengths.append(best.pattern.period_total_ns)
        return min(lengths, default=None)

    def _report_bound(self, least: int, kind: ProofKind) -> None:
        scope = self.problem.scope
        if self.problem.platform.uniform:
            proof = Proof(kind, engine=scope.engine)
            self.run.report_bound(Fraction(least, self.count), scope, proof)

    def _conclude(self, shapes: list[_Shape]) -> None:
        """Report what is known in the end."""
        scope, best = self.problem.scope, self.run.best()
        if not self.problem.platform.uniform:
            self.run.leave_out("only the first GPUs were looked at, in the given order")
            return
        if any(shape.is_open for shape in shapes):
            self.run.leave_out("not every cut was looked at")
            return
        least = self._least(shapes)
        if best is not None and least is not None:
            self._report_bound(least, ProofKind.ENGINE_CUTS)
        elif self.open is not None:
            self.run.leave_out("another order of transfers might be as short as asked")
        else:
            none_fits, short = ProofKind.NO_ENGINE_CUT, ProofKind.NO_SHORT_ENGINE_CUT
            proof = Proof(none_fits if scope.period_ns is None else short, engine=scope.engine)
            self.run.report_infeasible(
                Infeasibility(scope=scope, proof=proof, wider=suggest(self.problem))
            )

    def _shapes(self) -> Iterator[EngineCuts]:
        """Yield the numbers of GPUs and of stages a GPU, those with all GPUs first."""
        most = len(self.problem.platform.gpus)
        several = (
            self.problem.scope.engine == "megatron" and self.problem.scope.allocation == "general"
        )
        for ranks in range(most, 0, -1):
            chunks = 1
            while (cuts := EngineCuts(self.problem, ranks, chunks)).exist:
                yield cuts
                chunks += 1
                if not several or ranks == 1 or self.count % ranks:
                    break

    def _descend(self, shape: _Shape, here: FirstLayers) -> None:
        """Go from a cut to better neighbours, as long as there are any."""
        cuts = shape.cuts
        length = cuts.schedule_bound(here) if cuts.may_fit(here) else None
        better = True
        while better and not self.run.stopped():
            better = False
            for other, least in shape.by_paths([*cuts.neighbours(here)]):
                if length is not None and least >= length:
                    break
                if cuts.may_fit(other):
                    other_length = cuts.schedule_bound(other)
                    if length is None or other_length < length:
                        here, length, better = other, other_length, True
                        break
        if length is not None:
            shape.keep(length, here)
        self._try(cuts, here)

    def _compare_all(self, cuts: EngineCuts) -> bool:
        """Lay out all cuts that may be better if they are few; return whether none is left."""
        if comb(len(cuts.places) - 1, cuts.parts - 1) > MOST_CUTS:
            return False
        for begins in sorted(cuts.promising(self.limit, self.run.stopped), key=cuts.bound):
            self._try(cuts, begins)
        return not self.run.stopped()

    def _try(self, cuts: EngineCuts, begins: FirstLayers) -> None:
        """Lay out a step, once, and report it if it is better and fits."""
        if (cuts.ranks, begins) in self.seen or (self.run.stopped() and self.limit is not None):
            return
        if self._is_late(cuts.bound(begins)) or not cuts.may_fit(begins):
            return
        least = cuts.schedule_bound(begins)
        if self._is_late(least):
            return
        self.seen.add((cuts.ranks, begins))
        plan = delay_transfers(engine_step(self.problem, cuts.stages(begins)))
        length = plan.pattern.period_total_ns
        if not fits(plan, buffers=False):
            return
        has_room = fits(plan) or not check_sent_late(plan)[1]
        if least < length or not has_room:
            self.open = least if self.open is None else min(self.open, least)
        if has_room and not self._is_late(length):
            self.run.report(plan)
            self.limit = length

    def _is_late(self, length: int) -> bool:
        """Whether a step of a length is of no use."""
        return self.limit is not None and length >= self.limit


class _Shape:
    """A number of GPUs and of stages on each, and what is known of its cuts.

    Parameters
    ----------
    cuts : EngineCuts
    """

    def __init__(self, cuts: EngineCuts) -> None:
        self.cuts = cuts
        self.is_open = True
        self.low = max(1, cuts.count * min(row[-1] for row in cuts.work) // cuts.ranks)
        """No cut has a shorter step, ns."""
        self.asked = 0
        self.most_s = SHORT_S
        self._unknown: int | None = None
        self._alike = True
        self._model: EngineCutModel | None = None
        self._longest = 0
        self._table: npt.NDArray[np.int64] | None = None
        self._best: tuple[int, FirstLayers] | None = None
        self.balanced = cuts.balanced()
        self.estimate_ns = cuts.bound(self.balanced)
        """About what a balanced cut takes."""

    @property
    def known_ns(self) -> int:
        """The shortest step known, ns; until one was looked at, what nothing is longer than."""
        return self.cuts.longest_step() if self._best is None else self._best[0]

    @property
    def best(self) -> tuple[int, FirstLayers]:
        """The shortest step known, ns, which perhaps does not fit, and its cut."""
        if self._best is None:
            self._best = self.cuts.schedule_bound(self.balanced), self.balanced
        return self._best

    @cached_property
    def _paths(self) -> dict[CriticalPath, None]:
        """The paths that are known, and those that are known to the model."""
        begins = self.best[1]
        found = dict.fromkeys(self.cuts.order.rank_paths(*self.cuts.times(begins)))
        for other in islice(self.cuts.neighbours(begins), MOST_NEIGHBOURS):
            found[self.cuts.order.critical_path(*self.cuts.times(other))] = None
        return found

    def by_paths(self, every: Sequence[FirstLayers]) -> Iterator[tuple[FirstLayers, int]]:
        """Yield cuts with what their steps are not shorter than by the paths known, ascending."""
        if not every:
            return
        if self._table is None or len(self._table) < len(self._paths):
            self._table = np.array([path.counts for path in self._paths], dtype=np.int64)
        least = (self.cuts.times_of(every) @ self._table.T).max(axis=1)
        for number in least.argsort(kind="stable"):
            yield every[number], int(least[number])

    def next_goal(self, limit: int | None) -> int:
        """Return the step to ask for: at first one below the limit, and then half way."""
        self.asked += 1
        high = self.cuts.longest_step() if limit is None else limit - 1
        if self._unknown is not None:
            return min(high, self._unknown)
        if self.asked == 1 or high - self.low <= high // RISE:
            return high
        return (self.low + high) // 2

    def model(self, limit: int | None) -> EngineCutModel:
        """Return the model, made anew where its units have become too coarse."""
        longest = self.cuts.longest_step() if limit is None else limit
        if self._model is None or self._longest > 2 * longest:
            self._longest = longest
            self._model = EngineCutModel(self.cuts, longest, alike=self._alike)
            for path in self._paths:
                self._model.add_path(path)
        return self._model

    def refuted(self, goal: int) -> None:
        """Note that no cut has a step so short."""
        self.low, self._unknown = goal + 1, None
        self.is_open = goal < self.cuts.longest_step()

    def give_more_time(self, goal: int) -> None:
        """Ask for less, and longer, where CP-SAT could not tell."""
        self.most_s *= 2
        self._unknown = max(self.low, (self.low + goal) // 2)

    def learn(self, begins: FirstLayers) -> int:
        """Add the longest paths of a cut, and of times between it and the best one.

        Return the longest, ns.
        """
        assert self._model is not None
        times, best = self.cuts.times(begins), self.cuts.times(self.best[1])
        length = self.cuts.order.makespan(*times)
        found = [self.cuts.order.critical_path(*times)]
        for part in BETWEEN:
            lengths, sent = (
                part * one + (64 - part) * two for one, two in zip(times, best, strict=True)
            )
            found.append(self.cuts.order.critical_path(lengths, sent))
        new = [path for path in dict.fromkeys(found) if path not in self._paths]
        for path in new:
            self._paths[path] = None
            self._model.add_path(path)
        self.keep(length, begins)
        if not new:
            if self._alike:
                self._tell_apart()
            else:
                self._model.forbid(begins)
        return length

    def keep(self, length: int, begins: FirstLayers) -> None:
        """Keep the cut with the shortest step, ns."""
        self._best = min(self.best, (length, begins))

    def _tell_apart(self) -> None:
        """Go on with a model in which places have times of their own."""
        self._alike, self._model, self._unknown = False, None, None
