"""Steps of replicas some of which have the same experts: sums, updates, memory, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Plan, Platform, Problem, Scope, Stage, check
from schedopt.account import load, memory
from schedopt.actions import make_actions
from schedopt.chain import EXPERT_BYTES
from schedopt.folding import whole
from schedopt.problem import training_step
from schedopt.profile import Profile, Variant
from schedopt.simulation import simulate
from schedopt.solving.replicas.layout import lay_out_turns
from schedopt.stage import Shard
from schedopt.systems.flush_step import Turn
from schedopt.training_state import with_training_state
from tests.budgets import trials
from tests.refusals import assert_refused


def layer(size: int, own: int, update_ns: int = 8) -> Layer:
    """Return a layer whose weights and experts have so many bytes, and as many of each state."""
    return Layer(
        forward_ns=10,
        backward_ns=20,
        weight_bytes=3 * size + 3 * own + 1,
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=size,
        expert_parameter_bytes=own,
        expert_gradient_bytes=own,
        expert_optimizer_bytes=own,
        activation_bytes=2,
        saved_bytes=5,
        update_ns=update_ns,
    )


def step(
    layers: tuple[Layer, ...],
    expert: int,
    rows: int,
    level: Shard = "optimizer",
    rounds: int = 1,
    *,
    gpus: tuple[int, ...] | None = None,
    fold: int = 1,
) -> Plan:
    """Return a step of a stage for each layer, of rows of replicas that share the experts.

    `gpus` are those of each stage, counted from its first.
    """
    replicas = expert * rows
    problem = training_step(
        Chain(layers=layers, input_bytes=1, expert=expert),
        Platform(replicas * len(layers), 10**6, bandwidth=10**9, duplex="full"),
        replicas * rounds,
        Scope(allocation="general", max_k=None, memory="peak", replicas=None, shard=level),
    )
    stages = [
        Stage(
            layers=(number, number),
            gpus=tuple(number * replicas + gpu for gpu in gpus or range(replicas)),
            shard=level,
        )
        for number in range(len(layers))
    ]
    turns: list[Turn] = []
    for i in range(replicas * rounds // fold):
        turns += [("F", number, i) for number in range(len(layers))]
        turns += [("B", number, i) for number in reversed(range(len(layers)))]
    return lay_out_turns(problem, stages, turns, fold=fold)


@st.composite
def steps(draw: st.DrawFn, most: int = 2) -> Plan:
    small = st.integers(0, 9)
    layers = tuple(
        layer(draw(small), draw(small), update_ns=draw(small))
        for _ in range(draw(st.integers(1, 2)))
    )
    expert, rows = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    return step(
        layers,
        expert,
        rows,
        draw(st.sampled_from(["none", "optimizer"])),
        draw(st.integers(1, most)),
        gpus=tuple(draw(st.permutations(range(expert * rows)))),
    )


@trials(200, by_day=8)
@given(steps())
def test_account_check_and_simulation_agree(plan: Plan) -> None:
    assert check(plan) == ()
    assert simulate(plan, plan.pattern.k).makespan_ns <= plan.pattern.period_total_ns
    needs = [need.reading(plan.scope.memory) for need in memory(plan)]
    # Replicas that run together are on GPUs that are alike.
    for size in {*needs}:
        gpus = [replace(gpu, memory_bytes=size - 1) for gpu in plan.platform.gpus]
        found = check(replace(plan, platform=plan.platform.with_gpus(gpus)))
        assert [(one.kind, one.place) for one in found] == [
            ("memory", f"GPU {gpu}") for gpu, need in enumerate(needs) if need >= size
        ]


@trials(100, by_day=8)
@given(steps(most=1), st.data())
def test_no_transfer_of_weights_can_be_left_out(plan: Plan, data: st.DataObject) -> None:
    moving = [one for one in plan.pattern.transfers if one.moves_weights]
    gone = data.draw(st.sampled_from(moving))
    left = tuple(one for one in plan.pattern.transfers if one is not gone)
    assert check(replace(plan, pattern=replace(plan.pattern, transfers=left)))


def test_a_step_by_hand() -> None:
    plan = step((layer(8, 12),), 2, 2)
    # GPUs 0 and 2 have the same experts, and so have 1 and 3. Behind the backward each sends three
    # chunks of 2 bytes to the next one, and half of the gradient of its experts, 6 bytes, to the
    # other one. It updates 2 + 6 of 20 bytes, in 3.2 of 8 ns; then as much weights go these ways.
    assert plan.pattern.period_total_ns == 30 + 6 + 4 + 6
    experts = [one for one in plan.pattern.transfers if one.moves_weights and one.chunk >= 4]
    assert {one.chunks for one in experts} == {8}
    rows = {(one.mode, one.chunk): (one.source, one.target, one.start_ns) for one in experts}
    assert rows == {
        ("reduce", 4): (2, 0, 30),
        ("reduce", 5): (3, 1, 30),
        ("reduce", 6): (0, 2, 30),
        ("reduce", 7): (1, 3, 30),
        ("copy", 4): (0, 2, 40),
        ("copy", 5): (1, 3, 40),
        ("copy", 6): (2, 0, 40),
        ("copy", 7): (3, 1, 40),
    }
    updates = [one.start_ns for one in plan.pattern.operations if one.kind == "U"]
    assert updates == [36] * 4
    # A quarter of the optimizer state of 8 bytes, and half of that of the experts.
    kept = 1 + 2 * 8 + 2 + 2 * 12 + 6
    assert [need.by_kind["weights"] for need in memory(plan)] == [kept] * 4


def test_without_shards_all_replicas_update_all() -> None:
    plan = step((layer(8, 12),), 2, 2, "none")
    assert plan.pattern.period_total_ns == 30 + 2 * 6 + 8 * 4 // 4
    assert [need.by_kind["weights"] for need in memory(plan)] == [1 + 3 * 20] * 4


def test_experts_that_all_replicas_share_are_sent_nowhere() -> None:
    plan = step((layer(8, 12),), 4, 1)
    # Each updates 2 + 12 of 20 bytes, in 5.6 of 8 ns: nobody else has its experts.
    assert plan.pattern.period_total_ns == 30 + 3 * 2 + 6 + 3 * 2
    assert check(plan) == ()
    assert plan.expert_chunks(0) == 0
    assert max(one.chunks for one in plan.pattern.transfers) == 4
    assert [need.by_kind["weights"] for need in memory(plan)] == [1 + 2 * 8 + 2 + 3 * 12] * 4


def test_stages_without_experts_send_none() -> None:
    plan = step((layer(8, 0), layer(8, 12)), 2, 2)
    assert [plan.expert_chunks(number) for number in range(2)] == [0, 4]
    assert check(plan) == ()


def change_experts(plan: Plan, **more: Any) -> Plan:
    """Return a plan whose first transfer of experts goes otherwise."""
    first = next(one for one in plan.pattern.transfers if one.moves_weights and one.chunk >= 4)
    changed = (replace(first, **more) if one is first else one for one in plan.pattern.transfers)
    return replace(plan, pattern=replace(plan.pattern, transfers=tuple(changed)))


def forget(plan: Plan) -> Plan:
    """Return a plan whose chain does not say what experts take."""
    absent: dict[str, Any] = dict.fromkeys(EXPERT_BYTES)
    bare = tuple(replace(one, **absent) for one in plan.chain.layers)
    return replace(plan, chain=replace(plan.chain, layers=bare))


def on_stages(**more: object) -> Callable[[Plan], Plan]:
    """Return what changes the stages of a plan."""
    return lambda plan: replace(
        plan,
        stages=tuple(replace(stage, **more) for stage in plan.stages),  # type: ignore[arg-type]
    )


WRONG: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "to other experts": (
        lambda plan: change_experts(plan, target=1),
        "is of experts that not both ends have",
    ),
    "fewer chunks": (
        lambda plan: change_experts(plan, chunk=0, chunks=4),
        "4 chunks of 4 replicas, some of which have the same experts, and not 8",
    ),
    "unknown sizes": (forget, "it has 4 replicas on 4 GPUs, and 2 GPUs share the experts"),
    "gradients shared": (
        on_stages(shard="gradient"),
        "4 replicas that share the optimizer state and gradients, and 2 GPUs share the experts",
    ),
    "groups of shards": (
        on_stages(shard_copies=2),
        "4 replicas that share the optimizer state in 2 groups, and 2 GPUs share the experts",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_experts_is_found(name: str) -> None:
    change, rule = WRONG[name]
    found = check(change(step((layer(8, 12),), 2, 2)))
    assert any(rule in one.message for one in found), found


def test_a_step_of_unequal_numbers_is_found() -> None:
    plan = step((layer(8, 12),), 2, 2)
    rule = replace(plan.rule, update_every=6)
    scope = replace(plan.scope, microbatches=6)
    pattern = replace(plan.pattern, k=6)
    rules = [one.message for one in check(replace(plan, rule=rule, scope=scope, pattern=pattern))]
    assert any("6 micro-batches of an update are no multiple of its 4" in rule for rule in rules)


def test_a_fold_does_not_say_who_has_which_experts() -> None:
    with pytest.raises(InputError, match="it has 4, some of which have the same experts"):
        step((layer(8, 12),), 2, 2, fold=2)
    plan = step((layer(8, 12),), 4, 1, rounds=2, fold=2)
    assert check(plan) == check(whole(plan)) == ()
    assert plan.pattern.period_total_ns == 2 * 30 + 3 * 2 + 6 + 3 * 2
    assert load(plan) == load(whole(plan))


def test_a_run_does_not_send_experts() -> None:
    plan = step((layer(8, 12),), 2, 2)
    assert_refused(
        lambda: make_actions(plan, 4), "stages[0].gpus", "some of which have the same experts"
    )


def test_replicas_of_a_problem_are_whole_rows() -> None:
    plan = step((layer(8, 12),), 2, 3, rounds=2)
    assert plan.problem.replica_counts == (2, 4, 6)
    assert forget(step((layer(8, 0),), 2, 3, rounds=2)).problem.replica_counts == (2,)
    uneven: Problem = replace(plan.problem, scope=replace(plan.scope, uneven=True))
    assert uneven.uneven_counts == ()


def test_sizes_of_experts_are_checked() -> None:
    assert_refused(
        lambda: replace(layer(8, 12), expert_gradient_bytes=None),
        "expert_parameter_bytes",
        "a part of the experts is given without the others",
    )
    assert_refused(
        lambda: replace(layer(8, 12), weight_bytes=59), "weight_bytes", "59 is less than parameters"
    )
    assert_refused(
        lambda: Chain(layers=(layer(8, 12),)),
        "layers[0].expert_parameter_bytes",
        "given, and no GPUs share experts",
    )
    some = (layer(8, 12), *forget(step((layer(8, 12),), 2, 1)).chain.layers)
    assert_refused(
        lambda: Chain(layers=some, expert=2),
        "layers[1].expert_parameter_bytes",
        "absent, and other layers say what their experts take",
    )
    chain = Chain(layers=(layer(8, 12),), expert=2)
    other = forget(step((layer(8, 12),), 2, 1)).chain
    variants = (Variant(tensor=1, chain=chain), Variant(tensor=2, chain=other))
    assert_refused(
        lambda: Profile(variants=variants), "variants[1].chain.layers", "what experts take is not"
    )


def test_another_training_state_is_that_of_experts_too() -> None:
    chain = with_training_state(Chain(layers=(layer(8, 12),), expert=2), "mixed-adam:4")
    (found,) = chain.layers
    parts = (found.expert_parameter_bytes, found.expert_gradient_bytes)
    assert (*parts, found.expert_optimizer_bytes) == (6, 6, 36)
    # Two parameters and three of experts, of 16 bytes in all, and a byte that is no state.
    assert found.weight_bytes == 5 * 16 + 1
