"""Steps of the equal parts of a job, found by the search for steps of pipelines.

A fold of g parts runs the same step g times, each on its part of the GPUs and micro-batches, and
adds the gradients of all of them up. In a part a stage has one GPU; its stages may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from operator import attrgetter
from typing import Final

from schedopt.chain import Layer
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.rule import Rule
from schedopt.solvers.step import solve as solve_step
from schedopt.solving.replicas.layout import OPERATION_S, lay_out_turns
from schedopt.solving.run import Run
from schedopt.stage import Shard
from schedopt.systems.list_scheduler import TooManyTasks
from schedopt.systems.steps import without_updates

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

    All of them take at most so many seconds, if `longest` says so. Those are left out that have not
    the time for a few steps of their part, and for the whole one in the end.

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
        inner = _fold(problem, fold, run.period())
        each = None if longest is None else longest / len(folds)
        part = run.subrun(inner, share, each)
        part.begin("step")
        solve_step(inner, part)
        best = part.best()
        if best is not None:
            with suppress(TooManyTasks):
                yield _unfold(problem, best, fold)


def list_folds(problem: Problem) -> list[int]:
    """Return the numbers of parts that a job can have, with more than one GPU each."""
    scope, gpus = problem.scope, problem.platform.gpus
    # A part of other GPUs, or of a network, would differ from the next one.
    alike = problem.platform.uniform
    return [
        fold
        for fold in range(1, len(gpus) if alike else 2)
        if len(gpus) % fold == 0
        and (scope.microbatches or 1) % fold == 0
        and (scope.replicas is None or fold <= scope.replicas)
    ]


def needed_s(problem: Problem, fold: int) -> float:
    """Return what the search of a fold takes at least to be of use, about, seconds."""
    gpus, count = len(problem.platform.gpus), problem.scope.microbatches or 1
    stages = min(gpus // fold, len(problem.chain.layers))
    return OPERATION_S * 2 * stages * count * (1 + STEPS_OF_PART / fold)


def _fold(problem: Problem, fold: int, best: Fraction | None) -> Problem:
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
        chain=replace(problem.chain, layers=layers, copied=()),
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


def _unfold(problem: Problem, part: Plan, fold: int) -> Plan:
    """Return the step of all parts from that of one: micro-batch i goes to part i mod `fold`."""
    width = len(part.platform.gpus)
    shard: Shard = "none" if fold == 1 or problem.scope.shard == "none" else "optimizer"
    stages = [
        replace(
            stage,
            gpus=tuple(gpu + copy * width for gpu in stage.gpus for copy in range(fold)),
            shard=shard,
        )
        for stage in part.stages
    ]
    operations = sorted(part.pattern.operations, key=attrgetter("start_ns"))
    turns = (
        (operation.kind, operation.stage, operation.shift * fold + copy)
        for operation in operations
        for copy in range(fold)
    )
    return lay_out_turns(problem, stages, turns)
