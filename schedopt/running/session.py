"""A run from the first step to the last, the same for every way to run."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from schedopt.account.timeline import stage_layers
from schedopt.actions import Actions
from schedopt.errors import InputError
from schedopt.profiling import Model, load_model
from schedopt.profiling.layer_sweeps import training_mode
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.pieces import blaming, on_device
from schedopt.profiling.profiler import out_of_memory
from schedopt.profiling.states import choose_optimizer, distinct_bytes
from schedopt.running.crew import Work, name_parameters
from schedopt.running.fitting import Boundary, check_bytes, cut_as_planned, look
from schedopt.running.job import Job
from schedopt.running.micro_batches import MicroBatches
from schedopt.running.moving import move_piece
from schedopt.running.rank import Rank
from schedopt.running.records import Outcome, Record
from schedopt.running.reference import Trained, difference, emulate, train_unsplit
from schedopt.running.sleeping import Sleeper, sleeping_inputs, sleeping_pieces
from schedopt.running.spans import Span

Step = Callable[[], list[Span]]
"""Runs a step and returns what ran."""


@dataclass(frozen=True)
class Prepared:
    """What a run works on.

    Parameters
    ----------
    work : Work
    load : callable
        Makes the inputs of a step.
    model : Model or None
        The whole model before any step, as long as somebody needs it.
    place : torch.device
        Where it lies, and the layers with it.
    settle : callable
        Moves what the inputs and random numbers of layers need.
    is_asleep : bool
        Whether the layers sleep.
    """

    work: Work
    load: Callable[[int], None]
    model: Model | None
    place: torch.device
    settle: Callable[[torch.device], None] = lambda device: None
    is_asleep: bool = False


def prepare(job: Job, actions: Actions, device: torch.device) -> Prepared:
    """Build the model that a job names, and cut it as the plan says.

    On the device, or on the host if the whole model does not fit there: see `settle`.

    Raises
    ------
    InputError
        If it is not the model of the plan.
    """
    if job.model is None:
        return _prepare_sleeping(job, actions, device)
    torch.manual_seed(job.seed)
    loaded = load_model(job.model, **job.options)
    try:
        return _prepare_on(job, actions, loaded, device)
    except InputError as error:
        if device.type == "cpu" or not out_of_memory(error):
            raise
    torch.cuda.empty_cache()
    return _prepare_on(job, actions, loaded, torch.device("cpu"))


def _prepare_on(job: Job, actions: Actions, loaded: Model, place: torch.device) -> Prepared:
    model = on_device(loaded, place)
    chain = job.plan.chain
    pieces, boundaries = look(cut_as_planned(model, chain), model.tensors)
    check_bytes(chain, pieces, boundaries, model.tensors)
    batches = MicroBatches(model, actions.micro_batches, job.seed, place)
    work = Work(
        plan=job.plan,
        actions=actions,
        pieces=pieces,
        boundaries=boundaries,
        optimizer=model.optimizer or choose_optimizer(job.optimizer),
        data=batches,
        before=batches.seed_layer,
        names=name_parameters(model.module, model.loss),
        device=place,
    )
    return Prepared(work, batches.load, model, place, batches.settle)


def _prepare_sleeping(job: Job, actions: Actions, device: torch.device) -> Prepared:
    sleeper = Sleeper(job.stretch)
    pieces = sleeping_pieces(job.plan, sleeper)
    for piece in pieces:
        for parameter in piece.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
    sizes = [-(-layer.activation_bytes // 4) for layer in job.plan.chain.layers]
    work = Work(
        plan=job.plan,
        actions=actions,
        pieces=pieces,
        boundaries=[Boundary((max(1, size),), torch.float32, True) for size in sizes],
        optimizer=choose_optimizer("sgd"),
        data=lambda micro_batch, names: sleeping_inputs(job.plan) if "input" in names else {},
        before=lambda layer, micro_batch: None,
        names={
            id(one): f"{layer}.{name}"
            for layer, piece in enumerate(pieces)
            for name, one in piece.module.named_parameters()
        },
        device=device,
        begin=sleeper.begin,
        # Nothing is in it, and to touch it would take time and memory.
        copy=torch.empty_like,
    )
    return Prepared(work, lambda step: None, None, device, is_asleep=True)


def settle(prepared: Prepared, stages: Iterable[int], device: torch.device) -> Prepared:
    """Return what these stages run on a device: the rest of the model is let go of."""
    work = prepared.work
    own = [layer for stage in stages for layer in stage_layers(work.plan, stage)]
    if prepared.place != device:
        for layer in own:
            move_piece(work.pieces[layer], device)
        prepared.settle(device)
    pieces = [
        piece if layer in own else replace(piece, module=nn.Identity())
        for layer, piece in enumerate(work.pieces)
    ]
    return replace(prepared, work=replace(work, pieces=pieces, device=device), model=None)


def train_alone(prepared: Prepared) -> tuple[Trained, str]:
    """Do the first step in one process, on a copy of the model, and say how."""
    work, model = prepared.work, prepared.model
    assert model is not None
    prepared.load(0)
    with blaming("model", "step in one process"), training_mode():
        if work.plan.rule.is_given:
            found = train_unsplit(on_device(model, work.device), work)
            if found is not None:
                return found, "the unsplit model"
        return emulate(work), "one process, micro-batch by micro-batch"


def conduct(
    prepared: Prepared,
    ranks: Sequence[Rank],
    step: Step,
    gather: Callable[[], None],
    steps: int,
    compare: bool,
) -> tuple[list[Record], list[Trained]]:
    """Run all steps: one that is compared, one in which bytes are counted, and those timed.

    Parameters
    ----------
    prepared : Prepared
    ranks : sequence of Rank
        Those of this process.
    step : callable
    gather : callable
        Waits until all processes are here.
    steps : int
        That are timed.
    compare : bool

    Returns
    -------
    list of Record
        Of these ranks.
    list of Trained
        What the first step did to the weights of each.
    """
    kept = [Trained() for _ in ranks]
    device = prepared.work.device
    with training_mode():
        if not prepared.is_asleep:
            # Gradients and the optimizer's state are there from then on.
            _keep(ranks, kept if compare else [None] * len(ranks))
            _run(prepared, step, gather, 0)
            _keep(ranks, [None] * len(ranks))
        if compare and not prepared.work.plan.rule.is_given:
            for rank, found in zip(ranks, kept, strict=True):
                found.weights.update(_weights(rank))
        for rank in ranks:
            rank.meter = Meter(_permanent(rank))
        _run(prepared, step, gather, 1)
        most = [rank.meter.most for rank in ranks if rank.meter is not None]
        for rank in ranks:
            rank.meter = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        timed, losses = [], []
        for number in range(steps):
            timed.append(_run(prepared, step, gather, 2 + number))
            losses.append([dict(rank.losses) for rank in ranks])
    allocated = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    records = [
        Record(
            rank=rank.number,
            host=socket.gethostname(),
            steps=tuple(
                tuple(span for span in spans if span.rank == rank.number) for _, spans in timed
            ),
            zeros_ns=tuple(zero for zero, _ in timed),
            weights_bytes=_weights_bytes(rank),
            saved_bytes=rank.most_saved,
            peak_bytes=_weights_bytes(rank) + most[place],
            allocated_bytes=allocated if len(ranks) == 1 else None,
            live={stage: work.most_live for stage, work in rank.stages.items()},
            versions={stage: work.weights.most_held for stage, work in rank.stages.items()},
            optimizer_bytes={
                stage: distinct_bytes(work.weights.states()) for stage, work in rank.stages.items()
            },
            losses=tuple(one[place] for one in losses),
            threads=torch.get_num_threads(),
        )
        for place, rank in enumerate(ranks)
    ]
    return records, kept


def judge(
    records: Sequence[Record],
    kept: Sequence[Trained],
    alone: tuple[Trained, str] | None,
    is_given: bool,
) -> Outcome:
    """Return what all ranks measured, compared with what one process did."""
    if alone is None:
        return Outcome(
            records=tuple(records),
            gradient_difference=None,
            weight_difference=None,
            compared_with="",
        )
    trained, how = alone
    return Outcome(
        records=tuple(records),
        gradient_difference=difference([one.gradients for one in kept], trained.gradients),
        weight_difference=(
            None if is_given else difference([one.weights for one in kept], trained.weights)
        ),
        compared_with=how,
        tolerance=_tolerance(trained),
    )


def _tolerance(trained: Trained) -> float:
    """Return the square root of the smallest step of the least precise numbers above 1."""
    dtypes = {one.dtype for one in trained.gradients.values()}
    return max((math.sqrt(torch.finfo(dtype).eps) for dtype in dtypes), default=0.0)


def _run(
    prepared: Prepared, step: Step, gather: Callable[[], None], number: int
) -> tuple[int, list[Span]]:
    prepared.load(number)
    gather()
    return time.monotonic_ns(), step()


def _keep(ranks: Sequence[Rank], kept: Sequence[Trained | None]) -> None:
    for rank, found in zip(ranks, kept, strict=True):
        for work in rank.stages.values():
            work.weights.on_update = None if found is None else found.keep


def _weights(rank: Rank) -> dict[str, Tensor]:
    return {
        name: one.detach().to("cpu", copy=True)
        for work in rank.stages.values()
        for name, one in work.weights.parameters.items()
    }


def _permanent(rank: Rank) -> list[Tensor]:
    """Return what lies there whatever the schedule."""
    found: list[Tensor] = []
    for work in rank.stages.values():
        found += work.weights.tensors()
        for module in work.modules:
            found += [*module.parameters(), *module.buffers()]
    return found


def _weights_bytes(rank: Rank) -> int:
    """Return the bytes of weights, their gradients and the optimizer's state, and of buffers."""
    older = sum(
        (work.weights.most_held - 1) * work.weights.version_bytes() for work in rank.stages.values()
    )
    return distinct_bytes(_permanent(rank)) + older
