"""Ratios of contiguous to other allocations."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform
from schedopt.bench.claims import allocations
from schedopt.bench.claims.allocations import Effort, drawn_chain, find_ratios, solve_both
from schedopt.families import Instance, section_6_1, theorem_6
from tests.bench.claims.findings import nothing

SMALL = Effort(most_5=2, most_6=3, drawn=3)


def test_by_hand() -> None:
    assert solve_both(section_6_1()) == {
        "contiguous": "3", "general": "2", "ratio": "3/2", "proven": True,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_random_chains_by_trying_every_allocation(seed: int) -> None:
    instance = drawn_chain(seed)
    costs = [layer.forward_ns + layer.backward_ns for layer in instance.chain.layers]
    gpus = len(instance.platform.gpus)
    best: dict[bool, int] = {}
    for placed in product(range(gpus), repeat=len(costs)):
        busiest = max(sum(c for c, g in zip(costs, placed, strict=True) if g == one)
                      for one in range(gpus))  # fmt: skip
        for contiguous in {False, [*placed] == sorted(placed)}:
            best[contiguous] = min(best.get(contiguous, busiest), busiest)
    found = solve_both(instance)
    assert (found["contiguous"], found["general"]) == (str(best[True]), str(best[False]))
    assert found["proven"]


def test_parts() -> None:
    found = find_ratios(nothing, SMALL)
    assert [part.verdict for part in found.parts] == [
        "holds", "holds", "holds", "holds-under-convention", "holds",
    ]  # fmt: skip
    assert found.figures["theorem_5"] == {"1": None, "2": "8/5"}
    assert found.figures["theorem_6"] == {"2": "1", "3": "2"}


def even() -> Instance:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    return Instance(
        chain=Chain(layers=(layer,) * 2, provenance={"unit_ns": 1}), platform=Platform(2, 1)
    )


def roomy(k: int) -> Instance:
    instance = theorem_6(k)
    gpus = [replace(gpu, memory_bytes=10**12) for gpu in instance.platform.gpus]
    return replace(instance, platform=instance.platform.with_gpus(gpus))


@pytest.mark.parametrize(
    ("name", "wrong", "part"),
    [
        ("section_6_1", even, 0),
        ("lemma_2", even, 1),
        ("theorem_5", lambda k: even(), 3),
        ("theorem_6", roomy, 4),
    ],
)
def test_other_chains_fail(
    name: str, wrong: Any, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations, name, wrong)
    if isinstance(wrong, type(lambda: 0)):
        monkeypatch.setattr(wrong, "__name__", name)
    found = find_ratios(nothing, SMALL)
    assert found.parts[part].verdict == "fails"
    assert found.verdict == "fails"
