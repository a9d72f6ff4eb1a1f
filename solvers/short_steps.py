"""Short training steps, laid out with all levels of shards, in all ways in which gradients go.

The search takes the largest share of what is cut into chunks, and stages that share gradients or
parameters to send as much as they may at most, and to wait for that where memory may need it. A
short step is laid out instead: gradients go home behind each backward, right behind it or while the
next operation runs, or all at once behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, product
from operator import attrgetter
from typing import Final

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.solving.replicas.layout import lay_out_turns
from schedopt.solving.run import Run
from schedopt.stage import SHARDS, Shard, Stage
from schedopt.systems.flush_step import Turn
from schedopt.systems.list_scheduler import TooManyTasks

MOST_OPERATIONS: Final = 100
"""Of steps that are laid out in all ways."""
WAYS: Final = (None, 1, 0)
"""How gradients go home where they are shared: see `flush_step`; None: behind the last backward."""

LAYERED: Final = SHARDS[2:]
"""What stages share that run layer by layer."""

Part = tuple[range, tuple[int, ...]]
"""Layers that run as one, and their GPUs."""


def propose(problem: Problem, run: Run) -> Iterator[Plan]:
    """Yield steps of the stages of the best one, and of all layers on the same GPUs.

    Some may not fit; none where steps are long.
    """
    scope, layers = problem.scope, len(problem.chain.layers)
    if 2 * layers * (scope.microbatches or 1) > MOST_OPERATIONS or scope.split_backward:
        return
    # Copies of tied weights share the optimizer state at most.
    most = min(SHARDS.index(scope.shard), 1 if problem.chain.copied else len(SHARDS))
    kinds = (False, True) if scope.recompute else (False,)
    for (parts, order), level in product(_bases(problem, run), SHARDS[: most + 1]):
        for way, again in product(WAYS if level in LAYERED else WAYS[:1], kinds):
            if run.stopped() or run.settled():
                return
            with suppress(InputError, TooManyTasks):
                yield _lay_out(problem, parts, order, level, way, again=again)


def _bases(problem: Problem, run: Run) -> Iterator[tuple[Sequence[Part], Sequence[Turn]]]:
    """Yield parts of the chain on GPUs of their own, and in which order each runs."""
    count, whole = problem.scope.microbatches or 1, range(len(problem.chain.layers))
    for replicas in reversed(problem.replica_counts):
        if replicas > 1:
            turns: list[Turn] = [
                (kind, 0, i + n)
                for i in range(0, count, replicas)
                for kind in ("F", "B")
                for n in range(replicas)
            ]
            yield [(whole, tuple(range(replicas)))], turns
    best = run.best()
    if best is None or best.pattern.fold > 1 or any(one.tensor > 1 for one in best.stages):
        return
    runs = [[*found] for _, found in groupby(enumerate(best.stages), lambda one: one[1].gpus)]
    if len(runs) > 1 and len({stage.gpus for stage in best.stages}) == len(runs):
        place = {found[0][0]: number for number, found in enumerate(runs)}
        ends = {found[-1][0]: number for number, found in enumerate(runs)}
        operations = sorted(best.pattern.operations, key=attrgetter("start_ns"))
        order = [
            (one.kind, number, one.shift)
            for one in operations
            for number in [(place if one.kind == "F" else ends).get(one.stage)]
            if one.kind in ("F", "B") and number is not None
        ]
        parts = [
            (range(found[0][1].first, found[-1][1].last + 1), found[0][1].gpus) for found in runs
        ]
        yield parts, order


def _lay_out(
    problem: Problem,
    parts: Sequence[Part],
    order: Sequence[Turn],
    level: Shard,
    way: int | None,
    *,
    again: bool,
) -> Plan:
    """Return the step of some parts, whose layers are stages of their own where they share."""
    stages: list[Stage] = []
    numbers: list[list[int]] = []
    for layers, gpus in parts:
        shared = len(gpus) > 1
        apart = shared and level in LAYERED
        runs = [(n, n) for n in layers] if apart else [(layers[0], layers[-1])]
        numbers.append([*range(len(stages), len(stages) + len(runs))])
        for first, last in runs:
            # The last one has nothing to wait for.
            recomputed = ((first, last),) if again and last + 1 < len(problem.chain.layers) else ()
            state = any(layer.has_state for layer in problem.chain.layers[first : last + 1])
            shard = level if shared and state else SHARDS[0]
            stages.append(Stage(layers=(first, last), gpus=gpus, shard=shard, recompute=recomputed))
    turns = (
        (kind, stage, i)
        for kind, part, i in order
        for stage in (numbers[part] if kind == "F" else reversed(numbers[part]))
    )
    sharing = [n for n, one in enumerate(stages) if one.shard in LAYERED]
    ahead = {} if way is None else dict.fromkeys(sharing, way)
    return lay_out_turns(problem, stages, turns, ahead=ahead)
