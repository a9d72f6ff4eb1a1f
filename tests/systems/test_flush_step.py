"""Steps of stages that have GPUs, recompute and a shard level of their own."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Link, Network, Node, NodeLink, Plan, Platform, Stage, check
from schedopt.account import busy_time, load, memory, traffic
from schedopt.errors import InputError
from schedopt.simulation import simulate
from schedopt.stage import Shard
from schedopt.systems.config import SystemConfig
from schedopt.systems.data_parallel import course
from schedopt.systems.flush_step import Turn, flush_step
from tests.budgets import trials
from tests.examples import BYTE_A_NS, layer
from tests.systems.configs import AMPLE, layers
from tests.turns import orders


@st.composite
def steps(draw: st.DrawFn) -> Plan:
    """Draw a step of one to three stages, on GPUs of their own or on the same ones."""
    count = draw(st.integers(1, 3))
    rows, used = [], 0
    apart = draw(st.booleans())
    for number in range(count):
        replicas = draw(st.sampled_from([1, 2, 3]))
        gpus = tuple(range(used, used + replicas)) if apart else tuple(range(replicas))
        used += replicas if apart else 0
        rows.append(
            Stage(
                layers=(2 * number, 2 * number + 1),
                gpus=gpus,
                recompute=draw(st.sampled_from([(), ((2 * number + 1, 2 * number + 1),)])),
                shard=draw(st.sampled_from(get_args(Shard))),
            )
        )
    timed = layers().map(lambda one: replace(one, forward_ns=one.forward_ns + 1,
                         backward_input_ns=(one.backward_input_ns or 0) + 1))  # fmt: skip
    counts = [len(stage.gpus) for stage in rows]
    m = lcm(*counts) * draw(st.integers(1, 2))
    if apart and all(stage.shard == "none" for stage in rows):
        m = max(counts) + draw(st.integers(0, 4))
    gpus_in_all = max(gpu for stage in rows for gpu in stage.gpus) + 1
    link: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"bandwidth": BYTE_A_NS, "duplex": "half"},
                {"bandwidth": BYTE_A_NS, "latency": 1, "duplex": "full"},
            ]
        )
    )
    config = SystemConfig(
        chain=Chain(layers=tuple(draw(timed) for _ in range(2 * count))),
        platform=Platform(gpus_in_all, AMPLE, **link),
        microbatches=m,
    )
    split = draw(st.booleans())
    return flush_step(config, rows, draw(orders(count, m, split=split)), split=split)


@trials(300)
@given(steps())
def test_random_steps_are_valid_and_no_faster_than_what_they_occupy(plan: Plan) -> None:
    assert check(plan) == ()
    assert plan.pattern.period >= max(gpu.busy_ns for gpu in load(plan))
    assert all(plan.pattern.period >= busy for busy in busy_time(plan).values())
    step = simulate(plan, plan.pattern.k)
    assert step.makespan_ns <= plan.pattern.period_total_ns


@trials(100)
@given(steps())
def test_the_check_wants_exactly_the_memory_of_the_account(plan: Plan) -> None:
    needed = [need.sum_bytes for need in memory(plan)]
    exact = replace(plan, platform=with_memory(plan.platform, needed))
    assert check(exact) == ()
    fullest = max(range(len(needed)), key=lambda gpu: needed[gpu])
    if needed[fullest]:
        needed[fullest] -= 1
        short = replace(plan, platform=with_memory(plan.platform, needed))
        assert [violation.kind for violation in check(short)] == ["memory"]


def with_memory(platform: Platform, needed: list[int]) -> Platform:
    return platform.with_gpus(
        [replace(gpu, memory_bytes=size) for gpu, size in zip(platform.gpus, needed, strict=True)]
    )


def config_of(count: int, gpus: int, microbatches: int, **more: Any) -> SystemConfig:
    """Return layers of F 1 and B 2 ns, whose half of the weights takes 2 ns to another GPU.

    Each has 4 bytes of parameters, 4 of gradients and 8 of optimizer states, keeps 1 for a
    micro-batch, and sends on nothing.
    """
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8, "saved_bytes": 1}
    link: dict[str, Any] = {"bandwidth": BYTE_A_NS, "duplex": "full"}
    return SystemConfig(
        chain=Chain(layers=(layer(1, 2, 16, 0, **sizes),) * count),
        platform=Platform(gpus, AMPLE, **(link | more)),
        microbatches=microbatches,
    )


def two_stages(first: Shard, second: Shard, **more: Any) -> list[Stage]:
    return [
        Stage(layers=(0, 0), gpus=(0, 1), shard=first, **more),
        Stage(layers=(1, 1), gpus=(2, 3), shard=second),
    ]


def one_by_one(stages: int, microbatches: int) -> list[Turn]:
    return [(kind, stage, i) for i in range(microbatches) for kind, stage in course(stages)]


def test_each_stage_does_what_its_level_needs() -> None:
    """Stage 0 shards optimizer states on GPUs 0 and 1, stage 1 parameters on GPUs 2 and 3.

    F0 0-1. Half of the weights comes over 0-2 for F1 2-3, and from then on, over 2-4, for B1 4-6.
    B0 6-8. The gradient of stage 1 goes home over 6-8, that of stage 0 over 8-10, and its weights
    come over 10-12.

    GPUs 0 and 1 keep 16 - 4 and 1 of a micro-batch. GPUs 2 and 3 keep 2 + 2 + 4; copies of 2 over
    0-3 and 2-6; 2 of the gradient over 4-8; 1 over 2-6.
    """
    plan = flush_step(config_of(2, 4, 2), two_stages("optimizer", "parameter"), one_by_one(2, 2))
    assert check(plan) == ()
    assert plan.pattern.period_total_ns == 12
    assert [(need.sum_bytes, need.peak_bytes) for need in memory(plan)] == [
        *[(13, 13)] * 2,
        *[(8 + 4 + 2 + 1, 8 + 2 + 2 + 1)] * 2,
    ]
    # Both ways a half of the weights, and of the gradient.
    sent = {ends: count * 2 for ends, count in traffic(plan).items() if count}
    assert sent == {(0, 1): 4, (1, 0): 4, (2, 3): 6, (3, 2): 6}


def test_without_shards_replicas_sum_up_and_all_update() -> None:
    # F0 0-1, F1 1-2, B1 2-4, B0 4-6; all-reduces over 4-8 and 6-10.
    plan = flush_step(config_of(2, 4, 2), two_stages("none", "none"), one_by_one(2, 2))
    assert check(plan) == ()
    assert plan.pattern.period_total_ns == 10
    assert {transfer.tensor for transfer in plan.pattern.transfers} == {
        "activation", "gradient", "weight_gradient",
    }  # fmt: skip


def test_recompute_comes_right_before_the_backward_with_weights_of_its_own() -> None:
    # Half of the weights over 0-2, 2-4, 4-6 for F0 2-3, R0 4-5 and B0 6-8.
    stage = Stage(layers=(0, 0), gpus=(0, 1), recompute=((0, 0),), shard="parameter")
    turns: list[Turn] = [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
    plan = flush_step(config_of(1, 2, 2), [stage], turns)
    assert check(plan) == ()
    starts = [(one.kind, one.start_ns) for one in plan.pattern.operations if one.shift == 0]
    assert starts == [("F", 2), ("R", 4), ("B", 6)]
    assert plan.pattern.period_total_ns == 10


def test_stages_without_shards_may_have_a_micro_batch_more_on_some_gpus() -> None:
    stages = [
        Stage(layers=(0, 0), gpus=(0, 1)),
        Stage(layers=(1, 1), gpus=(2,)),
        Stage(layers=(2, 2), gpus=(3, 4, 5)),
    ]
    plan = flush_step(config_of(3, 6, 5), stages, one_by_one(3, 5))
    assert check(plan) == ()
    assert simulate(plan, 5).makespan_ns <= plan.pattern.period_total_ns


@pytest.mark.parametrize(
    ("gpus", "microbatches", "shard", "field", "rule"),
    [
        ((0, 1, 0), 6, "none", "stages[0].gpus", "names a GPU twice"),
        ((0, 1, 2), 2, "none", "microbatches", "stage 0 has 3 GPUs, and there is no"),
        (
            (0, 1, 2),
            4,
            "gradient",
            "microbatches",
            "4 is no multiple of 3, the GPUs of stage 0, which is sharded",
        ),
    ],
)
def test_what_no_step_has_is_refused(
    gpus: tuple[int, ...], microbatches: int, shard: Shard, field: str, rule: str
) -> None:
    with pytest.raises(InputError) as caught:
        flush_step(
            config_of(1, 3, microbatches), [Stage(layers=(0, 0), gpus=gpus, shard=shard)], []
        )
    assert caught.value.field == field
    assert rule in caught.value.rule


def test_a_gpu_of_two_stages_takes_turns_in_each_step_alike() -> None:
    stages = [Stage(layers=(0, 0), gpus=(0, 1)), Stage(layers=(1, 1), gpus=(0,))]
    with pytest.raises(InputError, match="stage 0, which shares a GPU with another stage"):
        flush_step(config_of(2, 2, 3), stages, one_by_one(2, 3))
    assert check(flush_step(config_of(2, 2, 4), stages, one_by_one(2, 4))) == ()


@pytest.mark.parametrize("again", [False, True])
def test_weights_that_come_for_nothing_and_in_no_time_are_refused(again: bool) -> None:
    config = config_of(1, 2, 2, bandwidth=None)
    runs = ((0, 0),) if again else ()
    stage = Stage(layers=(0, 0), gpus=(0, 1), recompute=runs, shard="parameter")
    turns: list[Turn] = [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
    assert check(flush_step(config, [stage], turns)) == ()
    at_once = replace(config.chain.layers[0], forward_ns=0)
    config = replace(config, chain=Chain(layers=(at_once,)))
    with pytest.raises(InputError, match=r"layers\[0\]\.forward_ns: 0 ns.* no time.* Give it 1 ns"):
        flush_step(config, [stage], turns)


def test_a_chain_must_say_what_is_sharded() -> None:
    config = config_of(1, 2, 2)
    unknown = replace(config.chain.layers[0], optimizer_bytes=None)
    config = replace(config, chain=Chain(layers=(unknown,)))
    with pytest.raises(InputError, match=r"layers\[0\]\.optimizer_bytes"):
        flush_step(config, [Stage(layers=(0, 0), gpus=(0, 1), shard="optimizer")], [])


@st.composite
def layered_steps(draw: st.DrawFn) -> Plan:
    """Draw a step of stages of a layer each on the same GPUs, gradients home behind each backward.

    One group of such stages, or two of them behind each other.
    """
    levels = st.sampled_from(get_args(Shard)[2:])
    groups = [
        (draw(st.integers(1, 3)), draw(st.sampled_from([2, 3])), draw(levels), draw(st.booleans()))
        for _ in range(draw(st.integers(1, 2)))
    ]
    stages: list[Stage] = []
    ahead: dict[int, int] = {}
    first = 0
    for count, replicas, level, early in groups:
        for _ in range(count):
            ahead[len(stages)] = int(early)
            again = ((len(stages), len(stages)),) if draw(st.booleans()) else ()
            gpus = tuple(range(first, first + replicas))
            stages.append(Stage(layers=(len(stages),) * 2, gpus=gpus, recompute=again, shard=level))
        first += replicas
    timed = layers().map(lambda one: replace(one, forward_ns=one.forward_ns + 1))
    m = lcm(*(replicas for _, replicas, _, _ in groups)) * draw(st.integers(1, 2))
    link: dict[str, Any] = draw(
        st.sampled_from(
            [{}, {"bandwidth": BYTE_A_NS}, {"bandwidth": BYTE_A_NS, "duplex": "full", "latency": 1}]
        )
    )
    config = SystemConfig(
        chain=Chain(layers=tuple(draw(timed) for _ in stages), input_bytes=3),
        platform=Platform(gpus=first, memory=AMPLE, **link),
        microbatches=m,
    )
    turns = [(kind, stage, i) for i in range(m) for kind, stage in course(len(stages))]
    return flush_step(config, stages, turns, ahead=ahead)


@trials(200)
@given(layered_steps())
def test_gradients_may_go_home_behind_each_backward(plan: Plan) -> None:
    plan = replace(plan, scope=replace(plan.scope, memory="peak"))
    needed = [need.peak_bytes for need in memory(plan)]
    exact = replace(plan, platform=with_memory(plan.platform, needed))
    assert check(exact) == ()
    step = simulate(plan, plan.pattern.k)
    assert step.makespan_ns <= plan.pattern.period_total_ns


def test_stages_send_to_each_other_before_what_is_added_up() -> None:
    # Four replicas on GPUs 0 to 2 of one node and 3 of the other, where GPU 4 has the first stage.
    # GPU 0 is the last to end. By then two of the four chunks of 100 ns, which its neighbours add
    # up, wait for the link between the nodes; its own gradient of 1 ns waits for the first alone.
    first = layer(1, 1, 0, 1, parameter_bytes=0, gradient_bytes=0)
    last = layer(1, 10, 800, 1, parameter_bytes=400, gradient_bytes=400, optimizer_bytes=0)
    inside = Link(bandwidth_bytes_per_s=1000 * BYTE_A_NS, duplex="full")
    network = Network(
        nodes=(Node(name="a", gpus=3, link=inside), Node(name="b", gpus=2, link=inside)),
        links=(NodeLink(between=("a", "b"), bandwidth_bytes_per_s=BYTE_A_NS, duplex="full"),),
    )
    config = SystemConfig(
        chain=Chain(layers=(first, last)),
        platform=Platform(Platform(5, AMPLE).gpus, network=network),
        microbatches=4,
    )
    stages = Stage(layers=(0, 0), gpus=(4,)), Stage(layers=(1, 1), gpus=(0, 1, 2, 3))
    order = (1, 2, 3, 0)
    turns: list[Turn] = [("F", 0, i) for i in order]
    turns += [(kind, 1, i) for i in order for kind in ("F", "B")]
    turns += [("B", 0, i) for i in order]
    plan = flush_step(config, stages, turns)
    assert check(plan) == ()
    ends = {
        operation.shift: operation.start_ns + 10
        for operation in plan.pattern.operations
        if (operation.kind, operation.stage) == ("B", 1)
    }
    sent = next(
        transfer.start_ns
        for transfer in plan.pattern.transfers
        if transfer.tensor == "gradient" and transfer.shift == 0
    )
    assert ends[0] > max(ends[1], ends[2])
    assert ends[0] < sent < ends[0] + 100


def test_weights_for_a_backward_wait_until_all_that_run_together_have_run() -> None:
    # What replica 0 waits for is there at 2, and what the others wait for at 4.
    one = layer(2, 5, 6, 0, parameter_bytes=2, gradient_bytes=2, optimizer_bytes=2)
    config = SystemConfig(
        chain=Chain(layers=(one,), context=3),
        platform=Platform(3, AMPLE, bandwidth=BYTE_A_NS, duplex="half"),
        microbatches=3,
    )
    stage = Stage(layers=(0, 0), gpus=(0, 1, 2), shard="parameter")
    assert check(flush_step(config, [stage], one_by_one(1, 3))) == ()
