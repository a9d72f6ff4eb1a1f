"""Whether a chain is true: the whole model, run as it is, beside the sum of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from schedopt.chain import Chain
from schedopt.profiling.model import Model

if TYPE_CHECKING:
    from torch import nn

TOLERANCE: Final = 0.05
"""A spread above this says that the machine was busy with other work."""


@dataclass(frozen=True)
class Deviation:
    """A figure of the chain beside that of the whole model.

    Parameters
    ----------
    name : str
    chain, whole : int
        Times in ns, memory in bytes.
    spread : float or None
        Of a measured time: interquartile range over median.
    """

    name: str
    chain: int
    whole: int
    spread: float | None = None

    @property
    def error(self) -> float:
        """The chain over the whole, minus 1; 0 if both are 0."""
        return self.chain / self.whole - 1 if self.whole else float(self.chain > 0)


def verify_chain(chain: Chain) -> list[Deviation]:
    """Compare a chain with the run of the whole model that was measured with it.

    Returns
    -------
    list of Deviation
        Forward, backward, both; what autograd holds between them; and the most memory of a step,
        with weights, gradients and the optimizer's state, where each layer runs its workspace on
        top of what it and the layers before it saved. Empty if the chain knows of no run.
    """
    whole = chain.provenance.get("whole")
    if not whole:
        return []
    layers = chain.layers
    forward, backward = (
        sum(getattr(layer, f"{name}_ns") for layer in layers) for name in ("forward", "backward")
    )
    saved = sum(layer.saved for layer in layers)
    weights = sum(layer.weight_bytes for layer in layers)
    held = accumulate(layer.saved for layer in layers)
    step = max(
        below + (layer.workspace_bytes or 0) for below, layer in zip(held, layers, strict=True)
    )
    times = (("forward", forward), ("backward", backward), ("step", forward + backward))
    return [
        *(
            Deviation(name, time, whole[f"{name}_ns"], whole[f"{name}_spread"])
            for name, time in times
        ),
        Deviation("saved", saved, whole["saved_bytes"]),
        Deviation("peak memory", weights + step, weights + whole["step_bytes"]),
    ]


class WholeRun:
    """The whole model, run step by step between the sweeps over its layers.

    Parameters
    ----------
    model : Model
        On its device; gradients add up in its parameters.
    clock : Clock
    """

    def __init__(self, model: Model, clock: Any) -> None:
        from schedopt.profiling.tracing import WithLoss

        self._model = model
        self._module: nn.Module = WithLoss(model.module, model.loss)
        self._clock = clock
        self._forward: list[int] = []
        self._backward: list[int] = []

    def step(self) -> None:
        """Run and time one forward and one backward."""
        clock = self._clock
        clock.settle()
        start = clock.mark()
        loss = self._module(*self._model.args, **self._model.kwargs)
        middle = clock.mark()
        loss.backward()
        end = clock.mark()
        clock.settle()
        self._forward.append(clock.between(start, middle))
        self._backward.append(clock.between(middle, end))

    def to_json(self) -> dict[str, Any]:
        """Return medians and spreads of the steps, and the memory of two more of them, bytes."""
        from schedopt.profiling.devices import median_ns, spread

        both = [sum(pair) for pair in zip(self._forward, self._backward, strict=True)]
        summary: dict[str, Any] = {}
        for name, times in (
            ("forward", self._forward),
            ("backward", self._backward),
            ("step", both),
        ):
            summary[f"{name}_ns"] = median_ns(times)
            summary[f"{name}_spread"] = spread(times)
        summary["saved_bytes"], summary["step_bytes"] = self._memory()
        return summary

    def _memory(self) -> tuple[int, int]:
        """Return what autograd holds after the forward, and the most of a step above weights."""
        from torch.utils._pytree import tree_map

        from schedopt.profiling.memory_meter import Meter
        from schedopt.profiling.saved_tensors import Recorder

        given = self._model.args, self._model.kwargs
        parameters = list(self._module.parameters())
        permanent = [*parameters, *self._module.buffers()]
        recorder = Recorder(permanent)
        with recorder.layer():
            loss = self._module(*given[0], **given[1])
        (held,) = recorder.held()
        loss.backward()
        del loss
        permanent += [each.grad for each in parameters if each.grad is not None]
        with Meter(permanent) as meter:
            # Copies, so that an input counts as long as autograd holds it, as in a chain.
            loss = self._module(*tree_map(_copied, given[0]), **tree_map(_copied, given[1]))
            loss.backward()
            del loss
        return sum(held.values()), meter.most


def _copied(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value
