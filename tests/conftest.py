"""Settings of all tests: order, how many random examples, one core each, Ctrl-C, garbage."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests import budgets

__all__ = ["budgets"]

LOADS_TORCH = (
    *("bench/claims/test_rows.py", "bench/test_execution.py", "cli/test_profile.py"),
    *("cli/test_run.py", "documentation/test_pages.py", "profiling/", "running/", "test_torch"),
)
"""Tests that do, though most of their files do not name it."""

# What is imported to collect tests is no garbage: the collector need not look at it so often.
gc.set_threshold(20_000)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As under nohup and in background jobs: their children would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with all that needs torch.

    Of two processes that share the tests the first one then does all of it, and the other one never
    pays for what torch loads where it is first used, nor has ranks of its own.
    """
    items.sort(key=lambda item: not _needs_torch(item))


def _needs_torch(item: pytest.Item) -> bool:
    name = item.nodeid.partition("::")[0].removeprefix("tests/")
    return name.startswith(LOADS_TORCH) or hasattr(getattr(item, "module", None), "torch")


@pytest.fixture(autouse=True, scope="session")
def _one_core() -> Iterator[None]:
    """Solvers take one worker unless a test says more: what they find repeats on any machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _process: {0}, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _imported_for_good() -> None:
    """Spare the collector of garbage what was imported: each full run would look at all of it."""
    gc.collect()
    gc.freeze()
