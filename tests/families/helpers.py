"""What an instance claims, and where stages lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedopt import Scope, Stage
from schedopt.families import Instance

MS = 10**6


def facts(instance: Instance) -> dict[Any, Any]:
    """Return period in ms and k for each allocation and longest k, of otherwise plain scopes."""
    for fact in instance.known:
        allocation, longest = fact.scope.allocation, fact.scope.max_k
        assert fact.scope == Scope(allocation=allocation, max_k=longest)
    found = {
        (fact.scope.allocation, fact.scope.max_k): (
            None if fact.period is None else fact.period / MS,
            fact.k,
        )
        for fact in instance.known
    }
    assert len(found) == len(instance.known)
    return found


def totals(amounts: Sequence[int], gpus: Sequence[int], count: int) -> list[int]:
    """Return what each GPU gets."""
    pairs = list(zip(amounts, gpus, strict=True))
    return [sum(amount for amount, gpu in pairs if gpu == one) for one in range(count)]


def listed(stages: Sequence[Stage]) -> list[int]:
    """Return the GPU of each layer; the stages follow one another and have one GPU each."""
    assert [stage.first for stage in stages] == [0, *(stage.last + 1 for stage in stages[:-1])]
    assert all(len(stage.gpus) == 1 for stage in stages)
    return [stage.gpus[0] for stage in stages for _ in range(stage.first, stage.last + 1)]
