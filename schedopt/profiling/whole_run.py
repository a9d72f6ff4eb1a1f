"""The whole model, run as it is beside the sweeps over its layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from schedopt.profiling.devices import Clock, median_ns, spread
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.model import Model
from schedopt.profiling.saved_tensors import Recorder
from schedopt.profiling.tracing import WithLoss


class WholeRun:
    """The whole model, run step by step between the sweeps; gradients add up in its parameters."""

    def __init__(self, model: Model, clock: Clock) -> None:
        self._model, self._clock = model, clock
        self._module = WithLoss(model.module, model.loss)
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
        both = [sum(pair) for pair in zip(self._forward, self._backward, strict=True)]
        times = {"forward": self._forward, "backward": self._backward, "step": both}
        saved_bytes, step_bytes = self._memory()
        return {
            **{f"{name}_ns": median_ns(each) for name, each in times.items()},
            **{f"{name}_spread": spread(each) for name, each in times.items()},
            "saved_bytes": saved_bytes,
            "step_bytes": step_bytes,
        }

    def _memory(self) -> tuple[int, int]:
        """Return what autograd holds after the forward, and the most of a step above weights."""
        parameters = list(self._module.parameters())
        permanent = [*parameters, *self._module.buffers()]
        recorder = Recorder(permanent)
        with recorder.layer():
            loss = self._module(*self._model.args, **self._model.kwargs)
        (held,) = recorder.held()
        loss.backward()
        del loss
        permanent += [each.grad for each in parameters if each.grad is not None]
        with Meter(permanent) as meter:
            # Copies, so that an input counts as long as autograd holds it, as in a chain.
            args, kwargs = self._model.args, self._model.kwargs
            loss = self._module(*tree_map(_copied, args), **tree_map(_copied, kwargs))
            loss.backward()
            del loss
        return sum(held.values()), meter.most


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
