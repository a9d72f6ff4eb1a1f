"""The methods that `bench solvers` compares, and which plans each is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedopt.bench.general import GENERAL
from schedopt.problem import Scope
from schedopt.solving import load_solver
from schedopt.solving.registry import ANY_ALLOCATION, PARTITIONERS, SCHEDULES

WHOLE: Final = "schedopt"
"""The name of `schedopt solve` without a choice of solver."""
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
BASELINES: Final = tuple(f"{name}{ending}" for ending in SCHEDULES for name in PARTITIONERS)
"""The partitioners that people use instead, each run by the schedules of `SCHEDULES`."""
RUN_BY: Final = {
    "": "run by 1F1B*",
    "_1f1b": "run by 1F1B",
}


@dataclass(frozen=True)
class Method:
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


def find_method(name: str) -> Method:
    """Return the method with a name.

    Solvers for any allocation, and those of patterns of several micro-batches, are asked for the
    plans of `GENERAL`, as `schedopt solve` is; all others for contiguous plans with k = 1.

    Raises
    ------
    InputError
        If there is none, with the names that are known.
    """
    if name == WHOLE:
        return Method(name, None, GENERAL)
    load_solver(name)
    wide = name in ANY_ALLOCATION or name == "thinned"
    return Method(name, name, GENERAL if wide else Scope())


def title_of(name: str) -> str:
    """Return a description of a method, with its source; empty for a solver of a third party."""
    if name not in BASELINES:
        return OURS.get(name, "")
    ending = next(ending for ending in reversed(SCHEDULES) if name.endswith(ending))
    entry = PARTITIONERS[name.removesuffix(ending)]
    return f"{entry.title} ({entry.source}), {RUN_BY[ending]}"
