"""3-partition: the numbers, the groups and the chains."""

from __future__ import annotations

from itertools import permutations

import pytest

from schedopt import InputError
from schedopt.families.partition import draw_numbers, find_triples, theorem_1, theorem_2


@pytest.mark.parametrize("solvable", [True, False])
@pytest.mark.parametrize(("m", "total"), [(1, 9), (2, 10), (2, 20), (4, 100), (8, 1000)])
def test_numbers(m: int, total: int, solvable: bool) -> None:
    numbers = draw_numbers(m, total, 3, solvable=solvable)
    assert len(numbers) == 3 * m
    assert sum(numbers) == m * total
    assert all(total / 4 < one < total / 2 for one in numbers)
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


def test_the_chain_of_theorem_1() -> None:
    instance = theorem_1((3, 2, 2, 3, 3, 1))
    assert [layer.forward_ns for layer in instance.chain.layers] == [3, 2, 2, 3, 3, 1]
    assert {
        (layer.backward_ns, layer.weight_bytes, layer.activation_bytes)
        for layer in instance.chain.layers
    } == {(0, 0, 0)}
    assert len(instance.platform.gpus) == 2
    assert instance.chain.provenance["parameters"] == {"m": 2, "total": 7}


def test_the_chain_of_theorem_2() -> None:
    instance, stages = theorem_2((3, 2, 2, 3, 3, 1))
    layers = instance.chain.layers
    assert [layer.forward_ns for layer in layers] == [7, 7, 3, 2, 2, 3, 3, 1, 7, 7, 7, 7]
    assert [layer.activation_bytes for layer in layers] == [0] * 8 + [1] * 4
    # Counted from 1: P2 has layers 1 to m, and 4 m + 1, 4 m + 3, ...
    assert [stage.gpus[0] for stage in stages] == [1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0]
    assert [gpu.memory_bytes for gpu in instance.platform.gpus] == [2, 2]


def test_too_small_a_sum_is_refused() -> None:
    with pytest.raises(InputError, match="total"):
        draw_numbers(1, 8, 0, solvable=True)


@pytest.mark.parametrize("numbers", [(), (1, 2), (1, 1, 1, 1, 1, 2), (0, 1, 2)])
def test_what_is_no_3_partition_is_refused(numbers: tuple[int, ...]) -> None:
    for make in (theorem_1, theorem_2, find_triples):
        with pytest.raises(InputError, match="numbers"):
            make(numbers)
