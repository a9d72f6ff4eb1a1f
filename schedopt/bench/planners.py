"""The stages and replicas that others choose for a training step, and how long their steps take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final, NamedTuple

from schedopt.bench.suite import Effort
from schedopt.bounds.recomputation import held_bytes
from schedopt.cuts import NoPartition, stages_in_order
from schedopt.problem import Problem
from schedopt.solvers.step_proposals import propose_stages
from schedopt.solvers.uniform_grids import propose
from schedopt.solving.registry import load_partitioner
from schedopt.solving.replicas.arrays import LAYERED, NEVER, StepData
from schedopt.solving.replicas.candidates import filled_by_1f1b
from schedopt.solving.replicas.costs import describe_stages
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.step_bound import fits
from schedopt.solving.replicas.timing import EAGER, STRICT, Simulation
from schedopt.solving.run import Run
from schedopt.stage import Stage

DEEPER: Final = (0, 1, 2)
"""Micro-batches in flight over those of 1F1B, where memory holds them."""


class Score(NamedTuple):
    """The step of some stages, ns, or None where they do not fit.

    `rigid_ns` is that of 1F1B, in which each replica has as many micro-batches in flight as that
    prescribes before its first backward. `best_ns` is the best of that, of one that runs a backward
    as soon as it can, and of both with up to two more in flight where these fit.
    """

    rigid_ns: int | None
    best_ns: int | None


def propose_grids(problem: Problem) -> Iterator[list[Stage]]:
    """Yield uniform grids, and where recompute is allowed each with all stages recomputed too."""
    for stages in propose(problem):
        yield stages
        if problem.scope.recompute:
            yield [replace(stage, recompute=(stage.layers,)) for stage in stages]


def propose_replicas(problem: Problem) -> Iterator[list[Stage]]:
    """Yield data parallelism: all layers on each GPU."""
    gpus = len(problem.platform.gpus)
    if gpus in problem.replica_counts:
        yield stages_in_order([(0, len(problem.chain.layers) - 1)], [gpus])


def propose_partition(name: str, problem: Problem) -> Iterator[list[Stage]]:
    """Yield what a partitioner chooses, if it finds anything."""
    try:
        yield load_partitioner(name)(problem)
    except NoPartition:
        return


Propose = Callable[[Problem], Iterable[list[Stage]]]
PLANNERS: Final[Mapping[str, Propose]] = {
    "data_parallel": propose_replicas,
    "grid": propose_grids,
    "piper": partial(propose_partition, "piper"),
    "pipedream": partial(propose_partition, "pipedream"),
    "alpa": partial(propose_partition, "alpa"),
}
"""What each chooses for a problem; of several choices the best counts."""


def score_all(step: StepData, choices: Iterable[Sequence[Stage]]) -> Score:
    """Return the least steps of some choices."""
    scores = [score(step, stages) for stages in choices]
    return Score(
        _least(one.rigid_ns for one in scores),
        _least(one.best_ns for one in scores),
    )


def score(step: StepData, stages: Sequence[Stage]) -> Score:
    """Simulate the step of stages, with the optimizer state shared if that is allowed, and not."""
    levels = sorted({0, *(one.shard for one in step.options if one.shard < LAYERED)})
    scores = [_score_at(step, stages, level) for level in levels]
    return Score(
        _least(one.rigid_ns for one in scores),
        _least(one.best_ns for one in scores),
    )


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _score_at(step: StepData, stages: Sequence[Stage], level: int) -> Score:
    """Simulate the step of stages whose replicas share what a level says."""
    replicas = [len(stage.gpus) for stage in stages]
    rows = [
        (stage.first, stage.last + 1, count, level if count > 1 else 0, 0)
        for stage, count in zip(stages, replicas, strict=True)
    ]
    cost = describe_stages(step, rows)
    room = [
        _most_kept(step, stage, int(spare)) for stage, spare in zip(stages, cost[4], strict=True)
    ]
    most = [min(step.count // count, fit) for count, fit in zip(replicas, room, strict=True)]
    depth = [
        min(step.count // count, kept)
        for count, kept in zip(replicas, filled_by_1f1b(replicas), strict=True)
    ]
    if any(needed > fit for needed, fit in zip(depth, most, strict=True)):
        return Score(None, None)
    again = [_recompute_ns(step, stage) for stage in stages]
    simulation = Simulation(len(stages), sum(replicas), step.count)

    def simulate(more: int, order: int) -> int | None:
        simulation.load(
            replicas=replicas,
            forward=cost[0],
            backward=cost[1],
            again=again,
            depth=[min(needed + more, fit) for needed, fit in zip(depth, most, strict=True)],
            sync=cost[3],
            begin=cost[8],
            trip=cost[2],
            links=cost[6],
            full=cost[7],
        )
        makespan = simulation.run(order)
        return None if makespan >= NEVER else makespan

    every = {way: simulate(*way) for way in product(DEEPER, (STRICT, EAGER))}
    return Score(every[0, STRICT], _least(every.values()))


def _most_kept(step: StepData, stage: Stage, spare: int) -> int:
    """Return how many micro-batches of a stage fit at once into what is left for activations."""
    held = held_bytes(step.problem.chain, stage.layer_range, stage.recompute)
    spare -= held["R", "B"]
    if spare < 0:
        return 0
    return spare // held["F", "B"] if held["F", "B"] else step.count


def _recompute_ns(step: StepData, stage: Stage) -> int:
    gpu, layers = step.problem.platform.gpus[0], step.problem.chain.layers
    return sum(gpu.duration_ns(layers[layer].forward_ns) for layer in stage.recomputed_layers)


def search_uniform(step: StepData, replicas: Sequence[int], effort: Effort) -> int | None:
    """Return the least step of stages that all have the same replicas, ns; None if none fit.

    The search of ours, one number of replicas after the other, each with its part of the time. It
    starts from what others choose, too, as far as replicas are equal.
    """
    found: list[int] = []
    proposals = [*propose_stages(step.problem, Run(step.problem))]
    for count in replicas:
        options = tuple(option for option in step.options if option.replicas == count)
        run = Run(step.problem, time_limit=effort.time_limit / len(replicas), seed=effort.seed)
        one = replace(step, replicas=(count,), options=options)
        if fits(one):
            alike = [row for row in proposals if {len(stage.gpus) for stage in row[0]} == {count}]
            search = StepSearch(one, run, proposals=alike)
            found += [best.makespan_ns for best in search.improve()]
    return min(found, default=None)
