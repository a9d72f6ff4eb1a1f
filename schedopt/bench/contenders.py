"""Who takes part in the comparison of solvers, and which plans each is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedopt.bench.general import GENERAL
from schedopt.problem import Scope
from schedopt.solving import load_solver
from schedopt.solving.registry import ANY_ALLOCATION, PARTITIONERS, SCHEDULES

WHOLE: Final = "schedopt"
"""The name of what `schedopt solve` does by itself."""
OURS: Final = {
    WHOLE: "what `schedopt solve` does by itself, one solver after the other",
    "general": "local search over allocations",
    "general_cpsat": "CP-SAT over all allocations and orders, for short chains",
    "thinned": "contiguous stages run by thinned 1F1B*",
    "contiguous": "exact programme over contiguous stages run by 1F1B* (Beaumont et al. 2021)",
    "contiguous_cpsat": "CP-SAT over contiguous stages and orders",
    "next_fit": "Next-Fit (Beaumont et al. 2021, Theorem 5)",
    "relaxation": "a bound for any allocation, no plans",
}
RIVALS: Final = tuple(f"{name}{ending}" for ending in SCHEDULES for name in PARTITIONERS)
"""What people use instead: their ways to cut a chain, each run in the ways of `SCHEDULES`."""
RUN_BY: Final = {
    "": "run by 1F1B*",
    "_1f1b": "run by 1F1B",
}


@dataclass(frozen=True)
class Contender:
    """A solver, and the plans that it is asked for.

    Parameters
    ----------
    name : str
    solver : str or None
        None: what the scope calls for.
    scope : Scope
    """

    name: str
    solver: str | None
    scope: Scope


def contender(name: str) -> Contender:
    """Return who has a name.

    Solvers for any allocation, and those of patterns of several micro-batches, are asked for what
    `schedopt solve` looks for; all others for contiguous plans with k = 1.

    Raises
    ------
    InputError
        With the names that are known.
    """
    if name == WHOLE:
        return Contender(name, None, GENERAL)
    load_solver(name)
    wide = name in ANY_ALLOCATION or name == "thinned"
    return Contender(name, name, GENERAL if wide else Scope())


def title_of(name: str) -> str:
    """Return what a contender is, with its source; empty for a solver of somebody else."""
    if name not in RIVALS:
        return OURS.get(name, "")
    ending = next(ending for ending in reversed(SCHEDULES) if name.endswith(ending))
    entry = PARTITIONERS[name.removesuffix(ending)]
    return f"{entry.title} ({entry.source}), {RUN_BY[ending]}"
