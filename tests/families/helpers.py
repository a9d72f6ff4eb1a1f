"""What an instance claims, where stages lie, and plans by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from schedopt import Pattern, Plan, Scope, Stage
from schedopt.families import Instance
from tests.examples import op, stages

MS = 10**6
MB = 10**6


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


def listed(found: Sequence[Stage]) -> list[int]:
    """Return the GPU of each layer; the stages follow one another and have one GPU each."""
    assert [stage.first for stage in found] == [0, *(stage.last + 1 for stage in found[:-1])]
    assert all(len(stage.gpus) == 1 for stage in found)
    return [stage.gpus[0] for stage in found for _ in range(stage.first, stage.last + 1)]


def memories(instance: Instance) -> list[int]:
    return [gpu.usable_bytes for gpu in instance.platform.gpus]


def in_turn(instance: Instance, gpus: Sequence[int]) -> Plan:
    """Return a plan by hand: each GPU runs its forwards, then its backwards, without a pause.

    T is the largest load. Each operation runs the first micro-batch whose input is there: with
    the end of the operation before it at e, it starts at the first t + q T from e on.
    """
    runs: list[tuple[int, int, int]] = []
    for gpu, group in groupby(enumerate(gpus), key=lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        runs.append((gpu, layers[0], layers[-1]))
    chain = instance.chain
    lasting: dict[tuple[Any, int], int] = {}
    for stage, (_, first, last) in enumerate(runs):
        own = chain.layers[first : last + 1]
        lasting["F", stage] = sum(layer.forward_ns for layer in own)
        lasting["B", stage] = sum(layer.backward_ns for layer in own)
    busy = [0] * len(instance.platform.gpus)
    starts: dict[tuple[Any, int], int] = {}
    for kind, stage in lasting:
        gpu = runs[stage][0]
        starts[kind, stage] = busy[gpu]
        busy[gpu] += lasting[kind, stage]
    period = max(busy)
    order: list[tuple[Any, int]] = [("F", stage) for stage in range(len(runs))]
    order += [("B", stage) for stage in reversed(range(len(runs)))]
    operations = []
    ended = 0
    for kind, stage in order:
        start = starts[kind, stage]
        waits = max(0, -(-(ended - start) // period))
        ended = start + waits * period + lasting[kind, stage]
        operations.append(op(kind, stage, -waits, start))
    return Plan(
        chain=chain,
        platform=instance.platform,
        scope=Scope(allocation="general"),
        stages=stages(*((first, last, [gpu]) for gpu, first, last in runs)),
        pattern=Pattern(k=1, period_total_ns=period, operations=tuple(operations)),
    )


def with_left_out(instance: Instance, k: int) -> Plan:
    """Return 1F1B without idle time, every (k + 1)-th micro-batch left out, layer i on GPU i.

    Beaumont et al. 2021, proof of Theorem 4. With n layers, micro-batch j enters at 2 j ms, layer
    l runs F l ms after that and B 2 n - 1 - l ms after that.
    """
    count = len(instance.chain.layers)
    period = 2 * (k + 1)
    operations = []
    for j in range(k):
        for layer in range(count):
            for kind, after in (("F", layer), ("B", 2 * count - 1 - layer)):
                periods, start = divmod(2 * j + after, period)
                operations.append(op(kind, layer, j - k * periods, start * MS))
    return Plan(
        chain=instance.chain,
        platform=instance.platform,
        scope=Scope(max_k=k),
        stages=stages(*((i, i, [i]) for i in range(count))),
        pattern=Pattern(k=k, period_total_ns=period * MS, operations=tuple(operations)),
    )
