"""Versions of the weights, against formulas that say explicitly which one a backward reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from schedopt import Plan, Rule, Stage, check
from schedopt.actions import Action, Actions
from schedopt.rule import BackwardReads
from schedopt.running.reference import emulate
from schedopt.running.weight_versions import Weights
from schedopt.simulation import simulate
from tests.budgets import PROFILE, trials
from tests.random_plans import runnable
from tests.running import by_hand
from tests.running.by_hand import ByHand
from tests.running.local_run import (
    assert_nothing_left,
    assert_trained,
    assert_versions,
    place,
    profile_of,
    start,
)
from tests.running.replicated import covering, exchanged

MODEL = by_hand.net()
CHAIN = profile_of(MODEL)
OPTIMIZERS: dict[str, Any] = {"sgd": by_hand.sgd, "adamw": by_hand.adamw}


def staged(rule: Rule, *, recompute: bool = False, split: bool = False) -> Plan:
    """Return a plan of the net on 3 GPUs."""
    again = {0: ((0, 1),), 1: ((4, 4), (5, 5)), 2: ()} if recompute else {}
    rows = ((0, 2), (3, 5), (6, 8))
    found = [Stage(layers=row, gpus=(s,), recompute=again.get(s, ())) for s, row in enumerate(rows)]
    return place(CHAIN, *found, split=(0, 1, 2) if split else (), rule=rule)


def every_rule() -> dict[str, Rule]:
    found = {}
    for backward in get_args(BackwardReads):
        for name, more in {
            "live": {"forward_reads": "live"},
            "entry": {"forward_reads": "entry"},
            "2BW": {"forward_reads": "delay", "delay": 1},
            "later": {"forward_reads": "delay", "delay": 3},
            "table": {"forward_reads": "table", "table": ((1, 2, 1), (2, 1, 1), (1, 1, 3))},
        }.items():
            for every in (1, 2, 3):
                rule = Rule(update_every=every, backward_reads=backward, **more)  # type: ignore[arg-type]
                found[f"{name}, every {every}, backward {backward}"] = rule
    return found


def assert_trained_by_the_words(plan: Plan, count: int, optimizer: str) -> None:
    local = start(plan, MODEL, count, OPTIMIZERS[optimizer])
    alone = emulate(local.work)
    hand = ByHand(plan, MODEL, local.inputs(), optimizer)
    for _, action in local.work.actions.order:
        hand.do(action)
    local.step()
    assert_trained([local.done], hand)
    assert_trained([alone], hand)
    assert_versions(local, simulate(plan, count))
    assert_nothing_left(local)


@pytest.mark.parametrize(
    ("turn", "optimizer", "recompute", "split"),
    [
        (0, "sgd", False, False),
        (1, "sgd", True, True),
        (2, "adamw", False, True),
        (3, "adamw", True, False),
    ],
)
def test_every_rule(turn: int, optimizer: str, recompute: bool, split: bool) -> None:
    """By night each rule in each of four ways, by day in one of them."""
    rules, run = list(every_rule().values()), 0
    for rule in rules if PROFILE == "nightly" else rules[turn::4]:
        try:
            plan = staged(rule, recompute=recompute, split=split)
        except AssertionError:
            continue
        run += 1
        assert_trained_by_the_words(plan, 12, optimizer)
    assert run >= (20 if PROFILE == "nightly" else 5), run


@trials(100)
@given(runnable(given=CHAIN), st.sampled_from(sorted(OPTIMIZERS)))
def test_random_plans_of_any_rule(drawn: tuple[Plan, int], optimizer: str) -> None:
    assume(not check(drawn[0]))
    assert_trained_by_the_words(*drawn, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_go_on_where_the_one_before_ended(optimizer: str) -> None:
    for rule in (Rule(), Rule(update_every=2), Rule(update_every=2, backward_reads="live")):
        plan = staged(rule, recompute=True, split=True)
        local = start(plan, MODEL, 4, OPTIMIZERS[optimizer])
        hand: ByHand | None = None
        for step in range(3):
            local.batches.load(step)
            hand = ByHand(plan, MODEL, local.inputs(), optimizer, after=hand)
            for _, action in local.work.actions.order:
                hand.do(action)
            local.step()
            assert_trained([local.done], hand)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_backward_for_many_forwards(count: int) -> None:
    plan = covering(CHAIN, count)
    assert check(plan) == ()
    for optimizer in OPTIMIZERS:
        assert_trained_by_the_words(plan, 4 * count, optimizer)


def test_an_early_gradient_waits_for_its_own_update() -> None:
    """Of micro-batches 0 and 1, each a mini-batch, the second runs its backward first."""
    plan = staged(Rule(update_every=1, backward_reads="live"))
    local = start(plan, MODEL, 2, by_hand.sgd)
    hand = ByHand(plan, MODEL, local.inputs(), "sgd")
    order = [
        (rank, action)
        for kind, i in (("F", 0), ("F", 1), ("B", 1), ("B", 0), ("U", 0), ("U", 1))
        for rank, action in ordered(kind, i)
    ]
    for rank in local.ranks:
        rank.work = replace(local.work, actions=Actions(tuple(order)))
    for _, action in order:
        hand.do(action)
    local.step()
    assert_trained([local.done], hand)


def ordered(kind: Any, i: int) -> list[tuple[int, Action]]:
    """Return an operation of all three stages, a rank each, with its transfers."""
    found = []
    for stage in (2, 1, 0) if kind == "B" else (0, 1, 2):
        found.append((stage, Action(stage, kind, i, 1, None if kind == "U" else 0)))
        target = stage + 1 if kind == "F" else stage - 1
        if kind != "U" and 0 <= target <= 2:
            sending = Action(stage, f"SEND_{kind}", i)  # type: ignore[arg-type]
            found += [(stage, sending), (target, sending.other_end)]
    return found


def test_parts_are_equal_and_cover_everything() -> None:
    """Chunks of 1 to 300 parts, also with more parts than elements in some parameters."""
    local = start(exchanged(CHAIN), MODEL, 2)
    local.ranks[0].begin_step()
    weights = local.ranks[0].stages[0].weights
    count = sum(parameter.numel() for parameter in weights.parameters.values())
    row = torch.cat([parameter.detach().reshape(-1) for parameter in weights.parameters.values()])
    for chunks in (1, 2, 3, 7, count, count + 5):
        parts = [weights.chunk((c, chunks)) for c in range(chunks)]
        assert torch.equal(torch.cat(parts), row)
        assert [len(part) for part in parts] == [
            count * (c + 1) // chunks - count * c // chunks for c in range(chunks)
        ]
        changed = {(c, chunks): part + 1 for c, part in enumerate(parts)}
        weights.replace(changed)
        row = row + 1
        assert torch.equal(weights.chunk((0, 1)), row)


def test_weights_of_two_precisions_and_not_in_one_row() -> None:
    convolution = nn.Conv2d(2, 3, 3)
    convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
    assert not convolution.weight.is_contiguous()
    module = nn.Sequential(convolution, nn.Linear(4, 4).half())
    weights = Weights(dict(module.named_parameters()), None)
    parts = {(c, 5): weights.chunk((c, 5)) for c in range(5)}
    assert {part.dtype for part in parts.values()} == {torch.float32}
    before = {name: one.detach().clone() for name, one in module.named_parameters()}
    weights.replace({chunk: one * 2 for chunk, one in parts.items()})
    for name, one in module.named_parameters():
        assert torch.equal(one, before[name] * 2), name
