"""Pages of several plans without a browser: whole, true, and within their size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import InputError, Platform, compare
from schedopt.comparing.comparison import Comparison
from schedopt.reporting import explorer
from schedopt.reporting.comparison_entries import explore_comparison
from schedopt.reporting.explorer import render_explorer
from schedopt.reporting.markup import unbroken
from schedopt.reporting.sweep_entries import explore_sweeps
from schedopt.simulation import simulate
from schedopt.sweeping import Cell, Options, Sweep, run_sweep
from schedopt.units import format_duration
from tests.reporting.pages import Reader
from tests.sweeping.helpers import CHAIN, FAST, INFEASIBLE, SLOW, ThreadPool, empty

EVIL = "</script><script>alert(1)</script>"


def swept(*, batch: int | None = None, rates: tuple[int | None, ...] = (None,)) -> Sweep:
    known = replace(CHAIN.layers[0], parameter_bytes=2, gradient_bytes=2)
    chain = replace(CHAIN, layers=(known,) * 4, name=EVIL)
    asked = [
        Cell(gpus=count, memory_bytes=size, bandwidth_bytes_per_s=rate)
        for count in (1, 2)
        for size in (INFEASIBLE, SLOW, FAST)
        for rate in rates
    ]
    return run_sweep(empty(Options(batch=batch), chain), chain, asked, ThreadPool()).sweep


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return swept()


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    names = ["gpipe", "one_f_one_b_flush", "one_gpu", "chimera", "schedopt"]
    return compare(CHAIN, Platform(2, 14), systems=names, microbatches=4)


def test_each_point_is_there_with_what_is_known_of_it(sweep: Sweep) -> None:
    found = explore_sweeps([("a.json", sweep)])
    assert [axis.values for axis in found.axes] == [
        ("1", "2"),
        ("9 B", "10 B", "12 B"),
        ("free",),
        ("steady state",),
    ]
    reader = Reader(render_explorer(found).text)
    entries = reader.data["entries"]
    assert [entry["at"][:2] for entry in entries] == [[p, m] for p in (0, 1) for m in (0, 1, 2)]
    for entry in entries[:4]:
        assert entry["time"] is None
        assert "view" not in entry
        assert entry["lacking"].startswith("No plan: infeasible")
    slow, fast = entries[4:]
    assert (slow["time"], slow["bound"], fast["time"], fast["bound"]) == (12.0, 12.0, 6.0, 6.0)
    # The two GPUs that have most have 4 micro-batches each.
    for entry, point in zip(entries[4:], sweep.points[-2:], strict=True):
        plan = point.plan(sweep.chain or CHAIN, sweep.options)
        assert plan is not None
        assert entry["view"]["length_ns"] == simulate(plan, 8).makespan_ns
    assert reader.data["picked"] == [5, 4]
    assert "Why it holds" in " ".join(fast["said"])
    assert reader.words.count("infeasible") == 4


def test_what_files_say_is_text(sweep: Sweep) -> None:
    text = render_explorer(explore_sweeps([("a.json", sweep)])).text
    assert text.count("<script") == text.count("</script") == 2
    assert "alert(1)" in Reader(text).words
    for word in ("http:", "https:", "url(", "@import", "fetch(", "import("):
        assert word not in text.replace("http://www.w3.org/2000/svg", "")


def test_several_sweeps_have_a_batch_to_choose(sweep: Sweep) -> None:
    found = explore_sweeps([("a.json", swept(batch=2)), ("b.json", swept(batch=4))])
    assert found.axes[3].values == ("2 samples", "4 samples")
    assert found.table.columns[0] == "Batch"
    best = {entry.at[3]: entry for entry in found.entries if entry.at[:2] == (1, 2)}
    assert (best[0].microbatches, best[1].microbatches) == (2, 4)
    for entry in best.values():
        assert entry.result is not None
        assert entry.time == entry.result.period


def test_the_number_of_micro_batches_is_that_which_is_asked_for(sweep: Sweep) -> None:
    entries = explore_sweeps([("a.json", sweep)], 3).entries
    assert {entry.microbatches for entry in entries} == {3}


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (lambda sweep: replace(sweep, chain=None), r"b: chain: is missing: an older version wrote"),
        (lambda sweep: replace(sweep, points=()), "b: has no point yet"),
        (lambda sweep: empty(), "b: has no point yet"),
        (lambda sweep: sweep, "b: has a point for 1 GPU of 9 B, free transfers, and a file before"),
        (
            lambda sweep: replace(
                sweep,
                chain=replace(CHAIN, input_bytes=3),
                chain_sha256=replace(CHAIN, input_bytes=3).sha256,
            ),
            "b: is of another chain than a",
        ),
    ],
)
def test_sweeps_that_do_not_go_together_are_refused(
    other: Callable[[Sweep], Sweep], error: str, sweep: Sweep
) -> None:
    with pytest.raises(InputError, match=error):
        explore_sweeps([("a", sweep), ("b", other(sweep))])


def test_a_plan_that_was_edited_is_refused(sweep: Sweep) -> None:
    last = sweep.points[-1]
    assert last.pattern is not None
    short = replace(last.pattern, period_total_ns=5)
    edited = replace(last, pattern=short, period_exact=(5, 1))
    with pytest.raises(InputError, match=r"a: the plan of 2 GPUs of 12 B, .* is not valid: "):
        explore_sweeps([("a", replace(sweep, points=(*sweep.points[:-1], edited)))])


def test_systems_have_their_step(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path / "c.json")
    for each in (comparison, Comparison.load(tmp_path / "c.json")):
        page = render_explorer(explore_comparison(each))
        entries = {entry["name"]: entry for entry in Reader(page.text).data["entries"]}
        assert list(entries) == [row.system.name for row in each.rows]
        for row in each.rows:
            entry = entries[row.system.name]
            if row.figures is None:
                assert "view" not in entry
                assert entry["lacking"] == unbroken(f"No plan: {row.note}.")
                continue
            assert entry["time"] == float(Fraction(row.figures.step_ns, row.figures.microbatches))
            assert entry["filled"] == (row.outcome == "fits")
            assert entry["memory"] == max(row.figures.memory_peak_bytes)
            assert ["Step", unbroken(format_duration(row.figures.step_ns))] in entry["figures"]
            assert entry["view"]["length_ns"] <= row.figures.step_ns
        assert {row.outcome for row in each.rows} == {"fits", "too large", "impossible"}


def test_a_page_that_would_be_too_large_says_so(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorer, "MOST_BOXES", 30)
    page = render_explorer(explore_comparison(comparison))
    entries = Reader(page.text).data["entries"]
    lacking = [entry for entry in entries if "view" not in entry and entry["time"] is not None]
    assert page.left_out == len(lacking) > 0
    assert len(lacking) < len(entries)
    for entry in lacking:
        assert "would make the page too large" in entry["lacking"]
