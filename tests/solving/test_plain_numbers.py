"""`max`, `min` and `int` in compiled code, against Python's."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher

from schedopt.solving.local_search.njit import njit_entry

WHOLE = st.integers(-(2**50), 2**50)
REAL = st.floats(-1e15, 1e15)


@njit_entry
def whole(one: int, other: int) -> tuple[int, int, int]:
    """Of whole numbers."""
    return max(one, other), min(one, other), int(one)


@njit_entry
def real(one: float, other: float) -> tuple[float, float, int]:
    """Of real numbers."""
    return max(one, other), min(one, other), int(one)


@njit_entry
def others(one: int, other: float) -> tuple[float, float, int, int]:
    """Of what is left to numba: kinds that differ, more than two, and what is true or not."""
    return max(one, other), min(one, other), max(one, 3, 2), int(one > 1)


@given(WHOLE, WHOLE)
def test_whole_numbers_compare_as_in_python(one: int, other: int) -> None:
    assert whole(one, other) == (max(one, other), min(one, other), one)


@given(REAL, REAL)
def test_real_numbers_compare_and_lose_their_fraction_as_in_python(
    one: float, other: float
) -> None:
    assert real(one, other) == (max(one, other), min(one, other), int(one))


def test_of_equal_numbers_the_first_is_taken_and_none_is_above_what_is_no_number() -> None:
    assert math.copysign(1.0, real(-0.0, 0.0)[0]) == -1.0
    assert math.copysign(1.0, real(0.0, -0.0)[1]) == 1.0
    assert real(1.0, math.nan)[:2] == (1.0, 1.0)
    assert all(map(math.isnan, real(math.nan, 1.0)[:2]))


def test_other_kinds_are_those_of_numba() -> None:
    assert others(2, 2.5) == (2.5, 2.0, 3, 1)
    assert others(4, 2.5) == (4.0, 2.5, 4, 1)


def test_numba_makes_no_functions_of_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    compile_one = Dispatcher.compile

    def note(dispatcher: Dispatcher, signature: Any) -> object:
        made.append(dispatcher.py_func.__qualname__)
        return compile_one(dispatcher, signature)

    monkeypatch.setattr(Dispatcher, "compile", note)

    def enter(one: int, share: float) -> float:
        return max(share, min(0.5, share)) + max(one, min(2, int(share)))

    assert njit_entry(enter)(3, 1.5) == 4.5
    assert [name for name in made if "enter" not in name] == []
