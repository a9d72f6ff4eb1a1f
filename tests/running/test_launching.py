"""Ranks that are started for a job: what they say when one fails, and that none is left."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from schedopt import InputError, Plan
from schedopt.actions import Action, make_actions
from schedopt.errors import RankError, SchedoptError
from schedopt.profiling.error_format import format_error
from schedopt.running import Job, execute
from schedopt.running.execution import first_failure
from schedopt.running.links import ThreadLinks
from schedopt.running.rank import Rank
from schedopt.running.records import FAILURE, Failure, LostError
from tests.running import faulty
from tests.running.faulty import fresh, overlapped

pytestmark = pytest.mark.torch

NIGHTLY = pytest.mark.nightly


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    faulty.plan()  # Torch makes a folder of its own where it profiles first.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def job(plan: Plan, **more: Any) -> Job:
    given = {"model": faulty.BUILD, "backend": "p2p", "microbatches": 6, "steps": 1}
    return Job(plan=plan, **{**given, **more})


def state() -> tuple[Any, ...]:
    """Return what a run changes for as long as it lasts."""
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    return handlers, logging.root.manager.disable, dict(os.environ)


@NIGHTLY
def test_a_run_leaves_all_as_it_was(folder: Path) -> None:
    before = state()
    outcome = execute(job(faulty.plan())).outcome
    assert [record.rank for record in outcome.records] == [0, 1]
    assert outcome.gradient_difference is not None
    assert outcome.gradient_difference < 1e-5
    assert state() == before
    assert [*(folder / "temporary").iterdir()] == []


BROKEN = "ValueError: broken, as it was told (faulty_"


@pytest.mark.parametrize(
    ("make", "fault", "kind", "message"),
    [
        (faulty.plan, "forward:raise", InputError, f"forward raised {BROKEN}"),
        *(
            pytest.param(*case, marks=NIGHTLY)
            for case in (
                (faulty.plan, "factory:SIGKILL", RankError, "rank 1 was ended by SIGKILL: the"),
                (faulty.plan, "step:raise", RankError, f"rank 1 raised {BROKEN}"),
                (faulty.plan, "forward:SIGTERM", RankError, "rank 1 was ended by SIGTERM"),
                (faulty.plan, "forward:7", RankError, "rank 1 ended with exit code 7 before its"),
                (faulty.plan, "step:0", LostError, "rank 0 lost another, which ended itself"),
                (faulty.plan, "forward:start", InputError, "ValueError: with a process of its own"),
                (overlapped, "forward:raise", InputError, f"forward raised {BROKEN}"),
                (overlapped, "step:raise", RankError, f"rank 1 raised {BROKEN}"),
                (overlapped, "step:3", RankError, "rank 1"),
                (fresh, "forward:raise", InputError, f"forward raised {BROKEN}"),
                (fresh, "forward:SIGKILL", RankError, "rank 1 was ended by SIGKILL"),
            )
        ),
    ],
)
def test_a_rank_that_fails_is_named_and_ends_all(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    make: Any,
    fault: str,
    kind: type[Exception],
    message: str,
) -> None:
    plan = make()
    monkeypatch.setenv("FAULT", fault)
    with faulty.nothing_left(f"{fault}-{make.__name__}") as tag:
        for name, value in tag.items():
            monkeypatch.setenv(name, value)
        before = state()
        with pytest.raises(kind) as caught:
            execute(job(plan, compare=False))
        assert state() == before
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert [*(folder / "temporary").iterdir()] == []


RAISED, LOST = RankError("rank 2 raised"), LostError("rank 0 lost another")


@pytest.mark.parametrize(
    ("failures", "ended", "message"),
    [
        # What a rank raised comes before what others lost by it, however early those say so.
        ([(1, 0, LOST), (2, 2, RAISED)], {2: 1, 0: 1}, "rank 2 raised"),
        ([(2, 1, InputError("late")), (1, 2, RAISED)], {1: 1}, "rank 2 raised"),
        ([(1, 0, LOST)], {1: -9, 0: 1}, "rank 1 was ended by SIGKILL: the machine may have run"),
        ([(1, 0, LOST)], {1: 7}, "rank 1 ended with exit code 7 before its work was done"),
        # The launcher itself ends the others by SIGTERM.
        ([(1, 0, LOST)], {0: 1, 1: -15}, "rank 0 lost another"),
        ([], {1: -15}, "rank 1 was ended by SIGTERM"),
        ([(1, 0, LOST)], {}, "rank 0 lost another"),
        ([], {}, "the ranks ended before their work was done"),
    ],
)
def test_of_several_failures_the_first_is_found(
    folder: Path,
    failures: list[tuple[float, int, SchedoptError]],
    ended: dict[int, int],
    message: str,
) -> None:
    for failure in failures:
        path = folder / f"{FAILURE}-{failure[1]}.pickle"
        path.write_bytes(pickle.dumps(Failure(*failure)))
    codes = {rank: SimpleNamespace(exitcode=code) for rank, code in ended.items()}
    assert str(first_failure(folder, codes)).startswith(message)


@NIGHTLY
def test_another_model_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="the input takes 192 B, in the plan 128 B") as caught:
        execute(job(faulty.plan(), model=faulty.BUILD.replace("build", "wide")))
    assert caught.value.field == "model"


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        with pytest.raises(InputError, match="cannot be used: Address already in use") as caught:
            execute(job(faulty.plan()), port=other.getsockname()[1])
    assert caught.value.field == "port"


def test_without_room_for_temporary_files_nothing_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "nowhere"))
    with pytest.raises(InputError, match="no directory for temporary files") as caught:
        execute(job(faulty.plan()))
    assert caught.value.field == "TMPDIR"


def test_what_a_link_raises_ends_the_rank_though_another_link_waits(
    monkeypatch: pytest.MonkeyPatch,
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
    work: Any = SimpleNamespace(
        actions=make_actions(faulty.plan(), 4), device=torch.device("cpu"), process=int
    )
    links = ThreadLinks(Rank(1, {}, work), no_room)
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
