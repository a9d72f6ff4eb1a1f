"""Stages at equal shares of operations."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from schedopt.bench.claims import equal_flops
from schedopt.bench.claims.equal_flops import (
    best_bottleneck,
    compare,
    find_evenness,
    module_flops,
    share_out,
)
from schedopt.profiling import Model
from tests.bench.claims.findings import nothing


@pytest.mark.parametrize(
    ("costs", "stages", "side", "parts"),
    [
        ([1, 1, 1, 1], 2, "left", [[1, 1], [1, 1]]),
        # The share 2 is reached by the second; it goes behind the cut.
        ([1, 1, 1, 1], 2, "right", [[1], [1, 1, 1]]),
        ([1, 5, 1, 1], 2, "left", [[1, 5], [1, 1]]),
        ([1, 5, 1, 1], 2, "right", [[1], [5, 1, 1]]),
        ([9, 1, 1], 3, "left", [[9], [], [1, 1]]),
        ([0, 6, 0, 3], 3, "left", [[0, 6], [], [0, 3]]),
    ],
)
def test_shares_by_hand(costs: list[int], stages: int, side: str, parts: list[list[int]]) -> None:
    assert share_out(costs, stages, side) == parts


def brute_force(costs: list[int], stages: int) -> int:
    best = sum(costs)
    for count in range(1, min(stages, len(costs)) + 1):
        for cuts in combinations(range(1, len(costs)), count - 1):
            bounds = [0, *cuts, len(costs)]
            best = min(best, max(sum(costs[a:b]) for a, b in pairwise(bounds)))
    return best


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 4))
def test_the_best_by_trying_all_cuts(costs: list[int], stages: int) -> None:
    best = brute_force(costs, stages)
    assert best_bottleneck(costs, stages) == best
    found = compare(costs, stages)
    assert best <= found["largest"] <= 2 * best
    parts = share_out(costs, stages, "left")
    assert [one for part in parts for one in part] == costs


def test_modules_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = self.one(value)
            # No module does this: it goes to the next one.
            value = value @ value.T @ value
            out: torch.Tensor = self.two(value)
            return out

    def load(name: str) -> Model:
        return Model(module=Net(), inputs=torch.ones(2, 8))

    monkeypatch.setattr(equal_flops, "load_model", load)
    one, bias, two, other = module_flops("net")
    assert (one, bias) == (2 * 2 * 8 * 8, 16)
    # Two products of 64 outside of any module, and 128 of its own.
    assert (two, other) == (256, 16)


def of(costs: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(equal_flops, "module_flops", lambda name: costs)
    monkeypatch.setattr(equal_flops, "cut_flops", lambda name: costs)
    return find_evenness(nothing, ["resnet18"], [2, 4])


def test_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of([1] * 8, monkeypatch).verdict == "holds"
    # The first share of 9.25 is reached by the second 7: 7 7, where 7 | 7 1 5 | 9 | 8 is best.
    uneven = of([7, 7, 1, 5, 9, 8], monkeypatch)
    assert uneven.verdict == "holds-under-convention"
    assert {(case["stages"], case["largest"], case["best"]) for case in uneven.counterexamples} == {
        (4, 14, 13)
    }


def test_an_uneven_rule_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_in_one(costs: list[int], stages: int, side: str) -> list[list[int]]:
        return [costs, *[[] for _ in range(stages - 1)]]

    monkeypatch.setattr(equal_flops, "share_out", all_in_one)
    assert of([1] * 8, monkeypatch).verdict == "fails"
