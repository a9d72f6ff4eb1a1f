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
from schedopt.solvers.joint_orders import rooms_of_orders
from schedopt.solvers.relaxation import BY_ALLOCATIONS, LARGEST, relaxed_allocations
from schedopt.solving.all_gpus.allocations import Allocations
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.packing_columns import PackingColumns
from schedopt.solving.run import Run
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.solving.test_one_gpu import VIT, forced_by, orders_of

VIT_ON_8 = Problem(
    chain=VIT,
    platform=Platform(8, 445_956_128, bandwidth="12GB/s"),
    scope=replace(Scope.usual(), max_k=1),
)
"""Medium memory, as the benchmarks have it."""


@trials(400)
@given(data=st.data())
def test_no_plan_has_a_period_that_allocations_refute(data: st.DataObject) -> None:
    problem = data.draw(linked_problems(longest=4))
    problem = replace(problem, scope=replace(problem.scope, max_k=1))
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


def test_orders_that_agree_rule_out_what_orders_of_each_gpu_allow() -> None:
    forced = propagate(Amounts(VIT_ON_8, LARGEST), Fraction(335_000_000))
    assert forced is not None
    limits, orders = orders_of(forced)
    run = Run(VIT_ON_8, workers=1)
    assert PackingColumns(limits, 8, run, (), orders).may_hold_all(5) is True
    holds = Allocations(forced, orders).find(5)
    assert holds is not None
    assert len(holds) == 0


def test_allocations_with_orders_that_agree_are_plans() -> None:
    for room in rooms_of_orders(VIT_ON_8):
        COMPILATIONS[room].compile_here()
    run = Run(VIT_ON_8, workers=1)
    questions = relaxed_allocations(VIT_ON_8, run, with_plans=True)
    while run.best() is None or not any(b.proof == BY_ALLOCATIONS for b in run.incumbent.bounds):
        next(questions)
    plan, bound = run.best(), run.bound()
    assert plan is not None
    assert bound is not None
    assert not check(plan)
    assert bound < plan.pattern.period < 385_000_000


def test_whole_allocations_are_looked_at_where_gpus_have_few_layers() -> None:
    assert rooms_of_orders(VIT_ON_8) == ("one_gpu", "all_gpus")
    on_4 = replace(VIT_ON_8, platform=Platform(4, "1GB", bandwidth="12GB/s"))
    assert rooms_of_orders(on_4) == ("one_gpu",)
    longer = replace(VIT_ON_8, scope=replace(VIT_ON_8.scope, max_k=2))
    assert rooms_of_orders(longer) == ("one_gpu",)
    again = replace(VIT_ON_8, scope=replace(VIT_ON_8.scope, recompute=True))
    assert rooms_of_orders(again) == ()


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
