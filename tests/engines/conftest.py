"""Ranks for the engines, which may do with them what they like: each file has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running.pool import RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Return ranks that end with the file."""
    made = RankPool()
    yield made
    made.close()
