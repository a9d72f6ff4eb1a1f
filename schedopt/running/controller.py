"""A run from the first step to the last, the same for every backend."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from schedopt.account.timeline import stage_layers
from schedopt.errors import InputError
from schedopt.profiling import Model, load_model
from schedopt.profiling.group_operators import ALONE, Group
from schedopt.profiling.layer_sweeps import training_mode
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.outline import on_device
from schedopt.profiling.profiler import out_of_memory
from schedopt.profiling.states import choose_optimizer, distinct_bytes
from schedopt.running.backends import Step
from schedopt.running.job import Job
from schedopt.running.model_match import Boundary, keep_layers, match_part
from schedopt.running.rank import Rank
from schedopt.running.records import Record, Span
from schedopt.running.stand_in import shared_element
from schedopt.running.synthetic import Sleeper, synthetic_inputs, synthetic_pieces
from schedopt.running.synthetic_weights import Holding
from schedopt.running.trained import Kept
from schedopt.running.workload import Workload, name_parameters, tied_names


class MicroBatches:
    """What each micro-batch of a step is fed, the same on every rank and in every run of a seed.

    The inputs come from the factory's `data`; without it, each tensor is filled with elements of
    the factory's own micro-batch, drawn at random, so that token numbers, labels and masks stay
    valid. Those of one step lie on the host, copies are given on the device.
    """

    def __init__(self, model: Model, count: int, seed: int, device: torch.device) -> None:
        self._example = {name: value.detach().cpu() for name, value in model.tensors.items()}
        self._data = model.data
        self._count, self._seed = count, seed
        self.device = device
        self._step = -1
        self._made: list[dict[str, Tensor]] = []

    def load(self, step: int) -> None:
        """Make the micro-batches of a step."""
        if step != self._step:
            self._step = step
            self._made = [self._make(step * self._count + i) for i in range(self._count)]

    def __call__(self, micro_batch: int, names: Collection[str]) -> dict[str, Tensor]:
        """Return copies of inputs of a micro-batch of the step on the device, by name."""
        made = self._made[micro_batch]
        return {name: made[name].to(self.device, copy=True) for name in made if name in names}

    def seed_layer(self, layer: int, micro_batch: int) -> None:
        """Let a layer draw the same random numbers for a micro-batch wherever it runs."""
        number = (self._step * self._count + micro_batch) * 8192 + layer
        seed = (self._seed * 1_000_003 + number) % 2**63
        # torch.manual_seed would seed every device, which takes longer than many a layer.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def _make(self, number: int) -> dict[str, Tensor]:
        if self._data is not None:
            return self._from_factory(number, self._data(number))
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        made = {}
        for name, tensor in self._example.items():
            flat = tensor.reshape(-1)
            if flat.numel():
                flat = flat[torch.randint(flat.numel(), flat.shape, generator=draw)]
            made[name] = flat.reshape(tensor.shape)
        return made

    def _from_factory(self, number: int, inputs: Any) -> dict[str, Tensor]:
        """Return the tensors of a micro-batch of the factory's own data, by name."""
        given = Model(module=nn.Identity(), inputs=inputs).tensors
        for name, tensor in self._example.items():
            if name not in given or given[name].shape != tensor.shape:
                raise InputError(
                    f"{name} of what data({number}) returns is not of shape {tuple(tensor.shape)}",
                    field="model",
                    way_out="Return from data(i) what the factory returns as inputs, in the same "
                    "shapes",
                )
        return {name: given[name].detach().cpu() for name in self._example}


@dataclass(frozen=True)
class Prepared:
    """What a run works on: for synthetic layers without model and batches.

    The model is whole and before any step, as long as somebody needs it.
    """

    work: Workload
    model: Model | None = None
    batches: MicroBatches | None = None

    def load(self, step: int) -> None:
        """Make the inputs of a step."""
        if self.batches is not None:
            self.batches.load(step)


def prepare(job: Job, device: torch.device, group: Group = ALONE) -> Prepared:
    """Build the model that a job names, or the part of it in a tensor group, and cut it as planned.

    On the device, or on the host if the whole model does not fit there: see `place_on_device`.
    """
    if job.model is None:
        return _prepare_synthetic(job, device)
    torch.manual_seed(job.seed)
    loaded = load_model(job.model, **job.options)
    try:
        return _prepare_on(job, loaded, device, group)
    except InputError as error:
        if device.type == "cpu" or not out_of_memory(error):
            raise
    torch.cuda.empty_cache()
    return _prepare_on(job, loaded, torch.device("cpu"), group)


def _prepare_on(job: Job, loaded: Model, device: torch.device, group: Group) -> Prepared:
    model = on_device(loaded, device)
    part, pieces, boundaries = match_part(model, job.plan, group)
    batches = MicroBatches(model, job.microbatches, job.seed, device)
    names = name_parameters(part.module, part.loss)
    work = Workload(
        plan=job.plan,
        actions=job.actions,
        pieces=pieces,
        boundaries=boundaries,
        optimizer=model.optimizer or choose_optimizer(job.optimizer),
        data=batches,
        before=batches.seed_layer,
        names=names,
        device=device,
        tied=tied_names(job.plan, pieces, names),
        group=group,
    )
    return Prepared(work, model, batches)


