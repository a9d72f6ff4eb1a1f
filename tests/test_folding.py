"""What a fold and collectives stand for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given

from schedopt import (
    Chain,
    Collective,
    InputError,
    Operation,
    Pattern,
    Plan,
    Platform,
    Rule,
    Scope,
    Stage,
    Transfer,
    check,
)
from schedopt.account import busy_time, concurrent_activations, find_binding, load, memory
from schedopt.folding import whole
from schedopt.simulation import simulate
from tests.budgets import trials
from tests.examples import BYTE_A_NS, layer
from tests.folded_plans import folded_plans

FORWARD = Operation(kind="F", stage=0, shift=1, start_ns=4)
ADDED = Collective(tensor="weight_gradient", mode="reduce", stage=0, shift=0, start_ns=3)


@trials(300)
@given(folded_plans())
def test_random_folded_steps_are_valid_and_spelled_out_as_well(plan: Plan) -> None:
    assert check(whole(plan)) == ()
    assert check(plan) == ()


def one_stage(count: int, fold: int, *more: Collective, **others: Any) -> Plan:
    """Return F and B of 1 ns on GPUs in order, one micro-batch each, then collectives."""
    forward = replace(FORWARD, shift=0, start_ns=0)
    done = (forward, replace(forward, kind="B", start_ns=1))
    pattern = Pattern(k=count, fold=fold, period_total_ns=100, operations=done, collectives=more)
    sizes = {"parameter_bytes": 6, "gradient_bytes": 7, "optimizer_bytes": 0}
    given: dict[str, Any] = {
        "chain": Chain(layers=(layer(1, 1, 13, 0, **sizes),)),
        "platform": Platform(count, 100, bandwidth=BYTE_A_NS, duplex="full"),
        "rule": Rule.of_flush(count),
        "scope": Scope(microbatches=count, replicas=None, shard="optimizer", max_k=None),
        "stages": (Stage(layers=(0, 0), gpus=tuple(range(count)), shard="optimizer"),),
        "pattern": pattern,
    }
    return Plan(**(given | others))


def test_an_item_of_a_fold_stands_for_one_of_each_part() -> None:
    sent = Transfer(tensor="gradient", stage=0, shift=-1, start_ns=2)
    plan = one_stage(6, 3)
    pattern = replace(plan.pattern, operations=(FORWARD,), transfers=(sent,))
    found = whole(replace(plan, pattern=pattern)).pattern
    assert (found.k, found.fold, found.period_total_ns) == (6, 1, 100)
    assert found.operations == tuple(replace(FORWARD, shift=i) for i in (3, 4, 5))
    assert found.transfers == tuple(replace(sent, shift=i) for i in (-3, -2, -1))


def test_chunks_go_round_in_the_order_of_the_gpus() -> None:
    # Of 7 bytes chunks have 2, 2 and 3: rounds take 3 ns. Chunk 0 is at home on GPU 2, 1 on GPU 0.
    plan = one_stage(3, 3, ADDED)
    plan = replace(plan, stages=(replace(plan.stages[0], gpus=(2, 0, 1)),))
    found = whole(plan).pattern.transfers
    gpus = plan.stages[0].gpus
    assert [
        (one.start_ns, one.chunk, gpus[one.source or 0], gpus[one.target or 0]) for one in found
    ] == [(3, 0, 0, 1), (3, 1, 1, 2), (3, 2, 2, 0), (6, 0, 1, 2), (6, 1, 2, 0), (6, 2, 0, 1)]
    assert {(one.tensor, one.mode, one.chunks, one.shift) for one in found} == {
        ("weight_gradient", "reduce", 3, 0)
    }


def test_neighbours_that_share_a_link_take_turns_in_a_round() -> None:
    # Two GPUs have one link for both directions, and half of 6 bytes takes 3 ns.
    copied = Collective(tensor="weights", mode="copy", stage=0, shift=1, start_ns=10)
    plan = one_stage(2, 2, copied, platform=Platform(2, 100, bandwidth=BYTE_A_NS, duplex="half"))
    assert [
        (one.start_ns, one.chunk, one.source, one.target, one.shift)
        for one in whole(plan).pattern.transfers
    ] == [(10, 0, 1, 0, 1), (13, 1, 0, 1, 1)]


def test_groups_of_replicas_go_round_by_themselves_and_then_all_of_a_place() -> None:
    # Four parts of a GPU each, of which 0 and 1 share, and 2 and 3, by the numbers of the GPUs:
    # replicas 0 and 2, and 1 and 3. Even chunks are at home on the first of each. Of 7 bytes chunks
    # have 1, 2, 2 and 2.
    across = replace(ADDED, across=True)
    copied = replace(across, mode="copy")
    plan = one_stage(4, 4, ADDED, across, copied)
    stage = replace(plan.stages[0], gpus=(0, 2, 1, 3), shard_copies=2)
    plan = replace(plan, stages=(stage,))
    assert [stage.home(0, chunk, replica) for chunk in (0, 1) for replica in range(4)] == [
        *(0, 1, 0, 1),
        *(2, 3, 2, 3),
    ]
    found = [
        (one.start_ns, one.chunk, stage.gpus[one.source or 0], stage.gpus[one.target or 0])
        for one in whole(plan).pattern.transfers
    ]
    inside = [
        (0, 1, 0),
        (0, 3, 2),
        (1, 0, 1),
        (1, 2, 3),
        (2, 1, 0),
        (2, 3, 2),
        (3, 0, 1),
        (3, 2, 3),
    ]
    assert [(one[0], one[1:]) for one in found[:8]] == [
        *((3, one) for one in inside[:4]),
        *((5, one) for one in inside[4:]),
    ]
    # Chunks 0 and 1 end in the first group, 2 and 3 in the second one.
    assert found[8:12] == [(3, 0, 2, 0), (3, 1, 3, 1), (3, 2, 0, 2), (3, 3, 1, 3)]
    assert found[12:] == [(3, 0, 0, 2), (3, 1, 1, 3), (3, 2, 2, 0), (3, 3, 3, 1)]


def test_what_is_across_groups_is_told_by_true_or_false() -> None:
    wrong: Any = 1
    with pytest.raises(InputError, match="across: neither True nor False"):
        replace(ADDED, across=wrong)


def test_a_ring_pauses_before_a_round() -> None:
    # Rounds of 3 ns: from 3, and from 6 + 5; sums are there at 14.
    paused = replace(ADDED, pauses=((1, 5),))
    copied = Collective(tensor="weights", mode="copy", stage=0, shift=0, start_ns=14)
    plan = one_stage(3, 3, paused, copied)
    starts = [one.start_ns for one in whole(plan).pattern.transfers if one.mode == "reduce"]
    assert starts == [3, 3, 3, 11, 11, 11]
    assert check(plan) == () == check(whole(plan))
    early = replace(plan.pattern, collectives=(paused, replace(copied, start_ns=13)))
    assert "version" in {one.kind for one in check(replace(plan, pattern=early))}


def test_a_pause_before_a_round_that_does_not_exist_is_found() -> None:
    plan = one_stage(3, 3, replace(ADDED, pauses=((2, 5),)))
    (found,) = [one for one in check(plan) if one.kind == "reference"]
    assert found.place == "collectives[0]"
    assert found.message == "round 2 does not exist; stage 0 has 2 of them"


def test_a_step_of_three_parts_is_valid_and_its_collectives_may_not_come_early() -> None:
    # B ends at 2; chunks of 3 and of 2 bytes go round in two rounds each.
    copied = Collective(tensor="weights", mode="copy", stage=0, shift=0, start_ns=9)
    plan = one_stage(3, 3, ADDED, copied)
    assert check(plan) == ()
    early = replace(plan.pattern, collectives=(replace(ADDED, start_ns=1), copied))
    assert "gradient" in {one.kind for one in check(replace(plan, pattern=early))}
    early = replace(plan.pattern, collectives=(ADDED, replace(copied, start_ns=8)))
    assert "version" in {one.kind for one in check(replace(plan, pattern=early))}


def test_updates_of_all_parts_are_a_load() -> None:
    # Gradients are added up at 9; then each GPU updates a chunk of 2 of 6 bytes in 1 of 3 ns.
    copied = Collective(tensor="weights", mode="copy", stage=0, shift=0, start_ns=10)
    plan = one_stage(3, 3, ADDED, copied)
    layers = tuple(replace(one, update_ns=3) for one in plan.chain.layers)
    update = Operation(kind="U", stage=0, shift=0, start_ns=9)
    updated = replace(
        plan,
        chain=replace(plan.chain, layers=layers),
        pattern=replace(plan.pattern, operations=(*plan.pattern.operations, update)),
    )
    assert check(updated) == check(whole(updated)) == ()
    assert load(updated) == load(whole(updated))
    assert [gpu.share for gpu in load(updated)] == [Fraction(3, 100)] * 3


@trials(100)
@given(folded_plans())
def test_it_costs_and_takes_what_it_does_spelled_out(plan: Plan) -> None:
    other = whole(plan)
    assert plan.pattern.period == other.pattern.period
    assert memory(plan) == memory(other)
    assert concurrent_activations(plan) == concurrent_activations(other)
    assert load(plan) == load(other)
    found, expected = busy_time(plan), busy_time(other)
    assert {one: time for one, time in found.items() if time} == {
        one: time for one, time in expected.items() if time
    }
    assert find_binding(plan) == find_binding(other)
    count = plan.pattern.k
    assert simulate(plan, count).makespan_ns == simulate(other, count).makespan_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fold": 2}, "fold: 2 does not divide k = 3"),
        (
            {"operations": (replace(FORWARD, covers=2),)},
            r"operations\[0\]: covers several micro-batches, which a part",
        ),
        (
            {"operations": (Operation(kind="W", stage=0, shift=0, start_ns=0, replica=1),)},
            r"operations\[0\]: runs on another replica",
        ),
        (
            {
                "transfers": (
                    Transfer(tensor="weights", stage=0, shift=0, start_ns=0, source=0, target=1),
                )
            },
            r"transfers\[0\]: goes between replicas, .* Give a collective, or spell all parts out",
        ),
    ],
)
def test_what_a_part_cannot_say_for_all_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(one_stage(3, 3).pattern, **changes)


def test_weights_are_never_added_up() -> None:
    with pytest.raises(InputError, match="mode: weights are copied, never added"):
        Collective(tensor="weights", mode="reduce", stage=0, shift=0, start_ns=0)


@pytest.mark.parametrize("pauses", [((2, 1), (1, 1)), ((1, 1), (1, 1)), ((1,),)])
def test_pauses_name_rounds_in_their_order(pauses: Any) -> None:
    with pytest.raises(InputError, match=r"pauses: takes rounds, each more than .* Give each as"):
        replace(ADDED, pauses=pauses)


def test_what_is_too_large_is_not_spelled_out() -> None:
    plan = one_stage(2**10, 2**10, ADDED)
    with pytest.raises(InputError, match="it would have 1049600 operations and transfers"):
        whole(plan)
