"""Training a plan in a script of one's own, on torch's pipeline runtime.

In a script that torchrun starts, with a process for each GPU that has a stage::

    from schedopt import Result
    from schedopt.torch import pipeline

    pipe = pipeline(build(), Result.load("plan.json"), microbatches=16)
    optimizer = torch.optim.AdamW(pipe.parameters())
    for batch in batches:
        loss = pipe.step(**batch)
        optimizer.step()
        optimizer.zero_grad()

``build`` is the factory that was profiled. `schedopt.examples.train_pipeline` is a whole script.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from schedopt.account.timeline import stage_layers
from schedopt.actions import Rows, gpu_ranks, halved_stages, make_actions, make_rows
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.devices import find_device
from schedopt.profiling.factory import as_model
from schedopt.profiling.model import Model
from schedopt.profiling.pieces import Piece
from schedopt.result import Result
from schedopt.running.model_match import Boundary, keep_layers, match_model
from schedopt.running.stage_module import Inputs, StageModule
from schedopt.running.torch_runtime import make_schedule, make_stages, run_step
from schedopt.validation import as_whole, show

__all__ = ["Pipeline", "pipeline", "split"]

Factory = Model | tuple[Any, ...]
"""What a factory returns: (module, inputs), then perhaps loss, optimizer and data."""


def split(
    model: Factory, plan: Plan | Result, *, rank: int | None = None, device: str = "cpu"
) -> dict[int, StageModule]:
    """Return the stages of a rank as modules, which share the parameters of the model.

    Each takes what the stage before returns, if there is one, and by name those inputs of the
    model that it needs (`StageModule.inputs`). The last returns the loss. Stages that are computed
    again in the plan are so in their backward.

    Parameters
    ----------
    model : Model or tuple
        What the factory returns that was profiled. Only the stages of this rank are moved.
    plan : Plan or Result
    rank : int, optional
        The r-th GPU that has a stage. Default: that of this process.
    device : str
        Where the modules are to lie.

    Returns
    -------
    dict of int to StageModule
        By stage, ascending.

    Raises
    ------
    InputError
        If the plan is not valid, or was made for another model; or there is no such rank.
    """
    checked = _valid(plan)
    count = len(gpu_ranks(checked))
    own = as_whole(_this_rank(count) if rank is None else rank, "rank", low=0, high=count - 1)
    numbers = _stages(checked, own)
    pieces, _ = _cut(_model(model), checked, numbers, find_device(device))
    return _modules(checked, pieces, numbers, lambda micro_batch: {})


def pipeline(
    model: Factory, plan: Plan | Result, microbatches: int, *, device: str = "cpu"
) -> Pipeline:
    """Return the stages of this process, and a schedule of the plan that is loaded.

    Each process calls this at the same time, after ``torch.distributed.init_process_group``.

    Parameters
    ----------
    model : Model or tuple
        What the factory returns that was profiled.
    plan : Plan or Result
        With a flush behind each step, and without replicas.
    microbatches : int
        Of one step.
    device : str
        Of this process: ``cpu``, or a GPU such as ``cuda:0``, with NCCL.

    Raises
    ------
    InputError
        As `split`; and for a plan that torch's runtime cannot run, another number of processes
        than the plan has GPUs with a stage, or a torch without such a runtime.
    """
    checked = _valid(plan)
    rows = make_rows(checked, make_actions(checked, microbatches))
    rank, place = _this_rank(len(rows.ranks)), find_device(device)
    built = _model(model)
    pieces, boundaries = _cut(built, checked, rows.stages[rank], place)
    batch = _MiniBatch(built, microbatches, place)
    modules = _modules(checked, pieces, rows.stages[rank], batch.give)
    batch.names = tuple(
        dict.fromkeys(name for module in modules.values() for name in module.inputs)
    )
    stages = make_stages(checked, rows, modules, boundaries, place, lambda action: nullcontext())
    return Pipeline(stages, rows, batch)


class Pipeline:
    """The part of a plan that this process runs. Made by `pipeline`.

    Attributes
    ----------
    stages : list of PipelineStage
        Ascending. ``stage.submod`` are the layers.
    schedule : object
        Torch's runtime with the order of the plan.
    inputs : tuple of str
        The inputs of the model that this process needs.
    """

    def __init__(self, stages: list[PipelineStage], rows: Rows, batch: _MiniBatch) -> None:
        self.stages = stages
        self.schedule = make_schedule(stages, rows, self._part_of_mean)
        self._rows = rows
        self._batch = batch
        self._losses: list[Tensor] = []

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the model that this process needs."""
        return self._batch.names

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the stages of this process, each once."""
        yield from nn.ModuleList(stage.submod for stage in self.stages).parameters()

    def step(self, *args: Tensor, **named: Tensor) -> Tensor | None:
        """Run the forward and the backward of a mini-batch, and add to ``.grad``.

        Gradients are those of the mean of the losses of the micro-batches. Weights are not
        updated: that is the optimizer's, on each process.

        Parameters
        ----------
        *args, **named : Tensor
            The inputs of the model as its forward takes them, each of as many micro-batches along
            the first dimension, or of one that all share. A process needs `inputs` only.

        Returns
        -------
        Tensor or None
            The mean loss, where the last stage lies.

        Raises
        ------
        InputError
            If an input is missing, has another shape than the plan was made for, or a layer fails.
        """
        self._batch.load(args, named)
        self._losses.clear()
        try:
            run_step(self.schedule, self._rows)
        finally:
            self._batch.clear()
        return torch.stack(self._losses).mean() if self._losses else None

    def _part_of_mean(self, output: Tensor, target: object) -> Tensor:
        """Return the part of the last layer's output, the loss, in the mean."""
        self._losses.append(output.detach())
        return output / len(self._rows.micro_batches)


