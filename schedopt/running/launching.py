"""Starting the ranks of a job on this machine, and ending them, whatever happens."""

from __future__ import annotations

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
from unittest import mock
from uuid import uuid4

from schedopt.errors import InputError, RankError
from schedopt.profiling.error_format import format_error
from schedopt.running.failing import first_failure
from schedopt.running.job import Job
from schedopt.running.process import JOB, OUTCOME
from schedopt.running.records import Outcome


def launch(job: Job, ranks: int, port: int = 0) -> Outcome:
    """Run each rank of a job as a process of this machine, started by torchrun's launcher.

    All of them have ended on return. A rank that fails ends the others, and so does an exception
    that a signal raises here; should this process be killed, they end by themselves.

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
        If a rank failed otherwise, was killed, or could not be started.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _check_port(port)
    directory = _make_directory()
    try:
        (directory / JOB).write_bytes(pickle.dumps((job, sys.path)))
        with _quietly(), mock.patch.dict(os.environ, _environment(ranks)):
            _start(directory, ranks, port)
        if not (directory / OUTCOME).exists():
            raise first_failure(directory, {})
        outcome: Outcome = pickle.loads((directory / OUTCOME).read_bytes())
    except ChildFailedError as failed:
        raise first_failure(directory, failed.failures) from None
    except (OSError, RuntimeError) as error:
        raise RankError(f"the ranks could not be started: {format_error(error)}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _start(directory: Path, ranks: int, port: int) -> None:
    """Start the ranks, and wait for their end."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(directory / "logs")),
        # They stay with those who had them.
        signals_to_handle="",
    )
    module = ("-m", "schedopt.running.process")
    elastic_launch(config, sys.executable)(*module, str(directory), str(os.getpid()))


def _make_directory() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="schedopt-run-"))
    except OSError as error:
        raise InputError(
            f"there is no directory for temporary files: {error.strerror or error}",
            field="TMPDIR",
            way_out="Let it name one that can be written, or take the backend logical",
        ) from None


def _environment(ranks: int) -> dict[str, str]:
    """Share the cores among the ranks, unless the user said how many threads each has.

    What torch logs is not for users: its errors are raised too, and said once.
    """
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    usual = {"OMP_NUM_THREADS": str(share), "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return {name: os.environ.get(name, value) for name, value in usual.items()}


def _check_port(port: int) -> None:
    with socket.socket() as tried:
        # As the launcher does, so that a port is free again as soon as a run has ended.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except (OSError, OverflowError) as error:
            raise InputError(
                f"{port} cannot be used: {_why(error)}",
                field="port",
                way_out="Give one that is free, or leave it out to take any that is",
            ) from None


def _why(error: OSError | OverflowError) -> str:
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the launcher from logging what the error says anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
