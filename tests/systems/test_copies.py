"""Steps of stages that have copies of tied weights, and add their gradients up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Plan, Platform, Stage, check
from schedopt.account import traffic
from schedopt.plan import Kind, Transfer
from schedopt.simulation import simulate
from schedopt.stage import SHARDS, Shard
from schedopt.systems.catalogue import SYSTEMS, System
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from schedopt.tied_weights import copy_tied_weights
from tests.budgets import trials
from tests.examples import BYTE_A_NS

LAYER = Layer(
    forward_ns=100,
    backward_ns=200,
    weight_bytes=40,
    activation_bytes=10,
    parameter_bytes=10,
    gradient_bytes=10,
    optimizer_bytes=20,
    update_ns=5,
    backward_input_ns=100,
    backward_weight_ns=100,
)
EMBEDDING = replace(
    LAYER, weight_bytes=80, parameter_bytes=20, gradient_bytes=20, optimizer_bytes=40
)
HEAD = replace(
    LAYER,
    weight_bytes=12,
    parameter_bytes=3,
    gradient_bytes=3,
    optimizer_bytes=6,
    tied_parameter_bytes=20,
    tied_gradient_bytes=20,
    tied_optimizer_bytes=40,
)
CHAIN = copy_tied_weights(Chain(layers=(EMBEDDING, LAYER, LAYER, HEAD), same_gpu=((0, 3),)))


ADDS_UP = {
    "one_gpu",
    "dp_blocking",
    "dp_overlapped",
    "dp_bucketed",
    "zero_1",
    "gpipe",
    "one_f_one_b_flush",
    "interleaved",
    "chimera",
    "zero_bubble",
}


def step(stages: Sequence[Stage], microbatches: int, *, split: bool = False) -> Plan:
    """Return a step in which each GPU runs all forwards, then all backwards."""
    gpus = 1 + max(gpu for stage in stages for gpu in stage.gpus)
    platform = Platform(gpus, 10**6, bandwidth=BYTE_A_NS, duplex="full")
    config = SystemConfig(chain=CHAIN, platform=platform, microbatches=microbatches)
    numbers = range(len(stages))
    turns: list[Turn] = [("F", number, i) for i in range(microbatches) for number in numbers]
    halves: tuple[Kind, ...] = ("I", "W") if split else ("B",)
    for i in range(microbatches):
        turns += [(kind, number, i) for number in reversed(numbers) for kind in halves]
    return flush_step(config, stages, turns, split=split)


def of_copies(plan: Plan) -> list[Transfer]:
    return [item for item in plan.pattern.transfers if item.source_stage is not None]


def said(plan: Plan) -> str:
    """Return all that is wrong with a plan."""
    return "; ".join(map(str, check(plan)))


def test_both_stages_wait_for_the_gradient_of_the_other_copy() -> None:
    plan = step([Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 3), gpus=(1,))], 1)
    assert check(plan) == ()
    # F to 200, 10 ns on the way, F to 410, B to 810, 10 ns back, B from 820 to 1220. The gradient
    # of 20 bytes comes behind that of the activation, and the other way when all is done; then
    # both layers of stage 1 are updated.
    sent = {item.source_stage: item.start_ns for item in of_copies(plan)}
    assert sent == {1: 820, 0: 1220}
    updates = {item.stage: item.start_ns for item in plan.pattern.operations if item.kind == "U"}
    assert updates == {0: 1220, 1: 1240}
    assert plan.pattern.period_total_ns == 1250
    assert simulate(plan, 1).makespan_ns == 1250
    # Ten bytes each way, and twenty of the gradient.
    assert sum(traffic(plan).values()) == 60


def test_what_a_check_says_where_a_gradient_of_a_copy_does_not_come() -> None:
    plan = step([Stage(layers=(0, 1), gpus=(0, 1)), Stage(layers=(2, 3), gpus=(2,))], 4)
    assert check(plan) == ()
    lost = said(_without(plan, 2))
    assert "chunk 0 of mini-batch 0 lacks micro-batches 0, 1, 2, 3 of the copy in stage 1" in lost
    (last,) = [item for item in of_copies(plan) if item.source == 1]
    early = said(_moved(plan, last, start_ns=last.start_ns - 200))
    assert "on GPU 2 mini-batch 0 lacks micro-batch 3 of the copy in stage 0" in early
    twice = said(_with(plan, replace(last, start_ns=last.start_ns - 20)))
    assert "counts micro-batch 1 of the copy in stage 0 at" in twice
    first = replace(last, start_ns=0)
    assert "GPU 1 has nothing of mini-batch 0" in said(_with(plan, first))
    assert "stage 7 does not exist" in said(_moved(plan, last, source_stage=7))
    others = replace(CHAIN, copied=((2, 3),))
    assert "stages 0 and 1 have no copies of the same weights" in said(replace(plan, chain=others))


def test_on_one_gpu_gradients_are_added_up_where_they_lie() -> None:
    shared = [Stage(layers=(0, 1), gpus=(0, 1)), Stage(layers=(2, 3), gpus=(1, 0))]
    plan = step(shared, 4)
    assert (check(plan), of_copies(plan)) == ((), [])
    plan = step([shared[0], Stage(layers=(2, 3), gpus=(0,))], 4)
    assert check(plan) == ()
    assert [(item.source_stage, item.source, item.target) for item in of_copies(plan)] == [
        (0, 1, 0)
    ]
    whole = step([Stage(layers=(0, 3), gpus=(0, 1), shard="optimizer")], 4)
    assert (check(whole), of_copies(whole)) == ((), [])


@trials(200)
@given(
    st.permutations([0, 1, 2, 3]),
    st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=3),
    st.lists(st.sampled_from(SHARDS[:2]), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(1, 2),
)
def test_every_copy_is_added_up_once(
    mixed: list[int], replicas: list[int], shards: list[Shard], split: bool, apart: bool, more: int
) -> None:
    cuts = {2: [(0, 1), (2, 3)], 3: [(0, 0), (1, 2), (3, 3)]}[len(replicas)]
    stages = [
        Stage(
            layers=cut,
            gpus=tuple(range(4 * n, 4 * n + own)) if apart else tuple(mixed[:own]),
            shard=shard,
        )
        for n, (cut, own, shard) in enumerate(zip(cuts, replicas, shards, strict=False))
    ]
    plan = step(stages, 4 * more, split=split)
    assert check(plan) == ()
    assert simulate(plan, 4 * more).makespan_ns <= plan.pattern.period_total_ns
    first, last = set(stages[0].gpus), set(stages[-1].gpus)
    assert len(of_copies(plan)) == sum(
        len(one - other) for one, other in permutations([first, last])
    )
    for number in range(len(of_copies(plan))):
        assert {one.kind for one in check(_without(plan, number))} <= {"gradient", "version"}
        assert check(_without(plan, number))


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_systems_add_up_copies_or_say_why_not(system: System) -> None:
    platform = Platform(2, 10**6, bandwidth=BYTE_A_NS, duplex="full")
    config = SystemConfig(chain=CHAIN, platform=platform, microbatches=4)
    if system.name in ADDS_UP:
        assert check(system.plan(config)) == ()
        return
    with pytest.raises(InputError, match=r"[Kk]eep tied layers together"):
        system.plan(config)


def test_gradients_that_go_home_behind_each_backward_are_refused() -> None:
    stages = [
        Stage(layers=(0, 1), gpus=(0, 1), shard="gradient"),
        Stage(layers=(2, 3), gpus=(2,)),
    ]
    with pytest.raises(InputError, match=r"stages\[0\]\.shard: its gradients go home"):
        step(stages, 4)


@pytest.mark.parametrize(
    "changes", [{"mode": "copy"}, {"chunks": 2}, {"tensor": "weights"}, {"stage": 1}]
)
def test_only_a_whole_gradient_comes_from_another_stage(changes: dict[str, Any]) -> None:
    sent: dict[str, Any] = {
        "tensor": "weight_gradient",
        "stage": 0,
        "shift": 0,
        "start_ns": 0,
        "source": 0,
        "target": 0,
        "source_stage": 1,
        "mode": "reduce",
    }
    Transfer(**sent)
    with pytest.raises(InputError, match=r"source_stage|mode"):
        Transfer(**(sent | changes))


def _without(plan: Plan, number: int) -> Plan:
    """Return a plan without one of the gradients of copies."""
    gone = of_copies(plan)[number]
    kept = tuple(item for item in plan.pattern.transfers if item is not gone)
    return replace(plan, pattern=replace(plan.pattern, transfers=kept))


def _with(plan: Plan, item: Transfer) -> Plan:
    transfers = (*plan.pattern.transfers, item)
    return replace(plan, pattern=replace(plan.pattern, transfers=transfers))


def _moved(plan: Plan, item: Transfer, **changes: Any) -> Plan:
    transfers = tuple(
        replace(one, **changes) if one is item else one for one in plan.pattern.transfers
    )
    return replace(plan, pattern=replace(plan.pattern, transfers=transfers))
