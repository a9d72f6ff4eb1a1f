"""How the parts of an order model fit together, when it is left out, and what is in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Result, Scope, Stage, solve
from schedopt.problem import Problem
from schedopt.solvers.contiguous_cpsat import contiguous_model
from schedopt.solvers.general_cpsat import general_model
from schedopt.solving.models import bisection, resources
from schedopt.solving.models.any_allocation import AnyAllocation
from schedopt.solving.models.bisection import query_model
from schedopt.solving.models.contiguous_allocation import ContiguousAllocation
from schedopt.solving.models.domains import AllocationDomains
from schedopt.solving.models.given_allocation import GivenAllocation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.models.slots import SlotGraph, Slots, as_layers
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import short_chains, tight_platforms

FIXED = Scope(allocation="fixed", max_k=2)
UNIT = layer(1, 2, 1, sent=1)


def problem_of(count: int, gpus: int, memory: int, layers: Sequence[Layer] = ()) -> Problem:
    """Return a problem of equal layers, each a stage, on GPU 0, 1, ... and again from 0 on."""
    return Problem(
        chain=Chain(layers=tuple(layers) or (UNIT,) * count),
        platform=Platform(gpus, memory),
        scope=FIXED,
        stages=tuple(Stage(layers=(i, i), gpus=(i % gpus,)) for i in range(count)),
    )


def given_model(
    problem: Problem, k: int, period: int, stopped: Callable[[], bool] = lambda: False
) -> OrderModel:
    pipeline = AllocatedPipeline(problem)
    return OrderModel(GivenAllocation(pipeline), k, period, stopped=stopped)


@trials(60)
@given(
    st.data(),
    short_chains(longest=4),
    tight_platforms(most=3) | tight_platforms(most=3, unequal=True),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
)
def test_all_strategies_decide_the_same_of_one_allocation(
    data: st.DataObject, chain: Chain, platform: Platform, k: int, split: bool, apart: bool
) -> None:
    """A model that chooses the allocation, bound to one, decides as that of the one given."""
    layers = tuple(replace(layer, saved_input_bytes=None) for layer in chain.layers)
    chain = replace(chain, layers=layers)
    count = data.draw(st.integers(1, min(len(layers), len(platform.gpus))))
    edges = [len(layers) * i // count for i in range(count + 1)]
    stages = [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(i,)) for i in range(count)]
    scope = Scope(max_k=k, split_backward=split, grain="layer" if apart else "stage")
    problem = Problem(chain=chain, platform=platform, scope=scope)
    fixed = replace(
        problem,
        scope=replace(scope, allocation="fixed"),
        stages=tuple(as_layers(stages) if apart else stages),
    )
    run, pipeline = Run(problem), AllocatedPipeline(fixed)
    assume(pipeline.lacking()[1] <= 0)
    least = None
    for period in range(max(1, k * pipeline.load_ns), k * (pipeline.whole_ns + 1) + 1):
        solution = query_model(given_model(fixed, k, period), None, run)
        assert solution is not None
        if solution.starts:
            least = period
            break
    for anywhere in (False, True) if apart else (False,):
        slots = Slots(problem, anywhere=anywhere)
        for period in () if least is None else range(max(1, least - 1), least + 1):
            domains = AllocationDomains(problem, slots.count, k, period, anywhere=anywhere)
            possible = all(domains.slots_of) and all(
                stage.gpus[0] in domains.slots_of[n] for stage in stages for n in stage.layer_range
            )
            if possible:
                make = general_model if anywhere else contiguous_model
                model = make(SlotGraph(slots, domains), period)
                assert isinstance(model.allocation, ContiguousAllocation | AnyAllocation)
                inside = model.allocation.placement.inside
                for stage in stages:
                    for number in stage.layer_range:
                        model.model.add(inside[number, stage.gpus[0]] == 1)
                solution = query_model(model, None, run)
                assert solution is not None
                possible = bool(solution.starts)
            assert possible == (period == least)


def after(calls: int) -> Callable[[], bool]:
    """Return a question that is answered yes from one call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def refuse(*_: object) -> None:
    raise AssertionError("a model that was left out was solved")


def test_building_ends_when_the_search_does(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(6, 2, 100)
    whole = given_model(problem, 2, 60)
    assert not whole.left_out
    sizes: list[int] = []
    for calls in (0, 1, 14, 20, 25):
        part = given_model(problem, 2, 60, after(calls))
        assert part.left_out
        sizes.append(part.resources.orders)
    assert sizes[0] == 0
    assert all(less <= more for less, more in pairwise(sizes))
    assert 0 < sizes[-1] < whole.resources.orders
    monkeypatch.setattr(bisection, "solve_model", refuse)
    assert query_model(part, None, Run(problem)) is None


def test_nothing_is_asked_once_the_run_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(4, 2, 100)
    run = Run(problem)
    run.stop()
    monkeypatch.setattr(bisection, "solve_model", refuse)
    assert query_model(given_model(problem, 1, 30), None, run) is None


def test_a_model_that_is_too_large_is_left_out_and_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(4, 2, 3)

    def ask() -> Result:
        chain, platform, stages = problem.chain, problem.platform, problem.stages
        return solve(chain, platform, stages=stages, scope=FIXED, solver="periodic", workers=1)

    known = ask()
    assert known.status == "optimal"
    monkeypatch.setattr(resources, "MOST_ORDERS", 1)
    monkeypatch.setattr(bisection, "solve_model", refuse)
    result = ask()
    assert result.status == "unknown"
    assert known.period is not None
    assert result.lower_bound is not None
    assert result.lower_bound <= known.period
    assert "too large to ask" in str(result.ladder[0].note)


def test_an_order_keeps_its_period_where_there_is_no_time_for_less() -> None:
    from ortools.sat.python import cp_model

    problem = problem_of(3, 3, 100)
    pipeline = AllocatedPipeline(problem)
    model = given_model(problem, 1, 50)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    assert model.shortest(solver).period_ns < 50
    solution = model.shortest(solver, lambda: True)
    assert solution.period_ns == 50
    pattern = pipeline.pattern(solution)
    assert all(0 <= operation.start_ns < 50 for operation in pattern.operations)
    for before, after in pairwise(zip(pipeline.path, solution.starts, strict=True)):
        assert after[1][0] >= before[1][0] + before[0].length_ns


@pytest.mark.parametrize(
    ("problem", "fit"),
    [
        # What is in flight in a layer is in all layers before it.
        (problem_of(4, 1, 6), [6, 3, 2, 1]),
        # On two GPUs layers 0 and 2 share one, and layers 1 and 3 the other.
        (problem_of(4, 2, 6), [6, 6, 3, 3]),
        # What stays for no time is not there with what is before it.
        (problem_of(2, 1, 6, [layer(time, time, 1) for time in (1, 0)]), [6, 6]),
    ],
    ids=["one GPU", "two GPUs", "no time"],
)
def test_layers_on_one_gpu_share_its_memory(problem: Problem, fit: list[int]) -> None:
    assert [stash.fit for stash in AllocatedPipeline(problem).stashes] == fit


def test_no_more_than_behind_and_in_between() -> None:
    # 1 in flight at the end, and for k = 1 two before each of the two tasks from layer to layer.
    pipeline = AllocatedPipeline(problem_of(3, 3, 100))
    last = pipeline.most_in_flight(1)[-1]
    assert pipeline.most_in_flight(1) == [last + 8, last + 4, last]
    tight = problem_of(3, 3, 100, [layer(1, 1, saved) for saved in (1, 1, 100)])
    assert AllocatedPipeline(tight).most_in_flight(1) == [9, 5, 1]
