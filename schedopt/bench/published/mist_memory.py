"""What the operators of a GPT keep for the backward, and what recompute leaves of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from schedopt.bench.published.mist_tables import PlanStage

MASK: Final = 1 / 3
"""Of what dropout makes, in half precision with a mask of a byte a value."""

NORM: Final = "layernorm"
ATTENTION: Final = ("softmax", "attention-dropout", "context")
HALVES: Final[Mapping[str, tuple[str, ...]]] = {
    "1st-layernorm": ("qkv", "score", *ATTENTION, "dense", "post-attention-dropout"),
    "2nd-layernorm": ("MLP-GEMM-1", "gelu", "MLP-GEMM-2", "post-MLP-dropout"),
}
"""Operators inside each half of a layer, past which its input goes to be added."""
READS: Final = (NORM, "qkv", "dense", "GEMM", "gelu", "context", "post-process")
"""Operators that keep what they read: products and norms need it for their gradients."""


def stashed_mib(stage: PlanStage, *, first: bool, last: bool) -> float:
    """Return what a stage keeps of a micro-batch in flight, MiB.

    Every tensor that the backward of an operator needs is kept once, whoever needs it. Of a run of
    operators that are computed again, only what enters it is kept. A stage keeps its output, too,
    until the gradient has come.
    """
    kept: dict[int | str, float] = {}
    redone = False
    for number, again in enumerate(stage.again):
        ids = _entering(stage, number) if again and not redone else ()
        for tensor in ids if again else _needed(stage, number):
            kept[tensor] = _size(stage, tensor)
        redone = again
    if not last:
        kept[len(stage.ops) - 1] = _size(stage, len(stage.ops) - 1)
    if first:
        kept.pop(-1, None)
    return sum(kept.values())


def _name(stage: PlanStage, number: int) -> str:
    return str(stage.ops[number]["op"])


def _size(stage: PlanStage, tensor: int | str) -> float:
    """Return the MiB of what an operator makes, of its mask, or of what enters the stage (-1)."""
    if tensor == -1:
        return float(stage.ops[0]["input_mib"])
    number = int(tensor)
    made = float(stage.ops[number]["activations_mib"])
    if "dropout" not in _name(stage, number):
        return made
    return made * (MASK if isinstance(tensor, str) else 1 - MASK)


def _needed(stage: PlanStage, number: int) -> Iterator[int | str]:
    """Yield what the backward of an operator needs: numbers of operators, as text their masks."""
    name = _name(stage, number)
    if "score" in name or "context" in name:
        # Queries and keys, or values.
        yield _before(stage, number, "qkv")
    if "softmax" in name or "post-process" in name:
        yield number
    if "dropout" in name:
        yield str(number)
    if any(word in name for word in READS):
        yield number - 1


def _entering(stage: PlanStage, number: int) -> Iterator[int]:
    """Yield what enters a run of operators, with what goes past them."""
    name = _name(stage, number)
    yield number - 1
    if any(word in name for word in ATTENTION):
        yield _before(stage, number, "qkv")
    for norm, inside in HALVES.items():
        if any(word in name for word in inside):
            yield max(-1, _before(stage, number, norm) - 1)


def _before(stage: PlanStage, number: int, word: str) -> int:
    """Return the last operator before one whose name has a word, -1 if it lies before the stage."""
    found = (other for other in range(number, -1, -1) if word in _name(stage, other))
    return next(found, -1)
