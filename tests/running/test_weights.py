"""Versions of the weights, against formulas that say explicitly which one a backward reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from schedopt import Operation, Plan, Rule, Stage, check
from schedopt.account.profile import peak_of
from schedopt.account.reading import Reader
from schedopt.account.versions import held_versions
from schedopt.actions import Action, Actions
from schedopt.rule import BackwardReads
from schedopt.running.reference import emulate
from schedopt.simulation import Event, simulate
from tests.budgets import PROFILE, trials
from tests.random_plans import runnable
from tests.running import by_hand
from tests.running.by_hand import ByHand
from tests.running.local_run import LocalRun, apart, place, profile_of, start
from tests.running.replicated import covering

MOST = 1e-12
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
    inputs = [local.batches(i, ["input"])["input"] for i in range(count)]
    alone = emulate(local.work)
    hand = ByHand(plan, MODEL, inputs, optimizer)
    for _, action in local.work.actions.order:
        hand.do(action)
    local.step()
    for wanted, got in (
        (hand.gradients, local.done.gradients),
        (hand.weights, local.done.weights),
        (hand.gradients, alone.gradients),
        (hand.weights, alone.weights),
    ):
        assert_alike(got, wanted)
    assert_versions(local, count)


def assert_alike(got: dict[Any, Tensor], wanted: dict[Any, Tensor]) -> None:
    assert got.keys() == wanted.keys()
    for name, one in wanted.items():
        assert apart(got[name], one) < MOST, name


def is_read(event: Event) -> bool:
    """Return whether an event reads weights."""
    return isinstance(event.item, Operation) and event.item.kind != "U"


def assert_versions(local: LocalRun, count: int) -> None:
    """Hold the most versions at once against the account of the step.

    Where something takes no time, its reads and an update share an instant. They still run one
    after the other, but in the account all that ends at an instant ends before what begins there.
    """
    step = simulate(local.plan, count)
    held: dict[int, list[Any]] = {stage: [] for stage in range(len(local.plan.stages))}
    for version in held_versions(Reader(step)):
        held[version.stage].append((1, version.made_ns, version.end_ns))
    in_no_time = {run.item.stage for run in step.events if not run.length_ns and is_read(run)}
    for rank in local.ranks:
        for stage, work in rank.stages.items():
            most = peak_of(held[stage], step.length_ns) if held[stage] else 1
            assert work.weights.most_held == most or stage in in_no_time
            assert not work.weights._older
            assert not work.weights._early


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
            inputs = [local.batches(i, ["input"])["input"] for i in range(4)]
            hand = ByHand(plan, MODEL, inputs, optimizer, after=hand)
            for _, action in local.work.actions.order:
                hand.do(action)
            local.step()
            assert_alike(local.done.gradients, hand.gradients)
            assert_alike(local.done.weights, hand.weights)


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
    assert isinstance(plan, Plan)
    hand = ByHand(plan, MODEL, [local.batches(i, ["input"])["input"] for i in range(2)], "sgd")
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
    assert_alike(local.done.gradients, hand.gradients)
    assert_alike(local.done.weights, hand.weights)


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
