"""Charts as text: readable without colour, within the width, ASCII where it must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Plan, Platform, Scope, solve
from schedopt.drawing import chart_plan, chart_simulation, explain_glyphs, render_chart
from schedopt.simulation import simulate
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES
from tests.random_plans import valid_plans


def lines_of(plan: Plan, width: int, *, unicode: bool = True) -> list[str]:
    return render_chart(chart_plan(result_of(plan)), width, unicode=unicode).plain.split("\n")


def test_a_plan_by_hand() -> None:
    # 64 columns for 8 ns: 8 columns each.
    lines = lines_of(EXAMPLES["contiguous"](), 64 + 7 + 32)
    assert lines[0].split("│")[0].startswith("       ├──────── period 4 ns")
    assert lines[1] == (
        "GPU 0  F0+0" + "░" * 12 + "B0-4" + "▓" * 12 + "F0+1" + "░" * 12 + "B0-3" + "▓" * 12
        + "  100.0% busy"
    )  # fmt: skip
    # The most is 5 of 5 micro-batches, and a gradient that waits: full.
    assert lines[2] == "       " + "█" * 64 + "  100.0% of 511 B, no room"
    assert lines[3].startswith("GPU 1  F1-1░░░░B1-3")
    assert lines[7] == "Links"
    idle = " " * 8
    assert lines[8].startswith("0-1    " + idle * 2 + "a0+0>>>>" + "g0-3<<<<" + idle * 2)


def test_ascii_where_the_terminal_has_no_more() -> None:
    plan = EXAMPLES["contiguous"]()
    text = "\n".join(lines_of(plan, 100, unicode=False))
    assert text.isascii()
    assert "F0+0---" in text
    assert "B0-4===" in text
    assert explain_glyphs(chart_plan(result_of(plan)), 100, unicode=False).isascii()


def test_the_legend_names_what_is_shown() -> None:
    legend = explain_glyphs(chart_plan(result_of(EXAMPLES["split_backward"]())), 100)
    assert "its weight half W" in legend
    assert "recompute" not in legend


@given(valid_plans(updates=True), st.integers(60, 200), st.booleans())
def test_lines_fit_into_the_width(plan: Plan, width: int, unicode: bool) -> None:
    lines = lines_of(plan, width, unicode=unicode)
    assert all(len(line) <= width for line in lines)
    used = {gpu for stage in plan.stages for gpu in stage.gpus}
    assert len(lines) >= 1 + 2 * len(used)
    step = chart_simulation(simulate(plan, plan.pattern.k * (plan.rule.update_every or 1)))
    assert all(len(row) <= width for row in render_chart(step, width).plain.split("\n"))


@pytest.mark.parametrize("gpus", [16, 64])
def test_many_gpus_get_a_line_each(gpus: int) -> None:
    layer = Layer(forward_ns=1000, backward_ns=2000, weight_bytes=1, activation_bytes=1)
    result = solve(
        Chain(layers=(layer,) * gpus), Platform(gpus, 10**6, bandwidth=10**9), scope=Scope()
    )
    lines = render_chart(chart_plan(result), 100).plain.split("\n")
    assert sum(line.startswith("GPU ") for line in lines) == gpus
    assert len(lines) == (1 + 2 * gpus + 1 + gpus - 1 if gpus == 16 else 1 + gpus + 1)
    if gpus == 64:
        assert lines[-1].startswith("Links     63 in use")


def test_too_many_operations_become_shares_of_busy_time() -> None:
    # 100 micro-batches on three GPUs, each busy 4 of 4 ns once the pipeline is full.
    plan = EXAMPLES["contiguous"]()
    chart = chart_simulation(simulate(plan, 100))
    lines = render_chart(chart, 99).plain.split("\n")
    assert "#" * 30 in lines[5]
    assert "tenths" in explain_glyphs(chart, 99)


def test_an_operation_shorter_than_a_column_is_still_seen() -> None:
    layers = [
        Layer(forward_ns=f, backward_ns=f, weight_bytes=0, activation_bytes=1) for f in (1, 1000)
    ]
    result = solve(Chain(layers=tuple(layers)), Platform(2, 9), scope=Scope())
    first = render_chart(chart_plan(result), 100).plain.split("\n")[1]
    assert first.count("F") + first.count("B") >= 2
