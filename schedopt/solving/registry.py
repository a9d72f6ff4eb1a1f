"""The one table of solvers. Solvers of third parties come from the entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, cast

from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solving.run import Run

Solver = Callable[[Problem, Run], None]
"""Reports plans, bounds and proofs to the run; raises `InputError` for what it cannot do."""

GROUP: Final = "schedopt.solvers"
SOLVERS: Final = {
    "contiguous": "schedopt.solvers.contiguous:solve",
    "contiguous_cpsat": "schedopt.solvers.contiguous_cpsat:solve",
    "even_split": "schedopt.solvers.even_split:solve",
    "general": "schedopt.solvers.general:solve",
    "general_cpsat": "schedopt.solvers.general_cpsat:solve",
    "next_fit": "schedopt.solvers.next_fit:solve",
    "one_f_one_b_star": "schedopt.solvers.one_f_one_b_star:solve",
    "periodic": "schedopt.solvers.periodic:solve",
    "relaxation": "schedopt.solvers.relaxation:solve",
    "step": "schedopt.solvers.step:solve",
    "thinned": "schedopt.solvers.thinned:solve",
}

CHOOSE_ALLOCATION: Final = frozenset(
    {"contiguous", "contiguous_cpsat", "even_split", "general", "general_cpsat", "next_fit"}
)
"""Those that choose the allocation themselves, and refuse one that is given."""
ANY_ALLOCATION: Final = frozenset({"general", "general_cpsat", "relaxation"})
"""Those that are for allocations of any kind."""


def solver_names() -> list[str]:
    """Return the names of all solvers that are installed."""
    return sorted({*SOLVERS, *(point.name for point in entry_points(group=GROUP))})


def load_solver(name: str) -> Solver:
    """Return a solver by name.

    Raises
    ------
    InputError
        With the list of those that are installed.
    """
    if name in SOLVERS:
        module, _, function = SOLVERS[name].partition(":")
        return cast(Solver, getattr(import_module(module), function))
    for point in entry_points(group=GROUP, name=name):
        return cast(Solver, point.load())
    raise InputError(
        f"{name!r} is not known", field="solver", way_out=f"Choose {', '.join(solver_names())}"
    )
