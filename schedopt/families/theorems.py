"""The instances of Beaumont et al. 2021, with the figures that the proofs give.

A layer of cost c takes c units of time, half of it forward, half backward. One unit of memory is
1 MB. Transfers are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from typing import Final

from schedopt.chain import Layer
from schedopt.families.instance import Fact, Instance, make_instance, stages_on
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.scope import Allocation
from schedopt.validation import LARGEST, as_whole

MILLISECOND: Final = 1_000_000
MEGABYTE: Final = 1_000_000
PAPER: Final = "Beaumont et al. 2021"

ALLOCATIONS: Final[tuple[Allocation, ...]] = ("contiguous", "general")

LARGEST_K_4: Final = 4095
"""Theorem 4: k + 1 layers and GPUs, at most 4096."""
LARGEST_K_5: Final = 45
"""Theorem 5: 2 k^2 + k + 1 layers, at most 4096."""
LARGEST_K_6: Final = 740
"""Theorem 6: k (k + 1) ms in all, below 2^39 ns."""


_in_ms = partial(make_instance, unit_ns=MILLISECOND, unit_bytes=MEGABYTE)


def section_6_1() -> Instance:
    """Return costs 1, 2, 1 on 2 GPUs: contiguous 3, general 2.

    One unit of time is 1 ms. Memory plays no part: all sizes are 0.
    """
    return _in_ms(
        name="section-6-1",
        family="section-6-1",
        parameters={},
        layers=[_layer(cost) for cost in (1, 2, 1)],
        platform=Platform(2, MEGABYTE),
        source=f"{PAPER}, section 6.1",
        known=(
            _fact("contiguous", 3, "section 6.1"),
            _fact("general", 2, "section 6.1", gpus=[0, 1, 0]),
        ),
    )


def lemma_2() -> Instance:
    """Return weights 1, 2, 1 on 2 GPUs with memory 2: only a general allocation fits.

    The lemma gives no costs. Here each layer has cost 1, with 1 ms as the unit; nothing is saved.
    The memory is full, so that layers 0 and 2 share a GPU, which works 2 units.
    """
    return _in_ms(
        name="lemma-2",
        family="lemma-2",
        parameters={},
        layers=[_layer(1, weight=weight) for weight in (1, 2, 1)],
        platform=Platform(2, 2 * MEGABYTE),
        source=f"{PAPER}, Lemma 2, with equal costs",
        known=(
            _fact("contiguous", None, "Lemma 2", k=None),
            _fact("general", 2, "Lemma 2", gpus=[0, 1, 0]),
        ),
    )


def theorem_4(k: int) -> Instance:
    """Return k + 1 layers on k + 1 GPUs that need a k-periodic pattern.

    All have forward = backward = activation = 1, the weights are 1, 1, 2, ..., k, and the memory
    is k + 1; one unit of time is 1 ms. No contiguous j-periodic plan with j up to k beats
    2 (1 + 1 / j), and leaving out every (j + 1)-th micro-batch of 1F1B reaches it.

    No allocation and no longer pattern beats 2 (1 + 1 / k): at most k activations of the first
    layer fit, each for at least the 2 (k + 1) units that a micro-batch takes (Little's law). k is
    1 to 4095.
    """
    k = as_whole(k, "k", low=1, high=LARGEST_K_4)
    own = range(k + 1)
    place = "Theorem 4"
    shorter = [
        _fact("contiguous", 2 + Fraction(2, j), place, gpus=own, k=j, max_k=j)
        for j in sorted({1, k - 1} - {0, k})
    ]
    longest = [
        _fact(allocation, 2 + Fraction(2, k), f"{place}, and Little's law", gpus=own, k=k)
        for allocation in ALLOCATIONS
    ]
    return _in_ms(
        name=f"theorem-4-k-{k}",
        family="theorem-4",
        parameters={"k": k},
        layers=[_layer(2, weight=weight, activation=1) for weight in (1, *range(1, k + 1))],
        platform=Platform(k + 1, (k + 1) * MEGABYTE),
        source=f"{PAPER}, {place}",
        known=(*shorter, *longest),
    )


def theorem_5(k: int) -> Instance:
    """Return a chain whose best contiguous period is 4 k / (2 k + 1) times the best of all.

    2 k + 1 GPUs, and e = 1 / (2 k + 1): k times the costs k, e, k - 1, e, then k, then
    (k - 2) (2 k + 1) + 1 times e, then 1. The best period is k, without idle time. Contiguous
    stages put two of the 2 k + 2 layers of cost 1 or more on one GPU, with all between them:
    2 k - 1 + e. (The theorem's text says 2 - 1 / k, which is a little less than that ratio.)

    e is 1 ms, so one unit of time is 2 k + 1 ms. Memory plays no part: all sizes are 0. k is 2 to
    45.
    """
    k = as_whole(k, "k", low=2, high=LARGEST_K_5)
    gpus = 2 * k + 1
    rest = (k - 2) * gpus + 1
    # Counted in e.
    costs = [k * gpus, 1, (k - 1) * gpus, 1] * k + [k * gpus] + [1] * rest + [gpus]
    place = "Theorem 5"
    return _in_ms(
        name=f"theorem-5-k-{k}",
        family="theorem-5",
        parameters={"k": k},
        layers=[_layer(cost) for cost in costs],
        platform=Platform(gpus, MEGABYTE),
        source=f"{PAPER}, {place}",
        known=(
            _fact("contiguous", 4 * k * k, place),
            _fact("general", k * gpus, place, gpus=_without_idle_time(k)),
        ),
        unit_ns=gpus * MILLISECOND,
    )


def _without_idle_time(k: int) -> list[int]:
    """Return the GPU of each layer of Theorem 5's chain, all with the load k.

    GPUs 0 to k run a layer of cost k. Each other runs one of cost k - 1, with as many small ones
    as add up to 1, the last with the layer of cost 1.
    """
    gpus = 2 * k + 1
    small = iter(k + 1 + count // gpus for count in range((k - 1) * gpus))
    placed: list[int] = []
    for part in range(k):
        placed += [part, next(small), k + 1 + part, next(small)]
    return [*placed, k, *small, 2 * k]


def theorem_6(k: int, memory: int | None = None) -> Instance:
    """Return a chain whose best contiguous period is k - 1 times the best of all, within memory.

    k + 2 GPUs with memory M: k layers of cost 1 and weight M - 1, one of cost k and weight M, k
    of cost k - 1 and weight 1; nothing is saved. Layer i shares a GPU with layer k + 1 + i, which
    fills its memory and takes k, the cost of the longest layer; one GPU is idle. Contiguous
    stages leave one GPU for all of the last k layers: k (k - 1). With k = 2 both are 2.

    One unit of time is 1 ms, one of memory 1 MB. k is 2 to 740; M, the `memory`, is at least k, and
    k by default.
    """
    k = as_whole(k, "k", low=2, high=LARGEST_K_6)
    full = k if memory is None else as_whole(memory, "memory", low=k, high=LARGEST // MEGABYTE)
    place = "Theorem 6"
    return _in_ms(
        name=f"theorem-6-k-{k}-memory-{full}",
        family="theorem-6",
        parameters={"k": k, "memory": full},
        layers=[
            *[_layer(1, weight=full - 1)] * k,
            _layer(k, weight=full),
            *[_layer(k - 1, weight=1)] * k,
        ],
        platform=Platform(k + 2, full * MEGABYTE),
        source=f"{PAPER}, {place}",
        known=(
            _fact("contiguous", k * (k - 1), place),
            _fact("general", k, place, gpus=[*range(k + 1), *range(k)]),
        ),
    )


def _layer(cost: int, *, weight: int = 0, activation: int = 0) -> Layer:
    """Return a layer that takes `cost` ms, half of it forward; sizes in MB."""
    return Layer(
        forward_ns=cost * MILLISECOND // 2,
        backward_ns=cost * MILLISECOND // 2,
        weight_bytes=weight * MEGABYTE,
        activation_bytes=activation * MEGABYTE,
    )


def _fact(
    allocation: Allocation,
    period_ms: Fraction | int | None,
    place: str,
    *,
    gpus: Iterable[int] = (),
    k: int | None = 1,
    max_k: int | None = None,
) -> Fact:
    """Return what the paper proves in a place; `gpus` holds the GPU of each layer."""
    return Fact(
        scope=Scope(allocation=allocation, max_k=max_k),
        period=None if period_ms is None else Fraction(period_ms) * MILLISECOND,
        source=f"{PAPER}, {place}",
        k=k,
        stages=stages_on(gpus),
    )
