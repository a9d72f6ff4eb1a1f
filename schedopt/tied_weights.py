"""Tied weights as copies: one in each layer that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from schedopt.chain import STATE_BYTES, Chain, Layer
from schedopt.stage import Stage


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
    later = _later_layers(chain)
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


def can_copy(chain: Chain) -> bool:
    """Whether a chain has tied layers, all of which say what a copy takes."""
    layers = [chain.layers[number] for number in _later_layers(chain)]
    names = [name for part in STATE_BYTES for name in (part, f"tied_{part}")]
    return bool(layers) and not any(
        getattr(layer, name) is None for layer in layers for name in names
    )


def _later_layers(chain: Chain) -> set[int]:
    """Return the tied layers whose weights an earlier layer counts."""
    return {layer for _, *others in chain.same_gpu for layer in others}


def shared_gradient_bytes(chain: Chain, one: range, other: range) -> int:
    """Return the gradient of the weights of which each of two runs of layers has a copy, bytes.

    Each group of `Chain.copied` counts once, whatever its layers in a run: their gradients are
    added up where they lie. The first layer of a group has all of the weights, each other one what
    it says.
    """
    return sum(
        min(max(_copied_bytes(chain, group, layer) for layer in found) for found in both)
        for group in chain.copied
        if all(both := [[layer for layer in group if layer in run] for run in (one, other)])
    )


def exchanging_stages(chain: Chain, stages: Sequence[Stage]) -> list[tuple[int, int]]:
    """Return the pairs of stages of which each adds the gradient of the other to that of its copy.

    Each pair in both directions, by the numbers of the stages: the source, then the target.
    """
    holders = sorted(
        {
            number
            for group in chain.copied
            for layer in group
            for number, stage in enumerate(stages)
            if layer in stage.layer_range
        }
    )
    return [
        (source, target)
        for source, target in permutations(holders, 2)
        if shared_gradient_bytes(chain, stages[source].layer_range, stages[target].layer_range)
    ]


def _copied_bytes(chain: Chain, group: Sequence[int], layer: int) -> int:
    own = chain.layers[layer]
    found = own.gradient_bytes if layer == group[0] else own.tied_gradient_bytes
    return found or 0
