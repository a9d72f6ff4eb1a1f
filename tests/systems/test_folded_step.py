"""Steps of equal parts, of which one is laid out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schedopt import Chain, Platform, Stage, check
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
