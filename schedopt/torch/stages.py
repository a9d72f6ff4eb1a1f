"""The stages of a plan as modules for a script of one's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from schedopt.account.timeline import stage_layers
from schedopt.actions import gpu_ranks, halved_stages
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.folding import whole
from schedopt.launcher import telling_torchrun
from schedopt.plan import Plan
from schedopt.profiling.devices import find_device
from schedopt.profiling.factory import as_model
from schedopt.profiling.model import Model
from schedopt.profiling.pieces import Piece
from schedopt.result import Result
from schedopt.running.model_match import keep_layers, match_model
from schedopt.running.stage_module import Inputs, StageModule
from schedopt.validation import as_whole, show

Factory: TypeAlias = Model | tuple[Any, ...]
"""What a factory returns: (module, inputs), then perhaps loss, optimizer and data."""


@telling_torchrun()
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
        If the plan is not valid, or was made for another model; if there is no such rank, or a
        stage runs in tensor groups, which `pipeline` makes.
    """
    checked = valid_plan(plan)
    for number, stage in enumerate(checked.stages):
        if stage.tensor > 1:
            raise InputError(
                f"stage {number} runs in tensor groups of {stage.tensor} GPUs, whose processes "
                "must meet",
                field=f"stages[{number}].tensor",
                way_out="Use schedopt.torch.pipeline",
            )
    ranks = gpu_ranks(checked)
    count = len(ranks)
    own = as_whole(this_rank(count) if rank is None else rank, "rank", low=0, high=count - 1)
    numbers = [
        number
        for number, stage in enumerate(checked.stages)
        if own in {ranks[gpu] for gpu in stage.gpus}
    ]
    pieces, _ = match_model(model_of(model), checked.chain)
    [pieces] = on_device(checked, numbers, find_device(device), pieces)
    return make_modules(checked, pieces, numbers, lambda micro_batch: {})


def valid_plan(plan: Plan | Result) -> Plan:
    """Return a plan that holds, with folds and collectives spelled out."""
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
    checked.chain.require_alone(needed_by="schedopt.torch")
    checked.require_one_copy(needed_by="schedopt.torch")
    return whole(checked)


def model_of(model: Factory) -> Model:
    """Return what a factory returned with names."""
    return model if isinstance(model, Model) else as_model(model)


def this_rank(count: int) -> int:
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


def on_device(
    plan: Plan, stages: Iterable[int], device: torch.device, *lists: Sequence[Piece]
) -> list[list[Piece]]:
    """Return lists of all layers, those of some stages on the device and the others empty.

    Buffers that several layers have are still the same ones.
    """
    own = {layer for stage in stages for layer in stage_layers(plan, stage)}
    holders: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for layer in own:
        for module in chain.from_iterable(pieces[layer].module.modules() for pieces in lists):
            for name, buffer in module.named_buffers(recurse=False):
                holders[id(buffer)].append((module, name))
    moved = [keep_layers(pieces, own, device) for pieces in lists]
    for (module, name), *others in holders.values():
        for other, alias in others:
            setattr(other, alias, getattr(module, name))
    return moved


def make_modules(
    plan: Plan,
    pieces: Sequence[Piece],
    stages: Iterable[int],
    data: Inputs,
    evaluated: Sequence[Piece] | None = None,
) -> dict[int, StageModule]:
    """Return stages as modules, by number; `data` has the inputs of a micro-batch."""
    # A view cannot be cut off from its graph between the halves of a backward, and what is done
    # to it in place hides it from FSDP.
    no_views = halved_stages(plan) | {
        number for number, stage in enumerate(plan.stages) if stage.shard != "none"
    }
    return {
        number: StageModule(
            plan.stages[number],
            pieces,
            data,
            lambda layer, micro_batch: None,
            number in no_views,
            keep_random=True,
            evaluated=evaluated,
        )
        for number in stages
    }
