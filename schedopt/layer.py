"""A layer of a chain: what it costs in time and memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final

from schedopt.errors import InputError
from schedopt.validation import STRICT, check_whole, show

STATE_BYTES: Final = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
EXPERT_BYTES: Final = tuple(f"expert_{name}" for name in STATE_BYTES)
"""The same of experts that GPUs share."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of the chain. Times are whole nanoseconds, sizes whole bytes.

    The first four numbers are the model of Beaumont et al. 2021, section 3.1; everything else is
    optional and None where it was not measured.

    Parameters
    ----------
    forward_ns, backward_ns : int
        Duration of the forward and of the whole backward of one micro-batch.
    weight_bytes : int
        What lies on the GPU under any schedule: parameters, gradients, optimizer state.
    activation_bytes : int
        The output, which a link carries to the next layer. Its gradient has the same size.
    saved_bytes : int, optional
        Kept from the start of the forward to the end of the backward, without what an earlier
        layer saved already, so that the layers of a stage add up. Default: `activation_bytes`.
    saved_input_bytes : int, optional
        What comes on top where the layer before lies in another stage, or is computed again while
        this one is not. Default: 0.
    parameter_bytes, gradient_bytes, optimizer_bytes : int, optional
        Parts of `weight_bytes`. What needs an absent one is refused, never taken as 0.
    tied_parameter_bytes, tied_gradient_bytes, tied_optimizer_bytes : int, optional
        Of weights that an earlier layer has and this one uses too: what a copy of them takes. All
        three or none. They are parts of the three above where `Chain.copied` names the layer, else
        the earlier layer counts them.
    expert_parameter_bytes, expert_gradient_bytes, expert_optimizer_bytes : int, optional
        Of experts that `Chain.expert` GPUs share: what one of these GPUs has. All three or none.
        They are parts of `weight_bytes` beside the three above.
    backward_input_ns, backward_weight_ns : int, optional
        The two halves of the backward (I and W); both or neither. They need not add up to it.
    saved_weight_bytes : int, optional
        Held from the start of I to the end of W, while what was saved goes at the end of I.
        Absent: what was saved stays to the end of W.
    workspace_bytes : int, optional
        Taken for the length of each operation and given back; an operation of length 0 takes
        none. Default: 0.
    update_ns : int, optional
        Duration of the optimizer's step on its parameters, experts included. Default: 0.
    name : str
        What a person calls it.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    forward_ns: int
    backward_ns: int
    weight_bytes: int
    activation_bytes: int
    name: str = ""
    saved_bytes: int | None = None
    saved_input_bytes: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    tied_parameter_bytes: int | None = None
    tied_gradient_bytes: int | None = None
    tied_optimizer_bytes: int | None = None
    expert_parameter_bytes: int | None = None
    expert_gradient_bytes: int | None = None
    expert_optimizer_bytes: int | None = None
    backward_input_ns: int | None = None
    backward_weight_ns: int | None = None
    saved_weight_bytes: int | None = None
    workspace_bytes: int | None = None
    update_ns: int | None = None

    def __post_init__(self) -> None:
        for name in LAYER_NUMBERS:
            check_whole(self, name, optional=name not in _LAYER_REQUIRED)
        check_name(self.name)
        parts = (getattr(self, name) for name in (*STATE_BYTES, *EXPERT_BYTES))
        if (total := sum(part or 0 for part in parts)) > self.weight_bytes:
            raise InputError(
                f"{self.weight_bytes} is less than parameters, gradients and optimizer state "
                f"together ({total})",
                field="weight_bytes",
                way_out="It holds everything that lies on the GPU under any schedule",
            )
        for of, what in (("tied", "what a copy of tied weights takes"), ("expert", "the experts")):
            names = [f"{of}_{name}" for name in STATE_BYTES]
            if len({getattr(self, name) is None for name in names}) > 1:
                raise InputError(
                    f"a part of {what} is given without the others",
                    field=names[0],
                    way_out=f"Give {', '.join(names[:2])} and {names[2]}, or none",
                )
        if (self.backward_input_ns is None) != (self.backward_weight_ns is None):
            raise InputError(
                "one half of the backward is given without the other",
                field="backward_input_ns",
                way_out="Give backward_input_ns and backward_weight_ns, or neither",
            )
        if self.saved_weight_bytes is not None and self.backward_input_ns is None:
            raise InputError(
                "given without the halves of the backward",
                field="saved_weight_bytes",
                way_out="Give backward_input_ns and backward_weight_ns too",
            )

    @property
    def saved(self) -> int:
        """Bytes kept from F to B (`saved_bytes`, by default the output)."""
        return self.activation_bytes if self.saved_bytes is None else self.saved_bytes

    @property
    def has_state(self) -> bool:
        """Whether it has parameters, gradients or optimizer states, as far as it says."""
        return any((self.parameter_bytes, self.gradient_bytes, self.optimizer_bytes))

    @property
    def shareable_bytes(self) -> int:
        """The optimizer state that replicas may share, as far as it says."""
        return (self.optimizer_bytes or 0) + (self.expert_optimizer_bytes or 0)

    @property
    def has_experts(self) -> bool:
        """Whether it has experts that GPUs share, as far as it says."""
        return any(getattr(self, name) for name in EXPERT_BYTES)

    @property
    def longest_ns(self) -> int:
        """Forward and backward together, the longer way of the two to run the backward."""
        halves = (self.backward_input_ns or 0) + (self.backward_weight_ns or 0)
        return self.forward_ns + max(self.backward_ns, halves)


_LAYER_REQUIRED: Final = ("forward_ns", "backward_ns", "weight_bytes", "activation_bytes")
LAYER_NUMBERS: Final = tuple(f.name for f in fields(Layer) if f.name != "name")
LAYER_BYTES: Final = tuple(name for name in LAYER_NUMBERS if name.endswith("_bytes"))


def check_name(name: object) -> None:
    """Require text."""
    if not isinstance(name, str):
        raise InputError(f"{show(name)} is not text", field="name", way_out="Put it in quotes")
