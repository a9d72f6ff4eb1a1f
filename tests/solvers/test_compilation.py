"""The processes that compile searches next to a solve."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

import numba
import pytest
from numba.core.caching import CacheImpl

from schedopt import Chain, Plan, Platform, Problem, Scope
from schedopt.solving.local_search import compilation, njit
from schedopt.solving.local_search import search as search_module
from schedopt.solving.local_search.compilation import COMPILATIONS, Compilation
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.replicas.layered import fill_tables
from schedopt.solving.replicas.recomputed_layers import find_recomputed
from schedopt.solving.run import Run
from tests.layers import layer
from tests.solvers.asking import ask, plan_of

PROBLEM = Problem(
    chain=Chain(layers=(layer(1, 2, 1),) * 2),
    platform=Platform(2, 99),
    scope=Scope(allocation="general"),
)

COMPILED_WITH = COMPILATIONS["local_search"].compile_all


def entry_of(one: Compilation, folder: Path) -> Path:
    """Return the file that says that all is compiled."""
    folder = compilation.code_folder(str(folder)) / f"{one.room}_abc"
    return folder / f"{one.entry}-1.py311.1.nbc"


def test_one_process_serves_all_solves(started: list[Popen[bytes]]) -> None:
    one = Compilation("local_search", COMPILED_WITH, "some.entry")
    assert not one.is_under_way()
    one.start()
    one.start()
    assert one.is_under_way()
    assert len(started) == 1


def test_where_code_is_kept_no_process_starts(started: list[Popen[bytes]], tmp_path: Path) -> None:
    one = Compilation("local_search", COMPILED_WITH, "some.entry")
    entry = entry_of(one, tmp_path)
    entry.parent.mkdir(parents=True)
    entry.touch()
    one.start()
    assert started == []


def test_what_another_numba_or_another_place_compiled_counts_as_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = compilation.code_folder.__wrapped__
    own = find("chosen")
    assert find("chosen") == own
    with monkeypatch.context() as patch:
        patch.setattr(compilation, "version", lambda _: "0.1")
        assert find("chosen") != own
    monkeypatch.setattr(compilation, "__file__", str(tmp_path / "local_search" / "moved.py"))
    (tmp_path / "local_search").symlink_to(Path(njit.__file__).parent)
    (tmp_path / "replicas").symlink_to(Path(njit.__file__).parent.parent / "replicas")
    assert find("chosen") != own


def test_where_nothing_can_be_written_each_process_compiles_for_itself(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    one = Compilation("local_search", COMPILED_WITH, "some.entry")
    one.start()
    assert started == []
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def add_one(number: int) -> int:
        return number + 1

    assert njit_entry(add_one)(2) == 3


def test_threads_that_import_side_by_side_share_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, ready = list[str](), threading.Barrier(2)

    def note(folder: str) -> Path:
        chosen.append(folder)
        return Path("ours") / folder

    def make() -> None:
        ready.wait()
        njit_kernel(lambda number: number)

    plain = numba.njit

    def pause(**_: object) -> Any:
        time.sleep(0.05)
        return plain

    monkeypatch.setattr(njit, "code_folder", note)
    monkeypatch.setattr(numba, "njit", pause)
    settings: Any = numba.config
    before = settings.CACHE_DIR
    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chosen == [before, before]
    assert before == settings.CACHE_DIR


@pytest.mark.parametrize("executable", ["", "/nowhere/python"])
def test_without_an_interpreter_nothing_is_compiled_beside(
    executable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", executable)
    one = Compilation("local_search", COMPILED_WITH, "some.entry")
    one.start()
    assert not one.is_under_way()


def test_what_one_room_compiled_says_nothing_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    rooms = [*COMPILATIONS]
    for number, room in enumerate(rooms):
        entry = entry_of(COMPILATIONS[room], tmp_path)
        entry.parent.mkdir(parents=True)
        entry.touch()
        assert [COMPILATIONS[name].is_kept() for name in rooms] == [
            other <= number for other in range(len(rooms))
        ]


@pytest.mark.parametrize("room", COMPILATIONS)
def test_the_file_that_says_that_code_is_kept_is_the_one_that_numba_writes(room: str) -> None:
    assert COMPILATIONS[room].wait(Run(PROBLEM), late=True)
    assert COMPILATIONS[room].is_kept()


def test_what_only_larger_steps_call_is_compiled_as_well() -> None:
    COMPILATIONS["replicas"].compile_here()
    entries: tuple[Any, ...] = (fill_tables, find_recomputed)
    for entry in entries:
        assert entry.signatures


def test_what_another_process_has_compiled_meanwhile_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    one, compiled = Compilation("local_search", COMPILED_WITH, "some.entry"), []
    entry = entry_of(one, tmp_path)

    def compile_here() -> None:
        compiled.append(one)
        entry.parent.mkdir(exist_ok=True)
        time.sleep(0.2)
        entry.touch()

    monkeypatch.setattr(one, "compile_here", compile_here)
    both = [threading.Thread(target=one.compile_alone) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert compiled == [one]


@pytest.mark.skipif(not hasattr(os, "getpgid"), reason="there are no groups of processes")
def test_what_ends_a_solve_from_its_terminal_does_not_end_the_process(
    started: list[Popen[bytes]],
) -> None:
    Compilation("local_search", COMPILED_WITH, "some.entry").start()
    assert os.getpgid(started[0].pid) != os.getpgid(0)


def test_rooms_are_compiled_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    inside, most = list[str](), list[int]()

    def compile_here(room: str) -> None:
        inside.append(room)
        time.sleep(0.1)
        most.append(len(inside))
        inside.remove(room)

    both = []
    for room in COMPILATIONS:
        one = Compilation(room, COMPILED_WITH, "some.entry")
        monkeypatch.setattr(one, "compile_here", partial(compile_here, room))
        both.append(threading.Thread(target=one.compile_alone))
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert most == [1] * len(COMPILATIONS)


def test_a_stop_does_not_wait_for_the_process(started: list[Popen[bytes]]) -> None:
    one, run = Compilation("local_search", COMPILED_WITH, "some.entry"), Run(PROBLEM)
    one.start()
    run.stop()
    assert not one.wait(run, late=True)
    assert started[0].poll() is None


def test_with_a_plan_nobody_waits_beyond_the_limit(started: list[Popen[bytes]]) -> None:
    one = Compilation("local_search", COMPILED_WITH, "some.entry")
    plan = plan_of(ask(PROBLEM.chain, PROBLEM.platform, solver="even_split"))
    one.start()
    run = Run(PROBLEM, time_limit=0.3)
    run.report(plan)
    assert not one.wait(run, late=False)
    # Neither before the limit nor much later: the process would sleep for a minute.
    assert -20 < (run.remaining() or 0) <= 0


def test_for_another_question_nobody_waits_beyond_the_limit_where_there_is_a_plan(
    ready_after: Callable[[float], Compilation],
) -> None:
    one, run = ready_after(60), Run(PROBLEM, time_limit=20)
    assert run.subrun(PROBLEM, 1.0).must_answer
    run.report(plan_of(ask(PROBLEM.chain, PROBLEM.platform, solver="even_split")))
    aside = run.subrun(PROBLEM, 1.0).subrun(PROBLEM, 1.0)
    assert not one.wait(aside, late=True)
    assert run.clock.seconds() == pytest.approx(20, abs=0.5)


@pytest.mark.parametrize("late", [True, False])
def test_without_a_plan_it_is_waited_for_beyond_the_limit(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "compile_search", lambda: time.sleep(0.3))
    run = Run(PROBLEM, time_limit=0.1)
    assert COMPILATIONS["local_search"].wait(run, late=late)


def test_without_a_plan_a_search_that_waited_has_a_second_but_no_more_than_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilation, "LOADING_S", 0.1)
    monkeypatch.setattr(search_module, "compile_search", lambda: time.sleep(0.4))
    for limit, least, most in ((0.2, 0.0, 0.2), (1.2, 0.3, 1.0), (99.0, 50.0, 98.7)):
        run = Run(PROBLEM, time_limit=limit)
        run.begin("general")
        assert search_module.is_compiled(run)
        left = run.remaining()
        assert left is not None
        assert least <= left <= most


class _SlowCompiler:
    """A process that compiles for so many seconds of a clock that moves when it is asked."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def poll(self) -> int | None:
        self.now += 0.25
        return 0 if self.now >= self.seconds else None


