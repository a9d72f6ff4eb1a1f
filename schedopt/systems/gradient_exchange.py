"""What replicas send for an update: the gradient of a layer, or what its W needs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from schedopt.chain import Chain, Layer
from schedopt.units import format_bytes, format_duration
from schedopt.validation import as_whole


@dataclass(frozen=True)
class Exchange:
    """The two ways for one layer to give each GPU the whole gradient (Boehm 2022).

    Parameters
    ----------
    layer : int
    reduced_bytes : Fraction
        What each GPU sends for an update by a ring all-reduce of the gradient.
    gathered_bytes : Fraction or None
        What each GPU sends for an update by an all-gather of what W needs, the inputs of the
        layer and the gradients of its outputs; None where the chain does not say.
    extra_ns : Fraction or None
        The W of other GPUs' micro-batches, which each GPU then runs for an update too, at speed 1.
    missing : str
        The field that the second way needs and the chain does not have.
    """

    layer: int
    reduced_bytes: Fraction
    gathered_bytes: Fraction | None = None
    extra_ns: Fraction | None = None
    missing: str = ""

    @property
    def tensor(self) -> Literal["weight_gradient", "weight_half"]:
        """What sends less; where both send the same the gradient, which is no extra work."""
        if self.gathered_bytes is None or self.gathered_bytes >= self.reduced_bytes:
            return "weight_gradient"
        return "weight_half"

    def __str__(self) -> str:
        reduced = f"layer {self.layer}: the gradient sends {_show(self.reduced_bytes)} a GPU"
        if self.gathered_bytes is None:
            return f"{reduced}; {self.missing} is absent, so nothing else is known"
        return (
            f"{reduced}, what W needs {_show(self.gathered_bytes)} and "
            f"{format_duration(self.extra_ns or 0)} more of W"
        )


def _show(count: Fraction) -> str:
    return format_bytes(round(count))


def choose_exchange(chain: Chain, replicas: int, micro_batches: int) -> tuple[Exchange, ...]:
    """Compare for each layer reducing its gradient with gathering what its W needs.

    With R replicas and m micro-batches in an update of all of them, a ring takes 2 (R - 1) / R of
    the gradient from each GPU, or (R - 1) / R of what W needs for the m micro-batches. So a layer
    gathers iff m saved_weight_bytes < 2 gradient_bytes.

    For a square matrix of n x n and m = R micro-batches of b samples, one a GPU, in numbers of one
    size: R b 2 n < 2 n^2, that is R b < n: the samples of *all* GPUs are fewer than n. Boehm 2022
    prints b < n / 2. That is this bound for two GPUs and b of *one* GPU; for any number of GPUs it
    holds for b of one GPU where each sends all it has to each other one, 2 n b numbers instead of
    n^2, and for b of all GPUs where only half of the all-reduce is counted, the reduce-scatter.

    Parameters
    ----------
    chain : Chain
    replicas : int
        R, the GPUs of a stage.
    micro_batches : int
        m, those of an update, over all replicas.

    Returns
    -------
    tuple of Exchange
        One a layer.

    Raises
    ------
    InputError
        If a layer has no `gradient_bytes`.
    """
    replicas = as_whole(replicas, "replicas", low=1, high=2**20)
    micro_batches = as_whole(micro_batches, "micro_batches", low=1, high=2**20)
    layers = range(len(chain.layers))
    chain.require("gradient_bytes", layers, needed_by="an exchange between replicas")
    others = Fraction(replicas - 1, replicas)
    return tuple(_compare(chain.layers[number], number, others, micro_batches) for number in layers)


def _compare(layer: Layer, number: int, others: Fraction, micro_batches: int) -> Exchange:
    reduced = 2 * others * (layer.gradient_bytes or 0)
    if layer.saved_weight_bytes is None:
        return Exchange(number, reduced, missing=f"layers[{number}].saved_weight_bytes")
    elsewhere = others * micro_batches
    return Exchange(
        number,
        reduced,
        elsewhere * layer.saved_weight_bytes,
        elsewhere * (layer.backward_weight_ns or 0),
    )
