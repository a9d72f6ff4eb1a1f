"""What a check reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MOST_OF_A_KIND: Final = 20
"""The most violations of one kind that are reported; the others are counted."""


@dataclass(frozen=True)
class Violation:
    """One rule that a plan or a result breaks, and where.

    ===========  ==================================================================
    kind         what is broken
    ===========  ==================================================================
    reference    a stage, layer, GPU or round that does not exist; nothing else is looked at
    layers       each layer lies in exactly one stage, in the order of the chain
    group        a tensor group lies in two nodes, is not alike, or overlaps another one; GPUs
                 that share sequences or experts do not lie in a row, or start together
    same_gpu     layers that must share a GPU do not
    operations   an operation is missing, doubled, or not allowed there
    transfer     a transfer is missing, doubled, or not allowed there
    placement    micro-batches covered by one item belong to different GPUs
    order        something starts before what it needs has ended
    overlap      two at a time on a GPU or on a link
    deadlock     operations that wait for each other in a circle
    memory       a GPU needs more than it has
    gradient     a gradient is lost, counted twice, late, or never applied
    version      weights are read or sent that are not there, or come for nothing
    rule         the rule cannot be followed
    scope        the plan, or what a result claims to answer, was not asked for
    bound        a result claims what its plan and bounds do not show
    ===========  ==================================================================

    Parameters
    ----------
    kind : str
        One of the table.
    place : str
        Where: ``stage 2, micro-batch 5, B``, ``GPU 3``, ``link 0-1``, ``operations[7]``.
    message : str
        What is wrong, with the numbers and their units.
    """

    kind: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}: {self.message}"


def limit(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Keep the first violations of each kind, and one line for the others of that kind."""
    found: Counter[str] = Counter()
    kept: list[Violation] = []
    for violation in violations:
        found[violation.kind] += 1
        if found[violation.kind] <= MOST_OF_A_KIND:
            kept.append(violation)
    for kind, count in found.items():
        if count > MOST_OF_A_KIND:
            kept.append(Violation(kind, "elsewhere", f"{count - MOST_OF_A_KIND} more"))
    return tuple(kept)