def _prepare_synthetic(job: Job, device: torch.device) -> Prepared:
    sleeper = Sleeper(job.stretch)
    pieces = synthetic_pieces(job.plan, sleeper)
    layers = nn.ModuleList(piece.module for piece in pieces)
    for parameter in layers.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    sizes = [-(-layer.activation_bytes // 4) for layer in job.plan.chain.layers]
    work = Workload(
        plan=job.plan,
        actions=job.actions,
        pieces=pieces,
        boundaries=[Boundary((max(1, size),), torch.float32, True) for size in sizes],
        optimizer=choose_optimizer("sgd"),
        data=lambda micro_batch, names: synthetic_inputs(job.plan) if "input" in names else {},
        before=lambda layer, micro_batch: None,
        names=name_parameters(layers, None),
        device=device,
        begin=sleeper.begin,
        # Nothing is in it, and to touch it would take time and memory.
        copy=torch.empty_like,
        holding=Holding(job.plan, sleeper.sleep),
    )
    return Prepared(work)


def place_on_device(prepared: Prepared, stages: Iterable[int], device: torch.device) -> Prepared:
    """Return what these stages run on a device: the other layers are freed."""
    work = prepared.work
    own = [layer for stage in stages for layer in stage_layers(work.plan, stage)]
    pieces = keep_layers(work.pieces, own, None if work.device == device else device)
    if prepared.batches is not None:
        prepared.batches.device = device
    work = replace(work, pieces=pieces, device=device)
    return replace(prepared, work=work, model=None)


def run_controller(
    prepared: Prepared,
    ranks: Sequence[Rank],
    step: Step,
    gather: Callable[[], None],
    steps: int,
    compare: bool,
) -> tuple[list[Record], list[Kept]]:
    """Run all steps: one that is compared, one in which bytes are counted, and those timed.

    The ranks are those of this process, and `gather` waits until all processes are here. Returns
    what each rank measured, and what the first step did to its weights.
    """
    trained = [Kept() for _ in ranks]
    device = prepared.work.device

    def run(number: int) -> tuple[int, list[Span]]:
        prepared.load(number)
        gather()
        return time.monotonic_ns(), step()

    with training_mode():
        if prepared.batches is not None:
            # Gradients and the optimizer's state are there from then on.
            for rank, kept in zip(ranks, trained, strict=True):
                keep_gradients(rank, kept if compare else None)
            run(0)
            for rank in ranks:
                keep_gradients(rank, None)
        if compare and not prepared.work.plan.rule.is_given:
            for rank, kept in zip(ranks, trained, strict=True):
                keep_weights(rank, kept)
        meters = [make_meter(rank) for rank in ranks]
        for rank, meter in zip(ranks, meters, strict=True):
            rank.meter = meter
        run(1)
        for rank in ranks:
            rank.meter = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        timed, losses = [], []
        for number in range(steps):
            timed.append(run(2 + number))
            losses.append([dict(rank.losses) for rank in ranks])
    allocated = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    records = [
        Record(
            rank=rank.process,
            host=socket.gethostname(),
            steps=tuple(
                tuple(span for span in spans if span.rank == rank.process) for _, spans in timed
            ),
            zeros_ns=tuple(zero for zero, _ in timed),
            weights_bytes=weights_bytes(rank),
            saved_bytes=rank.most_saved,
            peak_bytes=weights_bytes(rank) + meter.most,
            allocated_bytes=allocated if len(ranks) == 1 else None,
            live={stage: runtime.most_live for stage, runtime in rank.stages.items()},
            versions={stage: own.weights.most_held for stage, own in rank.stages.items()},
            optimizer_bytes={
                stage: distinct_bytes(own.weights.states()) for stage, own in rank.stages.items()
            },
            losses=tuple(of_ranks[place] for of_ranks in losses),
            threads=torch.get_num_threads(),
        )
        for place, (rank, meter) in enumerate(zip(ranks, meters, strict=True))
    ]
    return records, trained


def keep_gradients(rank: Rank, kept: Kept | None) -> None:
    """Keep the gradients that a rank applies from now on, or no longer."""
    for stage, runtime in rank.stages.items():
        runtime.weights.on_update = None if kept is None else partial(kept.keep, stage)


def keep_weights(rank: Rank, kept: Kept) -> None:
    """Keep what lies on a rank of the newest weights."""
    for stage, runtime in rank.stages.items():
        kept.keep(stage, None, runtime.weights.values())


def make_meter(rank: Rank) -> Meter:
    """Return what follows the bytes of a rank in addition to those that always lie there.

    The elements behind stand-ins belong to this program, not to the model, and count as little.
    """
    device = rank.work.device
    elements = [shared_element(boundary.dtype, device) for boundary in rank.work.boundaries]
    return Meter([*_permanent(rank), *elements])


def _permanent(rank: Rank) -> list[Tensor]:
    """Return what lies there whatever the schedule."""
    tensors: list[Tensor] = []
    for runtime in rank.stages.values():
        tensors += runtime.weights.tensors()
        for module in runtime.modules:
            tensors += [own for own in module.parameters() if not own.requires_grad]
            tensors += module.buffers()
    return tensors


def weights_bytes(rank: Rank) -> int:
    """Return the bytes of weights, their gradients and the optimizer's state, and of buffers."""
    weights = [runtime.weights for runtime in rank.stages.values()]
    older = sum((own.most_held - 1) * own.version_bytes() for own in weights)
    return distinct_bytes(_permanent(rank)) + older
