"""Steps of the equal parts of a job, found by moving layers from GPU to GPU.

A fold of g parts runs the same step g times, each on its part of the GPUs and micro-batches, and
adds the gradients of all of them up. In a part a stage has one GPU. GPUs in the same place of all
parts lie in a row, so that they may share sequences or experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Final

from schedopt.chain import Layer
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem
from schedopt.rule import Rule
from schedopt.solving.replicas.arrays import NEVER
from schedopt.solving.replicas.layout import (
    MOST_WHOLE,
    LayoutTime,
    count_in_parts,
    count_items,
    lay_out_turns,
)
from schedopt.solving.run import Run
from schedopt.stage import Shard, Stage
from schedopt.systems.flush_step import Turn
from schedopt.systems.list_scheduler import TooManyTasks
from schedopt.systems.steps import without_updates

if TYPE_CHECKING:
    from schedopt.solving.flush_search.search import FlushSearch
    from schedopt.solving.flush_search.state import Choice

FIRST_WORK: Final = 20_000_000
"""Moves from each start, times GPUs and operations of a part: about what they take."""
WORK: Final = 100_000_000
"""The same from the best one on."""
MOST_MOVES: Final = 20_000
"""Of one annealing."""
MOVE_S: Final = 3e-8
"""What a move takes for each GPU and operation of a part, about, at most, seconds."""
MOST_AT_ONCE: Final = 0.2
"""Of the time that is left, for one annealing."""
MOST_OPERATIONS: Final = 20_000
"""Of a step whose layers are moved."""
NEAR: Final = 1.05
"""Over the best fold, up to which another one is searched on."""
FAR: Final = 1.15
"""Over the best step, from which on no more starts of a fold are tried."""
MOST_IDLE: Final = 12
"""Annealings in a row that may find nothing shorter."""
REST: Final = 4
"""How much longer than it takes to lay a step out the search goes on before the next one is."""


class PlacedFolds:
    """Steps of folds, found by moving layers from GPU to GPU.

    Parameters
    ----------
    problem : Problem
    run : Run
        For its seed, and the moves that it may make at most (`work_limit`).
    layout : LayoutTime, optional
        What others measured, too.
    """

    def __init__(self, problem: Problem, run: Run, layout: LayoutTime | None = None) -> None:
        self.problem, self._layout = problem, layout or LayoutTime()
        self._searches: dict[int, FlushSearch] = {}
        self._starts = self._list_starts(run.seed)
        self._moves_left = run.work_limit
        self._told_ns: int | None = None

    def look(self, run: Run, share: float) -> None:
        """Look at some placements to start from, in a share of the time that the run has left."""
        part = run.fork(run.workers, share)
        while not (part.stopped() or run.settled() or self._moves_left == 0):
            fold, start = next(self._starts, (0, None))
            if start is None:
                return
            self._begin(fold, start, run, part)

    def propose(self, run: Run, share: float = 1.0) -> Iterator[Plan]:
        """Yield steps as they are found, in a share of the time that the run has left.

        The best is laid out in the end, and others where that takes little of the time; none where
        the run has not the time for it.
        """
        part, idle, turn, ended = run.fork(run.workers, share), 0, 0, run.clock.seconds()
        self._starts = chain(self._starts, self._start_from(run.best()))
        needed = self._needed_s()
        while not (part.stopped() or run.settled() or self._moves_left == 0):
            left = run.remaining()
            if needed and left is not None and left < needed:
                break
            fold, start = next(self._starts, (0, None))
            before = self.least_ns()
            if start is not None:
                self._begin(fold, start, run, part)
            elif idle < MOST_IDLE and (near := self._near()):
                idle, turn = idle + 1, turn + 1
                fold = near[turn % len(near)]
                self._searches[fold].improve(self._moves(fold, WORK, part))
            else:
                break
            if self.least_ns() != before:
                idle, needed = 0, self._needed_s()
            if start is None and run.clock.seconds() - ended > REST * needed:
                yield from self.lay_out(run)
                ended = run.clock.seconds()
        yield from self.lay_out(run)

    def _begin(self, fold: int, start: Choice, run: Run, part: Run) -> None:
        """Move layers from a placement on, if a step of this fold may be the best of the run."""
        if self._may_be_best(fold, run):
            self._searches[fold].begin(start, self._moves(fold, FIRST_WORK, part))

    def _needed_s(self) -> float:
        """Return how long it takes to lay the best step out and check it, about, seconds."""
        near = self._near()
        return self._layout.needed_s(self._count_items(near[0])) if near else 0.0

    def _count_items(self, fold: int) -> int:
        """Return how many items the best step of a fold has, as `LayoutTime` counts them."""
        stages, count = len(self._searches[fold].found()[0]), self.problem.scope.microbatches or 1
        return count_in_parts(stages, count, fold, folded=is_folded(self.problem, stages))

    def _list_starts(self, seed: int) -> Iterator[tuple[int, Choice]]:
        """Yield placements to start from, of one fold after the other in turn."""
        from schedopt.solving.flush_search.search import FlushSearch

        starts: list[Iterator[tuple[int, Choice]]] = []
        for fold in reversed(list_folds(self.problem)):
            if self._operations(fold) <= MOST_OPERATIONS and self.problem.scope.memory == "peak":
                inner = part_of(self.problem, fold, None)
                search = FlushSearch(inner, _sync_ns(self.problem, fold), seed)
                self._searches[fold] = search
                starts.append(zip(repeat(fold), search.starts(), strict=False))
        for found in zip_longest(*starts):
            yield from (one for one in found if one is not None)

    def _start_from(self, best: Plan | None) -> Iterator[tuple[int, Choice]]:
        """Yield what the best step chooses, if each of its stages has one GPU in each part."""
        groups = {stage.gpus for stage in best.stages} if best is not None else set()
        sizes, gpus = {len(group) for group in groups}, [gpu for group in groups for gpu in group]
        if best is None or len(sizes) != 1 or len(set(gpus)) < len(gpus):
            return
        fold = sizes.pop()
        if fold in self._searches and not any(stage.tensor > 1 for stage in best.stages):
            start = self._searches[fold].start_of(best.stages)
            if start is not None:
                yield fold, start

    def _operations(self, fold: int) -> int:
        """Return about how many forwards and backwards a part has."""
        gpus, count = len(self.problem.platform.gpus), self.problem.scope.microbatches or 1
        return 2 * min(len(self.problem.chain.layers), 4 * gpus // fold) * (count // fold)

    def _moves(self, fold: int, work: int, run: Run) -> int:
        """Return how many moves an annealing makes, and count them."""
        each = len(self.problem.platform.gpus) // fold * self._operations(fold)
        moves, left = min(MOST_MOVES, work // each), run.remaining()
        if left is not None:
            moves = min(moves, int(MOST_AT_ONCE * left / (MOVE_S * each)))
        moves = max(1, moves)
        if self._moves_left is not None:
            moves = min(moves, self._moves_left)
            self._moves_left -= moves
        return moves

    def least_ns(self) -> int:
        """Return the shortest step so far, laid out or not, ns; `NEVER` or more: there is none."""
        return min((one.makespan_ns for one in self._searches.values()), default=NEVER)

    def _may_be_best(self, fold: int, run: Run) -> bool:
        """Whether the work of a fold, what follows it, and what was found leave room for the best.

        What is far behind after a start stays behind.
        """
        search, best, least = self._searches[fold], run.period(), Fraction(self.least_ns())
        if best is not None:
            least = min(least, best * (self.problem.scope.microbatches or 1))
        behind = search.is_found() and search.makespan_ns > FAR * least
        return search.least_load_ns() < least and not behind

    def _near(self) -> list[int]:
        """Return the folds whose best step may become the best of all, the first one that is."""
        known = {fold: one.makespan_ns for fold, one in self._searches.items() if one.is_found()}
        limit = NEAR * min(known.values(), default=0)
        return sorted((fold for fold in known if known[fold] <= limit), key=known.__getitem__)

    def lay_out(self, run: Run) -> Iterator[Plan]:
        """Yield the best step, if it is shorter than that of the run and was not yet."""
        near, best, count = self._near(), run.period(), self.problem.scope.microbatches or 1
        if not near or self.least_ns() == self._told_ns:
            return
        left = run.remaining()
        if left is not None and left < self._needed_s():
            return
        fold, self._told_ns = near[0], self.least_ns()
        if best is not None and self._told_ns >= best * count:
            return
        stages, turns = self._searches[fold].found()
        with suppress(TooManyTasks), self._layout.measure(self._count_items(fold)):
            if self.problem.scope.split_backward:
                yield unfold(self.problem, stages, _in_halves(turns), fold)
            yield unfold(self.problem, stages, turns, fold)


def _in_halves(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns with the halves of each backward one right behind the other."""
    for kind, stage, i in turns:
        halves: tuple[Kind, ...] = ("I", "W") if kind == "B" else (kind,)
        for half in halves:
            yield half, stage, i


