"""Ranks that are processes: what they say when one fails, and that none is left."""

from __future__ import annotations

import logging
import os
import signal
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from schedopt import InputError, Plan
from schedopt.actions import Action, make_actions
from schedopt.errors import RankError
from schedopt.profiling.error_format import format_error
from schedopt.running.exchange import Exchange
from schedopt.running.failing import LostError
from schedopt.running.job import Job
from schedopt.running.links import ThreadLinks
from schedopt.running.run import execute
from tests.running import faulty


@pytest.fixture(scope="module")
def plan() -> Plan:
    return faulty.plan()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "faulty_model.py").write_text(faulty.MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def job(plan: Plan, **more: Any) -> Job:
    given = {"model": "faulty_model:build", "backend": "p2p", "microbatches": 4, "steps": 1}
    return Job(plan=plan, **{**given, **more})


def test_a_run_leaves_all_as_it_was(plan: Plan, folder: Path) -> None:
    def state() -> tuple[Any, ...]:
        handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
        return handlers, logging.root.manager.disable, dict(os.environ)

    before = state()
    outcome = execute(job(plan)).outcome
    assert [one.rank for one in outcome.records] == [0, 1]
    assert outcome.gradient_difference is not None
    assert outcome.gradient_difference < 1e-5
    assert state() == before
    assert [*(folder / "temporary").iterdir()] == []


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("forward:raise", InputError, "forward raised ValueError: broken, as it was told (faulty_"),
        ("step:raise", RankError, "rank 1 raised ValueError: broken, as it was told (faulty_"),
        ("factory:SIGKILL", RankError, "rank 1 was ended by SIGKILL: the machine may have run"),
        ("forward:SIGTERM", RankError, "rank 1 was ended by SIGTERM"),
        ("forward:7", RankError, "rank 1 ended with exit code 7 before its work was done"),
        ("step:0", LostError, "rank 0 lost another, which ended itself"),
        ("forward:start", InputError, "forward raised ValueError: with a process of its own"),
    ],
)
def test_a_rank_that_fails_is_named_and_ends_all(
    plan: Plan,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    fault: str,
    kind: type[Exception],
    message: str,
) -> None:
    monkeypatch.setenv("FAULT", fault)
    with faulty.nothing_left(fault) as tag:
        for name, value in tag.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(kind) as caught:
            execute(job(plan, compare=False))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert [*(folder / "temporary").iterdir()] == []


def test_another_model_is_refused_by_name(plan: Plan) -> None:
    with pytest.raises(InputError, match="the input takes 192 B, in the plan 128 B") as caught:
        execute(job(plan, model="faulty_model:wide"))
    assert caught.value.field == "model"


def test_a_port_in_use_is_refused(plan: Plan) -> None:
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        with pytest.raises(InputError, match="cannot be used: Address already in use") as caught:
            execute(job(plan), port=other.getsockname()[1])
    assert caught.value.field == "port"


def test_without_room_for_temporary_files_nothing_starts(
    plan: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "nowhere"))
    with pytest.raises(InputError, match="no directory for temporary files") as caught:
        execute(job(plan))
    assert caught.value.field == "TMPDIR"


def test_what_a_link_raises_ends_the_rank_though_another_link_waits(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, sending, released = [], threading.Event(), threading.Event()

    def send(tensor: torch.Tensor, peer: int) -> None:
        sending.set()
        released.wait(20)
        sent.append(peer)

    def no_room(receive: Action) -> torch.Tensor:
        assert sending.wait(20)
        raise MemoryError(str(receive))

    monkeypatch.setattr("schedopt.running.links.dist.send", send)
    links = ThreadLinks(1, make_actions(plan, 4), no_room, Exchange(), torch.device("cpu"))
    links.offer(Action(1, "SEND_B", 0), torch.zeros(1))
    with pytest.raises(MemoryError):
        links.finish()
    assert sent == []
    released.set()


def test_the_model_is_where_an_error_is_said_to_be(folder: Path) -> None:
    code = compile("\n\nint('x')", folder / "own.py", "exec")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        exec(code)
    assert format_error(caught.value).endswith("'x' (own.py:3)")
