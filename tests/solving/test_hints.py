"""A warm start is complete and feasible in every model that is given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Scope, Stage, solve
from schedopt.families import theorem_4
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.scope import MemoryReading
from schedopt.solvers.contiguous_cpsat import contiguous_model
from schedopt.solvers.general_cpsat import general_model
from schedopt.solving.models.bisection import FeasibilityModel, query_model
from schedopt.solving.models.domains import AllocationDomains
from schedopt.solving.models.given_allocation import GivenAllocation
from schedopt.solving.models.load_relaxation import LoadRelaxation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.slots import SlotGraph, Slots
from schedopt.solving.requirements import keeps_nothing
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.solving.hints import is_complete_and_feasible
from tests.strategies import allocations, short_chains, tight_platforms

FIXED = Scope(allocation="fixed")
GENERAL = Scope(allocation="general")


def slot_model(problem: Problem, k: int, period: int) -> FeasibilityModel | None:
    """Return the model of a problem whose allocation is open; None if it has no domains."""
    anywhere = problem.scope.allocation == "general"
    slots = Slots(problem, anywhere=anywhere)
    domains = AllocationDomains(problem, slots.count, k, period, anywhere=anywhere)
    if not all(domains.slots_of):
        return None
    graph = SlotGraph(slots, domains)
    if not anywhere:
        return contiguous_model(graph, period)
    return LoadRelaxation(graph, period) if keeps_nothing(problem) else general_model(graph, period)


def with_time(chain: Chain) -> Chain:
    """Return the chain with 1 ns more of everything.

    What takes no time can stand in more than one order at one instant.
    """
    times = ("forward_ns", "backward_ns", "backward_input_ns", "backward_weight_ns")
    return with_layers(chain, lambda layer: {time: getattr(layer, time) + 1 for time in times})


def with_layers(chain: Chain, change: Callable[[Layer], dict[str, Any]]) -> Chain:
    """Return the chain with each layer changed."""
    layers = tuple(replace(layer, **change(layer)) for layer in chain.layers)
    return replace(chain, layers=layers)


@pytest.mark.parametrize("memory", ["sum", "peak"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@trials(50, by_day=3)
@given(st.data(), short_chains(longest=4), tight_platforms(most=3), st.integers(1, 2))
def test_of_stages_that_are_given(
    split: bool,
    recompute: bool,
    memory: MemoryReading,
    data: st.DataObject,
    chain: Chain,
    platform: Platform,
    k: int,
) -> None:
    chain = with_time(chain)
    stages = tuple(data.draw(allocations(chain, platform, most=3)))
    scope = Scope(allocation="fixed", split_backward=split, recompute=recompute, memory=memory)
    problem = Problem(chain=chain, platform=platform, scope=scope, stages=stages)
    pipeline = AllocatedPipeline(problem, free=recompute)
    for flush in (False, True):
        longest = k * (pipeline.whole_ns + 1)
        model = OrderModel(GivenAllocation(pipeline), k, longest, flush=flush)
        solution = query_model(model, None, Run(problem))
        assert solution is not None
        if not solution.starts:
            continue
        for times in (1, 2) if not flush else (1,):
            known = solution.repeated(times)
            again = OrderModel(GivenAllocation(pipeline), known.k, known.period_ns, flush=flush)
            assert is_complete_and_feasible(again, known)


@pytest.mark.parametrize(
    "scope",
    [
        Scope(),
        Scope(recompute=True),
        Scope(split_backward=True),
        Scope(max_k=2),
        Scope(grain="layer"),
        Scope(grain="layer", split_backward=True),
        GENERAL,
        replace(GENERAL, max_k=2),
        replace(GENERAL, recompute=True),
        replace(GENERAL, split_backward=True),
        replace(GENERAL, max_k=2, memory="peak"),
        replace(GENERAL, recompute=True, memory="peak"),
        replace(GENERAL, split_backward=True, memory="peak"),
        Scope(recompute=True, memory="peak"),
        Scope(split_backward=True, memory="peak"),
        Scope(grain="layer", memory="peak"),
    ],
    ids=str,
)
@trials(60, by_day=2)
@given(
    chain=short_chains(longest=4),
    platform=tight_platforms(most=3) | tight_platforms(most=3, unequal=True),
)
def test_of_allocations_that_are_open(chain: Chain, platform: Platform, scope: Scope) -> None:
    if scope.allocation == "general" or scope.memory == "peak":
        chain = with_time(chain)
    if scope.allocation == "contiguous":
        chain = with_layers(chain, lambda layer: {"saved_input_bytes": None})
    named = "general_cpsat" if scope.allocation == "general" else "contiguous_cpsat"
    exact = solve(chain, platform, scope=scope, solver="contiguous", workers=1)
    for solver, initial in (("contiguous", None), (named, exact.plan)):
        result = solve(chain, platform, scope=scope, solver=solver, initial=initial, workers=1)
        if result.plan is not None:
            assert is_taken(result.plan)


def is_taken(plan: Plan) -> bool:
    """Whether a plan is a complete and feasible hint for the period that it has."""
    solution = Slots(plan.problem, anywhere=plan.scope.allocation == "general").solution(plan)
    assert solution is not None
    model = slot_model(plan.problem, solution.k, solution.period_ns)
    assert model is not None
    return is_complete_and_feasible(model, solution)


@trials(60)
@given(short_chains(longest=4), tight_platforms(most=3), st.booleans())
def test_of_loads_alone(chain: Chain, platform: Platform, split: bool) -> None:
    nothing = {"saved_bytes": 0, "saved_input_bytes": 0, "saved_weight_bytes": None}
    chain = with_layers(with_time(chain), lambda layer: nothing)
    scope = replace(GENERAL, split_backward=split)
    plan = solve(chain, platform, scope=scope, solver="general_cpsat", workers=1).plan
    assume(plan is not None)
    assert plan is not None
    assert is_taken(plan)


def test_a_hint_that_is_spoilt_is_not_taken() -> None:
    instance = theorem_4(3)
    problem = Problem(
        chain=instance.chain,
        platform=instance.platform,
        scope=FIXED,
        stages=tuple(Stage(layers=(i, i), gpus=(i,)) for i in range(4)),
    )
    pipeline = AllocatedPipeline(problem)

    def model(period: int) -> OrderModel:
        return OrderModel(GivenAllocation(pipeline), 3, period)

    solution = query_model(model(3 * pipeline.whole_ns), None, Run(problem))
    assert solution is not None
    assert is_complete_and_feasible(model(solution.period_ns), solution)
    starts = [list(row) for row in solution.starts]
    starts[2][0] -= 1
    spoilt = replace(solution, starts=tuple(map(tuple, starts)))
    assert not is_complete_and_feasible(model(solution.period_ns), spoilt)
