"""Two accounts of what a stage holds that recomputes: all of it at once, and run by run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from schedopt.importing.saved_activations import (
    Operator,
    begins_layer,
    kept_tensors,
    needed,
    stashed_bytes,
    tensor_bytes,
)

IN_PASSES = 8
"""Over the bytes of a weight in half precision, while passes run: as many for its gradient, and
copy and moments in single precision. Megatron-LM makes the gradient in single precision in the
optimizer's step, and lets go of that in half precision there."""
AT_UPDATE = 9


def at_once_bytes(
    operators: Sequence[Operator], again: Sequence[bool], held: int, weights: float, *, last: bool
) -> float:
    """Return the peak where a stage computes all again before its backward, bytes.

    This is the account of plans in this package, but that an input is counted once.

    Parameters
    ----------
    operators : sequence of Operator
    again : sequence of bool
        Whether each is computed again.
    held : int
        Micro-batches in flight.
    weights : float
        Bytes of the weights, in half precision.
    last : bool
        Whether it is the last stage.
    """
    stashed = stashed_bytes(operators, again, first=False, last=last)
    recomputed = {
        tensor for number, one in enumerate(again) if one for tensor in needed(operators, number)
    }
    return AT_UPDATE * weights + held * stashed + tensor_bytes(operators, recomputed)


def run_by_run_bytes(
    operators: Sequence[Operator], again: Sequence[bool], held: int, weights: float, *, last: bool
) -> float:
    """Return the peak where a backward computes one run after the other again, bytes.

    A run ends with its layer. When the backward comes to an operator, what later ones kept is gone;
    what its run made up to it is there, and the gradients of what it made and of what it read.
    Parameters as of `at_once_bytes`.
    """
    stash = kept_tensors(operators, again, by_layer=True)
    if not last:
        stash.add(len(operators) - 1)
    most = stashed = tensor_bytes(operators, stash)
    for first, end in pairwise(_starts(operators, again)):
        for number in range(first, end):
            so_far = kept_tensors(operators[: number + 1], again[: number + 1], by_layer=True)
            for one in range(first, number + 1):
                so_far.update(needed(operators, one))
            gradients = {number, number - 1}
            there = tensor_bytes(operators, so_far) + tensor_bytes(operators, gradients)
            most = max(most, there)
    passing = IN_PASSES * weights + (held - 1) * stashed + most
    return max(AT_UPDATE * weights, passing)


def _starts(operators: Sequence[Operator], again: Sequence[bool]) -> Iterator[int]:
    """Yield where runs begin, and what lies between them; at last the end."""
    for number, one in enumerate(again):
        if not number or not one or not again[number - 1] or begins_layer(operators[number]):
            yield number
    yield len(again)
