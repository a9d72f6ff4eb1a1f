"""Submodules that no trace can look into, kept whole: one operator of the graph each.

A graph of operators is the same for all inputs. A submodule whose way depends on values, such as a
router that picks rows, has no such graph; but what it returns may well have one shape. While the
model is traced an operator without a body stands for it, and then the submodule itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

ROOT = "module"
"""The name of the model itself, beside the loss; it cannot be kept whole."""
_TENSOR = object()
"""Stands where a call takes a tensor."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a submodule that is kept whole.

    Parameters
    ----------
    name : str
        Of the submodule.
    output : Tensor
        Of the shape, the strides and the type of what it returns.
    taken : list
        Its arguments, with a mark for each tensor.
    spec : TreeSpec
        How they hang together.
    """

    name: str
    output: Tensor
    taken: list[Any]
    spec: TreeSpec


_calls: list[Call] = []
"""Those of the trace that is under way, in order: an operator takes tensors and numbers only."""


@torch.library.custom_op("schedopt::kept_whole", mutates_args=())
def _stand_in(values: list[Tensor], call: int) -> Tensor:
    raise NotImplementedError("stands for a submodule in a trace alone")


@_stand_in.register_fake
def _(values: list[Tensor], call: int) -> Tensor:
    like = _calls[call].output
    return values[0].new_empty_strided(like.shape, like.stride(), dtype=like.dtype)


def find_untraceable(
    error: BaseException, whole: nn.Module, args: Sequence[Tensor], kwargs: Mapping[str, Any]
) -> str:
    """Return the least submodule around an error of a trace that can be kept whole; else nothing.

    That is one which returns one tensor, of the same shape whatever the inputs hold: the model runs
    twice, with the inputs and with their elements drawn at random.
    """
    name = _blamed(error, whole)
    while name.startswith(f"{ROOT}."):
        try:
            if _has_one_shape(whole, name, args, kwargs):
                return name
        except Exception:
            # Without values, as for an estimate, nothing runs; and what fails is not kept.
            return ""
        name = name.rpartition(".")[0]
    return ""


def _blamed(error: BaseException | None, whole: nn.Module) -> str:
    """Return the innermost submodule in whose forward an error was raised."""
    names = {module: name for name, module in whole.named_modules()}
    found = ""
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and len(names.get(owner, "")) > len(found):
                found = names[owner]
        error = error.__cause__ or error.__context__
    return found


def _has_one_shape(
    whole: nn.Module, name: str, args: Sequence[Tensor], kwargs: Mapping[str, Any]
) -> bool:
    with _as_before(whole):
        drawn_args = [_drawn(value) for value in args]
        drawn_kwargs = {key: _drawn(value) for key, value in kwargs.items()}
    first = _outputs(whole, name, args, kwargs)
    second = _outputs(whole, name, drawn_args, drawn_kwargs)
    return (
        bool(first)
        and all(isinstance(one, Tensor) and one.layout == torch.strided for one in first)
        and [_form(one) for one in first] == [_form(one) for one in second]
    )


def _form(output: Any) -> object:
    return (output.shape, output.dtype) if isinstance(output, Tensor) else type(output)


def _drawn(value: Any) -> Any:
    """Return a tensor whose elements are drawn from those of another one."""
    if not isinstance(value, Tensor) or value.numel() == 0:
        return value
    places = torch.randint(value.numel(), value.shape, device=value.device)
    return value.flatten()[places]


def _outputs(
    whole: nn.Module, name: str, args: Sequence[Tensor], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return what a submodule returns, each time that it is called in a forward."""
    found: list[Any] = []
    submodule = whole.get_submodule(name)
    handle = submodule.register_forward_hook(lambda _, __, output: found.append(output))
    try:
        with _as_before(whole):
            whole(*args, **kwargs)
    finally:
        handle.remove()
    return found


@contextmanager
def _as_before(whole: nn.Module) -> Iterator[None]:
    """Leave buffers and random numbers as they were."""
    buffers = [(buffer, buffer.clone()) for buffer in whole.buffers()]
    devices = {parameter.device for parameter in whole.parameters()}
    gpus = [device for device in devices if device.type == "cuda"]
    with torch.no_grad(), torch.random.fork_rng(gpus):
        yield
        for buffer, value in buffers:
            buffer.copy_(value)


@contextmanager
def keeping(
    whole: nn.Module, names: Sequence[str], args: Sequence[Tensor], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Let an operator stand for each of some submodules while the model is traced."""
    _calls.clear()
    known = {name: iter(_outputs(whole, name, args, kwargs)) for name in names}
    own = {name: vars(whole.get_submodule(name)).get("forward") for name in names}
    for name in names:
        whole.get_submodule(name).forward = partial(_call, name, known[name].__next__)
    try:
        yield
    finally:
        for name, forward in own.items():
            submodule = whole.get_submodule(name)
            del submodule.forward
            if forward is not None:
                submodule.forward = forward


def _call(name: str, next_output: Callable[[], Tensor], *args: Any, **kwargs: Any) -> Tensor:
    leaves, spec = tree_flatten((args, kwargs))
    values = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    taken = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    _calls.append(Call(name, next_output(), taken, spec))
    output: Tensor = _stand_in(values, len(_calls) - 1)
    return output


def put_back(graph_module: fx.GraphModule, whole: nn.Module) -> None:
    """Put the submodules that were kept whole in the places of the operators."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target is not torch.ops.schedopt.kept_whole.default:
            continue
        values, number = node.args
        call = _calls[number]
        sources = iter(values)
        leaves = [next(sources) if one is _TENSOR else one for one in call.taken]
        args, kwargs = tree_unflatten(leaves, call.spec)
        with graph.inserting_before(node):
            name = call.name.removeprefix(f"{ROOT}.").replace(".", "_")
            graph_module.add_submodule(call.name, whole.get_submodule(call.name))
            kept = graph.create_node("call_module", call.name, args, kwargs, name=name)
        kept.meta = {**node.meta}
        node.replace_all_uses_with(kept)
        graph.erase_node(node)
