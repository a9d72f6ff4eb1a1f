"""The least memory of each GPU with which an engine has a step at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from schedopt.account import memory
from schedopt.plan import Plan
from schedopt.problem import Problem
from schedopt.validation import LARGEST

SHARE: Final = 0.3
"""Of the time that is left, for each question once a step is known."""


class FirstStep(NamedTuple):
    """What is known of a problem: a step of any length, or that there is none, or neither."""

    plan: Plan | None
    none_exists: bool


def find_least_memory(
    problem: Problem, find_step: Callable[[Problem, float], FirstStep]
) -> tuple[int | None, int | None]:
    """Return the least memory of a GPU that a step was found to need, and what all need, bytes.

    With what is reserved. They are equal if the least is known, as far as `find_step` answers. The
    first is None if no step was found, the second if no more is known than that it is too little.

    Parameters
    ----------
    problem : Problem
        On equal GPUs, for whose memory no step exists.
    find_step : callable
        Returns what is known of the problem for GPUs with more memory, after a share of the time.
    """
    given = too_little = problem.platform.gpus[0].memory_bytes
    most = min(given + _most_bytes(problem), LARGEST)
    known = find_step(_with_memory(problem, most), 1.0).plan
    if known is None:
        return None, None
    enough = _needed_bytes(known)
    while enough - too_little > 1:
        # What the best known needs is often the least; else half of what is left is ruled out.
        for asked in (enough - 1, (too_little + enough) // 2):
            found = find_step(_with_memory(problem, asked), SHARE)
            if found.plan is not None:
                enough = min(enough, _needed_bytes(found.plan))
            elif found.none_exists:
                too_little = max(too_little, asked)
            else:
                return enough, too_little + 1 if too_little > given else None
            if enough - too_little <= 1:
                break
    return enough, enough


def _with_memory(problem: Problem, memory_bytes: int) -> Problem:
    return problem.with_extra_memory(memory_bytes - problem.platform.gpus[0].memory_bytes)


def _most_bytes(problem: Problem) -> int:
    """Return what a GPU needs at most beside what is reserved: all, of all micro-batches."""
    count = problem.scope.microbatches or 1
    return max(
        sum(
            layer.weight_bytes
            + (layer.workspace_bytes or 0)
            + count * (layer.saved + 2 * layer.activation_bytes + (layer.saved_input_bytes or 0))
            for layer in problem.in_group(tensor).layers
        )
        for tensor in problem.degrees
    )


def _needed_bytes(plan: Plan) -> int:
    """Return the memory of each GPU with which a plan fits, with what is reserved."""
    reading = plan.scope.memory
    most = max(need.reading(reading) for need in memory(plan))
    return most + plan.platform.gpus[0].reserved_bytes
