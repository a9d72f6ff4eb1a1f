"""`execute`: run a plan on this machine."""

from __future__ import annotations

import os
from typing import Any

from schedopt.actions import Actions
from schedopt.errors import InputError, RankError, SchedoptError
from schedopt.profiling.error_format import format_error
from schedopt.profiling.model import require_torch
from schedopt.running.job import Job
from schedopt.running.records import Outcome
from schedopt.running.report import Report


def execute(job: Job, *, port: int = 0) -> Report:
    """Run a job on this machine, and put what was measured beside what was predicted.

    Parameters
    ----------
    job : Job
    port : int
        For ranks that are processes; see `schedopt.running.launching.launch`.

    Raises
    ------
    InputError
        If torch or a device is missing, or the model is not that of the plan.
    RankError
        If a rank fails.
    """
    require_torch()
    actions = job.actions()
    load = os.getloadavg()[0]
    if job.backend == "logical":
        try:
            return Report(job, _run_here(job, actions), load)
        except SchedoptError:
            raise
        except (Exception, SystemExit) as error:
            raise RankError(f"the run raised {format_error(error)}") from error
    _check_devices(job, len(actions.ranks))
    from schedopt.running.launching import launch

    return Report(job, launch(job, len(actions.ranks), port), load)


def _run_here(job: Job, actions: Actions) -> Outcome:
    import torch

    from schedopt.profiling.devices import find_device
    from schedopt.running import logical
    from schedopt.running.crew import make_ranks
    from schedopt.running.session import conduct, judge, prepare, settle, train_alone

    device = find_device(job.device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        prepared = prepare(job, actions, device)
        alone = train_alone(prepared) if job.compare and job.model is not None else None
        prepared = settle(prepared, range(len(job.plan.stages)), device)
        ranks = make_ranks(prepared.work)
        records, kept = conduct(
            prepared,
            ranks,
            lambda: logical.step(ranks, actions),
            lambda: None,
            job.steps,
            job.compare,
        )
    return judge(records, kept, alone, job.plan.rule.is_given)


def _check_devices(job: Job, ranks: int) -> None:
    from schedopt.profiling.devices import find_device

    find_device(job.device)
    torch: Any = require_torch()
    if job.device == "cuda" and torch.cuda.device_count() < ranks:
        raise InputError(
            f"the plan has {ranks} ranks, and this machine {torch.cuda.device_count()} GPUs",
            field="device",
            way_out='Take one GPU for all ranks, Job(device="cuda:0"), or the backend logical',
        )
