"""Steps of equal parts, of which one is laid out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schedopt import Chain, Link, Network, Node, NodeLink, Platform, Stage, check
from schedopt.folding import whole
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn
from schedopt.systems.folded_step import folded_step
from tests.examples import BYTE_A_NS
from tests.layers import layer


def test_a_stage_is_applied_while_another_one_still_runs() -> None:
    # Two parts of one GPU, on which two stages run two micro-batches each: forwards until 4, then
    # backwards of 4 ns, those of stage 1 until 12. Two gradients of 4 bytes are added up half by
    # half in 2 ns, until 14. At 16 the GPU is free for its half of the update, 1 ns, and the last
    # backward is over at 21, when weights of a byte for each half have long gone round, in 1 ns.
    # What is left takes 2 + 1 + 1 ns.
    sizes: dict[str, Any] = {"parameter_bytes": 2, "gradient_bytes": 4, "optimizer_bytes": 2}
    one = replace(layer(1, 4, weight=8), update_ns=2, **sizes)
    stages = [Stage(layers=(n, n), gpus=(0, 1), shard="optimizer") for n in range(2)]
    config = SystemConfig(
        chain=Chain(layers=(one, one)),
        platform=Platform(2, 100, bandwidth=BYTE_A_NS, duplex="full"),
        microbatches=4,
    )
    turns: list[Turn] = [("F", n, i) for n in (0, 1) for i in (0, 1)]
    turns += [("B", n, i) for n in (1, 0) for i in (0, 1)]
    plan = folded_step(config, stages, 2, turns)
    assert check(plan) == ()
    assert plan.pattern.period_total_ns == 25
    found = {(item.stage, item.mode): item.start_ns for item in plan.pattern.collectives}
    assert found == {(1, "reduce"): 12, (1, "copy"): 17, (0, "reduce"): 21, (0, "copy"): 24}


def test_groups_of_replicas_add_up_by_themselves_before_all_do() -> None:
    # Three groups of two GPUs, each a part. Backwards end at 5. Of 12 bytes a GPU sends three
    # chunks of 2 to the other of its group, one after the other, until 11; then two to other
    # groups, until 15, and two back, until 19. Half of the update takes 4 ns, until 23, and weights
    # of a byte a chunk go to the other GPU until 26.
    sizes: dict[str, Any] = {"parameter_bytes": 6, "gradient_bytes": 12, "optimizer_bytes": 6}
    one = replace(layer(1, 4, weight=24), update_ns=8, **sizes)
    gpus = (0, 2, 4, 1, 3, 5)
    stages = [Stage(layers=(0, 0), gpus=gpus, shard="optimizer", shard_copies=3)]
    config = SystemConfig(
        chain=Chain(layers=(one,)),
        platform=Platform(6, 100, bandwidth=BYTE_A_NS, duplex="full"),
        microbatches=6,
    )
    plan = folded_step(config, stages, 3, [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)])
    assert check(plan) == () == check(whole(plan))
    found = [(item.mode, item.across, item.start_ns) for item in plan.pattern.collectives]
    assert found == [
        ("reduce", False, 5),
        ("reduce", True, 11),
        ("copy", True, 15),
        ("copy", False, 23),
    ]
    assert plan.pattern.period_total_ns == 26


def test_a_ring_pauses_between_two_rounds_for_what_goes_from_stage_to_stage() -> None:
    # Three parts of two nodes with a GPU each: stage 0 on one, stages 1 and 2 on the other. Stage 2
    # ends its backward at 9, and thirds of 9 bytes go round from then on, 3 ns each. At 10 a
    # gradient of 2 bytes for stage 0 is there, which has the card from 12 to 14. Stage 1 adds up
    # behind that, 1 ns a round, from 17 on, before sums are copied: 6 ns, then 2 ns.
    made = [layer(1, 4, sent=2), layer(1, 1), layer(1, 4)]
    sizes: list[dict[str, Any]] = [
        {"parameter_bytes": 1, "gradient_bytes": size, "optimizer_bytes": 0} for size in (3, 3, 9)
    ]
    chain = tuple(
        replace(one, weight_bytes=10, **own) for one, own in zip(made, sizes, strict=True)
    )
    link = Link(bandwidth_bytes_per_s=BYTE_A_NS, duplex="full")
    nodes = [Node(name=str(number), gpus=1, link=link) for number in range(6)]
    links = [
        NodeLink(between=(node.name, "switch"), bandwidth_bytes_per_s=BYTE_A_NS, duplex="full")
        for node in nodes
    ]
    network = Network(nodes=(*nodes, Node(name="switch", gpus=0)), links=tuple(links))
    config = SystemConfig(
        chain=Chain(layers=chain), platform=Platform(6, 100, network=network), microbatches=3
    )
    stages = [Stage(layers=(n, n), gpus=(0, 1, 2) if n == 0 else (3, 4, 5)) for n in range(3)]
    turns: list[Turn] = [("F", n, 0) for n in (0, 1, 2)] + [("B", n, 0) for n in (2, 1, 0)]
    plan = folded_step(config, stages, 3, turns)
    assert check(plan) == () == check(whole(plan))
    found = {(one.stage, one.mode): (one.start_ns, one.pauses) for one in plan.pattern.collectives}
    assert found == {
        (2, "reduce"): (9, ((1, 2),)),
        (1, "reduce"): (17, ()),
        (2, "copy"): (19, ()),
        (1, "copy"): (25, ()),
        (0, "reduce"): (18, ()),
        (0, "copy"): (20, ()),
    }
    assert plan.pattern.period_total_ns == 27
