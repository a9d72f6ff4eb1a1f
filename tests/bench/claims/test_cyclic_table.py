"""The table of parallelisms, N = 2 and 3 by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from schedopt.bench.claims import cyclic_table
from schedopt.bench.claims.cyclic_table import ROWS, find_table, fits, measure, own_first
from schedopt.checking import check
from tests.bench.claims.findings import nothing

ROW = {row.name: row for row in ROWS}


def test_a_ring_of_three() -> None:
    found = measure(ROW["Multi-GPU DP"].plan(3))
    # 2 (N - 1) / N of all parameters for each GPU; 4 rounds, in each a message comes and one goes.
    assert found["weights_sent"] == 1
    assert found["messages"] == 8
    names = ("activations", "parameters", "gpus", "delay")
    assert [int(found[name]) for name in names] == [1, 1, 3, 0]


def test_a_pyramid_of_three() -> None:
    plan = ROW["DP with MP, cyclic"].plan(3)
    found = measure(plan)
    # Parameters go to 2 and 1 more GPUs; gradients pass two hops in the first two stages, where a
    # sum for each GPU would take 2 and 1. All of 2 x 2 x 3 hops of the ring.
    assert found["weights_sent"] == Fraction(3 + 4, 12)
    assert found["gpus"] == 6
    assert found["activations"] == Fraction(1, 3)
    other = own_first(plan)
    assert check(other) == ()
    assert measure(other)["weights_sent"] == Fraction(3 + 3, 12)
    # Two boundaries, both ways, for outputs of three stages.
    assert found["activations_sent"] == Fraction(4, 3)


def test_two_versions_and_one() -> None:
    found = measure(ROW["PP"].plan(2))
    # Parameters, gradients and states of a stage of two, and another version of the parameters.
    assert found["parameters"] == Fraction(4, 6)
    assert found["parameters_once"] == Fraction(1, 2)
    assert found["activations"] == 1


def test_orders_of_growth() -> None:
    assert fits(Fraction(6), "O(1)", 100)
    assert not fits(Fraction(7), "O(1)", 100)
    assert fits(Fraction(12), "O(log N)", 8)
    assert not fits(Fraction(13), "O(log N)", 8)


def test_every_row_holds_under_conventions() -> None:
    found = find_table(nothing, 3)
    assert {part.verdict for part in found.parts} <= {"holds", "holds-under-convention"}
    rows: Any = found.figures["rows"]
    assert rows["Multi-GPU DP, cyclic"]["wrong_as_printed"] == ["parameters"]
    assert rows["DP with MP, cyclic"]["wrong_as_printed"] == [
        "activations_sent", "parameters", "weights_sent",
    ]  # fmt: skip


def test_other_plans_in_a_row_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    wrong = replace(ROW["Multi-GPU DP, cyclic"], plan=ROW["Multi-GPU DP"].plan)
    monkeypatch.setattr(cyclic_table, "ROWS", (wrong,))
    found = find_table(nothing, 3)
    assert found.verdict == "fails"
    assert {case["column"] for case in found.counterexamples} == {"messages", "delay"}
