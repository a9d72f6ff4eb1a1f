"""Whether a result shows what it claims."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.checking.violations import Violation
from schedopt.problem import Problem
from schedopt.result import Result
from schedopt.stage import Stage


def find_false_declarations(result: Result) -> Iterator[Violation]:
    """Yield claims of a result that its plan and its bounds do not show."""
    if result.status in ("optimal", "feasible") and result.plan is None:
        yield Violation("bound", "result", f"is called {result.status}, but has no plan")
    if result.status == "infeasible" and result.plan is not None:
        yield Violation("bound", "result", "is called infeasible, but has a plan")
    if result.plan is None:
        return
    yield from _find_other_problem(result)
    period, best = result.period, result.lower_bound
    for number, bound in enumerate(result.bounds):
        holds = bound.scope.covers(result.problem.scope)
        if holds and period is not None and bound.period > period:
            yield Violation(
                "bound",
                f"bounds[{number}]",
                f"claims at least {bound.period} ns in the scope asked, above the period of "
                f"{period} ns",
            )
    if result.status == "optimal" and period != best:
        shown = "no bound holds in the scope asked" if best is None else f"the bound is {best} ns"
        yield Violation(
            "bound", "result", f"is called optimal with a period of {period} ns, but {shown}"
        )


def _find_other_problem(result: Result) -> Iterator[Violation]:
    plan, problem = result.plan, result.problem
    assert plan is not None
    for name in ("chain", "platform", "rule"):
        if getattr(plan, name) != getattr(problem, name):
            yield Violation("scope", f"plan.{name}", f"is not the {name} that was asked")
    if not problem.scope.covers(plan.scope):
        yield Violation("scope", "plan.scope", "allows plans that were not asked for")
    if problem.stages and not _are_given(problem, plan.stages):
        yield Violation("scope", "plan.stages", "are not the stages that were given")


def _are_given(problem: Problem, stages: tuple[Stage, ...]) -> bool:
    """Whether stages are those given, as far as the scope leaves nothing about them free."""
    scope, given = problem.scope, problem.stages
    if not scope.recompute and any(stage.recompute for stage in stages):
        return False
    if scope.grain == "layer":
        return _gpus_of_layers(stages) == _gpus_of_layers(given)
    return [(stage.layers, stage.gpus) for stage in stages] == [
        (stage.layers, stage.gpus) for stage in given
    ]


def _gpus_of_layers(stages: tuple[Stage, ...]) -> dict[int, tuple[int, ...]]:
    return {layer: stage.gpus for stage in stages for layer in range(stage.first, stage.last + 1)}
