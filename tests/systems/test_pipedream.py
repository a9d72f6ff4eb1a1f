from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from schedopt import InputError, Rule, Scope
from schedopt.account import concurrent_activations, versions
from schedopt.plan import Kind
from schedopt.systems.catalogue import Constructor
from schedopt.systems.pipedream import pipedream, pipedream_2bw, pipedream_vertical, pipemare
from tests.systems.configs import BYTE_A_NS, assert_sound, unit_config, unit_layer, with_layers

ALL = (pipedream, pipedream_vertical, pipedream_2bw, pipemare)


@pytest.mark.parametrize("system", ALL)
@pytest.mark.parametrize("gpus", [1, 2, 3, 5])
def test_without_transfers_equal_stages_never_wait(system: Constructor, gpus: int) -> None:
    plan = system(unit_config(gpus, forward=1, backward=2))
    assert (plan.pattern.k, plan.pattern.period_total_ns) == (1, 3)


@pytest.mark.parametrize("gpus", [1, 2, 3, 5])
def test_stashing_holds_a_version_for_each_micro_batch_in_flight(gpus: int) -> None:
    # F of micro-batch i starts when B of i - (P - s) has made version i - (P - s) + 1.
    plan = pipedream(unit_config(gpus))
    assert concurrent_activations(plan) == {(s, s): gpus - s for s in range(gpus)}
    assert versions(plan).held == {(s, s): gpus - s for s in range(gpus)}
    assert versions(plan).forward_staleness == {(0, s): gpus - s - 1 for s in range(gpus)}
    assert versions(plan).backward_staleness == versions(plan).forward_staleness


@pytest.mark.parametrize("gpus", [1, 2, 3, 5])
def test_vertical_sync_holds_as_many_everywhere(gpus: int) -> None:
    # All read version i - P + 1, that of the entry; version i + 1 replaces it at the end of B.
    plan = pipedream_vertical(unit_config(gpus))
    assert versions(plan).held == {(s, s): gpus for s in range(gpus)}
    assert versions(plan).forward_staleness == {(0, s): gpus - 1 for s in range(gpus)}


@pytest.mark.parametrize(("gpus", "least"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_double_buffering_needs_one_micro_batch_less_than_printed(gpus: int, least: int) -> None:
    for asked in (1, 2 * gpus):
        plan = pipedream_2bw(unit_config(gpus, microbatches=asked))
        assert plan.rule.update_every == max(asked, least)
        assert set(versions(plan).held.values()) == {2}
        assert set(versions(plan).forward_staleness.values()) == {1}


def test_updates_that_take_no_time_make_no_pattern_longer() -> None:
    config = unit_config(3, microbatches=6)
    at_once, slow = (
        pipemare(with_layers(config, *[replace(unit_layer(), update_ns=length)] * 3))
        for length in (0, 5)
    )
    assert at_once.pattern == pipemare(config).pattern
    # 6 forwards and backwards of 1 and an update.
    assert (slow.pattern.k, slow.pattern.period_total_ns) == (6, 17)


def test_the_newest_weights_alone_need_no_second_version() -> None:
    plan = pipemare(unit_config(4, microbatches=3))
    assert set(versions(plan).held.values()) == {1}
    # B_s runs 2 (P - s) - 1 units after F_s, an update comes every 3 * 2 units.
    assert max(versions(plan).forward_staleness.values()) == 1
    assert set(versions(plan).backward_staleness.values()) == {0}


def test_what_a_run_comes_to_is_known_before_it_gets_there() -> None:
    # Stage 1 is slower than stage 0 by 1 in 10**9, so that stage 0 gains a micro-batch on it in
    # some 10**9 rounds, and then always has the 3 in flight that it may have.
    first, slower, fast = unit_layer(10**9, 10**9), unit_layer(10**9, 10**9 + 1), unit_layer(0, 0)
    plan = pipedream(with_layers(unit_config(3), first, slower, fast))
    assert_sound(plan)
    assert plan.pattern.period == 2 * 10**9 + 1
    assert concurrent_activations(plan) == {(0, 0): 3, (1, 1): 2, (2, 2): 1}


def test_links_on_which_no_order_settles_get_one() -> None:
    # The half-duplex links carry activations and gradients in ever new order.
    config = with_layers(
        unit_config(3, 1, bandwidth=BYTE_A_NS),
        unit_layer(1, 2, 10),
        unit_layer(5, 4, 6),
        unit_layer(5, 9, 2),
    )
    scheduler = config.scheduler(Rule(update_every=1), config.pipeline())
    for stage, in_flight in enumerate((3, 2, 1)):
        order: list[tuple[Kind, int, int]] = [("F", i, i - in_flight) for i in range(200)]
        order += [("B", i, i) for i in range(200)]
        for kind, i, _ in sorted(order, key=lambda row: (row[2], row[0] == "F")):
            scheduler.run(kind, stage, i)
    scheduler.settle()
    with pytest.raises(InputError, match="has not become periodic"):
        scheduler.steady(1)
    plan = scheduler.plan(scheduler.steady(1, fold=True), Scope(max_k=None))
    assert_sound(plan)
    ran = scheduler.step(200).operations
    ends = sorted(o.start_ns for o in ran if (o.kind, o.stage) == ("B", 0))
    assert plan.pattern.period * 100 <= Fraction(11, 10) * (ends[150] - ends[50])
