"""One rank as a process of its own: ``python -m schedopt.running.rank_process FOLDER PARENT``."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy
import torch
import torch.distributed as dist

from schedopt.actions import process_gpus
from schedopt.errors import InputError, RankError, SchedoptError
from schedopt.plan import Plan
from schedopt.profiling.devices import find_device
from schedopt.profiling.error_format import format_error
from schedopt.profiling.group_operators import ALONE, PROCESSES, Group
from schedopt.running.backends import make_step
from schedopt.running.controller import place_on_device, prepare, run_controller
from schedopt.running.job import Job
from schedopt.running.rank import build_rank
from schedopt.running.records import FAILURE, JOB, OUTCOME, Failure, LostError, Outcome
from schedopt.running.reference import compare_with_reference, train_in_one_process
from schedopt.running.trained import WHOLE, Split

_PAUSE_S: Final = 2
_PATIENCE: Final = timedelta(minutes=30)
"""How long a rank waits for another: as long as the slowest step may take."""
_GLOO: Final = re.compile(r"^RuntimeError: \[\S+\] |\. This is typically .*")
_DISTRIBUTED: Final = str(Path(dist.__file__).parent)


def main(directory: Path, parent: int) -> None:
    """Run the rank that the environment names, of the job that lies in a directory.

    The first rank writes the outcome there; a rank that fails says there why. What it started
    ends with it, and it with `parent`, the process that started it and may have ended since.
    """
    os.dup2(2, 1)
    _end_with(parent, directory)
    number = int(os.environ["RANK"])
    try:
        job, path = pickle.loads((directory / JOB).read_bytes())
        sys.path += [folder for folder in path if folder not in sys.path]
        outcome = run_rank(job, number, int(os.environ["LOCAL_RANK"]))
        if outcome is not None:
            (directory / OUTCOME).write_bytes(pickle.dumps(outcome))
    except BaseException as error:
        failure = Failure(time.time(), number, as_failure(error, number))
        # Nobody listens any more where the launcher was ended as this rank started.
        with suppress(OSError):
            (directory / f"{FAILURE}-{number}.pickle").write_bytes(pickle.dumps(failure))
        _end(1)
    _end(0)


def run_rank(job: Job, number: int, local: int) -> Outcome | None:
    """Run one rank of a job; the first returns what all measured.

    Whatever the model raises becomes an error of ours. A rank that lost the others waits before it
    says so: the launcher is to see first which of them ended.
    """
    try:
        return _run_rank(job, number, local)
    except (Exception, SystemExit) as error:
        failure = as_failure(error, number)
        if isinstance(failure, LostError):
            time.sleep(_PAUSE_S)
        raise failure from error


def as_failure(error: BaseException, number: int) -> SchedoptError:
    """Return what ended a rank as an error that says which it was."""
    if isinstance(error, SchedoptError):
        return error
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    last = traceback.extract_tb(cause.__traceback__)[-1:]
    if any(frame.filename.startswith(_DISTRIBUTED) for frame in last):
        return LostError(
            f"rank {number} lost another, which ended itself (os._exit) or cannot be reached: "
            f"{_GLOO.sub('', format_error(cause))}"
        )
    return RankError(f"rank {number} raised {format_error(error)}")


def _run_rank(job: Job, number: int, local: int) -> Outcome | None:
    actions = job.actions
    device = find_device(f"cuda:{local}" if job.device == "cuda" else job.device)
    over_nccl = device.type == "cuda" and job.device == "cuda"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # Its threads would take memory and time where nobody sees it.
        torch.autograd.set_multithreading_enabled(False)
    dist.init_process_group("cpu:gloo,cuda:nccl" if over_nccl else "gloo", timeout=_PATIENCE)
    if dist.get_world_size() != job.processes:
        raise InputError(
            f"{dist.get_world_size()} processes were started for {job.processes} ranks",
            field="nproc-per-node",
            way_out="Start one process for each GPU of the plan that has a stage",
        )
    # Factories that draw otherwise than by torch are to draw the same in every rank, too.
    random.seed(job.seed)
    numpy.random.seed(job.seed)  # noqa: NPY002
    group = _tensor_group(job, number)
    reference, split = None, WHOLE
    prepared = prepare(job, device)
    if job.compare and prepared.model is not None and number == 0:
        prepared.load(0)
        reference = train_in_one_process(prepared.model, prepared.work)
    if group.degree > 1:
        whole, prepared = prepared.work, prepare(job, device, group)
        split = Split.between(whole, prepared.work)
        del whole
    own = number // group.degree
    prepared = place_on_device(prepared, actions.stages(own), device)
    rank = build_rank(prepared.work, own)
    step = make_step(job, rank, over_nccl)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        _cap_memory(job.plan, number, device)
    records, trained = run_controller(
        prepared, [rank], step, lambda: dist.all_reduce(torch.zeros(1)), job.steps, job.compare
    )
    if job.backend == "pytorch":
        records = [replace(record, saved_bytes=None) for record in records]
    gathered: list[Any] | None = [None] * job.processes if number == 0 else None
    dist.gather_object((records, trained), gathered)
    if gathered is None:
        return None
    return compare_with_reference(
        [record for records, _ in gathered for record in records],
        [part for _, trained in gathered for part in trained],
        reference,
        job.plan.rule.is_given,
        split,
    )


def _tensor_group(job: Job, number: int) -> Group:
    """Return the tensor group of a process; all of them must call it."""
    degree = job.tensor
    if degree == 1:
        return ALONE
    own = ""
    for first in range(0, job.processes, degree):
        name = f"tensor group of processes {first} to {first + degree - 1}"
        PROCESSES[name] = dist.new_group(range(first, first + degree))
        if number // degree * degree == first:
            own = name
    return Group(degree=degree, rank=number % degree, name=own)


def _cap_memory(plan: Plan, number: int, device: torch.device) -> None:
    """Let the rank have no more memory than the plan gives its GPU."""
    gpu = process_gpus(plan)[number]
    total = torch.cuda.get_device_properties(device).total_memory
    share = plan.platform.gpus[gpu].usable_bytes / total
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)


def _end_with(parent: int, directory: Path) -> None:
    """End when the process that started this one has ended, however it did."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        shutil.rmtree(directory, ignore_errors=True)
        if _is_leader():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end(code: int) -> NoReturn:
    """End at once, since threads may wait for others for ever, with all that was started here."""
    sys.stdout.flush()
    sys.stderr.flush()
    if _is_leader():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    os._exit(code)


def _is_leader() -> bool:
    return os.getpgrp() == os.getpid()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
