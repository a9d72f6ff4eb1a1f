"""Plans that are there before the searches are compiled."""

from __future__ import annotations

import time
from dataclasses import replace
from subprocess import Popen

import pytest

from schedopt import Chain, Platform, Scope, solve
from schedopt.problem import Problem
from schedopt.solving import Run
from schedopt.solving.engines.order import EngineOrder
from schedopt.solving.local_search import compilation
from schedopt.solving.local_search.compilation import COMPILATIONS, Compilation
from tests.layers import layer


def test_a_start_and_a_freedom_not_asked_for_do_not_wait_for_the_compiler(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in COMPILATIONS:
        never_kept = Compilation(room, COMPILATIONS[room].compile_all, "some.entry")
        monkeypatch.setitem(COMPILATIONS, room, never_kept)
    # Too many layers for what runs beside the search to prove in time that nothing is better.
    forward = tuple((7 * number**2 % 11 + 3) * 10**6 for number in range(12))
    chain = Chain(layers=tuple(layer(f, 2 * f, 4, weight=1, sent=1) for f in forward))
    scope = Scope(allocation="general", max_k=2)
    result = solve(chain, Platform(4, 30, bandwidth=10**6), scope=scope, time_limit=1, workers=2)
    assert result.plan is not None
    assert len(started) >= 1
    assert all(process.poll() is None for process in started)
    notes = {(each.solver, each.freedom): str(each.note) for each in result.ladder}
    assert ("general", "") not in notes
    assert compilation.NOT_READY in notes["general", "k up to 2"]


def test_a_step_is_there_before_its_search_is_compiled(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the process sleeps through would take longer than the limit.
    one = layer(10**6, 2 * 10**6, 1, weight=8)
    sized = replace(one, parameter_bytes=2, gradient_bytes=2, optimizer_bytes=4)
    chain, platform = Chain(layers=(sized,) * 6), Platform(2, 40, bandwidth=10**9)
    for room in COMPILATIONS:
        never_kept = Compilation(room, COMPILATIONS[room].compile_all, "some.entry")
        monkeypatch.setitem(COMPILATIONS, room, never_kept)
    begin = time.monotonic()
    result = solve(chain, platform, batch=8, time_limit=2)
    # It goes on a little under load; the processes would sleep for a minute.
    assert time.monotonic() - begin < 20
    assert result.plan is not None
    assert len({gpu for stage in result.plan.stages for gpu in stage.gpus}) == 2
    assert all(process.poll() is None for process in started)


def test_a_step_of_an_engine_is_there_before_its_search_is_compiled(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    never_kept = Compilation("engines", COMPILATIONS["engines"].compile_all, "some.entry")
    monkeypatch.setitem(COMPILATIONS, "engines", never_kept)
    called = list[object]()
    monkeypatch.setattr(EngineOrder, "_run", lambda *asked: called.append(asked))
    chain = Chain(layers=tuple(layer(forward, 1, 1, sent=10**6) for forward in (5, 2, 3, 4)))
    scope = Scope(allocation="general", max_k=None, microbatches=4, engine="torch")
    result = solve(chain, Platform(2, 99, bandwidth=10**9), scope=scope, time_limit=0.4)
    assert result.plan is not None
    assert len(started) == 1
    assert not called


def test_a_plan_is_there_before_replicas_are_searched(
    started: list[Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in COMPILATIONS:
        never_kept = Compilation(room, COMPILATIONS[room].compile_all, "some.entry")
        monkeypatch.setitem(COMPILATIONS, room, never_kept)
    chain = Chain(layers=tuple(layer(forward, 1, 1) for forward in (5, 2, 3)))
    scope = Scope(allocation="contiguous", replicas=None)
    result = solve(chain, Platform(2, 99), scope=scope, solver="replicated", time_limit=0.5)
    assert len(started) == 1
    # Without replicas: 5 + 1 + 2 + 1 on one GPU, or 2 + 1 + 3 + 1 on the other.
    assert result.period == 7
    assert compilation.NOT_READY in str(result.ladder[0].note)


@pytest.mark.parametrize(
    ("kept", "note"), [(True, compilation.NOT_LOADED), (False, compilation.NOT_READY)]
)
def test_the_next_solve_is_no_way_out_for_what_is_only_loaded(
    monkeypatch: pytest.MonkeyPatch, kept: bool, note: str
) -> None:
    room = COMPILATIONS["local_search"]
    monkeypatch.setattr(Compilation, "is_kept", lambda _: kept)
    monkeypatch.setattr(compilation, "_can_keep", lambda: True)
    run = Run(Problem(chain=Chain(layers=(layer(1, 1, 1),)), platform=Platform(1, 9)))
    run.begin("general")
    run.stop()
    search = Compilation("local_search", room.compile_all, room.entry)
    assert not search.wait(run, late=False)
    assert run.events.left_out == note
