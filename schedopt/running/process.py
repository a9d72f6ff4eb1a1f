"""One rank as a process of its own: ``python -m schedopt.running.process DIRECTORY``."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from schedopt.account.timeline import stage_layers
from schedopt.actions import Action, Actions, gpu_ranks, sent_bytes
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.devices import find_device
from schedopt.running.crew import Work, begin_step, make_rank
from schedopt.running.failing import FAILURE, Failure, LostError, as_failure
from schedopt.running.job import Job
from schedopt.running.links import Links, Room, SleepingLinks, StreamLinks, ThreadLinks
from schedopt.running.rank import Rank
from schedopt.running.records import Outcome
from schedopt.running.session import Step, conduct, judge, prepare, settle, train_alone
from schedopt.running.spans import Span

JOB: Final = "job.pickle"
OUTCOME: Final = "outcome.pickle"
_PAUSE_S: Final = 2
_PATIENCE: Final = timedelta(minutes=30)
"""How long a rank waits for another: as long as the slowest step may take."""


def main(directory: Path, parent: int) -> None:
    """Run the rank that the environment names, of the job that lies in a directory.

    The first rank writes the outcome there; a rank that fails says there why. What it started
    ends with it.

    Parameters
    ----------
    directory : Path
    parent : int
        The process that started this one, and may have ended since.
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
        told = Failure(time.time(), number, as_failure(error, number))
        # Nobody listens any more where the launcher was ended as this rank started.
        with suppress(OSError):
            (directory / f"{FAILURE}-{number}.pickle").write_bytes(pickle.dumps(told))
        _end(1)
    _end(0)


def run_rank(job: Job, number: int, local: int) -> Outcome | None:
    """Run one rank of a job; the first returns what all measured.

    Raises
    ------
    InputError
    RankError
        Whatever it is that the model raises. One that lost the others waits before it says so:
        the launcher is to see first which of them ended.
    """
    try:
        return _run_rank(job, number, local)
    except (Exception, SystemExit) as error:
        failure = as_failure(error, number)
        if isinstance(failure, LostError):
            time.sleep(_PAUSE_S)
        raise failure from error


def _run_rank(job: Job, number: int, local: int) -> Outcome | None:
    actions = job.actions()
    device = _device(job, number, local)
    over_nccl = device.type == "cuda" and job.device == "cuda"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # Its threads would take memory and time where nobody sees it.
        torch.autograd.set_multithreading_enabled(False)
    dist.init_process_group("cpu:gloo,cuda:nccl" if over_nccl else "gloo", timeout=_PATIENCE)
    if dist.get_world_size() != len(actions.ranks):
        raise InputError(
            f"{dist.get_world_size()} processes were started for {len(actions.ranks)} ranks",
            field="nproc-per-node",
            way_out="Start one process for each GPU of the plan that has a stage",
        )
    # Factories that draw otherwise than by torch are to draw the same in every rank, too.
    random.seed(job.seed)
    numpy.random.seed(job.seed)  # noqa: NPY002
    prepared = prepare(job, actions, device)
    alone = train_alone(prepared) if job.compare and job.model and number == 0 else None
    prepared = settle(prepared, actions.stages(number), device)
    rank = make_rank(prepared.work, number)
    step = _stepper(job, prepared.work, rank, over_nccl)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        _cap(job.plan, number, device)
    records, kept = conduct(prepared, [rank], step, _gather, job.steps, job.compare)
    if job.backend == "pytorch":
        records = [replace(record, saved_bytes=None) for record in records]
    together: list[Any] | None = [None] * len(actions.ranks) if number == 0 else None
    dist.gather_object((records, kept), together)
    if together is None:
        return None
    every = [record for found, _ in together for record in found]
    trained = [one for _, found in together for one in found]
    return judge(every, trained, alone, job.plan.rule.is_given)


def _stepper(job: Job, work: Work, rank: Rank, over_nccl: bool) -> Step:
    """Return what runs a step of this rank."""
    if job.backend == "pytorch":
        from schedopt.running.torch_rank import TorchRuntime

        own = [layer for stage in rank.stages for layer in stage_layers(work.plan, stage)]
        names = {name for layer in own for name in work.pieces[layer].side}
        runtime = TorchRuntime(
            work.plan,
            work.actions,
            rank.number,
            work.pieces,
            work.boundaries,
            work.device,
            lambda micro_batch: work.data(micro_batch, names),
            work.before,
            work.begin,
        )
        return partial(_torch_step, runtime, rank, work.actions)
    return partial(step, rank, work.actions, _make_links(job, work, rank, over_nccl))


