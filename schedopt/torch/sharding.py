"""What replicas share of the state of a stage, by torch's fully_shard (FSDP2).

*optimizer* is what FSDP does where gradients are added up whole over a step: each replica updates
its rows of each parameter, which are gathered at the beginning of the next step. *gradient* adds
up over the replicas behind each backward, *parameter* gathers for each operation, too. Each
replica has its rows of the parameters on top of the whole ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from schedopt.actions import Rows, halved_stages
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.running.stage_module import StageModule


class ByItself(nn.Module):
    """A stage whose layers gather and add up by themselves, whatever runs it."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, *received: Tensor, **inputs: Tensor) -> Any:
        """Run the layers."""
        return self.layers(*received, **inputs)


def meets_often(plan: Plan, stages: Collection[int]) -> bool:
    """Whether the replicas of a process that has these stages meet more than twice in a step.

    Then all of them must run the same operations in the same order.
    """
    shards = [plan.stages[number].shard for number in stages]
    return len(shards) - shards.count("none") > 1 or bool({"gradient", "parameter"} & set(shards))


def check_shards(plan: Plan, lanes: Sequence[Rows]) -> None:
    """Refuse shards that FSDP does not have; `lanes` are the pipelines side by side."""
    for number in halved_stages(plan):
        if plan.stages[number].shard in ("gradient", "parameter"):
            raise _refused(
                number,
                "shares more than the optimizer state, and its backward is split, of which FSDP's "
                "hooks see nothing",
            )
    for stages in lanes[0].stages:
        orders = {_order(rows, stages, len(lanes)) for rows in lanes}
        if len(orders) > 1 and meets_often(plan, stages):
            raise _refused(
                stages[0],
                "is sharded, and its replicas do not run the same in the same order, so that FSDP "
                "would wait forever",
            )


def _order(rows: Rows, stages: tuple[int, ...], replicas: int) -> tuple[str, ...]:
    """Return what the rank with these stages runs, by the micro-batches of its replica."""
    row = rows.ranks[rows.stages.index(stages)]
    parted = [re.split(r"(?<=[A-Z])", action) for action in row]
    return tuple(f"{what}{rows.micro_batches[int(i)] // replicas}" for what, i in parted)


def _refused(number: int, rule: str) -> InputError:
    return InputError(
        f"stage {number} {rule}",
        field=f"stages[{number}].shard",
        way_out="Solve with --for torch or --shard none, or run it with schedopt run",
    )


def shard_stages(plan: Plan, modules: Mapping[int, StageModule], replicas: DeviceMesh) -> None:
    """Shard the stages of a process over its replicas as the plan says, in place."""
    if replicas.size() == 1:
        return
    sharded = [number for number in modules if plan.stages[number].shard != "none"]
    _refuse_shared(modules, sharded)
    for number in sharded:
        module, shard = modules[number], plan.stages[number].shard
        if not any(True for _ in module.parameters()):
            continue
        try:
            fully_shard(module, mesh=replicas, reshard_after_forward=shard == "parameter")
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"FSDP cannot shard stage {number}: {error}",
                field=f"stages[{number}].shard",
                way_out="Solve with --shard none, or change the model",
            ) from error
        assert isinstance(module, FSDPModule)
        # Micro-batches have their part of the mean already.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        if shard == "gradient":
            module.set_reshard_after_backward(False)


def as_run(plan: Plan, number: int, module: StageModule) -> nn.Module:
    """Return a stage as torch's runtime is to know it, which adds up once a step."""
    often = plan.stages[number].shard in ("gradient", "parameter")
    return ByItself(module) if often and isinstance(module, FSDPModule) else module


def free_gathered(modules: Iterable[nn.Module]) -> None:
    """Free what was gathered: an update changes the rows of each replica only."""
    for module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()


def _refuse_shared(modules: Mapping[int, StageModule], sharded: Iterable[int]) -> None:
    owned = {number: {id(one) for one in module.parameters()} for number, module in modules.items()}
    for one, other in combinations(modules, 2):
        if owned[one] & owned[other] and ({one, other} & set(sharded)):
            raise InputError(
                f"stages {one} and {other} share parameters, each of which FSDP has in one stage",
                field=f"stages[{other}].shard",
                way_out="Solve with --shard none, or untie the weights",
            )
