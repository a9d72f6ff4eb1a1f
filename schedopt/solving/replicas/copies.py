"""How long the gradients of copies of tied weights are on their way from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from schedopt.problem import Problem
from schedopt.solving.replicas.arrays import Array, Machine, StageOption, StepData
from schedopt.stage import Stage
from schedopt.tied_weights import exchanging_stages, shared_gradient_bytes

NO_COPIES: Final[Array] = np.zeros((0, 3), dtype=np.int64)


def copy_trips(step: StepData, stages: Sequence[StageOption]) -> Array:
    """Return rows of source stage, target stage and time, ns, of the stages that have copies.

    The replicas of a node that send to other nodes share the link there.
    """
    if not step.problem.chain.copied:
        return NO_COPIES
    machine, rows = step.machine, []
    place = machine.gpus - sum(map(step.gpus_of, stages))
    nodes, runs = [], []
    for stage in stages:
        last = place + step.gpus_of(stage) - 1
        nodes.append((place // machine.node, last // machine.node))
        runs.append(range(stage.first, stage.end))
        place = last + 1
    planned = [Stage(layers=(run.start, run.stop - 1), gpus=(0,)) for run in runs]
    for source, target in exchanging_stages(step.problem.chain, planned):
        ends = source, target
        degrees = [step.tensor_of(stages[end]) for end in ends]
        chains = [step.problem.in_group(degree) for degree in degrees]
        most = max(
            degree * shared_gradient_bytes(chain, runs[source], runs[target])
            for degree, chain in zip(degrees, chains, strict=True)
        )
        near = nodes[source] == nodes[target] and len(set(nodes[source])) == 1
        each = -(-most // min(degrees))
        if near:
            time = trip_ns(each, machine.inside)
        else:
            card = machine.card or machine.node
            together = min(stages[source].replicas, max(1, card // degrees[0]))
            time = together * trip_ns(min(*degrees, card) * each, machine.between)
        rows.append((source, target, time))
    return np.array(rows, dtype=np.int64) if rows else NO_COPIES


def least_copy_trips(problem: Problem, machine: Machine, degrees: Sequence[int]) -> Array:
    """Return rows of two layers that have copies of each other, and the least time between them."""
    rows = []
    for group in problem.chain.copied:
        for one, other in combinations(group, 2):
            each = min(
                shared_gradient_bytes(
                    problem.in_group(degree), range(one, one + 1), range(other, other + 1)
                )
                for degree in degrees
            )
            links = (machine.inside, machine.between)
            if each:
                rows.append((one, other, min(trip_ns(each, link) for link in links)))
    return np.array(rows, dtype=np.int64) if rows else NO_COPIES


def trip_ns(count: int, link: tuple[int, int, int]) -> int:
    """Return how long bytes take over a link of a `Machine`, ns; free links take no time."""
    latency, bandwidth, _ = link
    return latency - (-count * 10**9 // bandwidth) if bandwidth else 0
