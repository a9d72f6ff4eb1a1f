"""Numbers for 3-partition: with groups and without, and the search that decides which.

Given 3 m numbers that add up to m V, each between V / 4 and V / 2: are there m groups of three that
add up to V each? NP-complete in the strong sense (Garey and Johnson 1979, problem SP15).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from schedopt.errors import InputError
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.validation import as_numbers, as_whole

Triple: TypeAlias = tuple[int, int, int]
"""Places of three numbers."""

LARGEST_M: Final = 256
LARGEST_TOTAL: Final = 2**20
LARGEST_M_WITHOUT: Final = 12
"""Up to this m `find_triples` took less than a second on all numbers that were tried."""
MOST_DRAWS: Final = 100


def draw_numbers(m: int, total: int, seed: int, *, solvable: bool) -> tuple[int, ...]:
    """Return 3 m random numbers between V / 4 and V / 2 that add up to m V, m at most 256.

    V is `total`, at least 9: so that three such numbers can add up to it. `solvable` numbers are
    drawn in groups that do. Others may have such groups too: that is for `find_triples` to say.
    """
    if solvable:
        return draw_triples(m, total, seed)[0]
    draw, low, high = _source(m, total, seed, solvable=False)
    numbers = [draw.randint(low, high) for _ in range(3 * m)]
    while (apart := sum(numbers) - m * total) != 0:
        place = draw.randrange(3 * m)
        moved = numbers[place] - (1 if apart > 0 else -1)
        if low <= moved <= high:
            numbers[place] = moved
    draw.shuffle(numbers)
    return tuple(numbers)


def draw_triples(m: int, total: int, seed: int) -> tuple[tuple[int, ...], list[Triple]]:
    """Return numbers as `draw_numbers` does, with the groups in which they were drawn."""
    draw, low, high = _source(m, total, seed, solvable=True)
    numbers = [number for _ in range(m) for number in _draw_triple(draw, low, high, total)]
    order = [*range(3 * m)]
    draw.shuffle(order)
    place = {index: at for at, index in enumerate(order)}
    groups = [(place[first], place[first + 1], place[first + 2]) for first in range(0, 3 * m, 3)]
    return tuple(numbers[index] for index in order), groups


def draw_without_triples(m: int, total: int, seed: int) -> tuple[int, ...]:
    """Return numbers as `draw_numbers` does, proven by `find_triples` to have no such groups.

    m is at most 12. For some V, such as 9 to 12, all numbers have groups.

    Raises
    ------
    InputError
        Also if all of 100 draws have groups.
    """
    if as_whole(m, "m", low=1, high=LARGEST_M) == 1:
        raise InputError(
            "3 numbers that add up to V are a group",
            field="m",
            way_out=f"Give an integer from 2 to {LARGEST_M_WITHOUT}",
        )
    if m > LARGEST_M_WITHOUT:
        raise InputError(
            f"{m} groups are too many to prove that there are none",
            field="m",
            way_out=f"Give an integer from 2 to {LARGEST_M_WITHOUT}",
        )
    seed = as_whole(seed, "seed", high=2**32)
    for number in range(seed * MOST_DRAWS, (seed + 1) * MOST_DRAWS):
        numbers = draw_numbers(m, total, number, solvable=False)
        if find_triples(numbers) is None:
            return numbers
    raise InputError(
        f"each of {MOST_DRAWS} draws of {3 * m} numbers between V / 4 and V / 2 has groups that "
        f"add up to V = {total}",
        field="total",
        way_out="Give a larger one, or another seed",
    )


def _source(m: int, total: int, seed: int, *, solvable: bool) -> tuple[random.Random, int, int]:
    """Return where numbers are drawn from, the least of them and the largest."""
    m = as_whole(m, "m", low=1, high=LARGEST_M)
    total = as_whole(total, "total", low=9, high=LARGEST_TOTAL)
    seed = as_whole(seed, "seed")
    return random.Random(f"{m} {total} {seed} {solvable}"), total // 4 + 1, (total - 1) // 2


def _draw_triple(draw: random.Random, low: int, high: int, total: int) -> Triple:
    while True:
        one, two = draw.randint(low, high), draw.randint(low, high)
        if low <= total - one - two <= high:
            return one, two, total - one - two


def find_triples(
    numbers: Sequence[int], stopped: Callable[[], bool] = never_stop
) -> list[Triple] | None:
    """Return groups of three places whose numbers have one and the same sum, or None.

    By trying, for the first place that is left, all pairs of others; the same numbers are tried
    once only.

    Raises
    ------
    Stopped
        If `stopped` says so before the end. In time and memory exponential in m.
    """
    numbers = as_sums(numbers)
    total = 3 * sum(numbers) // len(numbers)
    without: set[tuple[int, ...]] = set()

    def group(left: tuple[int, ...]) -> list[Triple] | None:
        raise_if_stopped(stopped)
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


def wrong_groups(groups: Sequence[Sequence[int]], numbers: Sequence[int]) -> str:
    """Say why groups of places are no 3-partition of the numbers; empty if they are."""
    total = 3 * sum(numbers) // len(numbers)
    if sorted(place for group in groups for place in group) != [*range(len(numbers))]:
        return "the groups do not hold every number once"
    sizes = [[numbers[place] for place in group] for group in groups]
    if any(sum(group) != total for group in sizes):
        return f"a group does not add up to V: {sizes}"
    if any(len(group) != 3 for group in sizes):
        return f"a group is not of three: {sizes}"
    return ""


def as_sums(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return numbers that m groups may share evenly.

    Raises
    ------
    InputError
        If they are not 3 m positive ones whose sum is a multiple of m.
    """
    given = as_numbers(numbers, "numbers", low=1, high=2**30)
    if not given or len(given) % 3 or 3 * sum(given) % len(given):
        raise InputError(
            f"{len(given)} numbers that add up to {sum(given)} are no 3-partition",
            field="numbers",
            way_out="Give 3 m numbers whose sum is a multiple of m",
        )
    return given
