"""Instances of 3-partition, and the scheduling problems that decide them.

Beaumont et al. 2021, Theorems 1 and 2. Given 3 m numbers that add up to m V, are there m groups of
three that add up to V each?
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Final

from schedopt.chain import Layer
from schedopt.errors import InputError
from schedopt.families.instance import Instance, make_instance
from schedopt.families.theorems import PAPER
from schedopt.platform import Platform
from schedopt.stage import Stage
from schedopt.validation import as_numbers, as_whole

LARGEST_M: Final = 256
"""The chain of Theorem 2 has 6 m layers."""


def draw_numbers(m: int, total: int, seed: int, *, solvable: bool) -> tuple[int, ...]:
    """Return 3 m random numbers between V / 4 and V / 2 that add up to m V.

    Parameters
    ----------
    m : int
        1 to 256.
    total : int
        V, at least 9: so that three such numbers can add up to it.
    seed : int
    solvable : bool
        Whether they are drawn in groups that add up to V. Else any; whether there are such groups
        is for `find_triples` to say.
    """
    m = as_whole(m, "m", low=1, high=LARGEST_M)
    total = as_whole(total, "total", low=9, high=2**20)
    draw = random.Random(f"{m} {total} {seed} {solvable}")
    low, high = total // 4 + 1, (total - 1) // 2
    if solvable:
        triples = [_draw_triple(draw, low, high, total) for _ in range(m)]
        numbers = [one for triple in triples for one in triple]
    else:
        numbers = [draw.randint(low, high) for _ in range(3 * m)]
        while (apart := sum(numbers) - m * total) != 0:
            place = draw.randrange(3 * m)
            moved = numbers[place] - (1 if apart > 0 else -1)
            if low <= moved <= high:
                numbers[place] = moved
    draw.shuffle(numbers)
    return tuple(numbers)


def _draw_triple(draw: random.Random, low: int, high: int, total: int) -> tuple[int, int, int]:
    while True:
        one, two = draw.randint(low, high), draw.randint(low, high)
        if low <= total - one - two <= high:
            return one, two, total - one - two


def find_triples(numbers: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """Return groups of three places whose numbers have one and the same sum, or None.

    By trying, for the first place that is left, all pairs of others; the same numbers are tried
    once only.
    """
    numbers = _checked(numbers)
    total = 3 * sum(numbers) // len(numbers)
    without: set[tuple[int, ...]] = set()

    def group(left: tuple[int, ...]) -> list[tuple[int, int, int]] | None:
        if not left:
            return []
        key = tuple(sorted(numbers[one] for one in left))
        if key in without:
            return None
        first, *rest = left
        for two, three in combinations(rest, 2):
            if numbers[first] + numbers[two] + numbers[three] == total:
                others = group(tuple(one for one in rest if one not in (two, three)))
                if others is not None:
                    return [(first, two, three), *others]
        without.add(key)
        return None

    return group(tuple(range(len(numbers))))


def theorem_1(numbers: Sequence[int]) -> Instance:
    """Return a chain on m GPUs that has a plan with period V if there are such groups.

    Each number is a layer that takes so many ns forward and nothing back; all sizes are 0.

    Parameters
    ----------
    numbers : sequence of int
        3 m of them, that add up to a multiple of m.
    """
    numbers = _checked(numbers)
    m = len(numbers) // 3
    return make_instance(
        name=f"theorem-1-m-{m}",
        family="theorem-1",
        parameters={"m": m, "total": sum(numbers) // m},
        layers=[_layer(one) for one in numbers],
        platform=Platform(m, 1),
        source=f"{PAPER}, Theorem 1",
    )


def theorem_2(numbers: Sequence[int]) -> tuple[Instance, tuple[Stage, ...]]:
    """Return a chain on 2 GPUs and stages that run with period 2 m V if there are such groups.

    Memory is m. m layers of V on the second GPU; the numbers on the first; then 2 m layers of V
    with an activation of 1, on the second and the first GPU in turn. Nothing takes time back.
    """
    numbers = _checked(numbers)
    m = len(numbers) // 3
    total = sum(numbers) // m
    instance = make_instance(
        name=f"theorem-2-m-{m}",
        family="theorem-2",
        parameters={"m": m, "total": total},
        layers=[
            *[_layer(total)] * m,
            *(_layer(one) for one in numbers),
            *[_layer(total, activation=1)] * (2 * m),
        ],
        platform=Platform(2, m),
        source=f"{PAPER}, Theorem 2",
    )
    gpus = [1] * m + [0] * (3 * m) + [1, 0] * m
    stages = tuple(Stage(layers=(layer, layer), gpus=(gpu,)) for layer, gpu in enumerate(gpus))
    return instance, stages


def _layer(forward_ns: int, activation: int = 0) -> Layer:
    return Layer(forward_ns=forward_ns, backward_ns=0, weight_bytes=0, activation_bytes=activation)


def _checked(numbers: Sequence[int]) -> tuple[int, ...]:
    given = as_numbers(numbers, "numbers", low=1, high=2**30)
    if not given or len(given) % 3 or 3 * sum(given) % len(given):
        raise InputError(
            f"{len(given)} numbers that add up to {sum(given)} are no 3-partition",
            field="numbers",
            way_out="Give 3 m numbers whose sum is a multiple of m",
        )
    return given
