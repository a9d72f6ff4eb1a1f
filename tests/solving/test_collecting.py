"""Garbage that is looked for later."""

from __future__ import annotations

import gc

import pytest

from schedopt.solving.collecting import collecting_later


def test_garbage_is_looked_for_afterwards_as_before() -> None:
    def fail() -> None:
        with collecting_later():
            assert not gc.isenabled()
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with collecting_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
