"""The shortest training step on nodes, over every way to lay stages on GPUs in their order.

Nothing is sent behind a step: layers have no gradients. GPUs may stay idle anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product

from ortools.sat.python import cp_model

from schedopt import Chain, Gpu, Link, Network, Node, NodeLink, Platform, Problem
from schedopt.network import Duplex
from tests.solvers.every_training_step import Orders, every_choice, least_ns
from tests.solvers.replicated_stages import ReplicatedStage

Placed = tuple[tuple[int, ...], ...]
"""Of each stage the first GPUs of its replicas."""


def without_gradients(chain: Chain) -> Chain:
    """Return a chain of which nothing is sent behind a step."""
    nothing = dict.fromkeys(("parameter_bytes", "gradient_bytes", "optimizer_bytes"), 0)
    layers = (replace(layer, **nothing) for layer in chain.layers)  # type: ignore[arg-type]
    return replace(chain, layers=tuple(layers))


def on_switch(
    gpu: Gpu, nodes: int, each: int, cards: int, inside: Link | None, between: Link
) -> Platform:
    """Return nodes at a switch, each with cards of such a link in all."""
    named = [Node(name=str(number), gpus=each, link=inside) for number in range(nodes)]
    duplex: Duplex = between.duplex
    links = tuple(
        NodeLink(
            between=(node.name, "switch"),
            cards=cards,
            bandwidth_bytes_per_s=between.bandwidth_bytes_per_s,
            latency_ns=between.latency_ns,
            duplex=duplex,
        )
        for node in named
    )
    network = Network(nodes=(*named, Node(name="switch", gpus=0)), links=links)
    return Platform([gpu] * (nodes * each), network=network)


class OrdersOnNodes(Orders):
    """All orders of one choice, where it lies on GPUs."""

    def __init__(
        self, problem: Problem, stages: Sequence[ReplicatedStage], placed: Placed, at_most: int
    ) -> None:
        self.placed = placed
        super().__init__(problem, stages, at_most)

    def _send(
        self, source: int, target: int, i: int, behind: cp_model.LinearExprT
    ) -> cp_model.LinearExprT:
        one, other = (
            self.placed[number][i % len(self.placed[number])] for number in (source, target)
        )
        front, end = (self.stages[number] for number in sorted((source, target)))
        lanes = min(front.tensor, end.tensor)
        size = -(-front.sent_bytes // lanes)
        length = self.platform.transfer_ns(size, one, other, lanes)
        return self._run(length, behind, *self.platform.route(one, other, lanes))[1]


def every_place(problem: Problem, stages: Sequence[ReplicatedStage]) -> Iterator[Placed]:
    """Yield every way to lay stages on GPUs in their order, each group inside a node."""
    network = problem.platform.network
    assert network is not None
    node_of, gpus = network.node_of, len(network.node_of)
    sizes = [stage.tensor for stage in stages for _ in range(stage.replicas)]
    for firsts in combinations(range(gpus), len(sizes)):
        ends = [first + size for first, size in zip(firsts, sizes, strict=True)]
        if any(end > after for end, after in zip(ends, (*firsts[1:], gpus), strict=True)):
            continue
        if any(node_of[one] != node_of[end - 1] for one, end in zip(firsts, ends, strict=True)):
            continue
        rows, left = [], firsts
        for stage in stages:
            rows.append(left[: stage.replicas])
            left = left[stage.replicas :]
        yield from product(*(permutations(row) for row in rows))


def is_shorter(problem: Problem, makespan: int) -> bool:
    """Whether some step on nodes takes so long at most; orders that are not decided do not."""
    free = replace(problem, platform=Platform(problem.platform.gpus))
    return any(
        OrdersOnNodes(problem, stages, placed, makespan).least() is not None
        for stages in every_choice(problem)
        if least_ns(free, stages) <= makespan
        for placed in every_place(problem, stages)
    )
