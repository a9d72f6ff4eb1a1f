"""Steps of cyclic data parallelism, N = 2 and 3 by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.claims import cyclic_steps
from schedopt.bench.claims.cyclic_plans import cyclic_plan
from schedopt.bench.claims.cyclic_steps import (
    computing,
    draw_timeline,
    find_occupied,
    find_starts,
    kept,
)
from tests.bench.claims.findings import nothing


def test_two_stages_by_hand() -> None:
    # F1 F2 B2 B1 from 0 on and from 2 on; stage 1 keeps for 4 steps, stage 2 for 2.
    plan = cyclic_plan("v2", 2)
    first, second = kept(plan)
    assert {end - start for start, end in first} == {4}
    assert {end - start for start, end in second} == {2}
    assert sorted(start % 4 for start, _ in second) == [1, 3]
    assert computing(plan) == [1]


def test_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_starts(nothing, 4).verdict == "holds"
    assert find_occupied(nothing, 4).verdict == "holds"


def test_of_plain_data_parallelism_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedopt.bench.claims.cyclic_plans import equal_stages
    from schedopt.systems import data_parallel

    def plain(name: str, count: int, steps: tuple[int, int] = (1, 1)) -> Any:
        return data_parallel.overlapped(equal_stages(count, count, steps))

    monkeypatch.setattr(cyclic_steps, "cyclic_plan", plain)
    found = find_starts(nothing, 3)
    # All begin at 0 and compute one stage at a time; only the length may be as before.
    assert [part.verdict for part in found.parts[:2]] == ["fails", "fails"]
    assert found.counterexamples[0]["starts"] == [0, 0]
    # A micro-batch by itself runs as in a cycle.
    assert find_occupied(nothing, 3).verdict == "holds"


def test_with_activations_that_stay_longer_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cyclic_steps.kept
    monkeypatch.setattr(cyclic_steps, "kept", lambda plan: [[(0, 9)], *right(plan)[1:]])
    found = find_occupied(nothing, 2)
    assert found.verdict == "fails"
    assert found.counterexamples[0]["steps"] == [9]


@pytest.mark.parametrize("name", ["dp", "v1", "v2"])
def test_timelines_are_drawn(name: str) -> None:
    texts = [text.get_text() for text in draw_timeline(name).findobj() if hasattr(text, "get_text")]
    assert any("GPU 2" in text for text in texts)
