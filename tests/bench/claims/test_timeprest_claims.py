"""Order, version difference and passes of TiMePReSt, small runs by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.claims import timeprest_measures, timeprest_order
from schedopt.bench.claims.timeprest_order import find_forwards, find_order
from schedopt.bench.claims.timeprest_runs import run_timeprest
from schedopt.bench.claims.version_difference import draw_differences, find_difference, fit_laws
from tests.bench.claims.findings import nothing


def test_a_run_of_two_stages_by_hand() -> None:
    # GPU 0: 1A 1B 2A 2B 1* 3A 3B 2* …; GPU 1: from 1 on 1A 1B 1* 2A 2B 2* …
    run = run_timeprest(2, 2, 1, 4)
    assert [run.points(run.start("F", 0, i)) for i in range(6)] == [0, 1, 2, 3, 5, 6]
    assert [run.points(run.backward_ns(i, 1)[0]) for i in range(4)] == [3, 6, 9, 12]
    assert [run.points(run.backward_ns(i, 0)[0]) for i in range(2)] == [4, 7]
    assert run.order(0).startswith("FFFFBFFB")
    # At 6 the first is through: it ends at 5.
    assert [run.version_difference(i) for i in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("stages", "count", "expected"), [(4, 2, 2), (4, 4, 1), (3, 3, 1), (6, 2, 2)]
)
def test_version_differences_of_the_figures(stages: int, count: int, expected: int) -> None:
    # W = 6, N = 2: backwards start every 3 points and take 6, so two are on their way, not 3.
    run = run_timeprest(stages, count, 1)
    assert {run.version_difference(i + 1) for i in run.steady} == {expected}


def test_longer_backwards_by_hand() -> None:
    # One starts every 2 + 2 points and takes 3 x 2.
    run = run_timeprest(3, 2, 2)
    assert {run.version_difference(i + 1) for i in run.steady} == {2}


def test_the_order_holds() -> None:
    found = find_order(nothing, 4, 2)
    verdicts = [part.verdict for part in found.parts]
    assert verdicts == ["holds", "holds-under-convention", "holds", "holds"]


def test_the_printed_law_is_wrong_from_six_stages_on() -> None:
    assert find_difference(nothing, 5).verdict == "holds-under-convention"
    found = find_difference(nothing, 6)
    assert [part.verdict for part in found.parts] == ["fails", "holds-under-convention"]
    assert found.figures["best_laws"][0] == {"law": "ceil((L W) / (N + L))", "fits": 100}
    alone = found.parts[0].readings[1].counterexamples
    assert alone == ({"W": 6, "N": 2, "B": "1", "v": 2, "printed": 3},)


def test_laws_are_fitted() -> None:
    cases = [{"W": w, "N": n, "L": 1, "v": w // n} for w in range(1, 9) for n in range(1, 5)]
    assert fit_laws(cases)[0] == {"law": "floor((W) / N)", "fits": 32}


def test_forwards_grow_until_backwards_come() -> None:
    found = find_forwards(nothing, 4)
    verdicts = [part.verdict for part in found.parts]
    assert verdicts == ["holds", "holds-under-convention", "holds-under-convention"]
    assert found.figures["steady"]["W = 4, N = 2"] == [5, 6, 7, 8, 8]


def test_of_another_order_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = run_timeprest

    def longer(stages: int, count: int, backward: int) -> Any:
        return right(stages, count, backward + 3)

    monkeypatch.setattr(timeprest_measures, "run_timeprest", longer)
    timeprest_measures._measure.cache_clear()
    try:
        assert find_forwards(nothing, 3).verdict == "fails"
        assert find_difference(nothing, 3).verdict == "fails"
    finally:
        timeprest_measures._measure.cache_clear()


def test_statements_on_other_figures_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeprest_order, "SAID", ((4, 4, 3, 1, 1),))
    assert find_order(nothing, 2, 2).parts[2].verdict == "fails"


def test_differences_are_drawn() -> None:
    cases = [
        {"W": w, "N": n, "B": name, "v": 1, "printed": w - 1}
        for name in ("1", "2", "N", "2N")
        for w in (2, 3)
        for n in (2, 3)
    ]
    texts = [text.get_text() for axes in draw_differences(cases, 3).axes for text in axes.texts]
    assert texts == ["1", "1", "1 (2)", "1 (2)"] * 4
