"""What is asked where nothing is said."""

from __future__ import annotations

from typing import Final

from schedopt.problem import Allocation, Scope
from schedopt.solving.registry import ANY_ALLOCATION

LONGEST_POLISH: Final = 2
"""The k up to which the pattern of a general allocation is polished."""


def usual_scope(solver: str | None, *, fixed: bool) -> Scope:
    """Return the scope in which is solved where none is given.

    Any allocation with k up to 2; of stages that are given, or a solver that is not for any
    allocation, what these are for, with k = 1.
    """
    if solver is None and not fixed:
        return Scope(allocation="general", max_k=LONGEST_POLISH)
    anywhere: Allocation = "general" if solver in ANY_ALLOCATION else "contiguous"
    return Scope(allocation="fixed" if fixed else anywhere)
