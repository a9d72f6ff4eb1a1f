"""What the operators of a GPT keep for the backward, and what recompute leaves of it.

`schedopt bench published` holds it against measured peaks (mist, test c), which are within 4 % in
the mean. What a pass takes besides does not come on top: a backward frees memory as it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MASK: Final = 3
"""Of what dropout makes, in half precision with a mask of a byte a value, the mask is one part."""

NORM: Final = "layernorm"
ATTENTION: Final = ("softmax", "attention-dropout", "context")
HALVES: Final[Mapping[str, tuple[str, ...]]] = {
    "1st-layernorm": ("qkv", "score", *ATTENTION, "dense", "post-attention-dropout"),
    "2nd-layernorm": ("MLP-GEMM-1", "gelu", "MLP-GEMM-2", "post-MLP-dropout"),
}
"""Operators inside each half of a layer, past which its input goes to be added."""
READS: Final = (NORM, "qkv", "dense", "GEMM", "gelu", "context", "post-process")
"""Operators that keep what they read: products and norms need it for their gradients."""

IN_LAYER: Final = tuple(name for norm, inside in HALVES.items() for name in (norm, *inside))
ORDER: Final = ("embedding", *IN_LAYER, "layernorm", "post-process")
"""What the names of the operators of a profile say, in the order of execution: one layer, what
comes before the layers, and two behind them."""

Tensor = int | str
"""What an operator makes, by its number, or as text its mask; -1 is what enters the first one."""


@dataclass(frozen=True)
class Operator:
    """An operator, as its name says; what enters it and what it makes, bytes on a GPU."""

    name: str
    input_bytes: int
    made_bytes: int


def misplaced(names: Sequence[str]) -> str:
    """Return in words how operators are not those of `ORDER`; empty if they are."""
    for number, (word, name) in enumerate(zip(ORDER, names, strict=False)):
        if word not in name:
            return f"operator {number} is {name}, where {word} comes"
    if len(names) != len(ORDER):
        return f"there are {len(names)} operators, where a profile has {len(ORDER)}"
    return ""


def stashed_bytes(
    operators: Sequence[Operator], again: Sequence[bool], *, first: bool, last: bool
) -> int:
    """Return what a stage keeps of a micro-batch in flight.

    Every tensor that the backward of an operator needs is kept once, whoever needs it. Of a run of
    operators that are computed again, only what enters it is kept. A stage keeps its output, too,
    until the gradient has come.

    Parameters
    ----------
    operators : sequence of Operator
        Those of the stage.
    again : sequence of bool
        Whether each is computed again.
    first, last : bool
        Whether it is the first stage, the last one.
    """
    kept = kept_tensors(operators, again)
    if not last:
        kept.add(len(operators) - 1)
    if first:
        kept.discard(-1)
    return tensor_bytes(operators, kept)


def kept_tensors(
    operators: Sequence[Operator], again: Sequence[bool], *, by_layer: bool = False
) -> set[Tensor]:
    """Return what the backwards of some operators need, and what enters runs that are recomputed.

    With `by_layer` a run ends with its layer, so that the next one keeps what enters it, too.
    """
    kept: set[Tensor] = set()
    recomputed = False
    for number, one in enumerate(again):
        if not one:
            kept.update(needed(operators, number))
        elif not recomputed or (by_layer and begins_layer(operators[number])):
            kept.update(_entering(operators, number))
        recomputed = one
    return kept


def begins_layer(operator: Operator) -> bool:
    """Whether an operator is the first of a layer."""
    return next(iter(HALVES)) in operator.name


def tensor_bytes(operators: Sequence[Operator], tensors: Iterable[Tensor]) -> int:
    """Return the size of some tensors."""
    return sum(_size(operators, tensor) for tensor in tensors)


def saved_bytes(operators: Sequence[Operator]) -> list[tuple[int, int]]:
    """Return what each operator of a model saves, and what on top where a stage begins with it.

    A tensor counts where it is needed first; a stage that begins later keeps it, too.
    """
    needing: dict[Tensor, list[int]] = {}
    for number in range(len(operators)):
        for tensor in needed(operators, number):
            needing.setdefault(tensor, []).append(number)
    saved, on_top = [0] * len(operators), [0] * len(operators)
    for tensor, numbers in needing.items():
        size = _size(operators, tensor) if tensor != -1 else 0
        saved[numbers[0]] += size
        for number in range(numbers[0] + 1, numbers[-1] + 1):
            on_top[number] += size
    return [*zip(saved, on_top, strict=True)]


def _size(operators: Sequence[Operator], tensor: Tensor) -> int:
    if tensor == -1:
        return operators[0].input_bytes
    one = operators[int(tensor)]
    mask = one.made_bytes // MASK if "dropout" in one.name else 0
    return mask if isinstance(tensor, str) else one.made_bytes - mask


def needed(operators: Sequence[Operator], number: int) -> Iterator[Tensor]:
    """Yield what the backward of an operator needs."""
    name = operators[number].name
    if "score" in name or "context" in name:
        # Queries and keys, or values.
        yield _before(operators, number, "qkv")
    if "softmax" in name or "post-process" in name:
        yield number
    if "dropout" in name:
        yield str(number)
    if any(word in name for word in READS):
        yield number - 1


def _entering(operators: Sequence[Operator], number: int) -> Iterator[int]:
    """Yield what enters a run of operators, with what goes past them."""
    name = operators[number].name
    yield number - 1
    if any(word in name for word in ATTENTION):
        yield _before(operators, number, "qkv")
    for norm, inside in HALVES.items():
        if any(word in name for word in inside):
            yield max(-1, _before(operators, number, norm) - 1)


def _before(operators: Sequence[Operator], number: int, word: str) -> int:
    """Return the last operator before one whose name has a word, -1 if it lies before the stage."""
    found = (other for other in range(number, -1, -1) if word in operators[other].name)
    return next(found, -1)
