"""Running a job: in this process, or by starting its ranks here and ending them in any case."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any
from unittest import mock
from uuid import uuid4

from schedopt.errors import InputError, RankError, SchedoptError
from schedopt.profiling.error_format import format_error, without_logging
from schedopt.profiling.model import require_torch
from schedopt.running.job import Job
from schedopt.running.records import FAILURE, JOB, OUTCOME, Failure, LostError, Outcome
from schedopt.running.report import Report


def execute(job: Job, *, port: int = 0) -> Report:
    """Run a job on this machine, and put what was measured next to what was predicted.

    Parameters
    ----------
    job : Job
    port : int
        At which ranks that are processes find each other. 0: any that is free.

    Raises
    ------
    InputError
        If torch or a device is missing, the model is not that of the plan, or the port is in use.
    RankError
        If a rank fails.
    """
    torch: Any = require_torch()
    ranks = job.processes
    load = os.getloadavg()[0]
    if job.backend == "logical":
        try:
            return Report(job, _run_here(job), load)
        except SchedoptError:
            raise
        except (Exception, SystemExit) as error:
            raise RankError(f"the run raised {format_error(error)}") from error
    from schedopt.profiling.devices import find_device

    find_device(job.device)
    if job.device == "cuda" and torch.cuda.device_count() < ranks:
        raise InputError(
            f"the plan has {ranks} ranks, and this machine {torch.cuda.device_count()} GPUs",
            field="device",
            way_out='Take one GPU for all ranks, Job(device="cuda:0"), or the backend logical',
        )
    return Report(job, launch(job, port), load)


def _run_here(job: Job) -> Outcome:
    """Run all ranks in this process, one operation after the other."""
    import torch

    from schedopt.profiling.devices import find_device
    from schedopt.running.backends import step_in_one_process
    from schedopt.running.controller import place_on_device, prepare, run_controller
    from schedopt.running.rank import build_ranks
    from schedopt.running.reference import compare_with_reference, train_in_one_process

    device = find_device(job.device)
    devices = [device] if device.type == "cuda" else []
    reference = None
    with torch.random.fork_rng(devices=devices):
        prepared = prepare(job, device)
        if job.compare and prepared.model is not None:
            prepared.load(0)
            reference = train_in_one_process(prepared.model, prepared.work)
        prepared = place_on_device(prepared, range(len(job.plan.stages)), device)
        ranks = build_ranks(prepared.work)
        step = partial(step_in_one_process, ranks)
        records, trained = run_controller(
            prepared, ranks, step, lambda: None, job.steps, job.compare
        )
    return compare_with_reference(records, trained, reference, job.plan.rule.is_given)


def launch(job: Job, port: int = 0) -> Outcome:
    """Run each rank of a job as a process of this machine, started by torchrun's launcher.

    All of them have ended on return. A rank that fails ends the others, and so does an exception
    that a signal raises here; should this process be killed, they end by themselves.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _check_port(port)
    ranks = job.processes
    directory = _make_directory()
    try:
        (directory / JOB).write_bytes(pickle.dumps((job, sys.path)))
        with without_logging(), mock.patch.dict(os.environ, _environment(ranks)):
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


def first_failure(directory: Path, ended: Mapping[int, Any]) -> SchedoptError:
    """Return the failure that the others follow from.

    Ranks wrote into the directory why they failed. The launcher saw those that `ended`, with exit
    codes, the first of them first; it may have ended those after the first itself.
    """
    paths = directory.glob(f"{FAILURE}-*.pickle")
    failures: list[Failure] = [pickle.loads(path.read_bytes()) for path in paths]
    failures.sort(key=lambda failure: (isinstance(failure.error, LostError), failure.time))
    if failures and not isinstance(failures[0].error, LostError):
        return failures[0].error
    lost = {failure.rank for failure in failures}
    for rank, end in ended.items():
        if rank not in lost and not (lost and end.exitcode == -Signals.SIGTERM):
            return _without_a_word(rank, end.exitcode)
    if failures:
        return failures[0].error
    return RankError("the ranks ended before their work was done")


def _without_a_word(rank: int, code: int) -> RankError:
    """Return the error of a rank that ended without saying why."""
    if code >= 0:
        return RankError(f"rank {rank} ended with exit code {code} before its work was done")
    guess = ": the machine may have run out of memory" if code == -Signals.SIGKILL else ""
    return RankError(f"rank {rank} was ended by {Signals(-code).name}{guess}")


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
    module = ("-m", "schedopt.running.rank_process")
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
            why = (getattr(error, "strerror", None) or str(error)).rstrip(".")
            raise InputError(
                f"{port} cannot be used: {why}",
                field="port",
                way_out="Give one that is free, or leave it out to take any that is",
            ) from None