def _torch_step(runtime: Any, rank: Rank, actions: Actions) -> list[Span]:
    begin_step(rank, actions)
    with rank.meter or nullcontext():
        spans: list[Span] = runtime.step()
    rank.losses.update(runtime.losses)
    rank.count_live(spans)
    updates = [action for action in actions.ranks[rank.number] if action.kind == "U"]
    return spans + [rank.perform(action) for action in updates]


def step(rank: Rank, actions: Actions, make_links: Callable[[], Links]) -> list[Span]:
    """Do the list of a rank: compute, and let the links carry."""
    begin_step(rank, actions)
    links = make_links()
    mine = actions.ranks[rank.number]
    expected = {one for action in mine if action.is_transfer for one in action.singles}
    spans = []
    ready = 0
    for action in mine:
        if action.is_transfer:
            links.reach(action)
            continue
        for receive in (*_receives(action), *rank.exchange.needs(action)):
            if receive in expected:
                tensor, since = links.wait(receive)
                rank.put(receive, tensor)
                ready = max(ready, since)
                del tensor
        if action.kind == "V":
            rank.renew(action)
        elif action.kind != "G":
            spans.append(rank.perform(action, ready))
            ready = 0
        for send, output in rank.release().items():
            links.offer(send, output)
            del output
    spans += links.finish()
    rank.finish()
    return spans


def _receives(action: Action) -> list[Action]:
    """Return what an operation may have to wait for."""
    match action.kind:
        case "F":
            return [Action(action.stage, "RECV_F", i) for i in action.micro_batches]
        case "B" | "I":
            return [Action(action.stage, "RECV_B", i) for i in action.micro_batches]
        case _:
            return []


def _make_links(job: Job, work: Work, rank: Rank, over_nccl: bool) -> Callable[[], Links]:
    plan, actions = work.plan, work.actions
    room = make_room(work, rank, work.device if over_nccl else torch.device("cpu"))
    if over_nccl:
        return lambda: StreamLinks(rank.number, actions, room, rank.exchange)
    if job.model is not None:
        return lambda: ThreadLinks(rank.number, actions, room, rank.exchange, work.device)
    gpus = sorted(gpu_ranks(plan))

    def lasts_ns(send: Action) -> int:
        ends = [gpus[actions.peer(one)] for one in (send.other_end, send)]
        return int(plan.platform.transfer_ns(sent_bytes(plan, send), *ends) * job.stretch)

    one_way = plan.platform.link is not None and plan.platform.link.duplex == "half"
    one_clock = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
    return lambda: SleepingLinks(
        rank.number, actions, room, rank.exchange, work.device, one_way, lasts_ns, one_clock
    )


def make_room(work: Work, rank: Rank, device: torch.device) -> Room:
    """Return what makes room on a device for what a receive takes in."""
    stages, boundaries = work.plan.stages, work.boundaries

    def room(receive: Action) -> Tensor:
        if receive.part is not None:
            chunk = receive.part.chunk, receive.part.chunks
            return rank.stages[receive.stage].weights.empty_part(chunk, device)
        stage = stages[receive.stage]
        layer = stage.first - 1 if receive.kind == "RECV_F" else stage.last
        return boundaries[layer].empty(device)

    return room


def _device(job: Job, number: int, local: int) -> torch.device:
    if job.device != "cuda":
        return find_device(job.device)
    return find_device(f"cuda:{local}")


def _cap(plan: Plan, number: int, device: torch.device) -> None:
    """Let the rank have no more memory than the plan gives its GPU."""
    (gpu,) = [gpu for gpu, rank in gpu_ranks(plan).items() if rank == number]
    total = torch.cuda.get_device_properties(device).total_memory
    share = plan.platform.gpus[gpu].usable_bytes / total
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share, device)


def _gather() -> None:
    """Wait until all ranks are here."""
    dist.all_reduce(torch.zeros(1))


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
