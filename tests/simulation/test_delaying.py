"""Transfers as late as links and readers allow: nothing else moves, and nothing comes earlier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Plan, Platform, Scope, Transfer, check, solve
from schedopt.account.timeline import Timeline
from schedopt.plan import Kind
from schedopt.simulation.delaying import delay_transfers
from tests.budgets import trials
from tests.examples import contiguous, layer, planned, timed
from tests.random_plans import valid_plans
from tests.strategies import chains, platforms


def waits(plan: Plan) -> dict[tuple[str, int, int], int]:
    """Return how long each tensor lies where it came before it is read, ns, by micro-batch."""
    timeline = Timeline(plan)
    found: dict[tuple[str, int, int], int] = {}
    for transfer, first, _, _, run in timeline.transfers():
        if not transfer.is_boundary:
            continue
        reader = transfer.stage + (transfer.tensor == "activation")
        back: Kind = "I" if timeline.has("I", reader) else "B"
        kind = "F" if transfer.tensor == "activation" else back
        for i in range(first, first + transfer.covers):
            start = timeline.at(kind, reader, i).start_ns
            found[transfer.tensor, transfer.stage, i] = start - run.end_ns
    return found


def alone(plan: Plan, transfer: Transfer, later: int) -> Plan:
    """Return a plan with one transfer later."""
    periods, start = divmod(transfer.start_ns + later, plan.pattern.period_total_ns)
    moved = replace(transfer, start_ns=start, shift=transfer.shift - plan.pattern.k * periods)
    others = (moved if one is transfer else one for one in plan.pattern.transfers)
    return replace(plan, pattern=replace(plan.pattern, transfers=tuple(others)))


def test_gradients_of_a_plan_by_hand_come_just_in_time() -> None:
    # B2 ends at 10 and B1 starts at 13, B1 ends at 15 and B0 starts at 18; activations never wait.
    assert sorted(waits(contiguous()).values()) == [0, 0, 2, 2]
    late = delay_transfers(contiguous())
    assert set(waits(late).values()) == {0}
    starts = {(t.tensor, t.stage): (t.start_ns, t.shift) for t in late.pattern.transfers}
    # 17 and 12 ns after the start of micro-batch 0, modulo 4.
    assert starts["gradient", 0] == (1, -4)
    assert starts["gradient", 1] == (0, -3)


def test_a_transfer_takes_the_last_gap_of_a_busy_link() -> None:
    # On a half-duplex link the activation is on its way over [4, 5) + 6 n, B0 starts at 11: the
    # gradient waits from 10 on.
    plan = planned(
        [layer(4, 1, 0), layer(2, 2, 0)],
        Platform(gpus=2, memory=100, bandwidth=10**9),
        timed(6, {"F0": 0, "a0": 4, "F1": 5, "B1": 7, "g0": 9, "B0": 11}),
    )
    assert not check(plan)
    assert waits(plan) == {("activation", 0, 0): 0, ("gradient", 0, 0): 1}
    assert delay_transfers(plan) == plan


def boundaries(plan: Plan) -> Iterator[Transfer]:
    return (transfer for transfer in plan.pattern.transfers if transfer.is_boundary)


def assert_late(plan: Plan) -> None:
    late = delay_transfers(plan)
    assert not check(late)
    assert late.pattern.operations == plan.pattern.operations
    assert replace(late, pattern=plan.pattern) == plan
    before, after = waits(plan), waits(late)
    assert all(0 <= after[key] <= wait for key, wait in before.items())
    assert delay_transfers(late) == late
    for transfer in boundaries(late):
        for later in range(1, 1 + min(5, max(after.values()))):
            assert check(alone(late, transfer, later))


@given(valid_plans())
@trials(200)
def test_random_plans(plan: Plan) -> None:
    assert_late(plan)


@given(valid_plans(updates=True))
@trials(100)
def test_random_plans_with_updates(plan: Plan) -> None:
    assert_late(plan)


@given(valid_plans(updates=True, exchange=True))
@trials(60)
def test_random_plans_in_which_replicas_exchange_halves(plan: Plan) -> None:
    assert_late(plan)


@given(chains(), platforms(), st.booleans())
@trials(400)
def test_nothing_waits_under_1f1b_star(chain: Chain, platform: Platform, recompute: bool) -> None:
    """Where a gradient waits, its reader starts, modulo T, when the activation is sent.

    Both fit on the link, which nothing else uses.
    """
    assume(platform.network is None)
    plan = solve(chain, platform, scope=Scope(recompute=recompute), solver="contiguous").plan
    assume(plan is not None)
    assert plan is not None
    assert not any(waits(delay_transfers(plan)).values())


def test_what_waits_for_very_long_is_sent_late_at_once() -> None:
    plan = contiguous()
    last = plan.pattern.operations[5]
    late = replace(last, shift=last.shift - 10**9)
    operations = (*plan.pattern.operations[:5], late)
    far = replace(plan, pattern=replace(plan.pattern, operations=operations))
    assert set(waits(delay_transfers(far)).values()) == {0}
