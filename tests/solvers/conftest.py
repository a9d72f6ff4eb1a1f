"""What tests of several solvers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from schedopt.solving.local_search import compilation


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Popen[bytes]]]:
    """Keep no code, and note each process, which only sleeps."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    processes: list[Popen[bytes]] = []
    start = compilation._start

    def note(_: str) -> Popen[bytes] | None:
        process = start("import time; time.sleep(60)")
        assert process is not None
        processes.append(process)
        return process

    monkeypatch.setattr(compilation, "_start", note)
    yield processes
    for process in processes:
        process.kill()
        process.wait()
