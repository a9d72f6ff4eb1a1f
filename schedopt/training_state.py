"""What training keeps of each parameter, where it is not what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from schedopt.chain import Chain, Layer
from schedopt.errors import InputError
from schedopt.validation import show

_MEASURED: Final = tuple(
    f"{of}{name}_bytes" for of in ("", "tied_", "expert_") for name in ("parameter", "gradient")
)
ELEMENT_BYTES: Final = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Of a parameter, by the dtype that a profile records."""


@dataclass(frozen=True)
class TrainingState:
    """Bytes for each parameter.

    Parameters
    ----------
    parameter, gradient, optimizer : int
    """

    parameter: int
    gradient: int
    optimizer: int


TRAINING_STATES: Final = {"mixed-adam": TrainingState(parameter=2, gradient=2, optimizer=12)}
"""By name. mixed-adam: bf16 parameters and gradients, and for Adam an fp32 copy, momentum and
variance, 16 bytes in all (Boehm 2022)."""


def with_training_state(chain: Chain, name: str) -> Chain:
    """Return a chain as it is trained with another state for each parameter.

    Parameters, gradients, optimizer state and `weight_bytes` change, in which buffers stay. Times
    and activations stay as they were measured. A layer that was measured without a gradient keeps
    having none.

    Parameters
    ----------
    chain : Chain
        With `parameter_bytes`, `gradient_bytes` and `optimizer_bytes`.
    name : str
        One of `TRAINING_STATES`. Where the chain does not record its dtype, with the bytes of an
        element in it: ``"mixed-adam:4"``.

    Raises
    ------
    InputError
        For another name, or where the chain lacks a field that is needed.
    """
    kind, colon, typed = name.partition(":")
    if kind not in TRAINING_STATES:
        raise InputError(
            f"{show(kind)} is not known",
            field="training_state",
            way_out=f"Choose {', '.join(TRAINING_STATES)}",
        )
    element = _typed_element(typed) if colon else _recorded_element(chain, kind)
    for part in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
        chain.require(part, range(len(chain.layers)), needed_by="another training state")
    state = TRAINING_STATES[kind]
    layers = tuple(
        _with_state(layer, position, element, state) for position, layer in enumerate(chain.layers)
    )
    return replace(chain, layers=layers, provenance={**chain.provenance, "training_state": kind})


def _with_state(layer: Layer, position: int, element: int, state: TrainingState) -> Layer:
    parameter, gradient = layer.parameter_bytes or 0, layer.gradient_bytes or 0
    for name in _MEASURED:
        count = getattr(layer, name) or 0
        if count % element:
            raise InputError(
                f"{count} bytes are no whole number of elements of {element} bytes",
                field=f"layers[{position}].{name}",
                way_out="Say how many bytes an element has: mixed-adam:4",
            )
    state_bytes = _state_bytes(parameter, gradient, element, state)
    changes: dict[str, Any] = dict(state_bytes)
    others = layer.weight_bytes - parameter - gradient - (layer.optimizer_bytes or 0)
    whole = others + sum(state_bytes.values())
    if layer.tied_parameter_bytes is not None:
        shared = layer.tied_parameter_bytes, layer.tied_gradient_bytes or 0
        of_copy = _state_bytes(*shared, element, state)
        changes |= {f"tied_{name}": count for name, count in of_copy.items()}
    if layer.expert_parameter_bytes is not None:
        own = layer.expert_parameter_bytes, layer.expert_gradient_bytes or 0
        of_experts = _state_bytes(*own, element, state)
        changes |= {f"expert_{name}": count for name, count in of_experts.items()}
        whole += sum(of_experts.values()) - sum(own) - (layer.expert_optimizer_bytes or 0)
    return replace(layer, weight_bytes=whole, **changes)


def _state_bytes(
    parameter: int, gradient: int, element: int, state: TrainingState
) -> dict[str, int]:
    """Return the bytes of the new state, by field, for bytes of parameters and gradients."""
    trained = gradient // element
    return {
        "parameter_bytes": parameter // element * state.parameter,
        "gradient_bytes": trained * state.gradient,
        "optimizer_bytes": trained * state.optimizer,
    }


def _typed_element(text: str) -> int:
    if text not in {str(count) for count in ELEMENT_BYTES.values()}:
        raise InputError(
            f"{show(text)} is not the size of an element",
            field="training_state",
            way_out="Give 2, 4 or 8 bytes: mixed-adam:4",
        )
    return int(text)


def _recorded_element(chain: Chain, kind: str) -> int:
    """Return the bytes of an element in the chain as it is now."""
    known = chain.provenance.get("training_state")
    if isinstance(known, str) and known in TRAINING_STATES:
        return TRAINING_STATES[known].parameter
    arguments = {} if chain.recipe is None else chain.recipe.arguments
    dtype = chain.provenance.get("dtype") or arguments.get("dtype")
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise InputError(
            "the chain does not say how many bytes an element of its parameters has now",
            field="training_state",
            way_out=f"Say it, 4 for float32: {kind}:4",
        )
    return ELEMENT_BYTES[dtype]
