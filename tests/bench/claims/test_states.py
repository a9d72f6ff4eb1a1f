"""Bytes for each parameter."""

from __future__ import annotations

import pytest

from schedopt.bench.claims import states
from schedopt.bench.claims.states import find_bytes_a_parameter, measure_mixed_adam
from tests.bench.claims.findings import nothing


def test_the_parts_by_hand() -> None:
    found = measure_mixed_adam(8)
    assert found["parameters"] == 2 * (8 * 8 + 8)
    assert (found["parameter"], found["gradient"], found["master"], found["moments"]) == (
        2,
        2,
        4,
        8,
    )
    assert (found["between"], found["step"]) == (16, 20)
    # Four tensors, each with a count of 4 bytes.
    assert found["counts"] == 16


def test_it_holds_between_steps() -> None:
    found = find_bytes_a_parameter(nothing, (8,))
    assert found.verdict == "holds-under-convention"
    assert found.conventions == (states.BETWEEN,)
    assert found.figures["adam_all_in_float32"] == 16
    assert found.figures["adam_all_in_bfloat16"] == 8


def test_another_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "PRINTED", 12)
    found = find_bytes_a_parameter(nothing, (8,))
    assert found.verdict == "fails"
    assert {case["bytes"] for case in found.counterexamples} == {16, 20}
