"""A sweep on a Dask cluster of two workers, one of which is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from schedopt import InputError
from schedopt.sweeping import ClusterPool, run_sweep
from tests.cli.commands import printed
from tests.sweeping.helpers import CHAIN, FAST, INFEASIBLE, SLOW, cells, die_once, empty

ROOT = Path(__file__).parents[2]


class Cluster:
    """A scheduler and workers of one thread each, in processes of their own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.file = folder / "scheduler.json"
        self.stack = ExitStack()
        self.start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        self.address = self.wait_for_address()
        once = ("--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
        self.workers = [self.start("dask_worker", *once) for _ in range(workers)]

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{program}", *arguments, "--no-dashboard",
             "--scheduler-file", str(self.file)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def wait_for_address(self) -> str:
        for _ in range(300):
            try:
                address: str = json.loads(self.file.read_text())["address"]
            except (OSError, ValueError):
                time.sleep(0.1)
            else:
                return address
        raise AssertionError("no scheduler")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path, workers=2)
    with made.stack:
        yield made


def test_a_sweep_finishes_though_a_worker_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    asked = cells([2, 4], [INFEASIBLE, SLOW, FAST])
    work = partial(die_once, tmp_path / "died", SLOW)
    outcome = run_sweep(empty(), CHAIN, asked, ClusterPool(cluster.address, 30), work=work)
    assert outcome.given_up == ()
    periods = [point.period for point in outcome.sweep.points]
    assert periods == [None, 12, 6, 3, 3, 3]
    assert sum(worker.poll() is not None for worker in cluster.workers) == 1

    # The one that is left does for the command line.
    CHAIN.save(tmp_path / "chain.json")
    shown = printed(
        "sweep", "--chain", "chain.json", "--gpus", "2", "--mem", "10,12", "--dask",
        cluster.address, folder=tmp_path,
    )  # fmt: skip
    assert "12 ns" in shown


def test_a_cluster_without_workers_is_one_clear_error(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path, workers=0)
    with made.stack, pytest.raises(InputError, match="has no workers") as caught:
        run_sweep(empty(), CHAIN, cells([2], [SLOW]), ClusterPool(made.address, 1))
    assert f"dask worker {made.address}" in caught.value.way_out


def test_a_scheduler_that_does_not_answer_is_one_clear_error() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        run_sweep(empty(), CHAIN, cells([2], [SLOW]), ClusterPool("tcp://127.0.0.1:1", 0.5))


@pytest.mark.parametrize("address", ["nonsense", "nonsense://127.0.0.1:1", "tcp://"])
def test_what_is_no_address_makes_no_client(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    # Such a client prints a traceback when it is forgotten.
    monkeypatch.setattr(distributed, "Client", None)
    with pytest.raises(InputError, match=f"no Dask scheduler answers at {address}"):
        run_sweep(empty(), CHAIN, cells([2], [SLOW]), ClusterPool(address, 0.5))


def test_without_distributed_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"needs dask\.distributed") as caught:
        ClusterPool("tcp://127.0.0.1:1")
    assert "pip install distributed" in caught.value.way_out
