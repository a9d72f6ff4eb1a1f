"""Settings of all tests: how many random examples, and one core for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import budgets

__all__ = ["budgets"]


@pytest.fixture(autouse=True, scope="session")
def _one_core() -> Iterator[None]:
    """Solvers take one worker unless a test says more: what they find repeats on any machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _process: {0}, raising=False)
        yield
