"""All checks of a plan or result, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schedopt.checking.collectives import find_wrong_collectives
from schedopt.checking.completeness import (
    find_wrong_operations,
    find_wrong_placements,
    find_wrong_transfers,
)
from schedopt.checking.deadlock import find_deadlock
from schedopt.checking.order import find_apart, find_order_violations
from schedopt.checking.parts import find_part
from schedopt.checking.replay import find_memory_violations
from schedopt.checking.resources import find_overlaps
from schedopt.checking.scope import find_crossings, find_interruptions, find_out_of_scope
from schedopt.checking.structure import (
    find_endless,
    find_missing_references,
    find_parted_layers,
    find_unfit_rules,
    find_wrong_groups,
    find_wrong_layers,
    find_wrong_rows,
)
from schedopt.checking.timeline import Timeline, lay_out
from schedopt.checking.violations import Violation, limit
from schedopt.checking.weight_halves import find_wrong_weight_halves
from schedopt.checking.weights import Followed, follow_weights
from schedopt.errors import InputError
from schedopt.folding import whole
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.result import Result
from schedopt.stage import Stage
from schedopt.validation import show

_STRUCTURAL: Final = frozenset({"layers", "group", "operations", "transfer", "placement"})


def check(subject: Plan | Result) -> tuple[Violation, ...]:
    """Return everything that is wrong with a plan, or with a result and its plan.

    Times, memory and weights are looked at only if the structure is sound: layers, operations,
    transfers and their places. Of one kind, at most 20 violations are listed and the others
    counted.

    Parameters
    ----------
    subject : Plan or Result
        Of a result the claims are checked too: its status and its bounds.

    Returns
    -------
    tuple of Violation
        Empty if all is well; else in a fixed order.

    Raises
    ------
    InputError
        If it is neither.
    """
    if isinstance(subject, Plan):
        return limit(_check_plan(subject))
    if not isinstance(subject, Result):
        raise InputError(
            f"{show(subject)} is neither a Plan nor a Result",
            field="subject",
            way_out="Give a schedopt.Plan, or what schedopt.solve returns",
        )
    found = _check_plan(subject.plan) if subject.plan is not None else []
    return limit([*found, *_find_false_declarations(subject)])


def _check_plan(plan: Plan) -> list[Violation]:
    missing = list(find_missing_references(plan))
    if missing:
        return missing
    part = find_part(plan) if plan.pattern.is_short else None
    if plan.pattern.is_short and part is None:
        try:
            plan = whole(plan)
        except InputError as error:
            return [Violation("rule", error.field, error.rule)]
    laid_out = plan if part is None else part.plan
    endless = list(find_endless(laid_out))
    if endless:
        return endless
    found = _check_structure(plan, laid_out)
    if any(violation.kind in _STRUCTURAL for violation in found):
        return found
    timeline = lay_out(laid_out, part)
    found.extend(_check_times(timeline))
    followed = Followed((), (), frozenset(range(len(plan.stages))))
    if part is not None:
        found.extend(find_wrong_collectives(timeline, part))
    elif not plan.rule.is_given and all(violation.kind != "rule" for violation in found):
        followed = follow_weights(timeline)
    found.extend(followed.violations)
    found.extend(find_memory_violations(timeline, followed.residencies, followed.unknown))
    return found


def _check_structure(plan: Plan, laid_out: Plan) -> list[Violation]:
    """Check stages of a plan, and operations and transfers of it or of what stands for it."""
    found = [*find_wrong_layers(plan), *find_wrong_groups(plan)]
    found.extend(find_wrong_rows(plan))
    if plan.pattern.fold > 1:
        found.extend(find_wrong_rows(laid_out, fold=plan.pattern.fold))
    if not found:
        found.extend(find_parted_layers(plan))
    found.extend(find_wrong_operations(laid_out))
    found.extend(find_wrong_transfers(laid_out))
    found.extend(find_wrong_weight_halves(laid_out))
    found.extend(find_wrong_placements(laid_out))
    found.extend(find_unfit_rules(plan))
    found.extend(find_out_of_scope(plan))
    return found


def _check_times(timeline: Timeline) -> list[Violation]:
    found = [*find_crossings(timeline), *find_interruptions(timeline)]
    broken = list(find_order_violations(timeline))
    found.extend(broken)
    found.extend(find_overlaps(timeline))
    found.extend(find_apart(timeline))
    if broken:
        found.extend(find_deadlock(timeline))
    return found


def _find_false_declarations(result: Result) -> Iterator[Violation]:
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
    for name in ("chain", "platform", "rule", "variants"):
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