@pytest.fixture
def ready_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Compilation]:
    """Return what makes a compilation that takes so long, and a clock that shows it at once."""

    def make(seconds: float) -> Compilation:
        one, slow = Compilation("local_search", COMPILED_WITH, "some.entry"), _SlowCompiler(seconds)
        monkeypatch.setattr(compilation, "sleep", lambda _: None)
        monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: slow.now)
        monkeypatch.setattr(one, "_process", slow)
        monkeypatch.setattr(one, "compile_here", lambda: None)
        return one

    return make


def run_with_plan(plan: Plan) -> Run:
    """Return a run of 20 s that has a plan, in a fork of a phase that has a fifth of them."""
    whole = Run(PROBLEM, time_limit=20)
    whole.report(plan)
    whole.begin("general", 1 / 5)
    return whole


@pytest.mark.parametrize("as_fork", [True, False])
def test_the_wait_is_no_part_of_the_turn_of_a_search(
    as_fork: bool, ready_after: Callable[[float], Compilation]
) -> None:
    plan = plan_of(ask(PROBLEM.chain, PROBLEM.platform, solver="even_split"))
    one = ready_after(10)
    whole = run_with_plan(plan)
    part = whole.fork(1, 1.0) if as_fork else whole
    assert one.wait(part, late=True)
    # A fifth of the 10 s that are left; and the limit is where it was.
    assert part.remaining() == pytest.approx(2)
    whole.clock.begin_turn()
    assert whole.remaining() == pytest.approx(10)


def test_while_code_is_compiled_elsewhere_the_compiler_is_loaded(
    ready_after: Callable[[float], Compilation], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = threading.Event()
    monkeypatch.setattr(compilation, "_load_compiler", loaded.set)
    assert ready_after(0).wait(Run(PROBLEM), late=True)
    assert not loaded.is_set()
    assert ready_after(10).wait(Run(PROBLEM), late=True)
    assert loaded.wait(10)


def test_a_search_that_is_not_ready_in_time_ends_at_the_limit_and_says_so(
    ready_after: Callable[[float], Compilation],
) -> None:
    plan = plan_of(ask(PROBLEM.chain, PROBLEM.platform, solver="even_split"))
    one = ready_after(60)
    whole = run_with_plan(plan)
    assert not one.wait(whole.fork(1, 1.0), late=True)
    assert whole.clock.seconds() == pytest.approx(20, abs=0.5)
    fork = whole.fork(1, 1.0)
    assert not one.wait(fork, late=True)
    assert fork.events.left_out == compilation.NOT_READY


def test_where_no_code_is_kept_the_next_solve_is_not_said_to_have_it(
    ready_after: Callable[[float], Compilation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    plan = plan_of(ask(PROBLEM.chain, PROBLEM.platform, solver="even_split"))
    one, run = ready_after(60), run_with_plan(plan)
    assert not one.wait(run, late=True)
    assert "NUMBA_CACHE_DIR" in run.events.left_out
    assert "next solve" not in run.events.left_out
