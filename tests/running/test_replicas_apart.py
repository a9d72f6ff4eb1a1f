"""Plans with replicas, a process a rank: against formulas, with faults, and from end to end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from schedopt import InputError, Plan, Platform, check
from schedopt.errors import RankError
from schedopt.running import Job, execute
from schedopt.running.micro_batches import MicroBatches
from tests.running import by_hand, faulty
from tests.running.by_hand import ByHand
from tests.running.crews import apart
from tests.running.replicated import cyclic, system
from tests.running.replicated_ranks import ENGINES, NAMES, RANKS, STEPS, plans

MOST = 1e-12


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each rank of each plan left what came of it."""
    folder = tmp_path_factory.mktemp("ranks")
    code = "from tests.running.replicated_ranks import run_all; run_all({}, {!r})"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code.format(rank, str(folder))],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    end = time.monotonic() + 150
    told: list[str] = []
    try:
        told.extend(one.communicate(timeout=max(0.1, end - time.monotonic()))[0] for one in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert [process.returncode for process in ranks] == [0] * RANKS, "\n".join(told)
    return folder


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_weights_are_those_of_formulas(name: str, engine: str, results: Path) -> None:
    plan, count = plans()[name]
    files = sorted(results.glob(f"{NAMES.index(name)}.{engine}.*"))
    assert len(files) == len({gpu for stage in plan.stages for gpu in stage.gpus})
    found: list[Any] = [torch.load(file, weights_only=False) for file in files]
    model = by_hand.net()
    batches = MicroBatches(model, count, 0, torch.device("cpu"))
    hand: ByHand | None = None
    for step in range(STEPS):
        batches.load(step)
        inputs = [batches(i, ["input"])["input"] for i in range(count)]
        hand = ByHand(plan, model, inputs, "sgd", after=hand)
        hand.train()
        assert {key for rank in found for key in rank[step][0]} == hand.gradients.keys()
        assert {key for rank in found for key in rank[step][1]} == hand.weights.keys()
        for gradients, weights in (rank[step] for rank in found):
            for key, one in gradients.items():
                assert apart(one, hand.gradients[key]) < MOST
            for key, one in weights.items():
                assert apart(one, hand.weights[key]) < MOST


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "faulty_model.py").write_text(faulty.MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def overlapped() -> Plan:
    """Return data parallelism of the faulty model on two GPUs."""
    return system("dp_overlapped", faulty.chain(), 2, 2)


def fresh() -> Plan:
    """Return CDP-v2 of the faulty model on three GPUs."""
    return cyclic(faulty.chain(), 3, fresh=True, spread=False)


@pytest.mark.parametrize("backend", ["logical", "p2p"])
@pytest.mark.parametrize("make", [overlapped, fresh])
def test_a_job_agrees_with_one_process(make: Any, backend: Any, folder: Path) -> None:
    plan = make()
    job = Job(plan=plan, model="faulty_model:build", backend=backend, microbatches=6, steps=1)
    report = execute(job)
    assert report.outcome.agrees
    assert report.outcome.gradient_difference is not None
    assert report.outcome.gradient_difference < 1e-6
    assert report.outcome.weight_difference is not None
    assert report.outcome.weight_difference < 1e-6
    assert report.measured.live == report.predicted.live
    assert report.measured.weights_bytes == report.predicted.weights_bytes
    document = report.to_json()
    assert len(document["losses"]) == 1
    assert max(document["versions"]) == (2 if make is fresh else 1)
    if backend == "p2p":
        assert report.measured.transfers == report.predicted.transfers > 0
    kinds = {span.action.kind for span in report.planned}
    assert kinds >= ({"SEND_G", "SEND_V"} if make is fresh else {"SEND_G"})


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (overlapped, "forward:raise"),
        (overlapped, "step:raise"),
        (overlapped, "step:3"),
        (fresh, "forward:raise"),
        (fresh, "forward:SIGKILL"),
    ],
)
def test_a_rank_that_fails_ends_the_others(
    make: Any, fault: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", fault)
    job = Job(plan=make(), model="faulty_model:build", backend="p2p", microbatches=6, steps=1)
    begin = time.monotonic()
    with faulty.nothing_left(f"replicas-{fault}-{make.__name__}") as tag:
        monkeypatch.setenv(*next(iter(tag.items())))
        with pytest.raises((RankError, InputError), match=r"rank 1|broken, as it was told"):
            execute(job)
    assert time.monotonic() - begin < 60


def test_the_runtime_of_torch_refuses_replicas(folder: Path) -> None:
    job = Job(plan=overlapped(), model="faulty_model:build", backend="pytorch", microbatches=2)
    with pytest.raises(InputError, match=r"stage 0 lies on 2 GPUs.*p2p"):
        execute(job)


@pytest.mark.parametrize("backend", ["logical", "p2p"])
def test_sleeping_layers_send_what_the_plan_sends(backend: Any, folder: Path) -> None:
    platform = Platform(gpus=2, memory="1T", bandwidth=10**5, duplex="full")
    plan = system("dp_overlapped", faulty.chain(), 2, 2, platform=platform, unit_ns=10**6)
    assert check(plan) == ()
    report = execute(Job(plan=plan, model=None, backend=backend, microbatches=4, steps=1))
    assert report.measured.live == report.predicted.live
    if backend == "p2p":
        assert report.measured.transfers == report.predicted.transfers
        assert report.measured.transfers_ns >= report.predicted.transfers_ns
