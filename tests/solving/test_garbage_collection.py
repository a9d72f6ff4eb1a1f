"""Garbage that is looked for later."""

from __future__ import annotations

import gc

import pytest

from schedopt.solving.garbage_collection import pause_garbage_collection


def test_garbage_is_looked_for_afterwards_as_before() -> None:
    def fail() -> None:
        with pause_garbage_collection():
            assert not gc.isenabled()
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert gc.isenabled()
    gc.disable()
    try:
        with pause_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
