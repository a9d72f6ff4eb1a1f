"""One part of a fold is checked for all: the same is found as where all of them are."""

from __future__ import annotations

from dataclasses import replace
from typing import Never

import pytest
from hypothesis import event, given

from schedopt import Chain, Layer, Plan, Platform, Stage, check
from schedopt.checking import collectives
from schedopt.checking.parts import find_part
from schedopt.folding import whole
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn
from schedopt.systems.folded_step import folded_step
from tests.budgets import trials
from tests.checking.helpers import kinds, of_kind
from tests.folded_plans import changed_folded_plans, folded_plans, with_copies

_OF_WEIGHTS = {"gradient", "version"}


@trials(300, by_day=30)
@given(folded_plans())
def test_one_part_stands_for_random_steps(plan: Plan) -> None:
    assert find_part(plan) is not None or not plan.pattern.is_short
    assert check(plan) == ()
    assert check(whole(plan)) == ()


@trials(100, by_day=10)
@given(folded_plans())
def test_a_gradient_of_a_copy_that_does_not_come_is_missed_in_a_part(plan: Plan) -> None:
    transfers = plan.pattern.transfers
    for number, item in enumerate(transfers):
        if item.source_stage is not None:
            others = (*transfers[:number], *transfers[number + 1 :])
            without = replace(plan, pattern=replace(plan.pattern, transfers=others))
            assert kinds(without) == {"gradient"}
            assert "gradient" in kinds(whole(without))


def layer_of(size: int, activation_bytes: int = 1) -> Layer:
    """Return a layer with this many bytes each of parameters, gradients and optimizer states."""
    return Layer(
        forward_ns=2,
        backward_ns=3,
        weight_bytes=3 * size,
        parameter_bytes=size,
        gradient_bytes=size,
        optimizer_bytes=size,
        activation_bytes=activation_bytes,
    )


def four_gpus(*layers: Layer) -> SystemConfig:
    """Return a step of four micro-batches on four GPUs, whose links carry a byte each ns."""
    platform = Platform(4, 1000, bandwidth=10**9)
    return SystemConfig(chain=Chain(layers=layers), platform=platform, microbatches=4)


def sharded_step(size: int) -> Plan:
    """Return a step of one stage with four replicas, a layer with this many parameter bytes."""
    stages = [Stage(layers=(0, 0), gpus=(0, 1, 2, 3), shard="optimizer")]
    return folded_step(four_gpus(layer_of(size)), stages, 4, [("F", 0, 0), ("B", 0, 0)])


def test_rings_of_no_bytes_that_begin_together_are_not_spelled_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A loss has no gradients: its two rings take no time, and are no reason to look at each hop.
    plan = sharded_step(0)
    assert {one.start_ns for one in plan.pattern.collectives} == {5}

    def spell_out(*_: object) -> Never:
        raise AssertionError

    monkeypatch.setattr(collectives, "_spell_out", spell_out)
    assert check(plan) == ()


def test_two_collectives_at_once_on_the_same_links_are_found() -> None:
    plan = sharded_step(8)
    assert check(plan) == ()
    gradients, weights = plan.pattern.collectives
    early = replace(weights, start_ns=gradients.start_ns + 1)
    both = replace(plan, pattern=replace(plan.pattern, collectives=(gradients, early)))
    assert find_part(both) is not None
    assert "overlap" in kinds(both)


def test_a_transfer_that_is_sent_when_a_collective_begins_on_its_link_is_found() -> None:
    # One part has GPUs 0 and 1, the other 2 and 3; each GPU runs both stages.
    stages = [Stage(layers=(0, 0), gpus=(0, 2, 1, 3)), Stage(layers=(1, 1), gpus=(1, 3, 0, 2))]
    turns: list[Turn] = [("F", 0, 0), ("F", 0, 1), ("F", 1, 0), ("F", 1, 1)]
    turns += [("B", 1, 0), ("B", 1, 1), ("B", 0, 0), ("B", 0, 1)]
    plan = folded_step(four_gpus(*[layer_of(8, activation_bytes=10)] * 2), stages, 2, turns)
    assert check(plan) == ()
    last = max(plan.pattern.transfers, key=lambda transfer: transfer.start_ns)
    first, *others = plan.pattern.collectives
    early = replace(first, start_ns=last.start_ns + 1)
    both = replace(plan, pattern=replace(plan.pattern, collectives=(early, *others)))
    assert find_part(both) is not None
    assert "overlap" in kinds(both)


