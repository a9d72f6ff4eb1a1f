"""Starting the ranks of a job on this machine, and ending them, whatever happens."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import Signals
from typing import Any
from unittest import mock
from uuid import uuid4

from schedopt.errors import InputError, RankError, SchedoptError
from schedopt.running.job import Job
from schedopt.running.process import JOB, OUTCOME
from schedopt.running.records import Outcome


def launch(job: Job, ranks: int, port: int = 0) -> Outcome:
    """Run each rank of a job as a process of this machine, started by torchrun's launcher.

    All of them have ended on return. A rank that fails ends the others.

    Parameters
    ----------
    job : Job
    ranks : int
    port : int
        At which the ranks find each other. 0: any that is free.

    Raises
    ------
    InputError
        What a rank raised as such, or if the port is in use.
    RankError
        If a rank failed otherwise, or was killed.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _check_port(port)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        max_restarts=0,
        monitor_interval=0.1,
    )
    directory = Path(tempfile.mkdtemp(prefix="schedopt-run-"))
    try:
        (directory / JOB).write_bytes(pickle.dumps(job))
        command = (sys.executable, "-m", "schedopt.running.process", str(directory))
        try:
            with _quietly(), mock.patch.dict(os.environ, _environment(ranks)):
                elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as failed:
            raise _failure(directory, failed.failures) from None
        outcome: Outcome = pickle.loads((directory / OUTCOME).read_bytes())
        return outcome
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _environment(ranks: int) -> dict[str, str]:
    """Share the cores among the ranks, unless the user said how many threads each has."""
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(share))}


def _check_port(port: int) -> None:
    with socket.socket() as tried:
        try:
            tried.bind(("", port))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"{port} cannot be used: {getattr(error, 'strerror', None) or error}",
                field="port",
                way_out="Give one that is free, or leave it out to take any that is",
            ) from None


def _failure(directory: Path, failures: dict[int, Any]) -> SchedoptError:
    """Return the error of the rank that failed first: what others say may follow from it."""
    told = [json.loads(path.read_text()) for path in directory.glob("error-*.json")]
    killed = [
        (failure.timestamp, rank, -failure.exitcode)
        for rank, failure in failures.items()
        if failure.exitcode < 0 and rank not in {one["rank"] for one in told}
    ]
    first = min(told, key=lambda one: float(one["time"]), default=None)
    if killed and (first is None or min(killed)[0] <= first["time"]):
        _, rank, number = min(killed)
        return RankError(f"rank {rank} was ended by {Signals(number).name}{_guess(number)}")
    if first is None:
        rank, failure = min(failures.items())
        return RankError(f"rank {rank} ended with exit code {failure.exitcode}")
    if "input" in first:
        rule, field, way_out, source = first["input"]
        return InputError(rule, field=field, way_out=way_out, source=source)
    return RankError(f"rank {first['rank']} raised {first['fault']}")


def _guess(number: int) -> str:
    return ": the machine may have run out of memory" if number == Signals.SIGKILL else ""


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the launcher from logging what the error says anyway."""
    logger = logging.getLogger("torch.distributed.elastic")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
