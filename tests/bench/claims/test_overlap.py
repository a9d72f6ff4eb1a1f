"""All-reduce beside the backward, worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from schedopt.bench.claims import overlap
from schedopt.bench.claims.overlap import Case, find_overlap, measure
from tests.bench.claims.findings import nothing


@pytest.mark.parametrize(
    ("latency", "blocking", "overlapped"), [(0, 40_000, 26_000), (1000, 42_000, 42_000)]
)
def test_two_gpus_by_hand(latency: int, blocking: int, overlapped: int) -> None:
    # 8 layers of 1000 + 2000 ns; each all-reduce is two hops of 1000 ns and the latency. Layer by
    # layer the first begins when the first backward is through, at 10,000, and the link then
    # never rests.
    case = measure(Case(2, "full", "equal", Fraction(1), latency))
    assert case["buckets"] == [1, 2, 4, 8]
    assert (case["steps_ns"][0], case["steps_ns"][-1]) == (blocking, overlapped)
    # Both directions of both hops, for all gradients; two halves a bucket wait for the latency.
    assert case["links_ns"] == [32_000 + 4 * latency * buckets for buckets in (1, 2, 4, 8)]


def test_it_holds_without_latency_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "RATIOS", (Fraction(1, 2), Fraction(2)))
    monkeypatch.setattr(overlap, "LATENCIES", (0, 2000))
    found = find_overlap(nothing, [2], 20)
    assert found.verdict == "holds-under-convention"
    assert found.parts[0].holding is not None
    assert found.parts[0].holding.convention == overlap.NO_LATENCY
    assert {case["latency_ns"] for case in found.counterexamples} == {2000}


def test_with_the_two_exchanged_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Any = overlap.plan_of

    def wrong(setting: Any, buckets: int) -> Any:
        layers = len(setting.chain.layers)
        return right(setting, {1: layers, layers: 1}.get(buckets, buckets))

    monkeypatch.setattr(overlap, "plan_of", wrong)
    monkeypatch.setattr(overlap, "RATIOS", (Fraction(1),))
    monkeypatch.setattr(overlap, "LATENCIES", (0, 100))
    found = find_overlap(nothing, [2], 5)
    assert [part.verdict for part in found.parts] == ["fails", "fails", "holds"]
