"""The plan of ``--fix`` beside what was found for its stages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedopt.plan import Plan
from schedopt.problem import Scope
from schedopt.units import format_duration

if TYPE_CHECKING:
    from schedopt.result import Result


def say_what_it_has(plan: Plan, result: Result, name: str) -> str | None:
    """Return that the plan of a file is faster than what was found, and what would allow it.

    None if it is not, or if more than the scope is in the way.
    """
    from schedopt.solving import still_valid

    period = plan.pattern.period
    requested = result.problem.scope
    if plan.scope.microbatches != requested.microbatches:
        return None
    if result.period is not None and result.period <= period:
        return None
    wider, words, options = _wider(plan, requested)
    if still_valid(plan, replace(result.problem, scope=wider)) is None:
        wider = replace(wider, memory="peak")
        words, options = [*words, "memory read as its peak"], [*options, "--memory peak"]
        if requested.memory == "peak" or not still_valid(
            plan, replace(result.problem, scope=wider)
        ):
            return None
    if not words:
        return None
    return (
        f"The plan in {name} has {format_duration(period)}, with {' and '.join(words)}, "
        f"which the scope asked does not allow ({' '.join(options)})"
    )


def _wider(plan: Plan, scope: Scope) -> tuple[Scope, list[str], list[str]]:
    """Return a scope with the pattern of a plan, what it adds in words, and as options."""
    words: list[str] = []
    options: list[str] = []
    k = plan.pattern.k
    if scope.max_k is not None and k > scope.max_k:
        scope = replace(scope, max_k=k)
        words.append(f"k = {k}")
        options.append(f"--max-k {k}")
    halves = any(operation.kind == "I" for operation in plan.pattern.operations)
    if halves and not scope.split_backward:
        scope = replace(scope, split_backward=True)
        words.append("split backwards")
        options.append("--split-backward")
    return scope, words, options
