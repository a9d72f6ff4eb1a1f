"""Which chains are short enough for a search over all allocations and orders at once."""

from __future__ import annotations

from typing import Final

from schedopt.problem import Problem

MOST_PLACES: Final = 64
"""Layers times GPUs, of which a question takes seconds."""
MOST_PLACES_WITHOUT_ORDERS: Final = 512
"""The same for a chain that keeps nothing for a micro-batch."""


def keeps_nothing(problem: Problem) -> bool:
    """Whether a chain keeps nothing for a micro-batch, nor any input to recompute from."""
    return not problem.scope.recompute and not any(
        layer.saved or layer.saved_input_bytes or layer.saved_weight_bytes
        for layer in problem.chain.layers
    )


def most_places(problem: Problem) -> int:
    """Return how many layers times GPUs are searched at most."""
    return MOST_PLACES_WITHOUT_ORDERS if keeps_nothing(problem) else MOST_PLACES


def is_short(problem: Problem) -> bool:
    """Whether all allocations can be searched at once."""
    places = len(problem.chain.layers) * len(problem.platform.gpus)
    return problem.platform.network is None and places <= most_places(problem)
