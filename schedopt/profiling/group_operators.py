"""The collectives of a tensor group as operators, which can be traced and have gradients.

Megatron-LM's f and g (Shoeybi et al. 2019): `copied` hands the same tensor to all GPUs of a group,
and adds their gradients up; `summed` adds up what each has made, and hands on the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Group:
    """A tensor group, as one of its processes sees it.

    Parameters
    ----------
    degree : int
        t, how many GPUs it has.
    rank : int
        Which of them this one is.
    name : str
        Its key in `PROCESSES`. Empty: there are no others, and nothing is sent.
    """

    degree: int
    rank: int = 0
    name: str = ""


ALONE: Final = Group(degree=1)
"""The group of a GPU that has whole layers."""
PROCESSES: dict[str, Any] = {}
"""The process groups of torch.distributed, by name: an operator takes no other objects."""


def _reduced(tensor: Tensor, name: str, maximum: bool) -> Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    if name:
        from torch import distributed

        operation = distributed.ReduceOp.MAX if maximum else distributed.ReduceOp.SUM
        distributed.all_reduce(result, operation, group=PROCESSES[name])
    return result


@torch.library.custom_op("schedopt::group_sum", mutates_args=())
def group_sum(tensor: Tensor, degree: int, name: str) -> Tensor:
    """Return the sum over a group."""
    return _reduced(tensor, name, maximum=False)


@torch.library.custom_op("schedopt::group_max", mutates_args=())
def group_max(tensor: Tensor, degree: int, name: str) -> Tensor:
    """Return the maximum over a group, which has no gradient."""
    return _reduced(tensor, name, maximum=True)


@torch.library.custom_op("schedopt::group_copy", mutates_args=())
def group_copy(tensor: Tensor, degree: int, name: str) -> Tensor:
    """Return the same tensor for all of a group."""
    return tensor.clone()


COLLECTIVES = (torch.ops.schedopt.group_sum, torch.ops.schedopt.group_max)
"""What is sent around a ring; the degree is the second argument."""


def _empty_like(tensor: Tensor, degree: int, name: str) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.degree, ctx.name = inputs[1:]


def _hand_on(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return gradient, None, None


def _add_up(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return group_sum(gradient, ctx.degree, ctx.name), None, None


for _operator in (group_sum, group_max, group_copy):
    _operator.register_fake(_empty_like)
group_sum.register_autograd(_hand_on, setup_context=_remember)
group_copy.register_autograd(_add_up, setup_context=_remember)


def summed(tensor: Tensor, group: Group) -> Tensor:
    """Return what the GPUs of a group have made, added up."""
    result: Tensor = group_sum(tensor, group.degree, group.name)
    return result


def copied(tensor: Tensor, group: Group) -> Tensor:
    """Return a tensor that all GPUs of a group have, whose gradients are added up."""
    result: Tensor = group_copy(tensor, group.degree, group.name)
    return result


def largest(tensor: Tensor, group: Group) -> Tensor:
    """Return the maximum over a group, apart from any graph."""
    result: Tensor = group_max(tensor.detach(), group.degree, group.name)
    return result
