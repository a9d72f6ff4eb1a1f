"""3-partition: the numbers, the groups and the chains."""

from __future__ import annotations

from itertools import permutations

import pytest

from schedopt import InputError
from schedopt.families.partition import (
    draw_numbers,
    draw_triples,
    draw_without_triples,
    find_triples,
    wrong_groups,
)
from schedopt.interrupts import Stopped


@pytest.mark.parametrize("solvable", [True, False])
@pytest.mark.parametrize(("m", "total"), [(1, 9), (2, 10), (2, 20), (4, 100), (8, 1000)])
def test_numbers(m: int, total: int, solvable: bool) -> None:
    numbers = draw_numbers(m, total, 3, solvable=solvable)
    assert len(numbers) == 3 * m
    assert sum(numbers) == m * total
    assert all(total / 4 < number < total / 2 for number in numbers)
    assert draw_numbers(m, total, 3, solvable=solvable) == numbers
    triples = find_triples(numbers)
    assert triples is not None or not solvable
    if triples is not None:
        assert sorted(place for triple in triples for place in triple) == [*range(3 * m)]
        assert {sum(numbers[place] for place in triple) for triple in triples} == {total}


@pytest.mark.parametrize("seed", range(20))
def test_groups_by_trying_all_orders(seed: int) -> None:
    numbers = draw_numbers(2, 24, seed, solvable=False)
    possible = any(sum(order[:3]) == 24 for order in permutations(numbers))
    assert (find_triples(numbers) is not None) == possible


def test_no_groups_of_other_sizes() -> None:
    assert find_triples((5, 5, 4, 2, 2, 2)) is None
    assert find_triples((5, 4, 1, 6, 2, 2)) is not None


@pytest.mark.parametrize("numbers", [(), (1, 2), (1, 1, 1, 1, 1, 2), (0, 1, 2)])
def test_what_is_no_3_partition_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="numbers"):
        find_triples(numbers)


@pytest.mark.parametrize(("m", "total"), [(1, 9), (2, 20), (8, 1000), (256, 2**20)])
def test_the_groups_that_were_built(m: int, total: int) -> None:
    numbers, groups = draw_triples(m, total, 5)
    assert numbers == draw_numbers(m, total, 5, solvable=True)
    assert len(groups) == m
    assert wrong_groups(groups, numbers) == ""


@pytest.mark.parametrize(("m", "total"), [(2, 13), (2, 20), (3, 20), (8, 20), (8, 100), (12, 1000)])
def test_numbers_without_groups(m: int, total: int) -> None:
    numbers = draw_without_triples(m, total, 0)
    assert len(numbers) == 3 * m
    assert sum(numbers) == m * total
    assert all(total / 4 < number < total / 2 for number in numbers)
    assert find_triples(numbers) is None
    if m <= 3:
        for order in set(permutations(numbers)):
            assert {sum(order[n : n + 3]) for n in range(0, 3 * m, 3)} != {total}
    assert draw_without_triples(m, total, 0) == numbers
    assert m == 2 or draw_without_triples(m, total, 1) != numbers


@pytest.mark.parametrize(
    ("m", "total", "words"),
    [
        (1, 1000, "m: 3 numbers that add up to V are a group"),
        (13, 1000, "m: 13 groups are too many to prove that there are none. Give an integer from"),
        (0, 1000, "m: 0 is out of range"),
        (2, 8, "total: 8 is out of range"),
        # All numbers between 9 / 4 and 9 / 2 are 3, if they add up to 9 m.
        (4, 9, "total: each of 100 draws of 12 numbers"),
    ],
)
def test_no_numbers_without_groups(m: int, total: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        draw_without_triples(m, total, 0)
    assert str(caught.value).startswith(words)
    assert caught.value.way_out


def test_the_search_stops_when_it_is_asked_to() -> None:
    with pytest.raises(Stopped):
        find_triples((3, 2, 2, 3, 3, 1), lambda: True)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[0, 1, 3], [2, 4, 5]], "does not add up to V"),
        ([[0, 1, 2], [3, 4]], "do not hold every number once"),
        ([[0, 1, 2], [3, 4, 5], [5]], "do not hold every number once"),
        ([[0, 1, 2], [3, 4, 5]], ""),
    ],
)
def test_groups_are_looked_at(groups: list[list[int]], words: str) -> None:
    found = wrong_groups(groups, (3, 2, 2, 3, 3, 1))
    assert words in found
    assert bool(words) == bool(found)


def test_groups_of_other_sizes_are_seen() -> None:
    assert "not of three" in wrong_groups([[0, 1], [2, 3, 4, 5]], (5, 5, 4, 2, 2, 2))