def step_with_copies(stages: list[Stage], turns: list[Turn]) -> Plan:
    """Return a step of two parts of two micro-batches, whose two layers have tied weights."""
    config = four_gpus(layer_of(8), layer_of(8))
    plan = folded_step(replace(config, chain=with_copies(config.chain)), stages, 2, turns)
    assert check(plan) == ()
    assert find_part(plan) is not None
    return plan


@pytest.mark.parametrize(
    ("gpus", "turns", "whole_ns"),
    [
        # Stage 0 ends at 17 on GPU 0. Its gradient goes to GPU 1 when the link is free, over 22-30.
        ((1, 3), "F00 F01 F10 B10 F11 B11 B00 B01", 30),
        # Stage 0 ends last, at 20, on the same GPU.
        ((0, 2), "F00 F10 B10 B00 F01 F11 B11 B01", 20),
    ],
)
def test_a_ring_waits_for_the_gradient_of_a_copy(
    gpus: tuple[int, int], turns: str, whole_ns: int
) -> None:
    stages = [Stage(layers=(0, 0), gpus=(0, 2)), Stage(layers=(1, 1), gpus=gpus)]
    order: list[Turn] = [
        ("F" if turn[0] == "F" else "B", int(turn[1]), int(turn[2])) for turn in turns.split()
    ]
    plan = step_with_copies(stages, order)
    ring, *others = plan.pattern.collectives
    assert (ring.stage, ring.start_ns) == (1, whole_ns)
    early = (replace(ring, start_ns=whole_ns - 1), *others)
    assert kinds(replace(plan, pattern=replace(plan.pattern, collectives=early))) == {"gradient"}


@pytest.fixture
def apart() -> Plan:
    """Return a step whose parts have a stage on each of two GPUs."""
    stages = [Stage(layers=(0, 0), gpus=(0, 2)), Stage(layers=(1, 1), gpus=(1, 3))]
    turns: list[Turn] = [("F", 0, 0), ("F", 0, 1), ("F", 1, 0), ("B", 1, 0)]
    turns += [("F", 1, 1), ("B", 1, 1), ("B", 0, 0), ("B", 0, 1)]
    return step_with_copies(stages, turns)


@pytest.mark.parametrize("early", [False, True])
def test_the_gradient_of_a_copy_is_not_sent_before_it_is_made(apart: Plan, early: bool) -> None:
    # B1 of the second micro-batch ends at 13.
    *others, last = apart.pattern.transfers
    assert (last.source_stage, last.stage, last.start_ns) == (1, 0, 14)
    transfers = (*others, replace(last, start_ns=12 if early else 13))
    plan = replace(apart, pattern=replace(apart.pattern, transfers=transfers))
    told = "the gradient of the copy in stage 1, micro-batch 1, is added never"
    assert [one.message for one in of_kind(plan, "gradient")] == [told] * early


@pytest.mark.parametrize("early", [False, True])
def test_chunks_go_on_when_they_are_added_up(apart: Plan, early: bool) -> None:
    # Chunks of 4 bytes take turns on a link: GPU 1 sends over 30-34, and GPU 3 to it over 34-38.
    first, second, *others = apart.pattern.collectives
    assert (first.start_ns, second.start_ns) == (30, 38)
    collectives = (first, replace(second, start_ns=38 - early), *others)
    plan = replace(apart, pattern=replace(apart.pattern, collectives=collectives))
    told = "starts at 37 ns, 1 ns before its chunk is added up on GPU 1 of stage 1"
    assert [one.message for one in of_kind(plan, "gradient")] == [told] * early


def test_a_ring_ends_with_the_step(apart: Plan) -> None:
    # The last one sends 38-42 and 42-46, to the end of the step.
    assert apart.pattern.period_total_ns == 46
    first, second, *others = apart.pattern.collectives
    late = (first, replace(second, start_ns=second.start_ns + 1), *others)
    found = check(replace(apart, pattern=replace(apart.pattern, collectives=late)))
    assert [(one.kind, one.place, one.message) for one in found] == [
        ("scope", "collectives[1]", "ends at 47 ns, 1 ns after the step")
    ]


@trials(2000, by_day=50)
@given(changed_folded_plans())
def test_the_same_is_wrong_with_a_part_as_with_all_of_them(plan: Plan) -> None:
    one, other = kinds(plan), kinds(whole(plan))
    event(f"{find_part(plan) is not None} {sorted(other)}")
    assert bool(one) == bool(other)
    if "scope" in other:
        # What goes on after the end meets the next step, which only the whole shows.
        return
    # Weights that are not there go wrong in several ways, of which a part tells the first.
    assert one - _OF_WEIGHTS == other - _OF_WEIGHTS
    assert bool(one & _OF_WEIGHTS) == bool(other & _OF_WEIGHTS)
