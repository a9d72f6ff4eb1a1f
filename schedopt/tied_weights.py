"""Tied weights as copies: one in each layer that uses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schedopt.chain import STATE_BYTES, Chain, Layer


def copy_tied_weights(chain: Chain) -> Chain:
    """Return a chain whose tied layers lie anywhere, because each has a copy of what they share.

    So people train a pipeline whose first and last stage use one embedding: each of the two stages
    has it, and the gradients of both are added up before an update (Narayanan et al. 2021). A
    layer has its copy wherever it lies, next to the first layer of its group too.

    Parameters
    ----------
    chain : Chain
        All layers of a group in `same_gpu` but the first say what a copy takes. A chain without
        groups is returned as it is.

    Returns
    -------
    Chain
        Its groups are in `copied`, none in `same_gpu`. Bytes of parameters, gradients and
        optimizer state grow by those of the copies, and times stay.

    Raises
    ------
    InputError
        For a layer that does not say what a copy takes.

    References
    ----------
    Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM*.
    """
    later = {layer for _, *others in chain.same_gpu for layer in others}
    for name in STATE_BYTES:
        for part in (f"tied_{name}", name):
            chain.require(part, sorted(later), needed_by="a copy of tied weights")
    layers = tuple(
        _with_copy(layer) if position in later else layer
        for position, layer in enumerate(chain.layers)
    )
    return replace(chain, layers=layers, same_gpu=(), copied=(*chain.copied, *chain.same_gpu))


def _with_copy(layer: Layer) -> Layer:
    tied = {name: getattr(layer, f"tied_{name}") for name in STATE_BYTES}
    grown: dict[str, Any] = {name: getattr(layer, name) + tied[name] for name in STATE_BYTES}
    return replace(layer, weight_bytes=layer.weight_bytes + sum(tied.values()), **grown)
