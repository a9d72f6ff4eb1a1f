"""The process that compiles the search next to a solve."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest

from schedopt import Chain, Platform, Problem, Scope
from schedopt.solving.local_search import compilation
from schedopt.solving.local_search import search as search_module
from schedopt.solving.local_search.compilation import Compilation
from schedopt.solving.run import Run
from tests.layers import layer

PROBLEM = Problem(
    chain=Chain(layers=(layer(1, 2, 1),) * 2),
    platform=Platform(2, 99),
    scope=Scope(allocation="general"),
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Popen[bytes]]:
    """Keep no code, and note each process, which only sleeps."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "CODE", "import time; time.sleep(60)")
    processes: list[Popen[bytes]] = []
    start = compilation._start

    def note() -> Popen[bytes] | None:
        process = start()
        assert process is not None
        processes.append(process)
        return process

    monkeypatch.setattr(compilation, "_start", note)
    return processes


def test_one_process_serves_all_solves_and_ends_with_the_last(
    started: list[Popen[bytes]],
) -> None:
    one = Compilation()
    assert not one.is_under_way()
    with one.meanwhile():
        with one.meanwhile():
            assert one.is_under_way()
        assert one.is_under_way()
    assert not one.is_under_way()
    assert len(started) == 1
    assert started[0].poll() is not None


def test_where_code_is_kept_no_process_starts(started: list[Popen[bytes]], tmp_path: Path) -> None:
    room = compilation.code_folder(str(tmp_path)) / "local_search"
    room.mkdir(parents=True)
    (room / "annealing.anneal-1.py311.1.nbc").touch()
    with Compilation().meanwhile():
        pass
    assert started == []


@pytest.mark.parametrize("executable", ["", "/nowhere/python"])
def test_without_an_interpreter_nothing_is_compiled_beside(
    executable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", executable)
    one = Compilation()
    with one.meanwhile():
        assert not one.is_under_way()


def test_the_file_that_says_that_code_is_kept_is_the_one_that_numba_writes() -> None:
    assert search_module.is_compiled(Run(PROBLEM))
    assert compilation._is_kept()


def test_a_stop_does_not_wait_for_the_process(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, run = Compilation(), Run(PROBLEM)
    monkeypatch.setattr(search_module, "COMPILATION", one)
    with one.meanwhile():
        run.stop()
        assert not search_module.is_compiled(run)
        assert started[0].poll() is None


def test_a_search_that_waited_has_a_second_at_least_and_no_more_than_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_module, "LOADING_S", 0.1)
    monkeypatch.setattr(search_module, "compile_search", lambda: time.sleep(0.4))
    for limit, least, most in ((0.2, 0.0, 0.2), (1.2, 0.3, 1.0), (99.0, 50.0, 98.7)):
        run = Run(PROBLEM, time_limit=limit)
        run.begin("general")
        assert search_module.is_compiled(run)
        left = run.remaining()
        assert left is not None
        assert least <= left <= most
