"""Proofs of bounds in plain words."""

from __future__ import annotations

from typing import Final

_FLIGHT: Final = (
    "The shorter the period, the more micro-batches are on their way at once, and what they keep "
    "must fit the memory."
)
_WORK: Final = "A GPU or a link cannot do more in a period than work all the time."
_WORDS: Final = (
    (
        "CP-SAT over all allocations, with",
        "A complete search (with CP-SAT, a solver of OR-Tools) found no way to give layers to GPUs "
        "with a shorter period, even with work, memory and transfers only added up, and nothing "
        "put in order.",
    ),
    (
        "CP-SAT",
        "A complete search (with CP-SAT, a solver of OR-Tools) found no plan with a shorter "
        "period.",
    ),
    (
        "exact dynamic programme",
        "Every way to cut the chain was taken into account, each in the order that keeps the least "
        "in memory.",
    ),
    ("1F1B* keeps", "For these stages no order keeps less in memory."),
    ("each stage keeps", _FLIGHT),
    ("what all micro-batches", _FLIGHT),
    ("what micro-batches in flight", _FLIGHT),
    ("long layers", _WORK),
    ("all work", _WORK),
    ("the longest layer", _WORK),
    ("the work of GPU", _WORK),
    ("a GPU or link works", _WORK),
    (
        "the way to a GPU",
        "In a step every GPU waits for the first micro-batch, and for the last one to come back.",
    ),
)
"""How a proof begins, and what it means; the first that fits counts."""


def explain_proof(proof: str) -> str:
    """Return in plain words why a bound holds; empty for a proof of another package."""
    return next((words for start, words in _WORDS if proof.startswith(start)), "")