class _MiniBatch:
    """What a training script feeds to a step: micro-batches one behind the other in each input.

    The inputs of the model are those of one micro-batch; `names` are those that are needed here.
    """

    def __init__(self, model: Model, count: int, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self._shapes = {name: tuple(value.shape) for name, value in model.tensors.items()}
        self._count, self._device = count, device
        self._parts: list[dict[str, Tensor]] = []

    def load(self, args: Sequence[Tensor], named: Mapping[str, Tensor]) -> None:
        """Take the inputs of a mini-batch, by position or by name, in the shapes planned."""
        first = ["input"] if len(args) == 1 else [f"input_{i}" for i in range(len(args))]
        if not self._shapes.keys() >= set(first):
            raise InputError(
                f"{len(args)} given by position, and the model was planned with "
                f"{', '.join(self._shapes)}",
                field="args",
                way_out="Give them by these names",
            )
        given = {**dict(zip(first, args, strict=True)), **named}
        parts = {name: self._split(name, given.get(name)) for name in self.names}
        self._parts = [{name: parts[name][i] for name in parts} for i in range(self._count)]

    def give(self, micro_batch: int) -> dict[str, Tensor]:
        """Return copies of the inputs of a micro-batch on the device."""
        own = self._parts[micro_batch]
        return {name: value.to(self._device, copy=True) for name, value in own.items()}

    def clear(self) -> None:
        """Let go of the mini-batch."""
        self._parts = []

    def _split(self, name: str, value: object) -> Sequence[Tensor]:
        shape, count = self._shapes[name], self._count
        if not isinstance(value, Tensor):
            raise InputError(
                "is missing" if value is None else f"{show(value)} is not a tensor",
                field=name,
                way_out=f"Give the stages of this process {', '.join(self.names)}",
            )
        if tuple(value.shape) == shape:
            return [value] * count
        whole = (count * shape[0], *shape[1:]) if shape else shape
        if tuple(value.shape) != whole:
            raise InputError(
                f"is of shape {tuple(value.shape)}, and {count} micro-batches of {shape} were "
                "planned",
                field=name,
                way_out=f"Give a tensor of shape {whole}",
            )
        return value.detach().chunk(count)


def _valid(plan: Plan | Result) -> Plan:
    """Return a plan that holds."""
    checked = plan.plan if isinstance(plan, Result) else plan
    if not isinstance(checked, Plan):
        raise InputError(
            f"{show(checked)} is not a Plan",
            field="plan",
            way_out="Give a plan, or a result with one",
        )
    violations = check(checked)
    if violations:
        raise InputError(
            f"it is not valid: {violations[0]}",
            field="plan",
            way_out="See schedopt check, and solve again",
        )
    return checked


def _model(model: Factory) -> Model:
    return model if isinstance(model, Model) else as_model(model)


def _this_rank(count: int) -> int:
    """Return the rank of this process, one of as many as there are GPUs with a stage."""
    if not dist.is_initialized():
        raise InputError(
            "there is no process group",
            field="rank",
            way_out="Call torch.distributed.init_process_group first",
        )
    if dist.get_world_size() != count:
        raise InputError(
            f"there are {dist.get_world_size()} processes, and the plan has stages on {count} GPUs",
            field="plan",
            way_out=f"Start {count} processes: torchrun --nproc-per-node {count}",
        )
    return dist.get_rank()


def _stages(plan: Plan, rank: int) -> tuple[int, ...]:
    """Return the stages of a rank, ascending."""
    ranks = gpu_ranks(plan)
    return tuple(
        number
        for number, stage in enumerate(plan.stages)
        if rank in {ranks[gpu] for gpu in stage.gpus}
    )


def _cut(
    model: Model, plan: Plan, stages: Iterable[int], device: torch.device
) -> tuple[list[Piece], list[Boundary]]:
    """Return the layers, those of some stages on the device and the others empty."""
    pieces, boundaries = match_model(model, plan.chain)
    own = {layer for stage in stages for layer in stage_layers(plan, stage)}
    return keep_layers(pieces, own, device), boundaries


def _modules(
    plan: Plan, pieces: Sequence[Piece], stages: Iterable[int], data: Inputs
) -> dict[int, StageModule]:
    return {
        number: StageModule(
            plan.stages[number],
            pieces,
            data,
            lambda layer, micro_batch: None,
            number in halved_stages(plan),
            keep_random=True,
        )
        for number in stages
    }
