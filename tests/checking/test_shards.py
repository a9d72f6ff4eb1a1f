"""Sharded weights, gradients and optimizer states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.rule import Rule
from schedopt.stage import Shard, Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from tests.budgets import trials
from tests.changes import (
    add_transfer,
    change_gpu,
    change_layer,
    change_operation,
    change_rule,
    change_shard,
    change_stage,
    change_transfer,
    drop_operation,
    drop_transfer,
    with_pattern,
)
from tests.checking.helpers import kinds, of_kind, places, words
from tests.examples import BYTE_A_NS, covering, data_parallel, layer, send
from tests.sharded_plans import sharded_plans
from tests.shards import (
    EVERY_PLAN,
    SHARDED,
    gradient_behind_each,
    gradient_on_three,
    mixed_on_six,
    optimizer_on_two,
    parameter_on_three,
    parameter_on_two,
)

EVERY_TRANSFER = [
    (name, number)
    for name, make in SHARDED.items()
    for number, transfer in enumerate(make().pattern.transfers)
    if not transfer.is_boundary
    # The next one from there would take along what these leave.
    and not (make is gradient_behind_each and number < 2)
]


def is_gathered(plan: Plan, number: int) -> bool:
    transfer = plan.pattern.transfers[number]
    return transfer.tensor == "weights" and plan.stages[transfer.stage].shard == "parameter"


@pytest.mark.parametrize("name", SHARDED)
def test_a_sound_plan_has_no_violation(name: str) -> None:
    assert check(SHARDED[name]()) == ()


@pytest.mark.parametrize("name", EVERY_PLAN)
def test_the_order_in_which_items_are_listed_says_nothing(name: str) -> None:
    plan = EVERY_PLAN[name]()
    operations, transfers = plan.pattern.operations[::-1], plan.pattern.transfers[::-1]
    assert check(with_pattern(plan, operations=operations, transfers=transfers)) == ()


@pytest.mark.parametrize("name", SHARDED)
def test_one_byte_less_does_not_fit(name: str) -> None:
    plan = SHARDED[name]()
    for gpu, device in enumerate(plan.platform.gpus):
        smaller = change_gpu(plan, gpu, memory_bytes=device.memory_bytes - 1)
        assert places(smaller, "memory") == [f"GPU {gpu}"]


@pytest.mark.parametrize(("name", "number"), EVERY_TRANSFER)
def test_leaving_out_any_transfer_is_found(name: str, number: int) -> None:
    plan = SHARDED[name]()
    kind = "version" if is_gathered(plan, number) else "gradient"
    found = check(drop_transfer(plan, number))
    assert kind in {violation.kind for violation in found}
    # What the other stages need is there.
    stage = f"stage {plan.pattern.transfers[number].stage}"
    assert all(stage in str(violation) for violation in found)


@pytest.mark.parametrize(("name", "number"), EVERY_TRANSFER)
def test_a_transfer_that_comes_twice_is_found(name: str, number: int) -> None:
    plan = SHARDED[name]()
    again = add_transfer(plan, plan.pattern.transfers[number])
    assert {"gradient", "version"} & kinds(again)


@pytest.mark.parametrize("number", [4, 5])
def test_leaving_out_an_update_is_found(number: int) -> None:
    (lost, other) = (drop_operation(optimizer_on_two(), number), number - 4)
    home = f"stage 0, GPU {other}, mini-batch 0"
    assert home in places(lost, "gradient")
    assert "no U applies it" in words(of_kind(lost, "gradient"))


def test_an_update_of_a_shard_takes_its_share_of_the_time() -> None:
    # U of chunk 0 lasts 2 ns, of chunk 1 3 ns, so neither chunk can set off a ns earlier.
    for number, start in ((2, 10), (3, 12)):
        early = change_transfer(optimizer_on_two(), number, start_ns=start)
        assert places(early, "version") == [f"transfers[{number}]"]


def test_an_update_before_its_own_chunk_is_whole_is_found() -> None:
    # The other chunk, which comes later to the other GPU, does not matter.
    early = change_operation(optimizer_on_two(), 4, start_ns=8)
    assert "lacks micro-batch 1" in words(of_kind(early, "gradient"))
    assert places(early, "gradient") == ["operations[4]"]


def test_a_gradient_that_comes_after_the_update_of_its_chunk_is_found() -> None:
    # U of chunk 0 ends at 11 on GPU 0, where version 1 is whole only at 16.
    late = send("weight_gradient", 0, 0, 12, source=1, target=0, chunk=0, chunks=2)
    found = words(of_kind(add_transfer(optimizer_on_two(), late), "gradient"))
    assert "reaches GPU 0 at 15 ns, 4 ns after version 1 came there" in found


def test_gradients_must_come_to_the_home_of_their_chunk() -> None:
    # Chunk 0 goes to GPU 1, where chunk 1 is at home.
    astray = change_transfer(optimizer_on_two(), 0, source=0, target=1)
    assert "operations[4]" in places(astray, "gradient")
    assert "chunk 0 of mini-batch 0 lacks micro-batch 1" in words(of_kind(astray, "gradient"))


@pytest.mark.parametrize(
    ("stage", "shard", "found"),
    [
        # Its weights come behind the update, for all micro-batches of that GPU.
        (0, "parameter", "chunk 0 of 2, replica +0 to +1 comes to GPU 1, but the micro-batch runs"),
        # They come before each operation, and none behind the update.
        (2, "gradient", "stage 2, GPU 3, mini-batch 0: never becomes version 1 there: its weights"),
        (2, "none", "chunk 0 of mini-batch 0 lacks micro-batches 1, 2, 4, 5"),
        (0, "none", "chunk 1 of mini-batch 0 lacks micro-batches 1, 3, 5"),
    ],
)
def test_each_stage_is_held_to_its_own_level(stage: int, shard: Shard, found: str) -> None:
    other = change_stage(mixed_on_six(), stage, shard=shard)
    violations = [one for one in check(other) if one.kind not in ("memory",)]
    assert found in words(violations)
    assert all(f"stage {stage}" in str(one) for one in violations if one.place != "elsewhere")


def test_a_stage_may_shard_more_where_its_transfers_do() -> None:
    # 2 bytes less of gradients lie there for ever, and 2 that are not at home until they are sent.
    assert check(change_stage(mixed_on_six(), 0, shard="gradient")) == ()


def test_what_a_level_needs_is_asked_of_its_own_stages() -> None:
    lacking = r"layers\[1\]\.optimizer_bytes: .*the shards of stage 1"
    with pytest.raises(InputError, match=lacking):
        change_stage(mixed_on_six(), 1, shard="optimizer")
    with pytest.raises(InputError, match=r"stages\[2\]\.shard: parameter is sharded, but the rule"):
        replace(mixed_on_six(), rule=Rule())


def test_an_all_reduce_updates_no_shard_away_from_home() -> None:
    plan = data_parallel()
    for number in range(len(plan.chain.layers)):
        plan = change_layer(plan, number, optimizer_bytes=1)
    lost = of_kind(change_shard(plan, "optimizer"), "gradient")
    assert [violation.place for violation in lost] == [
        f"stage {stage}, GPU {gpu}, mini-batch 0" for stage in (0, 1) for gpu in (0, 1)
    ]
    assert "its weights do not come" in words(lost)


def test_weights_sent_to_where_they_are_at_home_are_found() -> None:
    back = send("weights", 0, 0, 14, source=1, target=0, chunk=0, chunks=2)
    assert "is at home" in words(of_kind(add_transfer(optimizer_on_two(), back), "version"))


def test_weights_may_be_sent_on_by_a_replica_that_has_only_that_chunk() -> None:
    # In the ring chunk 0 goes from GPU 1 to GPU 2 when chunk 2 has not come to GPU 1.
    assert check(gradient_on_three()) == ()
    early = change_transfer(gradient_on_three(), 9, start_ns=10)
    assert "transfers[9]" in places(early, "version")


def test_two_versions_are_held_at_home() -> None:
    # Of parameters 3 bytes a version: read one period later, two versions at a time.
    late = change_rule(parameter_on_three(), delay=1)
    for gpu, need in enumerate((131, 128, 128)):
        more = change_gpu(late, gpu, memory_bytes=need)
        assert f"GPU {gpu}" not in places(more, "memory")
        less = change_gpu(late, gpu, memory_bytes=need - 1)
        assert f"GPU {gpu}" in places(less, "memory")


def test_a_gradient_lies_away_from_home_until_it_is_sent() -> None:
    # Those of stage 1 are sent only over 18-21, named by the other micro-batch: they lie there
    # while B of stage 0 makes its own.
    plan = parameter_on_two()
    for number in (8, 9):
        shift = -1 - plan.pattern.transfers[number].shift
        plan = change_transfer(plan, number, shift=shift, start_ns=0, source=1, target=0)
    assert not of_kind(plan, "memory")
    for gpu, device in enumerate(plan.platform.gpus):
        smaller = change_gpu(plan, gpu, memory_bytes=device.memory_bytes - 1)
        assert places(smaller, "memory") == [f"GPU {gpu}"]


def test_everything_is_at_home_on_one_gpu() -> None:
    plan = covering()
    for number in (0, 1):
        plan = change_layer(plan, number, optimizer_bytes=10)
    for shard in get_args(Shard):
        assert check(change_shard(plan, shard)) == ()


@trials(200, by_day=20)
@given(sharded_plans(), st.data())
def test_leaving_out_or_doubling_a_transfer_of_a_random_plan_is_found(
    plan: Plan, data: st.DataObject
) -> None:
    numbers = [
        number
        for number, transfer in enumerate(plan.pattern.transfers)
        if plan.stages[transfer.stage].shard != "none" and not transfer.is_boundary
    ]
    if numbers:
        number = data.draw(st.sampled_from(numbers))
        assert {"gradient", "version"} & kinds(drop_transfer(plan, number))
        twice = add_transfer(plan, plan.pattern.transfers[number])
        assert {"gradient", "version"} & kinds(twice)


def layers_of_a_stage(turns: str, **changes: Any) -> Plan:
    """Return a contiguous step of two layers on two GPUs that share gradients, in an order.

    Turns are written `F00`: kind, layer and micro-batch, from 0 to 3.
    """
    sizes = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 2}
    config = SystemConfig(
        chain=Chain(layers=(layer(1, 2, 6, saved_bytes=1, **sizes),) * 2),
        platform=Platform(2, 99, bandwidth=BYTE_A_NS, duplex="full"),
        microbatches=4,
    )
    usual = Stage(layers=(0, 0), gpus=(0, 1), shard="gradient")
    second = replace(usual, layers=(1, 1), **changes)
    order: list[Turn] = [
        ("F" if turn[0] == "F" else "B", int(turn[1]), int(turn[2])) for turn in turns.split()
    ]
    ahead = {number: 1 for number, one in enumerate((usual, second)) if one.shard == "gradient"}
    step = flush_step(config, [usual, second], order, ahead=ahead)
    scope = replace(step.scope, allocation="contiguous", shard="gradient", replicas=None)
    return replace(step, scope=scope)


IN_TURN = " ".join(f"F0{i} F1{i} B1{i} B0{i}" for i in range(4))


def test_layers_that_share_gradients_are_one_contiguous_stage() -> None:
    assert check(layers_of_a_stage(IN_TURN)) == ()
    recomputed = layers_of_a_stage(IN_TURN, recompute=((1, 1),))
    allowed = replace(recomputed, scope=replace(recomputed.scope, recompute=True))
    assert check(allowed) == ()


def test_layers_that_share_less_are_stages_of_their_own() -> None:
    for shard in ("none", "optimizer"):
        found = check(layers_of_a_stage(IN_TURN, shard=shard))
        assert {violation.kind for violation in found} == {"scope"}
        assert "runs stages 0 and 1, but the allocation is contiguous" in str(found[0])


@pytest.mark.parametrize(
    "turns",
    [
        "F00 F02 F10 F12 B10 B00 B12 B02 F01 F03 F11 F13 B11 B01 B13 B03",
        "F00 F10 F02 F12 B10 B12 B00 B02 F01 F11 F03 F13 B11 B13 B01 B03",
    ],
)
def test_nothing_comes_between_the_layers_of_a_contiguous_stage(turns: str) -> None:
    found = check(layers_of_a_stage(turns))
    assert {violation.kind for violation in found} == {"scope"}
    assert "does not come right behind the layer before" in str(found[0])
    general = layers_of_a_stage(turns)
    assert check(replace(general, scope=replace(general.scope, allocation="general"))) == ()


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        ({"replicas": None, "shard": "parameter"}, []),
        ({"replicas": 3, "shard": "parameter"}, []),
        ({"replicas": 2, "shard": "parameter"}, ["stage 0"]),
        ({"replicas": None, "shard": "gradient"}, ["stage 0"]),
        # It speaks of one GPU a stage, and not of plans of other kinds.
        ({"replicas": 1, "shard": "none"}, []),
    ],
)
def test_replicas_and_shards_are_held_against_a_scope_with_replicas(
    allowed: dict[str, Any], found: list[str]
) -> None:
    plan = parameter_on_three()
    scope = replace(plan.scope, microbatches=plan.rule.update_every, **allowed)
    out_of_scope = places(replace(plan, scope=scope), "scope")
    assert [place for place in out_of_scope if place.startswith("stage")] == found
