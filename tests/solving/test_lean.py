"""Tuples of arrays that compiled code gets as one pointer, against numpy on the same arrays."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary

from schedopt.errors import InputError
from schedopt.solving.local_search import njit
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_inline, njit_kernel, njit_paste
from schedopt.solving.local_search.tables import Ints
from schedopt.solving.replicas.arrays import Floats


class Inner(NamedTuple):
    """Arrays of each number of axes."""

    line: Ints
    table: Ints
    block: Floats


class Outer(NamedTuple):
    """Numbers, and tuples in a tuple, with names and without."""

    number: int
    shares: tuple[int, float]
    inner: Inner
    pair: tuple[int, int]
    last: int


@njit_paste
def twice(value: int) -> int:
    """Is pasted."""
    return 2 * value


@njit_inline
def put(inner: Inner, row: int, column: int, value: int) -> None:
    """Is inlined."""
    inner.table[row, column] = value


@njit_kernel
def sum_of(inner: Inner) -> float:
    """Read each item by its place."""
    found = 0.0
    for number in range(inner.line.shape[0]):
        found += inner.line[number]
    for layer in range(inner.block.shape[0]):
        for row in range(inner.block.shape[1]):
            for column in range(inner.block.shape[2]):
                found += inner.block[layer, row, column] * (layer + 10 * row + 100 * column)
    return found


@njit_entry
def work(outer: Outer) -> float:
    """Write, add in place, and read numbers."""
    inner = outer.inner
    for row in range(inner.table.shape[0]):
        for column in range(inner.table.shape[1]):
            put(inner, row, column, twice(10 * row + column))
    inner.line[outer.number] += 7
    first, second = outer.pair
    return outer.shares[1] * sum_of(inner) + outer.shares[0] * (first + 10 * second + outer.last)


def test_lean_arrays_are_those_of_python() -> None:
    inner = Inner(np.arange(4), np.zeros((2, 3), dtype=np.int64), np.arange(24.0).reshape(2, 3, 4))
    found = work(lean(Outer(2, (3, 0.25), inner, (4, 5), 600)))
    layer, row, column = np.indices((2, 3, 4))
    assert inner.table.tolist() == [[0, 2, 4], [20, 22, 24]]
    assert inner.line.tolist() == [0, 1, 9, 3]
    block = float((inner.block * (layer + 10 * row + 100 * column)).sum())
    assert found == 0.25 * (13 + block) + 3 * 654


def test_numbers_may_differ_without_compiling_again() -> None:
    inner = Inner(np.ones(3, dtype=np.int64), np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1, 1)))
    assert work(lean(Outer(0, (0, 1.0), inner, (0, 0), 0))) == 10
    assert work(lean(Outer(1, (1, -2.5), inner, (2, 1), 100))) == -42.5 + 112


@njit_entry
def draw_into(inner: Inner, draw: np.random.Generator) -> float:
    """Draw until each item has a number, and return one more."""
    for layer in range(inner.block.shape[0]):
        for row in range(inner.block.shape[1]):
            for column in range(inner.block.shape[2]):
                inner.block[layer, row, column] = draw.random()
    return draw.random()


def test_a_lean_generator_draws_on_where_python_left_off() -> None:
    inner = Inner(np.arange(1), np.zeros((1, 1), dtype=np.int64), np.zeros((2, 3, 4)))
    draw, same = np.random.default_rng(7), np.random.default_rng(7)
    assert draw.random() == same.random()
    last = draw_into(lean(inner), lean(draw))
    assert inner.block.ravel().tolist() == same.random(24).tolist()
    assert [last, draw.random()] == same.random(2).tolist()


def test_what_does_not_lie_in_rows_is_refused() -> None:
    turned = np.zeros((3, 2), dtype=np.int64).T
    with pytest.raises(TypeError, match="rows"):
        lean(Inner(np.zeros(1, dtype=np.int64), turned, np.zeros((1, 1, 1))))


def test_where_numba_compiles_nothing_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cast(Any, numba).config, "DISABLE_JIT", 1)
    spec = spec_from_file_location("again", njit.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(InputError, match=r"NUMBA_DISABLE_JIT has numba compile nothing.*Unset"):
        spec.loader.exec_module(module_from_spec(spec))


def test_kernels_are_optimized_with_what_calls_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    optimize = cast(Any, JITCodeLibrary)._optimize_final_module

    def note(library: Any) -> None:
        made.append(library.name)
        optimize(library)

    monkeypatch.setattr(JITCodeLibrary, "_optimize_final_module", note)

    @njit_kernel
    def add_one(value: int) -> int:
        return value + 1

    @njit_inline
    def add_two(value: int) -> int:
        return add_one(add_one(value))

    def enter(value: int) -> int:
        return add_two(value)

    assert cast(Any, numba).njit(enter)(5) == 7
    assert [name.split(".")[-1] for name in made] == ["enter"]