def _sync_ns(problem: Problem, fold: int) -> list[int]:
    """Return about how long gradients, update and weights of each layer take in a fold, ns."""
    link = problem.platform.link_between(0, 1) if fold > 1 else None
    sharded = problem.scope.shard != "none"
    found = []
    for layer in problem.chain.layers:
        update, gradient = layer.update_ns or 0, layer.gradient_bytes or 0
        back = (layer.parameter_bytes or 0) if sharded else gradient
        chunks = [-(-count // fold) for count in (gradient, back) if count]
        sent = 0 if link is None else sum(map(link.transfer_ns, chunks))
        found.append((fold - 1) * sent + (-(-update // fold) if sharded else update))
    return found


def list_folds(problem: Problem) -> list[int]:
    """Return the numbers of parts that a job can have, with more than one GPU each."""
    gpus = len(problem.platform.gpus)
    # A part of other GPUs, or of a network, would differ from the next one.
    most = gpus - 1 if problem.platform.uniform else 1
    return [fold for fold in problem.replica_counts if fold <= most and gpus % fold == 0]


def part_of(problem: Problem, fold: int, best: Fraction | None) -> Problem:
    """Return the step of one of several equal parts of the job, without updates.

    It is asked to be no longer than the best of the whole, whose normalized period is given, ns.
    """
    scope = problem.scope
    count = (scope.microbatches or 1) // fold
    asked = None if best is None else max(1, int(best * fold))
    sharded = scope.shard != "none"
    layers = tuple(_kept(layer, fold, sharded=sharded) for layer in problem.chain.layers)
    return replace(
        problem,
        chain=replace(problem.chain, layers=layers, copied=(), context=1, expert=1),
        platform=problem.platform.with_gpus(
            problem.platform.gpus[: len(problem.platform.gpus) // fold]
        ),
        rule=Rule(),
        scope=replace(
            scope,
            microbatches=count,
            replicas=1,
            shard="none",
            tensor=1,
            uneven=False,
            period_ns=asked,
        ),
        variants=(),
    )


def _kept(layer: Layer, fold: int, *, sharded: bool) -> Layer:
    """Return a layer with what a replica keeps of its weights at most."""
    whole = layer.optimizer_bytes or 0
    home = -(-whole // fold) if sharded else whole
    return replace(without_updates(layer), weight_bytes=layer.weight_bytes - whole + home)


def unfold(problem: Problem, part: Iterable[Stage], turns: Iterable[Turn], fold: int) -> Plan:
    """Return the step of all parts from that of one: micro-batch i goes to part i mod `fold`.

    A long one is laid out as a fold.
    """
    shard: Shard = "none" if fold == 1 or problem.scope.shard == "none" else "optimizer"
    stages = [
        replace(
            stage,
            gpus=tuple(gpu * fold + copy for gpu in stage.gpus for copy in range(fold)),
            shard=shard,
        )
        for stage in part
    ]
    own = [*turns]
    if is_folded(problem, len(stages)):
        return lay_out_turns(problem, stages, own, fold=fold)
    every = ((kind, stage, i * fold + copy) for kind, stage, i in own for copy in range(fold))
    return lay_out_turns(problem, stages, every)


def is_folded(problem: Problem, stages: int) -> bool:
    """Whether a step of equal parts with so many stages is laid out as a fold."""
    items = count_items(stages, problem.scope.microbatches or 1)
    return problem.chain.together == 1 and items > MOST_WHOLE
