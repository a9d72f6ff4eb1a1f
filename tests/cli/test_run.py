"""``schedopt run`` as users run it: what it prints, how it ends, and what it leaves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.budgets import PROFILE
from tests.cli.commands import ended, run, run_process, start
from tests.running import faulty

pytestmark = pytest.mark.torch

MODEL = ("--model", "faulty_model:build")
QUICK = (*MODEL, "--steps", "1", "--microbatches", "4")
NO_ORTOOLS = "raise ImportError('a run needs no solver')\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the model, a plan of it, and one that knows too little of memory."""
    made = tmp_path_factory.mktemp("run")
    (made / "faulty_model.py").write_text(faulty.MODULE)
    result = faulty.solved(faulty.chain(), "1M")
    assert result.plan is not None
    result.save(made / "plan.json")
    faulty.tight().save(made / "tight.json")
    return made


@pytest.fixture(autouse=True)
def environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "without").mkdir(exist_ok=True)
    for name in ("ortools", "numba", "matplotlib"):
        (folder / "without" / f"{name}.py").write_text(NO_ORTOOLS)
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "without"), root]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_what_a_model_prints_and_too_much_memory_leave_the_document_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "step:print")
    done = run_process("run", "tight.json", *QUICK, "--json", folder=folder)
    assert done.returncode == 5
    assert json.loads(done.stdout)["backend"] == "p2p"
    *printed, last = done.stderr.splitlines()
    assert {*printed} == {"printed", "written"}
    assert last.startswith("rank ")
    assert "more than the 800 B of GPU" in last


def test_the_model_is_printed_as_it_was_given(folder: Path) -> None:
    (folder / "models.py").write_text("from faulty_model import build as factory\n")
    quick = ("--steps", "1", "--microbatches", "4", "--no-compare", "--backend", "logical")
    done = run("run", "plan.json", "--model", "models:factory", *quick, folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("models:factory: 2 ranks, logical, ")


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("factory:exit", 2, "Error: --model: faulty_model:build raised SystemExit: 0 (faulty_"),
        ("forward:raise", 2, "Error: --model: its step in one process raised ValueError: broken"),
        ("step:exit", 1, "Error: the run raised SystemExit: 0 (faulty_model.py:"),
    ],
)
def test_a_model_that_fails_in_this_process_is_told_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: int, message: str
) -> None:
    monkeypatch.setenv("FAULT", fault)
    compare = () if fault.startswith("forward") else ("--no-compare",)
    here = ("--backend", "logical", "--json", *compare)
    done = run("run", "plan.json", *QUICK, *here, folder=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_what_is_wrong_in_the_plan_is_not_called_an_option(folder: Path) -> None:
    tree = json.loads((folder / "plan.json").read_text())
    del tree["chain"]["recipe"]
    (folder / "unknown.json").write_text(json.dumps(tree))
    done = run("run", "unknown.json", *QUICK, "--backend", "logical", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: unknown.json: chain.recipe: it does not say where")


def test_a_signal_ends_the_command_and_all_ranks(folder: Path) -> None:
    told = {signal.SIGINT: (130, "", "Ended by SIGINT.\n")}
    if PROFILE == "nightly":
        told |= {signal.SIGTERM: (143, "", "Ended by SIGTERM.\n"), signal.SIGKILL: (-9, "", "")}
    with faulty.nothing_left("signals") as tag:
        runs = [
            start(
                *("-m", "schedopt", "run", "plan.json", *QUICK, "--json"),
                folder=folder,
                FAULT="forward:stay",
                **tag,
            )
            for _ in told
        ]
        for number, process in zip(told, runs, strict=True):
            assert process.stderr is not None
            # The model says that a step is under way.
            assert process.stderr.readline() == "staying\n"
            process.send_signal(number)
        ends = [ended(process) for process in runs]
    assert ends == [*told.values()]


@pytest.mark.nightly
def test_the_line_for_several_machines_runs(folder: Path) -> None:
    done = run("run", "plan.json", *QUICK, "--json", "--nodes", "2", folder=folder)
    line = shlex.split(done.stdout.replace("HOST:29400", f"localhost:{free_port()}"))
    assert line[0] == "torchrun"
    with faulty.nothing_left("torchrun") as tag:
        agents = [
            start(
                *("-m", "torch.distributed.run", *line[1:]),
                folder=folder,
                FAULT="step:print",
                **tag,
            )
            for _ in range(2)
        ]
        ends = [ended(agent) for agent in agents]
    assert [code for code, _, _ in ends] == [0, 0]
    told = [out for _, out, _ in ends if out]
    assert len(told) == 1
    assert json.loads(told[0])["backend"] == "p2p"


@pytest.mark.nightly
def test_a_rank_that_torchrun_started_fails_in_one_line(folder: Path) -> None:
    with faulty.nothing_left("one") as tag:
        ranks = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
        command = ("-m", "schedopt", "run", "plan.json", *QUICK)
        code, out, err = ended(start(*ranks, *command, folder=folder, FAULT="step:raise", **tag))
    assert (code, out) == (1, "")
    ours = [line for line in err.splitlines() if line.startswith(("Error:", "Ended", "terminate"))]
    assert len(ours) == 1
    assert ours[0].startswith("Error: rank 1 raised ValueError: broken, as it was told (faulty_")
    assert "schedopt/running" not in err


@pytest.mark.nightly
def test_a_profile_needs_no_solver_either(folder: Path, tmp_path: Path) -> None:
    typed = ("profile", MODEL[1], "--repeats", "2", "-o", tmp_path / "c.json")
    done = run_process(*typed, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("localhost", 0))
        port: Any = tried.getsockname()[1]
    return int(port)
