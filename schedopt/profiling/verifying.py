"""Whether a chain is true: the whole model, run as it is, beside the sum of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from schedopt.chain import Chain

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
