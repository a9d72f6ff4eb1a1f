"""A training step of any model as one graph of torch operators."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from schedopt.errors import InputError
from schedopt.profiling.error_format import error_location, without_logging
from schedopt.profiling.kept_whole import find_untraceable, keeping, put_back
from schedopt.profiling.saved_tensors import storage_key
from schedopt.profiling.tensor_parallel import name_as_whole

if TYPE_CHECKING:
    from schedopt.profiling.model import Loss, Model

_AFTER: Final = "after"
BREAK: Final = (
    "Move control flow that depends on values of tensors into a submodule that returns one tensor "
    "of one shape, which is kept whole; or list the parts in an nn.Sequential"
)
BREAKS: Final = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "Unsupported",
    "UserError",
)
"""What torch raises where the way through a model depends on values."""
FAILURE: Final = "Make one forward of the model with these inputs work first"


class WithLoss(nn.Module):
    """A module followed by the loss, from what the module returns to a scalar.

    By default its ``loss``, else the sum of the tensor, in at least single precision.
    """

    def __init__(self, module: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.module = module
        self.loss = loss if loss is not None else default_loss

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss, a scalar."""
        loss = self.loss(self.module(*args, **kwargs))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else loss
            raise InputError(
                f"the loss is {shape!s:.60}, not a scalar tensor",
                field="model",
                way_out="Return a tensor with one number, such as the mean",
            )
        return loss


def default_loss(output: Any) -> Tensor:
    """Return the loss that a model brings, or the sum of the tensor that it returns."""
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    if not isinstance(output, Tensor) or output.layout != torch.strided:
        raise no_tensor(output)
    if output.dtype in (torch.float16, torch.bfloat16):
        return output.sum(dtype=torch.float32)
    return output.sum()


def no_tensor(output: object) -> InputError:
    """Return the error for something that is not one dense tensor."""
    kind = f"a {output.layout} tensor" if isinstance(output, Tensor) else type(output).__name__
    return InputError(
        f"it returns {kind}, not one dense tensor",
        way_out="Return one tensor, or give a loss that takes what it returns",
    )


def trace(model: Model) -> fx.GraphModule:
    """Return the forward and the loss of a model as a graph, which shares its parameters.

    A submodule whose way depends on values is kept whole, where it returns one tensor of one shape.
    Placeholders have the names of `Model.tensors`, in that order.
    """
    whole = WithLoss(model.module, model.loss)
    kept: list[str] = []
    while True:
        try:
            graph_module = _export(whole, model, kept)
            break
        except InputError as error:
            raise InputError(error.rule, field="model", way_out=error.way_out) from error
        except Exception as error:
            kind = type(error).__name__
            name = ""
            if kind in BREAKS:
                name = find_untraceable(error, whole, model.args, model.kwargs)
            if not name or name in kept:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
                raise InputError(
                    f"it cannot be traced{error_location(error, ' at ')}: {kind}: {reason}"[:400],
                    field="model",
                    way_out=BREAK if kind in BREAKS else FAILURE,
                ) from error
            kept = [*(one for one in kept if not one.startswith(f"{name}.")), name]
    _clean(graph_module)
    _follow_writes(graph_module.graph)
    name_as_whole(graph_module.graph)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    used = [node for node in placeholders if isinstance(node.meta.get("val"), Tensor)]
    for node, name in zip(used, model.tensors, strict=True):
        node.meta["input"] = name
    return graph_module


def _export(whole: WithLoss, model: Model, kept: Sequence[str]) -> fx.GraphModule:
    """Return a graph in which each submodule that is kept whole is one operator."""
    with (
        _as_in_a_run(),
        without_logging(),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
        keeping(whole, kept, model.args, model.kwargs),
    ):
        exported = torch.export.export(whole, model.args, model.kwargs, strict=False)
        graph_module: fx.GraphModule = exported.module()
        put_back(graph_module, whole)
    return graph_module


@contextmanager
def _as_in_a_run() -> Iterator[None]:
    """Let transformers build the masks that it builds when it is not traced.

    Under a trace it always writes attention masks out, which keeps the attention from running in
    the kernels that a real run takes.
    """
    masking = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        for name, value in (("is_tracing", False), ("is_torchdynamo_exporting", False)):
            if hasattr(masking, name):
                stack.enter_context(mock.patch.object(masking, name, lambda *_, value=value: value))
        # Several sequences in one row of a batch are told by their positions, which no trace knows.
        if hasattr(masking, "find_packed_sequence_indices"):
            stack.enter_context(
                mock.patch.object(masking, "find_packed_sequence_indices", return_value=None)
            )
        yield


def _clean(module: fx.GraphModule) -> None:
    """Remove what only checks its arguments."""
    for node in reversed(module.graph.nodes):
        name = str(node.target)
        if not node.users and (
            node.op == "call_module" or "_assert" in name or "sym_constrain" in name
        ):
            module.graph.erase_node(node)


def _follow_writes(graph: fx.Graph) -> None:
    """Note for every node what must run before it, though it does not take its result.

    What reads a tensor after it was written over reads the result of the write. Where the write
    went through another view of the same memory, it is noted for `before`.
    """
    position = {node: number for number, node in enumerate(graph.nodes)}

    def is_behind(writer: fx.Node, user: fx.Node) -> bool:
        return position[user] > position[writer]

    last: dict[int, fx.Node] = {}
    for node in graph.nodes:
        read = [key for source in node.all_input_nodes for key in storages(source)]
        node.meta[_AFTER] = tuple({last[key]: None for key in read if key in last})
        target = written(node)
        if target is not None:
            last.update(dict.fromkeys(storages(target), node))
            if target.op == "call_function":
                target.replace_all_uses_with(node, delete_user_cb=partial(is_behind, node))


def before(node: fx.Node) -> list[fx.Node]:
    """Return what a node takes, and the writes into the same memory that come before it."""
    return list(dict.fromkeys((*node.all_input_nodes, *node.meta[_AFTER])))


def storages(node: fx.Node) -> list[int]:
    """Return the identities of the memory in which the results of a node lie."""
    leaves = tree_leaves(node.meta.get("val"))
    return [storage_key(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


def written(node: fx.Node) -> fx.Node | None:
    """Return the tensor that an operator writes over and returns, if it does."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not node.args:
        return None
    first = schema.arguments[0].alias_info if schema.arguments else None
    owner = node.args[0]
    is_write = first is not None and first.is_write and len(schema.returns) == 1
    return owner if is_write and isinstance(owner, fx.Node) else None
