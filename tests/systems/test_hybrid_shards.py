"""Steps of stages whose replicas share their state in groups, each of which has a copy of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Plan, Platform, Scope, Stage, check
from schedopt.account import memory
from schedopt.drawing.charts import name_shards
from schedopt.plan import Transfer
from schedopt.problem import training_step
from schedopt.solving import solve_problem
from schedopt.solving.replicas.layout import lay_out_turns
from schedopt.stage import Shard
from schedopt.systems.flush_step import Turn
from tests.account.test_against_the_check import assert_the_check_finds_the_same_memory
from tests.budgets import trials
from tests.refusals import assert_refused
from tests.tensor_groups import two_nodes

LEVELS: tuple[Shard, ...] = ("optimizer", "gradient", "parameter")


def layer(size: int, update_ns: int = 8) -> Layer:
    """Return a layer with as many bytes of parameters, gradients and optimizer state each."""
    return Layer(
        forward_ns=10,
        backward_ns=20,
        weight_bytes=3 * size + 1,
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=size,
        activation_bytes=2,
        saved_bytes=5,
        update_ns=update_ns,
    )


def step(
    layers: tuple[Layer, ...],
    groups: int,
    size: int,
    level: Shard,
    rounds: int = 1,
    *,
    duplex: str = "full",
    ahead: bool = True,
    platform: Platform | None = None,
) -> Plan:
    """Return a step of a stage for each layer, on a pipeline rank each, of groups of replicas."""
    replicas = groups * size
    problem = training_step(
        Chain(layers=layers, input_bytes=1),
        platform or Platform(replicas * len(layers), 10**6, bandwidth=10**9, duplex=duplex),  # type: ignore[arg-type]
        replicas * rounds,
        Scope(
            allocation="general",
            max_k=None,
            memory="peak",
            replicas=None,
            shard=level,
            hybrid=groups > 1,
        ),
    )
    stages = [
        Stage(
            layers=(number, number),
            gpus=tuple(range(number * replicas, (number + 1) * replicas)),
            shard=level,
            shard_copies=groups,
        )
        for number in range(len(layers))
    ]
    turns: list[Turn] = []
    for i in range(replicas * rounds):
        turns += [("F", number, i) for number in range(len(layers))]
        turns += [("B", number, i) for number in reversed(range(len(layers)))]
    early = dict.fromkeys(range(len(layers)), 1) if ahead and level != "optimizer" else {}
    return lay_out_turns(problem, stages, turns, ahead=early)


@st.composite
def steps(draw: st.DrawFn, most: int = 2) -> Plan:
    small = st.integers(1, 9)
    layers = tuple(
        layer(draw(small), update_ns=draw(small)) for _ in range(draw(st.integers(1, 2)))
    )
    return step(
        layers,
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from(LEVELS)),
        draw(st.integers(1, most)),
        duplex=draw(st.sampled_from(["full", "half"])),
        ahead=draw(st.booleans()),
    )


@trials(200, by_day=15)
@given(steps(), st.data())
def test_account_and_check_agree(plan: Plan, data: st.DataObject) -> None:
    assert check(plan) == ()
    assert_the_check_finds_the_same_memory(plan, data)


@trials(100, by_day=8)
@given(steps(most=1).filter(lambda plan: bool(plan.pattern.transfers)), st.data())
def test_no_transfer_can_be_left_out(plan: Plan, data: st.DataObject) -> None:
    # Of several backwards a later transfer takes home what an earlier one has left behind.
    every = plan.pattern.transfers
    gone = data.draw(st.integers(0, len(every) - 1))
    left = replace(plan.pattern, transfers=(*every[:gone], *every[gone + 1 :]))
    assert check(replace(plan, pattern=left))


def sent(plan: Plan, source: int) -> dict[tuple[str, str], int]:
    """Return how many chunks a GPU sends to GPUs of its group of two, and to others, by tensor."""
    found: dict[tuple[str, str], int] = {}
    for item in plan.pattern.transfers:
        assert isinstance(item, Transfer)
        here, there = (item.shift + (end or 0) for end in (item.source, item.target))
        if here % 4 == source:
            where = "group" if here % 4 // 2 == there % 4 // 2 else "beyond"
            key = (item.tensor, where)
            found[key] = found.get(key, 0) + 1
    return found


def test_a_step_by_hand() -> None:
    plan = step((layer(8),), 2, 2, "optimizer")
    # Four chunks of 2 bytes. Each GPU sends the two that are at home on the other of its group, a
    # sum of two groups goes to the other group for one of its chunks and comes back for the other,
    # half of the update, and two chunks of weights to the other.
    for gpu in range(4):
        assert sent(plan, gpu) == {
            ("weight_gradient", "group"): 2,
            ("weight_gradient", "beyond"): 2,
            ("weights", "group"): 2,
        }
    assert plan.pattern.period_total_ns == 30 + 2 * 2 + 2 + 2 + 8 // 2 + 2 * 2
    # Parameters, gradients, what is no state, and half of the optimizer state.
    assert [need.by_kind["weights"] for need in memory(plan)] == [8 + 8 + 1 + 4] * 4


@pytest.mark.parametrize(("level", "less"), [("optimizer", 3), ("gradient", 6)])
def test_a_group_has_all_of_the_state(level: Shard, less: int) -> None:
    # Of four bytes each of three GPUs of a group leaves some to the others, whatever the groups.
    for groups in (1, 2):
        plan = step((layer(9),), groups, 3, level)
        assert all(need.by_kind["weights"] == 28 - 2 * less for need in memory(plan))


def test_a_replica_of_each_group_has_the_same() -> None:
    plan = step((layer(7), layer(5)), 2, 2, "parameter")
    needs = [need.by_kind["weights"] for need in memory(plan)]
    assert needs[:2] == needs[2:4]
    assert needs[4:6] == needs[6:8]
    assert [plan.stages[1].home(1, chunk, 3) for chunk in range(4)] == [3, 2, 3, 2]


def test_copies_that_groups_cannot_have_are_refused() -> None:
    for gpus, level, copies in (
        ((0, 1, 2), "optimizer", 2),
        ((0, 1), "none", 2),
        ((0, 1, 0, 1), "optimizer", 2),
    ):
        with pytest.raises(InputError) as caught:
            Stage(layers=(0, 0), gpus=gpus, shard=level, shard_copies=copies)  # type: ignore[arg-type]
        assert caught.value.field == "shard_copies"


def test_other_scopes_do_not_have_them() -> None:
    plan = step((layer(8),), 2, 2, "optimizer")
    alone = replace(plan, scope=replace(plan.scope, hybrid=False))
    (violation,) = check(alone)
    assert violation.message == "has copies of shards, which are not allowed"
    assert plan.scope.covers(alone.scope)
    assert not alone.scope.covers(plan.scope)
    assert plan.scope.allows(plan.stages)
    assert not alone.scope.allows(plan.stages)
    assert "perhaps in groups" in str(plan.scope)
    assert name_shards(plan) == "optimizer in 2 groups of stage 0"
    assert_refused(lambda: solve_problem(plan.problem), "scope.hybrid", "are looked for only where")
    asked = alone.problem
    assert_refused(
        lambda: solve_problem(asked, initial=plan), "initial", "has copies of shards, which are"
    )
    assert_refused(lambda: Scope(hybrid=True), "hybrid", "there are copies of shards where")


def test_a_sum_of_groups_waits_for_that_of_the_group_from_which_it_goes_back() -> None:
    # Inside a node groups are in each other's way, so that one is done later than the other.
    plan = step((layer(8), layer(5)), 2, 2, "optimizer", 2, platform=two_nodes(4))
    assert check(plan) == ()


def test_a_ring_of_all_replicas_is_none_of_groups() -> None:
    flat = step((layer(8),), 1, 4, "optimizer")
    hybrid = replace(
        flat,
        scope=replace(flat.scope, hybrid=True),
        stages=tuple(replace(stage, shard_copies=2) for stage in flat.stages),
    )
    assert "gradient" in {violation.kind for violation in check(hybrid)}
