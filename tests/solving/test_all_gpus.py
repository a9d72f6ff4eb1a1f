"""Orders of all GPUs that agree, against brute force over all plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Platform, Problem, Scope, check
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.propagation import propagate
from schedopt.interrupts import Stopped
from schedopt.solvers.joint_orders import are_few_sets, rooms_of_orders, shorten
from schedopt.solvers.relaxation import BY_ALLOCATIONS, LARGEST, relaxed_allocations
from schedopt.solving.all_gpus.allocations import Allocations, as_stages
from schedopt.solving.all_gpus.layout import lay_out, read_order
from schedopt.solving.all_gpus.nearby import Nearby
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.local_search.search import place_stages
from schedopt.solving.packing_columns import PackingColumns
from schedopt.solving.run import Run
from schedopt.stage import Stage
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.solving.test_one_gpu_columns import VIT, forced_by, orders_of

VIT_ON_8 = Problem(
    chain=VIT,
    platform=Platform(8, 445_956_128, bandwidth="12GB/s"),
    scope=replace(Scope.usual(), max_k=1),
)
"""Medium memory, as the benchmarks have it."""

VIT_ON_4 = replace(VIT_ON_8, platform=Platform(4, 664_350_625, bandwidth="12GB/s"))
VIT_ON_2 = replace(VIT_ON_8, platform=Platform(2, "2GB", bandwidth="12GB/s"))
FOUND_ON_4 = tuple(
    Stage(layers=(layer, layer), gpus=(int(gpu),))
    for layer, gpu in enumerate("1112332122332000000011133")
)
"""What the local search finds."""


def spread_out(problem: Problem) -> list[Stage]:
    """Return an allocation of one layer after the other to GPUs in turns."""
    gpus, layers = len(problem.platform.gpus), len(problem.chain.layers)
    return [Stage(layers=(layer, layer), gpus=(layer % gpus,)) for layer in range(layers)]


@pytest.mark.parametrize("k", [1, 2])
@trials(400)
@given(data=st.data())
def test_no_plan_has_a_period_that_allocations_refute(data: st.DataObject, k: int) -> None:
    problem = data.draw(linked_problems(longest=5 - k))
    problem = replace(problem, scope=replace(problem.scope, max_k=k))
    forced = forced_by(problem)
    if forced is None:
        return
    _, orders = orders_of(forced)
    holds = Allocations(forced, orders).find(60)
    assert holds is not None
    if len(holds):
        assert (holds.sum(axis=0) == 1).all()
    else:
        assert not has_plan(problem, forced.scaled.period)


@pytest.mark.parametrize("k", [1, 2])
@trials(400, by_day=100)
@given(data=st.data())
def test_columns_that_weigh_enough_refute_as_much_as_all(data: st.DataObject, k: int) -> None:
    problem = data.draw(linked_problems(longest=5 - k))
    problem = replace(problem, scope=replace(problem.scope, max_k=k))
    forced = forced_by(problem)
    if forced is None:
        return
    limits, orders = orders_of(forced)
    gpus, run = len(problem.platform.gpus), Run(problem, workers=1)
    columns = PackingColumns(limits, gpus, run, (), orders)
    among_heavy = Allocations(forced, orders, columns=columns).find(60)
    among_all = Allocations(forced, orders).find(60)
    assert among_heavy is not None
    assert among_all is not None
    assert (among_heavy.sum(axis=0) == 1).all() or not len(among_heavy)
    assert len(among_heavy) > 0 or len(among_all) == 0
    assert len(among_all) > 0 or len(among_heavy) == 0
    in_parts = Allocations(forced, orders, columns=columns).find(60, lightest=1)
    assert in_parts is None or len(in_parts) == len(among_all) == 0


def test_columns_that_weigh_enough_are_few_of_all() -> None:
    tight = replace(VIT_ON_4, platform=Platform(4, 520_073_000, bandwidth="12GB/s"))
    forced = propagate(Amounts(tight, LARGEST), Fraction(1_140_000_000))
    assert forced is not None
    limits, orders = orders_of(forced)
    assert Allocations(forced, orders).find(0.5) is None
    columns = PackingColumns(limits, 4, Run(tight, workers=1), (), orders)
    holds = Allocations(forced, orders, columns=columns).find(10)
    assert holds is not None
    assert len(holds) == 0


def test_orders_that_agree_rule_out_what_orders_of_each_gpu_allow() -> None:
    forced = propagate(Amounts(VIT_ON_8, LARGEST), Fraction(335_000_000))
    assert forced is not None
    limits, orders = orders_of(forced)
    run = Run(VIT_ON_8, workers=1)
    assert PackingColumns(limits, 8, run, (), orders).may_hold_all(5) is True
    holds = Allocations(forced, orders).find(5)
    assert holds is not None
    assert len(holds) == 0


def test_allocations_refute_patterns_of_two_micro_batches_nearly_as_quickly() -> None:
    longer = replace(VIT_ON_8, scope=Scope.usual())
    forced = propagate(Amounts(longer, LARGEST), Fraction(330_000_000))
    assert forced is not None
    limits, orders = orders_of(forced)
    assert PackingColumns(limits, 8, Run(longer, workers=1), (), orders).may_hold_all(5) is True
    holds = Allocations(forced, orders).find(1)
    assert holds is not None
    assert len(holds) == 0


def test_allocations_with_orders_that_agree_are_plans() -> None:
    for room in rooms_of_orders(VIT_ON_8):
        COMPILATIONS[room].compile_here()
    run = Run(VIT_ON_8, workers=1)
    for _ in relaxed_allocations(VIT_ON_8, run, with_plans=True):
        plan, bound = run.best(), run.bound()
        if plan is not None and bound is not None and plan.pattern.period < bound * 1.02:
            break
    else:
        pytest.fail("no plan is near a bound")
    assert any(bound.proof == BY_ALLOCATIONS for bound in run.incumbent.bounds)
    assert not check(plan)
    assert (plan.chain, plan.platform) == (VIT, VIT_ON_8.platform)
    assert bound < plan.pattern.period


def test_all_gpus_are_looked_at_for_short_chains_or_few_allocations() -> None:
    assert rooms_of_orders(VIT_ON_8) == rooms_of_orders(VIT_ON_4) == ("one_gpu", "all_gpus")
    long = replace(VIT_ON_8, chain=replace(VIT, layers=VIT.layers * 3))
    assert rooms_of_orders(long) == ("one_gpu",)
    on_8, on_4 = (replace(each, scope=Scope.usual()) for each in (VIT_ON_8, VIT_ON_4))
    assert rooms_of_orders(on_8) == rooms_of_orders(on_4) == ("one_gpu", "all_gpus")
    twice = replace(on_8, chain=replace(VIT, layers=VIT.layers * 2))
    assert rooms_of_orders(twice) == ("one_gpu",)
    assert rooms_of_orders(replace(twice, scope=VIT_ON_8.scope)) == ("one_gpu", "all_gpus")
    again = replace(VIT_ON_8, scope=replace(VIT_ON_8.scope, recompute=True))
    assert rooms_of_orders(again) == ()


def test_whole_allocations_are_listed_where_gpus_have_few_layers() -> None:
    assert are_few_sets(VIT_ON_4)
    assert not are_few_sets(VIT_ON_2)


@trials(400, by_day=100)
@given(data=st.data())
def test_what_is_found_near_an_allocation_is_one(data: st.DataObject) -> None:
    problem = data.draw(linked_problems(longest=4))
    problem = replace(problem, scope=replace(problem.scope, max_k=1))
    forced = forced_by(problem)
    if forced is None:
        return
    around = propagate(Amounts(problem, LARGEST), forced.scaled.period * 2)
    assert around is not None
    holds = Nearby(around, forced, spread_out(problem), seed=0).find(0.001)
    if holds is None:
        return
    assert (holds.sum(axis=0) == 1).all()
    among_all = Allocations(forced, orders_of(forced)[1]).find(60)
    assert among_all is not None
    # What layers that take no time hold besides weights is not part of orders, but of limits.
    if all(layer.forward_ns and layer.backward_ns for layer in problem.chain.layers):
        assert len(among_all)


def test_a_walk_finds_nothing_where_no_allocation_has_orders_that_agree() -> None:
    around, possible, refuted = (
        propagate(Amounts(VIT_ON_8, LARGEST), Fraction(period))
        for period in (400_000_000, 380_000_000, 335_000_000)
    )
    assert around is not None
    assert possible is not None
    assert refuted is not None
    holds = Allocations(possible, orders_of(possible)[1]).find(20)
    assert holds is not None
    start = as_stages(holds)
    assert Nearby(around, possible, start, seed=3).find(5) is not None
    assert Nearby(around, refuted, start, seed=3).find(0.5) is None


def test_plans_of_allocations_near_the_best_one_are_shorter() -> None:
    run = Run(VIT_ON_4, workers=1)
    amounts = Amounts(VIT_ON_4, LARGEST)
    around, within = (propagate(amounts, Fraction(period)) for period in (680_000_000, 656_000_000))
    assert around is not None
    assert within is not None
    nearby = Nearby(around, within, FOUND_ON_4, seed=0)
    assert nearby.find(5) is not None
    start = lay_out(VIT_ON_4, read_order(nearby.data, nearby.scratch))
    assert start is not None
    run.report_if_valid(start)
    before = run.period()
    assert before is not None
    for period, look in shorten(VIT_ON_4, amounts, run, 1.0, np.random.default_rng(0)):
        forced = propagate(amounts, period)
        assert forced is not None
        assert not look(forced)
    best, after = run.best(), run.period()
    assert best is not None
    assert after is not None
    assert not check(best)
    assert (best.chain, best.platform) == (VIT, VIT_ON_4.platform)
    assert after < before * 0.98


def test_nothing_is_looked_for_near_a_plan_whose_gpus_idle() -> None:
    halves = [Stage(layers=(0, 12), gpus=(0,)), Stage(layers=(13, 24), gpus=(1,))]
    idle = replace(VIT_ON_4, platform=Platform(4, "4GB", bandwidth="12GB/s"))
    run = Run(idle, workers=1)
    scope = replace(idle.scope, allocation="fixed")
    plan = place_stages(replace(idle, scope=scope, stages=tuple(halves)), run)
    assert plan is not None
    run.report_if_valid(plan)
    assert run.period() is not None
    assert not list(shorten(idle, Amounts(idle, LARGEST), run, 1.0, np.random.default_rng(0)))


def test_of_few_layers_the_best_allocation_is_found_even_where_gpus_idle() -> None:
    few = replace(
        VIT_ON_4,
        chain=replace(VIT, layers=VIT.layers[:12]),
        platform=Platform(4, "300MB", bandwidth="12GB/s"),
    )
    quarters = tuple(Stage(layers=(3 * gpu, 3 * gpu + 2), gpus=(gpu,)) for gpu in range(4))
    scope = replace(few.scope, allocation="fixed")
    run, amounts = Run(few, workers=1), Amounts(few, LARGEST)
    plan = place_stages(replace(few, scope=scope, stages=quarters), run)
    assert plan is not None
    run.report_if_valid(plan)
    for period, look in shorten(few, amounts, run, 1.0, np.random.default_rng(0)):
        forced = propagate(amounts, period)
        assert forced is None or not look(forced)
    best, found = run.best(), run.period()
    assert best is not None
    assert found is not None
    assert not check(best)
    less = propagate(amounts, found * Fraction(99, 100))
    assert less is not None
    none = Allocations(less, orders_of(less)[1]).find(20)
    assert none is not None
    assert not len(none)


def test_a_stop_ends_a_walk_and_little_work_finds_nothing() -> None:
    forced = propagate(Amounts(VIT_ON_4, LARGEST), Fraction(590_000_000))
    assert forced is not None
    assert Nearby(forced, forced, FOUND_ON_4, seed=0).find(1e-4) is None
    with pytest.raises(Stopped):
        Nearby(forced, forced, FOUND_ON_4, 0, lambda: True).find(5)


def test_tied_layers_stay_together_in_a_walk() -> None:
    problem = replace(
        VIT_ON_4,
        chain=replace(VIT, same_gpu=((0, 24),)),
        platform=Platform(4, "1GB", bandwidth="12GB/s"),
    )
    around, forced = (
        propagate(Amounts(problem, LARGEST), Fraction(period))
        for period in (850_000_000, 750_000_000)
    )
    assert around is not None
    assert forced is not None
    gpus = [*(layer // 7 for layer in range(24)), 0]
    start = [Stage(layers=(layer, layer), gpus=(gpu,)) for layer, gpu in enumerate(gpus)]
    for seed in range(5):
        holds = Nearby(around, forced, start, seed).find(5)
        assert holds is not None
        assert np.array_equal(holds[:, 0], holds[:, 24])


def test_without_enough_work_nothing_is_known() -> None:
    forced = propagate(Amounts(VIT_ON_8, LARGEST), Fraction(335_000_000))
    assert forced is not None
    assert Allocations(forced, orders_of(forced)[1]).find(1e-4) is None


def test_a_stop_ends_a_question_about_allocations() -> None:
    forced = propagate(Amounts(VIT_ON_8, LARGEST), Fraction(335_000_000))
    assert forced is not None
    with pytest.raises(Stopped):
        Allocations(forced, orders_of(forced)[1], lambda: True).find(5)


def test_tied_layers_share_a_gpu() -> None:
    chain = replace(VIT, same_gpu=((0, 24),))
    problem = replace(VIT_ON_8, chain=chain)
    forced = propagate(Amounts(problem, LARGEST), Fraction(370_000_000))
    assert forced is not None
    holds = Allocations(forced, orders_of(forced)[1]).find(20)
    assert holds is not None
    assert len(holds)
    assert np.array_equal(holds[:, 0], holds[:, 24])
