from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from schedopt import Chain, Layer, Platform, Scope, Stage, solve
from schedopt.problem import Problem
from schedopt.solving.models import bisection, resources
from schedopt.solving.models.given_allocation import GivenAllocation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pipeline import AllocatedPipeline
from schedopt.solving.run import Run

FIXED = Scope(allocation="fixed", max_k=2)


def problem_of(count: int, gpus: int, memory: int) -> Problem:
    """Return a problem of equal layers, each a stage, on GPU 0, 1, ... and again from 0 on."""
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    return Problem(
        chain=Chain(layers=(layer,) * count),
        platform=Platform(gpus, memory),
        scope=FIXED,
        stages=tuple(Stage(layers=(i, i), gpus=(i % gpus,)) for i in range(count)),
    )


def after(calls: int) -> Callable[[], bool]:
    """Return a question that is answered yes from one call on."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


def refuse(*_: object) -> None:
    raise AssertionError("a model that was left out was asked")


def test_building_ends_when_the_search_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = AllocatedPipeline(problem_of(6, 2, 100))
    whole = OrderModel(GivenAllocation(pipeline), 2, 60)
    assert not whole.left_out
    sizes: list[int] = []
    for calls in (0, 1, 14, 20, 25):
        part = OrderModel(GivenAllocation(pipeline), 2, 60, stopped=after(calls))
        assert part.left_out
        sizes.append(part.resources.orders)
    assert sizes[0] == 0
    assert all(less <= more for less, more in pairwise(sizes))
    assert 0 < sizes[-1] < whole.resources.orders
    monkeypatch.setattr(bisection, "solve_model", refuse)
    assert bisection.query_model(part, None, Run(pipeline.problem)) is None


def test_nothing_is_asked_once_the_run_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = AllocatedPipeline(problem_of(4, 2, 100))
    run = Run(pipeline.problem)
    run.stop()
    monkeypatch.setattr(bisection, "solve_model", refuse)
    assert bisection.query_model(OrderModel(GivenAllocation(pipeline), 1, 30), None, run) is None


def test_a_model_that_is_too_large_is_left_out_and_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of(4, 2, 3)
    known = solve(
        problem.chain, problem.platform, stages=problem.stages, scope=FIXED, solver="periodic"
    )
    assert known.status == "optimal"
    monkeypatch.setattr(resources, "MOST_ORDERS", 1)
    monkeypatch.setattr(bisection, "solve_model", refuse)
    result = solve(
        problem.chain, problem.platform, stages=problem.stages, scope=FIXED, solver="periodic"
    )
    assert result.status == "unknown"
    assert known.period is not None
    assert result.lower_bound is not None
    assert result.lower_bound <= known.period
    assert "too large to ask" in str(result.ladder[0].note)


def test_an_order_keeps_its_period_where_there_is_no_time_for_less() -> None:
    problem = problem_of(3, 3, 100)
    pipeline = AllocatedPipeline(problem)
    model = OrderModel(GivenAllocation(pipeline), 1, 50)
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    assert model.shortest(solver).period_ns < 50
    answer = model.shortest(solver, lambda: True)
    assert answer.period_ns == 50
    pattern = pipeline.pattern(answer)
    assert all(0 <= operation.start_ns < 50 for operation in pattern.operations)
    for step, starts in zip(pipeline.path[1:], answer.starts[1:], strict=True):
        before = pipeline.path[pipeline.path.index(step) - 1]
        (begin,) = answer.starts[pipeline.path.index(before)]
        assert starts[0] >= begin + before.length_ns


def test_layers_on_one_gpu_share_its_memory() -> None:
    # What is in flight in a layer is in all layers before it. 6 bytes hold 6, 3, 2 and 1 of them.
    stashes = AllocatedPipeline(problem_of(4, 1, 6)).stashes
    assert [one.fit for one in stashes] == [6, 3, 2, 1]
    # On two GPUs layers 0 and 2 share one, and layers 1 and 3 the other.
    assert [one.fit for one in AllocatedPipeline(problem_of(4, 2, 6)).stashes] == [6, 6, 3, 3]


def test_what_stays_for_no_time_is_not_there_with_what_is_before_it() -> None:
    layers = tuple(
        Layer(forward_ns=time, backward_ns=time, weight_bytes=0, activation_bytes=1)
        for time in (1, 0)
    )
    problem = problem_of(2, 1, 6)
    stashes = AllocatedPipeline(
        Problem(
            chain=Chain(layers=layers),
            platform=problem.platform,
            scope=FIXED,
            stages=problem.stages,
        )
    ).stashes
    assert [one.fit for one in stashes] == [6, 6]


def test_no_more_than_behind_and_in_between() -> None:
    # 1 in flight at the end, and for k = 1 two before each of the two steps from layer to layer.
    pipeline = AllocatedPipeline(problem_of(3, 3, 100))
    last = pipeline.most_in_flight(1)[-1]
    assert pipeline.most_in_flight(1) == [last + 8, last + 4, last]
    tight = Problem(
        chain=Chain(
            layers=tuple(
                Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=size)
                for size in (1, 1, 100)
            )
        ),
        platform=pipeline.problem.platform,
        scope=FIXED,
        stages=pipeline.problem.stages,
    )
    assert AllocatedPipeline(tight).most_in_flight(1) == [9, 5, 1]
