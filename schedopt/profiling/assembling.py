"""A chain from what was seen of each layer, and how that was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from schedopt.chain import Chain, Layer
from schedopt.profiling.devices import describe, median_ns, spread
from schedopt.profiling.measuring import Measured
from schedopt.profiling.model import Model
from schedopt.profiling.saved_tensors import first_saved, saved_before
from schedopt.profiling.states import tensor_bytes, tied_layers
from schedopt.recipe import Recipe


def make_chain(model: Model, measured: Measured, provenance: Mapping[str, Any]) -> Chain:
    """Return the chain of a model that was measured; provenance in addition to its notes."""
    pieces = measured.pieces
    spreads = {}
    if len(measured.timed) > 1:
        for name in ("forward", "backward"):
            every = _by_layer(measured.timed, f"{name}_ns")
            spreads[f"{name}_spread"] = [spread(times) for times in every]
    inputs = model.tensors
    return Chain(
        layers=tuple(_layers(measured)),
        name=_name(model),
        input_bytes=sum(tensor_bytes(inputs[name]) for name in pieces[0].side),
        same_gpu=tied_layers([piece.module for piece in pieces]),
        samples=_count_samples(model),
        recipe=_recipe(model, [piece.cut for piece in pieces]),
        provenance={**provenance, **measured.notes, **spreads},
    )


def _count_samples(model: Model) -> int:
    """Return how many samples a micro-batch holds: the first size, if that of all inputs is one."""
    sizes = {value.shape[0] if value.ndim else 1 for value in model.tensors.values()}
    return sizes.pop() if len(sizes) == 1 else 1


def _name(model: Model) -> str:
    if model.factory.startswith("hf:"):
        return model.factory.split(":")[1]
    return model.factory.rpartition(":")[2]


def _layers(measured: Measured) -> list[Layer]:
    forward = [median_ns(times) for times in _by_layer(measured.timed, "forward_ns")]
    backward = [median_ns(times) for times in _by_layer(measured.timed, "backward_ns")]
    first = [median_ns(times) for times in _by_layer(measured.halves, "input_ns")]
    second = [median_ns(times) for times in _by_layer(measured.halves, "weight_ns")]
    recorded, peaks = measured.recorded, measured.peaks
    saved, before = first_saved(recorded.saved), saved_before(recorded.saved)
    return [
        Layer(
            name=piece.name,
            forward_ns=forward[position],
            backward_ns=backward[position],
            activation_bytes=recorded.activation_bytes[position],
            saved_bytes=saved[position],
            saved_input_bytes=before[position],
            weight_bytes=state.weight_bytes,
            parameter_bytes=state.parameter_bytes,
            gradient_bytes=state.gradient_bytes,
            optimizer_bytes=state.optimizer_bytes,
            workspace_bytes=max(
                0, peaks.forward[position] - saved[position], peaks.backward[position]
            ),
            tied_parameter_bytes=None if tied is None else tied.parameter_bytes,
            tied_gradient_bytes=None if tied is None else tied.gradient_bytes,
            tied_optimizer_bytes=None if tied is None else tied.optimizer_bytes,
            backward_input_ns=first[position] if first else None,
            backward_weight_ns=second[position] if second else None,
            saved_weight_bytes=measured.held[position] if measured.held else None,
            update_ns=state.update_ns,
        )
        for position, (piece, state, tied) in enumerate(
            zip(measured.pieces, measured.states, measured.tied, strict=True)
        )
    ]


def _by_layer(sweeps: Sequence[Any], name: str) -> list[tuple[int, ...]]:
    """Return the times of each layer over the sweeps."""
    return list(zip(*(getattr(sweep, name) for sweep in sweeps), strict=True))


def _recipe(model: Model, cuts: Sequence[str]) -> Recipe | None:
    if not model.factory:
        return None
    return Recipe(
        factory=model.factory,
        arguments=dict(model.arguments),
        torch=str(torch.__version__),
        cuts=tuple(cuts),
    )


def describe_run(
    model: Model, device: Any, optimizer: str, warmup: int, repeats: int
) -> dict[str, Any]:
    """Return where and how a model was measured."""
    return {
        "source": "measured",
        **describe(device),
        **describe_model(model, optimizer),
        "warmup": warmup,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
    }


def describe_model(model: Model, optimizer: str) -> dict[str, Any]:
    """Return what is the same whether a model is measured or not."""
    dtypes = {
        str(parameter.dtype).removeprefix("torch.") for parameter in model.module.parameters()
    }
    versions = {"torch": str(torch.__version__)}
    if model.factory.startswith("hf:"):
        versions["transformers"] = version("transformers")
    own = getattr(model.optimizer, "__name__", type(model.optimizer).__name__)
    return {
        **versions,
        "dtype": ", ".join(sorted(dtypes)),
        "micro_batch": {name: list(value.shape) for name, value in model.tensors.items()},
        "optimizer": optimizer if model.optimizer is None else own,
        "date": datetime.now(UTC).date().isoformat(),
    }
