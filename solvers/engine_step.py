"""The shortest step that an engine with an order of its own can run.

What is left to choose is where to cut, on how many of the GPUs, and how many stages each has. The
order does not depend on the cuts, so a step is the longest path of operations that wait for each
other, and each path bounds the steps of all cuts. All cuts are parted by how many layers ranks and
stages have, each part with a bound from a sum of paths over what ranks have room for; with one
stage a rank, or where layers differ, by where stages begin, with the shortest path through a graph
of all stages as the bound. From cuts near the least bounds the search goes to better neighbours.
Where something is left open then, all cuts of a grid that may beat the best step are laid out, if
they are few.

Transfers are in the order in which they could go. Where the two directions of a link are in each
other's way, or a step does not fit for what comes before it is read, another order might be better:
then the bound is what the step would take if no transfer were in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from time import perf_counter
from typing import Final

import numpy as np

from schedopt.engine import stage_begins
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.result import Infeasibility
from schedopt.rule import Rule
from schedopt.solving.engines.answers import EngineAnswers
from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
from schedopt.solving.engines.grid import Grid, grids_of
from schedopt.solving.engines.least_memory import FirstStep, find_least_memory
from schedopt.solving.engines.order import EngineOrder
from schedopt.solving.engines.seeds import best_of, find_seeds, make_shapes, start_from
from schedopt.solving.engines.shape import RISE, EngineShape
from schedopt.solving.run import Run
from schedopt.solving.suggestions import suggest

MOST_CUTS: Final = 2_000
"""Cuts of one shape that are all looked at."""
SHARE_OF_SHAPES: Final = 0.3
"""Of the time, for what is known of all grids beforehand."""
SHARE_OF_SEARCH: Final = 0.5
"""Of the time, for neighbours of good cuts."""
SHARE_OF_SEEDS: Final = 0.3
"""Of that, for cuts near the balanced ones of all grids."""
SHARE_OF_WHOLE_LAYERS: Final = 0.3
"""Of the time, for cuts between whole transformer layers, where others are possible too."""
TURN_S: Final = 0.5
"""How long the cuts of one shape are parted before another one may be looked at."""
NEAR: Final = 1.05
"""A step so close to its bound is good enough."""


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
    if not problem.rule.is_given and problem.rule != Rule.of_flush(scope.microbatches or 1):
        raise InputError(
            "engine_step takes weight_bytes as all that a flush needs, or ends with the update",
            field="rule",
            way_out="Leave the rule out, or give a batch (solve.batch)",
        )
    if problem.is_training_step and len(set(problem.platform.gpus)) > 1:
        raise InputError(
            "replicas of stages need equal GPUs",
            field="platform",
            way_out="Give GPUs that are alike, or leave the engine out (Scope.engine)",
        )
    others = best_between_whole_layers(problem, run) if scope.engine == "torch" else []
    search = EngineSearch(problem, run)
    search.run_all(others)
    if search.impossible is not None:
        run.report_infeasible(_with_least_memory(search.impossible, problem, run))


def _with_least_memory(why: Infeasibility, problem: Problem, run: Run) -> Infeasibility:
    """Return why there is no step, with the memory that one needs where that is the reason."""
    gpus = problem.platform.gpus
    if why.proof == _no_grid(problem) or problem.scope.period_ns is not None or len(set(gpus)) > 1:
        return why

    def find_step(asked: Problem, share: float) -> FirstStep:
        part = run.subrun(asked, share)
        part.must_answer = False
        part.stop_at_a_plan()
        part.begin("engine_step")
        search = EngineSearch(asked, part)
        search.run_all()
        return FirstStep(part.best(), search.impossible is not None)

    least, proven = find_least_memory(problem, find_step)
    return replace(why, least_memory_bytes=least, proven_memory_bytes=proven)


def _no_grid(problem: Problem) -> Proof:
    return Proof(ProofKind.NO_ENGINE_GRID, engine=problem.scope.engine)


def best_between_whole_layers(problem: Problem, run: Run) -> list[EngineShape]:
    """Return the few best shapes where cuts lie between whole transformer layers, if names tell.

    Of these cuts there are far fewer, so that good ones are found sooner. Their best step is
    reported, if it is one of what was asked: those between other layers may all be longer, where
    transfers wait for each other.
    """
    scope = replace(problem.scope, engine="torchtitan")
    try:
        inner = replace(problem, scope=scope)
        begins = stage_begins(problem.chain, "torchtitan")
    except InputError:
        return []
    if len(begins) == len(stage_begins(problem.chain, "torch")):
        return []
    part = run.subrun(inner, SHARE_OF_WHOLE_LAYERS)
    part.cutoff, part.hopes.turn = run.cutoff, run.hopes.turn
    search = EngineSearch(inner, part)
    search.find(part)
    if (best := part.best()) is not None:
        run.report_if_valid(best)
    return best_of(search.shapes)


class EngineSearch:
    """The best step so far, and what may still beat it.

    Parameters
    ----------
    problem : Problem
    run : Run
    """

    def __init__(self, problem: Problem, run: Run) -> None:
        assert problem.scope.microbatches is not None
        assert problem.scope.engine is not None
        self.problem, self.run = problem, run
        self.count = problem.scope.microbatches
        self.answers = EngineAnswers(problem, run)
        self.orders: dict[tuple[int, int, int], EngineOrder] = {}
        clock, grids = run.fork(run.workers, SHARE_OF_SHAPES), [*self._bounded_grids()]
        self.shapes, left_out = make_shapes(problem, grids, self._shape, clock)
        self.answers.unseen += left_out
        self.impossible: Infeasibility | None = None
        """Why there is no step, if that is known."""
        self._generator = np.random.default_rng(run.seed)

    def run_all(self, others: Sequence[EngineShape] = ()) -> None:
        """Search the shapes, those first that may have the shortest steps; then refute them."""
        answers = self.answers
        shapes = self.find(self.run.fork(self.run.workers, SHARE_OF_SEARCH), others)
        answers.lay_out_pending(1)
        self._refute(shapes)
        while answers.pending and not self.run.stopped():
            answers.lay_out_pending()
            self._refute(shapes)
        if self.run.clock.stop_requested() and answers.needs_quick():
            answers.lay_out_quick(self.shapes)
        self._conclude(shapes)

    def find(self, clock: Run, others: Sequence[EngineShape] = ()) -> list[EngineShape]:
        """Look for good cuts on all grids; return the shapes that may still have better ones."""
        self.seed(clock.fork(clock.workers, SHARE_OF_SEEDS), others)
        return self._search(clock) if self.answers.are_ready(self.shapes) else [*self.shapes]

    def seed(self, clock: Run, others: Sequence[EngineShape] = ()) -> None:
        """Look for good cuts near balanced ones, and near the best of shapes of another engine."""
        if not self.answers.are_ready(self.shapes):
            return
        start_from(others, self.shapes, clock)
        waiting: list[EngineShape] = []
        answers = self.answers
        shapes = [shape for shape in self.shapes if answers.has_time(shape.grid)] or self.shapes
        for shape in find_seeds(shapes, clock, answers.is_hopeless, self._generator):
            if answers.limit is None:
                answers.offer(shape.cuts, shape.best[1])
            waiting.append(shape)
        # Behind a shorter one the others need not be laid out.
        for shape in sorted(waiting, key=lambda shape: shape.known_ns):
            answers.offer(shape.cuts, shape.best[1])
        if answers.needs_quick():
            answers.lay_out_quick(self.shapes)
        answers.lay_out_pending(1)

    def _search(self, clock: Run) -> list[EngineShape]:
        """Go from good cuts of each shape to better ones, the shape with the least bound first.

        Return the shapes that may still have better ones.
        """
        answers = self.answers
        waiting = [(shape.low, number, shape) for number, shape in enumerate(self.shapes)]
        heapify(waiting)
        searched: list[EngineShape] = []
        while waiting and not answers.is_hopeless(waiting[0][0]):
            if self.run.stopped() and answers.suffice:
                break
            low, number, shape = heappop(waiting)
            if not shape.is_tabulated:
                shape.is_tabulated = True
                shape.tabulate(answers.hoped, self.run.stopped)
                if shape.is_open:
                    heappush(waiting, (shape.low, number, shape))
                continue
            if not searched and answers.limit is None:
                # All others are longer.
                self._report_bound(low, ProofKind.ENGINE_PATHS)
            searched.append(shape)
            if not (clock.stopped() and answers.suffice):
                if shape.grows_below(answers.hoped):
                    self._grow(shape, clock, turn_s=0)
                if shape.is_open and not answers.is_hopeless(shape.low):
                    for start in shape.best_starts():
                        self._descend(shape, start)
        waiting = [row for row in waiting if not answers.is_late(row[0])]
        left = [*searched, *(shape for *_, shape in waiting if shape.is_tabulated)]
        answers.unseen += [low for low, _, shape in waiting if not shape.is_tabulated]
        return left

    def _bounded_grids(self) -> Iterator[tuple[int, Grid]]:
        """Yield grids that may hold the weights, with what no step on them is shorter than, ns."""
        problem = self.problem
        assert problem.scope.engine is not None
        units = len(stage_begins(problem.chain, problem.scope.engine))
        room = max(gpu.usable_bytes for gpu in problem.platform.gpus)
        work, weights, shared = {}, {}, {}
        for tensor in problem.degrees:
            layers = problem.in_group(tensor).layers
            work[tensor] = min(
                sum(gpu.duration_ns(layer.forward_ns + layer.backward_ns) for layer in layers)
                for gpu in set(problem.platform.gpus)
            )
            weights[tensor] = sum(layer.weight_bytes for layer in layers)
            shared[tensor] = sum(layer.shareable_bytes for layer in layers)
        for grid in grids_of(problem, units):
            held = weights[grid.tensor] - (shared[grid.tensor] if grid.shard != "none" else 0)
            if held <= grid.ranks * room:
                count = (problem.scope.microbatches or 1) // grid.replicas
                yield count * work[grid.tensor] // grid.ranks, grid

    def _shape(self, grid: Grid, low: int) -> EngineShape:
        """Return a shape, whose order is known where another one has the same."""
        key = grid.ranks, grid.chunks, grid.replicas
        cuts = EngineCuts(self.problem, grid, self.orders.get(key))
        self.orders[key] = cuts.order
        return EngineShape(cuts, low)

    def _refute(self, shapes: list[EngineShape]) -> None:
        """Part the cuts of the shape whose bound is least, or compare them, again and again.

        Until there is just time to lay out the step that waits for that.
        """
        reported, turns, run, answers = 0, False, self.run, self.answers
        stuck: list[EngineShape] = []
        while not run.stopped() and not run.settled() and not answers.is_time():
            for shape in shapes:
                shape.is_open &= not answers.is_late(shape.low)
            left = [shape for shape in shapes if shape.is_open and shape not in stuck]
            left = [shape for shape in left if not answers.is_hopeless(shape.low)]
            if not left:
                return
            shape = min(left, key=lambda shape: shape.low)
            best = min(left, key=lambda shape: shape.known_ns)
            # By turns the one that limits the bound, and the one with the best step, while that
            # may be far from its own bound.
            turns = not turns
            if turns and NEAR * best.low < best.known_ns:
                shape = best
            if shape.grows_below(answers.hoped):
                self._grow(shape, run)
            elif self._compare_all(shape):
                shape.is_open = False
                continue
            else:
                stuck.append(shape)
            least = self._least(shapes)
            if least is not None and least > reported + reported // RISE:
                reported = least
                self._report_bound(least, ProofKind.ENGINE_PATHS)

    def _grow(self, shape: EngineShape, run: Run, turn_s: float = TURN_S) -> None:
        """Part the cuts of a shape by how many layers ranks and stages have, for a while."""
        end = perf_counter() + turn_s
        answers = self.answers
        while (
            shape.is_open
            and not answers.is_hopeless(shape.low)
            and shape.grows_below(answers.hoped)
        ):
            for begins in shape.grow(answers.hoped, run.stopped):
                answers.offer(shape.cuts, begins)
            if perf_counter() >= end or run.stopped():
                return

    def _least(self, shapes: list[EngineShape]) -> int | None:
        """Return what no step is shorter than, ns, as far as it is known; None if there is none."""
        lengths = [shape.low for shape in shapes if shape.is_open] + self.answers.left_ns
        if self.answers.open is not None:
            lengths.append(self.answers.open)
        if (best := self.run.best()) is not None:
            lengths.append(best.pattern.period_total_ns)
        if (cutoff := self.run.cutoff()) is not None:
            lengths.append(cutoff)
        return min(lengths, default=None)

    @property
    def _speaks_of_all(self) -> bool:
        """Whether no other GPUs, or order of them, are possible: a training step takes all."""
        return self.problem.platform.uniform or self.problem.is_training_step

    def _report_bound(self, least: int, kind: ProofKind) -> None:
        scope = self.problem.scope
        if self._speaks_of_all:
            proof = Proof(kind, engine=scope.engine)
            self.run.report_bound(Fraction(least, self.count), scope, proof)

    def _conclude(self, shapes: list[EngineShape]) -> None:
        """Report what is known in the end."""
        best = self.run.best()
        if not self._speaks_of_all:
            self.run.leave_out("only the first GPUs were looked at, in the given order")
            return
        if any(shape.is_open for shape in shapes) or not all(
            map(self.answers.is_late, self.answers.left_ns)
        ):
            lengths = [self._least(shapes), self.answers.limit]
            if known := [length for length in lengths if length is not None]:
                self._report_bound(min(known), ProofKind.ENGINE_PATHS)
            self.run.leave_out("not every cut was looked at")
            return
        least = self._least(shapes)
        if least is not None and self.run.cutoff() is not None:
            self._report_bound(least, ProofKind.ENGINE_PATHS)
        elif best is not None and least is not None:
            self._report_bound(least, ProofKind.ENGINE_CUTS)
        elif self.answers.open is not None:
            self.run.leave_out("another order of transfers might be as short as asked")
        else:
            self.impossible = self._say_impossible()

    def _say_impossible(self) -> Infeasibility:
        """Return that no step exists, and why."""
        problem, scope = self.problem, self.problem.scope
        assert scope.engine is not None
        units = len(stage_begins(problem.chain, scope.engine))
        if next(grids_of(problem, units), None) is None:
            ways = (Suggestion.ANOTHER_ORDER, Suggestion.OTHER_MICROBATCHES, Suggestion.OTHER_GPUS)
            return Infeasibility(scope=scope, proof=_no_grid(problem), wider=ways)
        none_fits, short = ProofKind.NO_ENGINE_CUT, ProofKind.NO_SHORT_ENGINE_CUT
        proof = Proof(none_fits if scope.period_ns is None else short, engine=scope.engine)
        return Infeasibility(scope=scope, proof=proof, wider=suggest(problem))

    def _descend(self, shape: EngineShape, here: FirstLayers) -> None:
        """Go from a cut to better neighbours, as long as there are any."""
        self.answers.offer(shape.cuts, shape.descend(here, self.run.stopped))

    def _compare_all(self, shape: EngineShape) -> bool:
        """Lay out all cuts that may be better if they are few; return whether none is left."""
        cuts, answers = shape.cuts, self.answers
        if cuts.count_cuts() > MOST_CUTS or answers.is_long(cuts.grid):
            return False
        for begins in sorted(cuts.promising(answers.limit, self.run.stopped), key=cuts.bound):
            answers.offer(cuts, begins)
        return not self.run.stopped()
