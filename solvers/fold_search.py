"""Steps of the equal parts of a job, each searched as a step of its own.

The search for steps of pipelines takes a part of a fold, as `schedopt.solvers.placed_folds` says
what that is, in what time is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Final

from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solvers.placed_folds import is_folded, list_folds, part_of, unfold
from schedopt.solvers.step import search as search_step
from schedopt.solving.replicas.layout import ITEM_S, count_in_parts
from schedopt.solving.run import Run
from schedopt.systems.list_scheduler import TooManyTasks

MOST_LEFT: Final = 0.75
"""Of the time of a search, that it may leave where it is worth to be repeated."""
STEPS_OF_PART: Final = 4
"""That are laid out at least when a part of a fold is searched."""


def propose_again(problem: Problem, run: Run) -> Iterator[Plan]:
    """Yield steps of folds, and look again from other random numbers on while time is left.

    But not where looking took little of it: then there was nothing more to look at.
    """
    while not (run.stopped() or run.settled()):
        had = run.remaining()
        yield from propose(problem, run)
        left = run.remaining()
        if had is None or left is None or left > MOST_LEFT * had:
            return
        run = run.fork(run.workers, 1.0)
        run.seed += 1


def propose(problem: Problem, run: Run, *, longest: float | None = None) -> Iterator[Plan]:
    """Yield the step of each fold of the job: each runs the same on its part of the GPUs.

    All of them take at most `longest` seconds, where that is given. Those are left out that have
    not the time for a few steps of their part, and for the whole one in the end.

    A fold adds its gradients up with the others; for what happens before that it is a step of one
    GPU a stage, with fewer GPUs and micro-batches and a share of what is sharded.
    """
    folds = list_folds(problem)
    for number, fold in enumerate(folds):
        if run.stopped() or run.settled():
            return
        left, share = run.remaining(), 1 / (len(folds) - number)
        if left is not None and share * left < needed_s(problem, fold):
            continue
        inner = part_of(problem, fold, run.period())
        each = None if longest is None else longest / len(folds)
        part = run.subrun(inner, share, each)
        part.clock.shorten(_whole_s(problem, fold))
        part.begin("step")
        # The layers of folds have moved already.
        search_step(inner, part, moves=False)
        best = part.best()
        if best is not None:
            operations = sorted(best.pattern.operations, key=attrgetter("start_ns"))
            turns = ((one.kind, one.stage, one.shift) for one in operations)
            with suppress(TooManyTasks):
                yield unfold(problem, best.stages, turns, fold)


def needed_s(problem: Problem, fold: int) -> float:
    """Return what the search of a fold takes at least to be of use, about, seconds."""
    return _whole_s(problem, fold) * (1 + STEPS_OF_PART / fold)


def _whole_s(problem: Problem, fold: int) -> float:
    """Return how long it takes to lay the step of all parts out and check it, about, seconds."""
    gpus, count = len(problem.platform.gpus), problem.scope.microbatches or 1
    stages = min(gpus // fold, len(problem.chain.layers))
    folded = is_folded(problem, stages)
    return ITEM_S * count_in_parts(stages, count, fold, folded=folded)
