"""Whether a model is the one that a plan was made for: names and bytes, never times."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling import Model, cut_again
from schedopt.profiling.group_operators import Group
from schedopt.profiling.pieces import Piece, blaming, same_buffers, try_out
from schedopt.profiling.split_backward import enter
from schedopt.profiling.states import own_parameters, tensor_bytes
from schedopt.profiling.tensor_parallel import split
from schedopt.units import format_bytes, printable


@dataclass(frozen=True)
class Boundary:
    """What a layer hands on for a micro-batch; whether its backward needs the gradient of that."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool

    def empty(self, device: torch.device) -> Tensor:
        """Return room for it."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def match_part(model: Model, plan: Plan, group: Group) -> tuple[Model, list[Piece], list[Boundary]]:
    """Return the part of a model that a GPU of a tensor group has, cut as `match_model` does.

    The chain may have copies of tied weights.

    Raises
    ------
    InputError
        As `match_model`, and if the model cannot be split over the GPUs of the group.
    """
    part = split(model, group) if group.degree > 1 else model
    chain = plan.in_group(group.degree)
    return part, *_match(part, chain, group.degree)


def pieces_in_evaluation(model: Model, chain: Chain, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the layers of a model as they are in evaluation; they share its parameters.

    A graph does what the modules did as it was traced, so it is traced a second time. Others ask
    their modules.

    Raises
    ------
    InputError
        If the model cannot be cut at the same places then.
    """
    if isinstance(model.module, nn.Sequential) or not model.module.training:
        return list(pieces)
    modes = [(module, module.training) for module in model.module.modules()]
    model.module.eval()
    try:
        found = _cut_as_planned(model, chain)
    finally:
        for module, mode in modes:
            module.training = mode
    return [replace(one, in_place=known.in_place) for one, known in zip(found, pieces, strict=True)]


def match_model(model: Model, chain: Chain) -> tuple[list[Piece], list[Boundary]]:
    """Cut a model as that of a chain was cut, and hold names and bytes against the chain.

    The factory in the chain's recipe is never called. Layers come with those known that write over
    their input, and with what each hands on.

    Raises
    ------
    InputError
        If the chain has no recipe or copies of tied weights, the model has other cuts, a layer
        fails, or bytes differ.
    """
    if chain.copied:
        raise InputError(
            "the stages alone do not add up the gradients of copied weights",
            field="chain.copied",
            way_out="Take schedopt.torch.pipeline or schedopt run, or keep tied layers together",
        )
    return _match(model, chain, 1)


def _match(model: Model, chain: Chain, tensor: int) -> tuple[list[Piece], list[Boundary]]:
    """Do what `match_model` does; in tensor groups an output may be split."""
    pieces, boundaries = trace_boundaries(_cut_as_planned(model, chain), model.tensors)
    _check_bytes(chain, pieces, boundaries, model.tensors, tensor)
    return pieces, boundaries


def keep_layers(
    pieces: Sequence[Piece], layers: Container[int], device: torch.device | None
) -> list[Piece]:
    """Return layers with some of them moved to a device, if given; the others are freed."""
    for layer, piece in enumerate(pieces):
        if layer in layers and device is not None:
            retarget_device(piece, device)
    return [
        piece if layer in layers else replace(piece, module=nn.Identity())
        for layer, piece in enumerate(pieces)
    ]


def retarget_device(piece: Piece, device: torch.device) -> None:
    """Move a layer: parameters, buffers, and the tensors that a traced graph makes itself."""
    with torch.no_grad():
        piece.module.to(device)

    def moved(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for module in piece.module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                node.args = fx.node.map_aggregate(node.args, moved)
                node.kwargs = fx.node.map_aggregate(node.kwargs, moved)
            module.recompile()


def _cut_as_planned(model: Model, chain: Chain) -> list[Piece]:
    """Cut a model where the model of a chain was cut."""
    if chain.recipe is None:
        raise InputError(
            "it does not say where the model was cut",
            field="chain.recipe",
            way_out="Measure the model with schedopt profile and solve again, or run "
            "synthetic layers, Job(model=None)",
        )
    try:
        return cut_again(model, chain.recipe)
    except InputError as error:
        if error.field != "recipe.cuts":
            raise
        raise _other_model(
            chain, f"the plan was made for {_typed(chain)}, which was cut elsewhere: {error.rule}"
        ) from None


def trace_boundaries(
    pieces: Sequence[Piece], inputs: dict[str, Tensor]
) -> tuple[list[Piece], list[Boundary]]:
    """Return the layers, with those known that write over their input, and what each hands on.

    Nothing is computed and no memory is taken. A layer that fails is named.
    """
    with ExitStack() as stack:
        # Some write over buffers whose values are real here, too.
        for piece in pieces:
            stack.enter_context(same_buffers(piece))
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        fakes = {name: mode.from_tensor(value) for name, value in inputs.items()}
        tried = try_out(list(pieces), fakes)
        boundaries = []
        value: Tensor | None = None
        needs_gradient = False
        for piece in tried:
            given = value
            if value is not None and needs_gradient:
                given = enter(value.detach().requires_grad_())
            with blaming(piece.name, "forward"):
                output = piece.run(given, {name: fake.clone() for name, fake in fakes.items()})
            needs_gradient = output.requires_grad
            boundaries.append(Boundary(tuple(output.shape), output.dtype, needs_gradient))
            value = output
    return tried, boundaries


def _check_bytes(
    chain: Chain,
    pieces: Sequence[Piece],
    boundaries: Sequence[Boundary],
    inputs: dict[str, Tensor],
    tensor: int,
) -> None:
    """Refuse a model whose parameters, outputs or inputs are not those of the chain."""
    if len(pieces) != len(chain.layers):
        raise _other_model(chain, f"it has {len(pieces)} layers, the plan {len(chain.layers)}")
    owned = own_parameters([piece.module for piece in pieces])
    given = sum(tensor_bytes(inputs[name]) for name in pieces[0].side)
    figures = [("the input", chain.input_bytes, given)]
    copies = {layer for _, *others in chain.copied for layer in others}
    rows = zip(chain.layers, pieces, boundaries, strict=True)
    for position, (layer, piece, boundary) in enumerate(rows):
        where = f"layer {position} ({printable(layer.name)})" if layer.name else f"layer {position}"
        has = piece.module.parameters() if position in copies else owned[position]
        size = sum(map(tensor_bytes, has))
        if layer.parameter_bytes is not None:
            figures.append((f"the parameters of {where}", layer.parameter_bytes, size))
        made = boundary.bytes
        if made * tensor == layer.activation_bytes:
            made = layer.activation_bytes
        figures.append((f"the output of {where}", layer.activation_bytes, made))
    for what, planned, found in figures:
        if planned != found:
            raise _other_model(
                chain, f"{what} takes {format_bytes(found)}, in the plan {format_bytes(planned)}"
            )


def _other_model(chain: Chain, rule: str) -> InputError:
    return InputError(
        rule,
        field="model",
        way_out=f"Name the model and the options that the plan was made for ({_typed(chain)}), or "
        "profile this one and solve again",
    )


def _typed(chain: Chain) -> str:
    """Return what the chain was measured on, as one would type it."""
    if chain.recipe is None:
        return printable(chain.name) or "an unnamed chain"
    options = [
        f"--{printable(name)} {printable(str(value))}"
        for name, value in chain.recipe.arguments.items()
    ]
    return " ".join([printable(chain.recipe.factory), *options])
