from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.problem import Scope
from schedopt.result import Bound, Result, Status
from schedopt.stage import Stage
from tests.changes import (
    change_gpu,
    change_operation,
    change_stage,
)
from tests.checking.helpers import kinds, places
from tests.examples import (
    contiguous,
    stages,
    two_periodic,
)


def claim(plan: Plan, *bounds: tuple[int, int], status: Status) -> Result:
    """Return a result with bounds for its own scope."""
    made = tuple(Bound(exact=exact, scope=plan.scope, proof="by hand") for exact in bounds)
    return Result(problem=plan.problem, plan=plan, bounds=made, status=status)


def test_an_optimal_plan_meets_its_bound() -> None:
    assert check(claim(contiguous(), (4, 1), status="optimal")) == ()


def test_a_bound_is_compared_as_a_fraction() -> None:
    assert check(claim(two_periodic(), (6, 2), status="optimal")) == ()


def test_a_bound_just_above_the_period_is_found() -> None:
    above = claim(contiguous(), (1, 1), (4 * 10**18 + 1, 10**18), status="feasible")
    assert places(above, "bound") == ["bounds[1]"]


def test_a_bound_of_another_scope_may_be_above_the_period() -> None:
    bound = Bound(exact=(9, 1), scope=Scope(allocation="fixed"), proof="by hand")
    assert check(replace(claim(contiguous(), status="feasible"), bounds=(bound,))) == ()


def test_a_bound_of_a_wider_scope_holds_too() -> None:
    bound = Bound(exact=(9, 1), scope=Scope(allocation="general"), proof="by hand")
    assert kinds(replace(claim(contiguous(), status="feasible"), bounds=(bound,))) == {"bound"}


def test_optimal_without_a_bound_is_found() -> None:
    (violation,) = check(claim(contiguous(), status="optimal"))
    assert str(violation) == (
        "bound: result: is called optimal with a period of 4 ns, but no bound holds in the scope "
        "asked"
    )


def test_optimal_above_the_bound_is_found() -> None:
    below = claim(contiguous(), (4 * 10**18 - 1, 10**18), status="optimal")
    (violation,) = check(below)
    assert (violation.kind, violation.place) == ("bound", "result")
    assert violation.message.endswith(
        ", but the bound is 3999999999999999999/1000000000000000000 ns"
    )


def test_feasible_without_a_plan_is_found() -> None:
    assert places(replace(claim(contiguous(), status="feasible"), plan=None), "bound") == ["result"]


def test_optimal_without_a_plan_is_found() -> None:
    empty = replace(claim(contiguous(), (4, 1), status="optimal"), plan=None)
    assert places(empty, "bound") == ["result"]


def test_unknown_without_a_plan_claims_nothing() -> None:
    assert check(replace(claim(contiguous(), status="unknown"), plan=None)) == ()


def test_infeasible_beside_a_plan_is_found() -> None:
    assert places(claim(contiguous(), status="infeasible"), "bound") == ["result"]


def test_the_plan_of_a_result_is_checked_too() -> None:
    broken = change_operation(contiguous(), 1, start_ns=2)
    assert "order" in kinds(claim(broken, status="feasible"))


def test_a_plan_for_another_platform_is_found() -> None:
    asked = change_gpu(contiguous(), 0, memory_bytes=512).problem
    assert places(replace(claim(contiguous(), status="feasible"), problem=asked), "scope") == [
        "plan.platform"
    ]


def test_a_plan_of_a_wider_scope_is_found() -> None:
    plan = contiguous()
    wide = replace(plan, scope=Scope(allocation="general"))
    assert places(replace(claim(wide, status="feasible"), problem=plan.problem), "scope") == [
        "plan.scope"
    ]


def test_a_plan_of_a_narrower_scope_is_an_answer() -> None:
    plan = contiguous()
    asked = replace(plan, scope=Scope(allocation="general")).problem
    assert check(replace(claim(plan, status="feasible"), problem=asked)) == ()


GIVEN = stages((0, 0, [0]), (1, 1, [1]), (2, 2, [2]))


@pytest.mark.parametrize(
    ("given", "scope", "changed", "others"),
    [
        (GIVEN, {}, {}, False),
        (stages((0, 0, [0]), (1, 2, [1])), {}, {}, True),
        (stages((0, 0, [0]), (1, 1, [2]), (2, 2, [1])), {}, {}, True),
        (GIVEN, {"recompute": True}, {"recompute": ((0, 0),)}, False),
        (GIVEN, {}, {"recompute": ((0, 0),)}, True),
        (GIVEN, {"grain": "layer"}, {}, False),
        (stages((0, 0, [0]), (1, 1, [2]), (2, 2, [1])), {"grain": "layer"}, {}, True),
    ],
)
def test_a_plan_on_other_stages_than_those_given_is_found(
    given: tuple[Stage, ...], scope: dict[str, Any], changed: dict[str, Any], others: bool
) -> None:
    fixed = Scope(allocation="fixed", max_k=contiguous().scope.max_k, **scope)
    plan = change_stage(replace(contiguous(), scope=fixed), 0, **changed)
    asked = replace(contiguous().problem, scope=fixed, stages=given)
    result = Result(problem=asked, plan=plan, bounds=(), status="feasible")
    assert ("plan.stages" in places(result, "scope")) is others


def test_layers_apart_may_be_cut_otherwise_on_the_gpus_that_were_given() -> None:
    fixed = Scope(allocation="fixed", max_k=contiguous().scope.max_k, grain="layer")
    together = stages((0, 1, [0]), (2, 2, [2]))
    plan = replace(contiguous(), scope=fixed, stages=stages((0, 0, [0]), (1, 1, [0]), (2, 2, [2])))
    asked = replace(contiguous().problem, scope=fixed, stages=together)
    result = Result(problem=asked, plan=plan, bounds=(), status="feasible")
    assert "plan.stages" not in places(result, "scope")
