"""The simulation against the pattern, the account, and an independent longest-path search."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Pattern, Plan, Platform, Scope, check, solve
from schedopt.account import memory
from schedopt.account.memory import memory_without_buffers
from schedopt.account.reading import gradient_runs
from schedopt.account.timeline import Timeline
from schedopt.plan import Operation
from schedopt.simulation import Simulation, Timing, simulate, usual_micro_batches
from schedopt.systems.catalogue import find_system
from schedopt.systems.flushes import one_f_one_b
from tests.budgets import trials
from tests.examples import EXAMPLES, layer, op, planned, send, stages, timed
from tests.random_plans import valid_plans
from tests.sharded_plans import sharded_plans
from tests.shards import EVERY_PLAN, sharded
from tests.strategies import chains
from tests.systems.configs import equal

TIMINGS: tuple[Timing, Timing] = ("pattern", "asap")


def every(plan: Plan) -> int:
    sizes = (len(stage.gpus) for stage in plan.stages)
    return lcm(plan.pattern.k, *sizes, plan.rule.update_every or 1, len(plan.rule.table) or 1)


def assert_a_step_is_sound(run: Simulation) -> None:
    """Everything runs once, in its order, one at a time, within the memory of the account."""
    plan = run.plan
    seen: dict[tuple[str, int, int], tuple[int, int]] = {}
    on: dict[object, list[tuple[int, int]]] = {}
    for event in run.events:
        assert 0 <= event.start_ns <= event.end_ns <= run.makespan_ns
        span = (event.start_ns, event.end_ns)
        item = event.item
        if isinstance(item, Operation):
            on.setdefault(event.gpu, []).append(span)
            for i in range(event.first, event.first + event.count):
                name = item.kind + on_replica(plan, item.stage, item.replica)
                assert (name, item.stage, i) not in seen
                seen[name, item.stage, i] = span
        else:
            assert event.source is not None
            for link in plan.platform.route(event.source, event.gpu):
                on.setdefault(link, []).append(span)
            if item.tensor == "weight_half":
                name = "weight half" + on_replica(plan, item.stage, item.target)
                seen[name, item.stage, event.first] = span
            if item.is_boundary:
                for i in range(event.first, event.first + event.count):
                    seen[item.tensor, item.stage, i] = span
    for spans in on.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))
    for i in range(run.microbatches):
        path = [(kind, stage) for stage in range(len(plan.stages)) for kind in ("F", "activation")]
        back = [
            (kind, stage)
            for stage in reversed(range(len(plan.stages)))
            for kind in ("gradient", "I" if ("I", stage, i) in seen else "B")
        ]
        spans = [seen[kind, stage, i] for kind, stage in path + back if (kind, stage, i) in seen]
        assert len(spans) >= 2 * len(plan.stages)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        for stage in range(len(plan.stages)):
            assert (("R", stage, i) in seen) == bool(plan.stages[stage].recompute)
            if ("I", stage, i) in seen:
                assert seen["I", stage, i][1] <= seen["W", stage, i][0]
    assert_halves_come_in_time(run, seen)
    if any(residency.start_ns == residency.end_ns is not None for residency in run.residencies):
        return  # What stays for no time counts once at its instant, and instants may coincide.
    if not mini_batches_end_in_order(plan):
        return  # A version waits for a mini-batch before it, of which the first round has none.
    needs, limits = run.memory, memory(plan)
    if any(stage.shard != "none" for stage in plan.stages):
        # What is read late because weights come late may wait longer than in the pattern.
        needs, limits = memory_without_buffers(run), memory_without_buffers(Timeline(plan))
    for need, limit in zip(needs, limits, strict=True):
        assert need.sum_bytes <= limit.sum_bytes
        assert need.peak_bytes <= limit.peak_bytes
        assert need.peak_bytes <= need.sum_bytes


def mini_batches_end_in_order(plan: Plan) -> bool:
    """Whether gradients of a later mini-batch are whole no sooner, on every GPU, for ever."""
    timeline, m = Timeline(plan), plan.rule.update_every
    if m is None:
        return True
    for stage in range(len(plan.stages)):
        ends: dict[int, dict[int, int]] = {}
        for i, run in gradient_runs(timeline, stage):
            of_gpu = ends.setdefault(run.gpu, {})
            of_gpu[i // m] = max(of_gpu.get(i // m, run.end_ns), run.end_ns)
        for of_gpu in ends.values():
            times = [of_gpu[number] for number in sorted(of_gpu)]
            if sorted(times) != times or times[-1] > times[0] + timeline.length_ns:
                return False
    return True


def on_replica(plan: Plan, stage: int, replica: int | None) -> str:
    """Write which replica is meant, nothing for that of the micro-batch."""
    behind = (replica or 0) % len(plan.stages[stage].gpus)
    return f" on {behind}" if behind else ""


def assert_halves_come_in_time(
    run: Simulation, seen: dict[tuple[str, int, int], tuple[int, int]]
) -> None:
    """What W needs is sent when it is there, and W on another replica runs when it has come."""
    for event in run.events:
        item, i, stage = event.item, event.first, event.item.stage
        if isinstance(item, Operation):
            there = on_replica(run.plan, stage, item.replica)
            if there:
                assert seen["weight half" + there, stage, i][1] <= event.start_ns
        elif item.tensor == "weight_half":
            here = on_replica(run.plan, stage, item.source)
            assert seen["weight half" + here if here else "I", stage, i][1] <= event.start_ns
            assert ("W" + on_replica(run.plan, stage, item.target), stage, i) in seen


@trials(300)
@given(valid_plans(), st.integers(1, 12))
def test_random_plans(plan: Plan, count: int) -> None:
    at_its_times, early = (simulate(plan, count, timing=timing) for timing in TIMINGS)
    assert_a_step_is_sound(at_its_times)
    assert_a_step_is_sound(early)
    assert early.makespan_ns <= at_its_times.makespan_ns


@trials(200)
@given(valid_plans(updates=True) | valid_plans(exchange=True), st.integers(1, 5))
def test_random_plans_with_updates(plan: Plan, rounds: int) -> None:
    count = rounds * (plan.rule.update_every or 1)
    for timing in TIMINGS:
        assert_a_step_is_sound(simulate(plan, count, timing=timing))


@trials(200)
@given(sharded_plans(), st.integers(1, 3))
def test_random_plans_with_shards(plan: Plan, rounds: int) -> None:
    assume(any(stage.shard != "none" for stage in plan.stages))
    runs = [simulate(plan, rounds * plan.pattern.k, timing=timing) for timing in TIMINGS]
    for run in runs:
        assert_a_step_is_sound(run)
    assert runs[1].makespan_ns <= runs[0].makespan_ns


def test_weights_that_arrive_as_a_backward_ends_do_not_arrive_before() -> None:
    """Two GPUs, F 0-2 and B 2-3 of each, gradients to GPU 0 over 3-6, which applies them, T = 10.

    Each mini-batch reads the version before the last. So GPU 1 may get the new one as late as in
    the next period, over 1-3, and holds one version only. As soon as possible F and B of the next
    mini-batch run over 6-8 and 8-9: the weights could come over 6-8, but come over 7-9.
    """
    sizes = {"parameter_bytes": 2, "gradient_bytes": 3, "optimizer_bytes": 4}
    plan = sharded(
        "optimizer",
        [11, 5],
        Chain(layers=(layer(2, 1, 9, saved_bytes=0, **sizes),)),
        10,
        [op(kind, 0, i, start) for i in (0, 1) for kind, start in (("F", 0), ("B", 2))],
        [
            send("weight_gradient", 0, 0, 3, source=1, target=0, mode="reduce"),
            send("weights", 0, -2, 1, source=0, target=1),
        ],
    )
    plan = replace(plan, rule=replace(plan.rule, delay=1))
    assert check(plan) == ()
    # GPU 0 has 2 versions, 3 of gradients and 4 of optimizer states, GPU 1 a version and gradients.
    assert [need.sum_bytes for need in memory(plan)] == [11, 5]
    run = simulate(plan, 4)
    assert [need.sum_bytes for need in run.memory] == [11, 5]
    arrivals = [r.end_ns for t, _, _, _, r in run.transfers() if t.tensor == "weights"]
    assert arrivals[0] == 9


@pytest.mark.parametrize("update_ns", [None, 1])
def test_a_version_that_is_being_sent_is_gone_before_the_next_one(update_ns: int | None) -> None:
    # 40 ns to send the weights of the first stage, and 10 ns to send its gradient.
    sizes = {"parameter_bytes": 40, "gradient_bytes": 10, "weight_bytes": 99}
    config = equal(3, 2, layers=2, linked=True, update_ns=update_ns, **sizes)
    plan = find_system("cdp_v2_mp").plan(config)
    run = simulate(plan, 6)
    for need, limit in zip(run.memory, memory(plan), strict=True):
        assert need.sum_bytes <= limit.sum_bytes
        assert need.peak_bytes <= limit.peak_bytes


@pytest.mark.parametrize("name", EVERY_PLAN)
@pytest.mark.parametrize("timing", TIMINGS)
def test_the_plans_by_hand(name: str, timing: Timing) -> None:
    plan = EVERY_PLAN[name]()
    for rounds in (1, 2, 5):
        assert_a_step_is_sound(simulate(plan, rounds * every(plan), timing=timing))


@trials(200)
@given(valid_plans())
def test_at_its_own_times_the_steady_state_is_the_pattern(plan: Plan) -> None:
    run = simulate(plan, 6 * every(plan), timing="pattern")
    assert run.steady_period == plan.pattern.period


def assert_memory_of_the_account(run: Simulation) -> None:
    whole = memory(run.plan)
    assert [need.peak_bytes for need in run.memory] == [need.peak_bytes for need in whole]
    assert [need.sum_bytes for need in run.memory] == [need.sum_bytes for need in whole]


@trials(100)
@given(valid_plans())
def test_a_long_step_needs_the_memory_of_the_account(plan: Plan) -> None:
    """After the longest stay of a micro-batch the memory of the steady state is there."""
    starts = [item.shift for item in plan.pattern.operations]
    count = 3 * (max(starts) - min(starts)) + 4 * every(plan)
    assert_memory_of_the_account(simulate(plan, count, timing="pattern"))


@trials(100)
@given(sharded_plans())
def test_a_long_step_with_shards_needs_the_memory_of_the_account(plan: Plan) -> None:
    starts = [item.shift for item in plan.pattern.items]
    delay = plan.rule.delay * (plan.rule.update_every or 1)
    count = 3 * (max(starts) - min(starts)) + 4 * every(plan) + 2 * delay
    run = simulate(plan, -(-count // every(plan)) * every(plan), timing="pattern")
    if any(residency.start_ns == residency.end_ns is not None for residency in run.residencies):
        return  # What stays for no time counts once at its instant, and instants may coincide.
    assert_memory_of_the_account(run)


@trials(100)
@given(valid_plans(exchange=True))
def test_a_long_step_holds_what_w_needs_on_other_replicas_too(plan: Plan) -> None:
    starts = [item.shift for item in plan.pattern.items]
    m = every(plan)
    count = -(-(3 * (max(starts) - min(starts)) + 4 * m) // m) * m
    run = simulate(plan, count, timing="pattern")
    for need, whole in zip(run.memory, memory(plan), strict=True):
        assert need.by_kind.get("weight_half") == whole.by_kind.get("weight_half")


@trials(60)
@given(chains(longest=6), st.integers(1, 4), st.integers(1, 40))
def test_the_best_plans_keep_their_period_when_everything_starts_early(
    chain: Chain, gpus: int, size: int
) -> None:
    """The largest group of 1F1B* is a circle of its period, so no order-keeping run is faster."""
    result = solve(chain, Platform(gpus, size), scope=Scope())
    if result.plan is None or result.period is None:
        return
    short, long = (simulate(result.plan, count).makespan_ns for count in (40, 80))
    assert long - short == 40 * result.period or long == short == 0


def test_one_f_one_b_by_hand() -> None:
    """Two stages, F = B = 1, free transfers, T = 2, three micro-batches.

    GPU 0: F0 0-1, F1 1-2, B0 3-4, F2 4-5, B1 5-6, B2 7-8.
    GPU 1: F0 1-2, B0 2-3, F1 3-4, B1 4-5, F2 5-6, B2 6-7.
    """
    result = solve(Chain(layers=(layer(1, 1, 10),) * 2), Platform(2, 12), scope=Scope())
    assert result.period == 2
    assert result.plan is not None
    run = simulate(result.plan, 3)
    assert run.makespan_ns == 8
    assert run.busy_ns == (6, 6)
    assert run.bubble == Fraction(1, 4)
    assert run.time_per_micro_batch == Fraction(8, 3)
    assert [level.count for level in run.memory_profile[1]][-1] == 10
    assert [need.peak_bytes for need in run.memory] == [12, 11]
    assert [i for op, i, _ in run.operations() if op.stage == 0 and op.kind == "B"] == [0, 1, 2]


def test_an_activation_comes_no_sooner_than_its_gpu_is_as_far_as_in_the_pattern() -> None:
    """F and B last 1 on GPU 0 and 2 on GPU 1, transfers 1, T = 4: GPU 1 has no rest.

    Micro-batch 0: F0 0-1, link 1-2, F1 2-4, B1 4-6, link 6-7, B0 7-8. F0 of micro-batch 1 may run
    over 1-2, and of micro-batch 2 behind B0 over 8-9, but nothing is there for GPU 1 too early.
    """
    plan = planned(
        [layer(1, 1, 0), layer(2, 2, 0)],
        Platform(gpus=2, memory=[2, 1], bandwidth=10**9, duplex="full"),
        timed(4, {"F0": 0, "a0": 1, "F1": 2, "B1": 4, "g0": 6, "B0": 7}),
    )
    assert check(plan) == ()
    run = simulate(plan, 3)
    starts = [
        at.start_ns for item, _, at in run.operations() if (item.kind, item.stage) == ("F", 0)
    ]
    assert starts == [0, 1, 8]
    came = [at.end_ns for item, *_, at in run.transfers() if item.tensor == "activation"]
    assert came == [2, 6, 10]
    assert [need.peak_bytes for need in run.memory] == [2, 1]


def test_the_textbook_bubble() -> None:
    """P equal stages and m micro-batches: (P - 1) / (m + P - 1) of the step is idle."""
    for gpus in (1, 2, 3, 4, 8):
        result = solve(Chain(layers=(layer(1, 2, 0),) * gpus), Platform(gpus, gpus), scope=Scope())
        assert result.plan is not None
        for count in (gpus, 2 * gpus, 4 * gpus):
            run = simulate(result.plan, count)
            assert run.makespan_ns == 3 * (count + gpus - 1)
            assert run.bubble == Fraction(gpus - 1, count + gpus - 1)


def test_phases() -> None:
    # Micro-batch 0 reaches GPU 2 at 6; the last one, 4 ns a micro-batch later, leaves it at 10.
    plan = EXAMPLES["contiguous"]()
    for count in (1, 2, 12):
        phases = simulate(plan, count, timing="pattern").phases
        assert phases is not None
        assert (phases.steady_from_ns, phases.steady_to_ns) == (6, 10 + 4 * (count - 1))


def test_a_step_in_which_one_gpu_ends_before_another_begins_has_no_steady_state() -> None:
    plan = Plan(
        chain=Chain(layers=(layer(1, 1, 0),)),
        platform=Platform(gpus=2, memory=1),
        stages=stages((0, 0, [0, 1])),
        pattern=Pattern(k=1, period_total_ns=2, operations=(op("F", 0, 0, 0), op("B", 0, 0, 1))),
    )
    assert simulate(plan, 2, timing="pattern").phases is None


def test_the_usual_step_has_four_micro_batches_for_each_gpu() -> None:
    assert usual_micro_batches(EXAMPLES["contiguous"]()) == 12
    # A training step has those that it was planned for.
    assert usual_micro_batches(one_f_one_b(equal(2, 5))) == 5
    for build in EXAMPLES.values():
        plan = build()
        assert usual_micro_batches(plan) % (plan.rule.update_every or 1) == 0
        assert simulate(plan, usual_micro_batches(plan)).makespan_ns > 0


@pytest.mark.parametrize(
    ("name", "count", "timing", "rule"),
    [
        *(("contiguous", count, "asap", "microbatches") for count in (0, -1, True, 1.5, "3", None)),
        ("double_buffered", 1, "asap", "1 is no multiple of"),
        ("contiguous", 2**20, "asap", "Simulate at most"),
        ("contiguous", 3, "late", "timing"),
    ],
)
def test_what_cannot_be_simulated_is_refused(name: str, count: Any, timing: Any, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        simulate(EXAMPLES[name](), count, timing=timing)


def test_a_scope_with_a_flush_is_simulated_too() -> None:
    plan = solve(Chain(layers=(layer(1, 1, 0),) * 2), Platform(2, 2), scope=Scope(max_k=1)).plan
    assert plan is not None
    assert simulate(plan, 1).makespan_ns == 4


def test_a_steady_state_is_measured_once_it_has_settled() -> None:
    # At first micro-batches follow one another faster than the pattern, which is optimal.
    root = Path(__file__).parents[2]
    result = solve(
        Chain.load(root / "instances/gpt2-small.json"),
        Platform(4, "2G", bandwidth="12GB/s"),
        scope=Scope(),
    )
    assert result.status == "optimal"
    plan, period = result.plan, result.period
    assert plan is not None
    steps = [simulate(plan, count) for count in range(1, 50)]
    first, again = (steps[4].at("B", 0, i).end_ns for i in (2, 3))
    assert period is not None
    assert again - first < period
    measured = [step.steady_period for step in steps]
    assert measured[4] is None
    assert set(measured[:40]) >= {None, period}
    assert set(measured[32:]) == {period}
