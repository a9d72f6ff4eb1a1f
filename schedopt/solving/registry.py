"""The tables of solvers and partitioners. Solvers of third parties come from the entry points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from schedopt.errors import InputError, SolverError
from schedopt.problem import Problem, Scope
from schedopt.scope import Allocation, MemoryReading
from schedopt.solving.run import Run
from schedopt.stage import Stage
from schedopt.stored import find_function

Solver = Callable[[Problem, Run], None]
"""Reports plans, bounds and proofs to the run; raises `InputError` for what it cannot do."""
Partitioner = Callable[[Problem], list[Stage]]
"""Returns consecutive stages, each on GPUs of its own; raises `InputError` if it finds none.

A stage has one GPU, or as many replicas as the scope allows.
"""

GROUP: Final = "schedopt.solvers"
SOLVERS: Final = {
    "contiguous": "schedopt.solvers.contiguous:solve",
    "contiguous_cpsat": "schedopt.solvers.contiguous_cpsat:solve",
    "engine_step": "schedopt.solvers.engine_step:solve",
    "general": "schedopt.solvers.general:solve",
    "general_cpsat": "schedopt.solvers.general_cpsat:solve",
    "next_fit": "schedopt.solvers.next_fit:solve",
    "one_f_one_b_star": "schedopt.solvers.one_f_one_b_star:solve",
    "packing": "schedopt.solvers.packing:solve",
    "periodic": "schedopt.solvers.periodic:solve",
    "relaxation": "schedopt.solvers.relaxation:solve",
    "replicated": "schedopt.solvers.replicated:solve",
    "step": "schedopt.solvers.step:solve",
    "thinned": "schedopt.solvers.thinned:solve",
    "training_step": "schedopt.solvers.training_step:solve",
}


@dataclass(frozen=True, kw_only=True)
class PartitionerEntry:
    """A way in which people cut a chain into stages.

    Parameters
    ----------
    title : str
        What a table calls it.
    source : str
        Authors and year.
    function : str
        ``package.module:function`` of a `Partitioner`.
    """

    title: str
    source: str
    function: str


PARTITIONERS: Final = {
    "even_split": PartitionerEntry(
        title="even split",
        source="Narayanan et al. 2021 (Megatron-LM)",
        function="schedopt.solvers.even_split:partition",
    ),
    "parameters_balanced": PartitionerEntry(
        title="parameters balanced",
        source="Rasley et al. 2020 (DeepSpeed)",
        function="schedopt.solvers.parameters_balanced:partition",
    ),
    "time_balanced": PartitionerEntry(
        title="time balanced",
        source="Pinar and Aykanat 2004",
        function="schedopt.solvers.time_balanced:partition",
    ),
    "block_partition": PartitionerEntry(
        title="block partition",
        source="Barany and Grinberg 2015; Kim et al. 2020 (torchgpipe)",
        function="schedopt.solvers.block_partition:partition",
    ),
    "pipedream": PartitionerEntry(
        title="PipeDream",
        source="Harlap et al. 2018; Narayanan et al. 2019",
        function="schedopt.solvers.pipedream_partition:partition",
    ),
    "pipedream_memory": PartitionerEntry(
        title="PipeDream with its memory option",
        source="Narayanan et al. 2019, the published optimizer",
        function="schedopt.solvers.pipedream_partition:partition_within_memory",
    ),
    "piper": PartitionerEntry(
        title="Piper",
        source="Tarnawski et al. 2021",
        function="schedopt.solvers.piper:partition",
    ),
    "alpa": PartitionerEntry(
        title="Alpa-like",
        source="Zheng et al. 2022, with data parallelism inside stages",
        function="schedopt.solvers.alpa:partition",
    ),
}
"""What people use instead. Each is a solver too, under its name and the endings of `SCHEDULES`."""
SCHEDULES: Final = {
    "": "schedopt.solvers.partitioned:run_star",
    "_1f1b": "schedopt.solvers.partitioned:run_eager",
}
"""What runs the stages of a partitioner: 1F1B* and 1F1B."""
PARTITIONED: Final = {
    f"{name}{ending}": (name, schedule)
    for name in PARTITIONERS
    for ending, schedule in SCHEDULES.items()
}
"""The partitioners as solvers: the name of each, and what runs its stages."""

CHOOSE_ALLOCATION: Final = frozenset(
    {
        "contiguous",
        "contiguous_cpsat",
        "engine_step",
        "general",
        "general_cpsat",
        "next_fit",
        "replicated",
        "training_step",
        *PARTITIONED,
    }
)
"""Those that choose the allocation themselves, and refuse one that is given."""
ANY_ALLOCATION: Final = frozenset({"general", "general_cpsat", "packing", "relaxation"})
"""Those that are for allocations of any kind."""

SUM_ALONE: Final = frozenset({"packing"})
"""Those that read memory as a sum alone."""


def default_scope(solver: str | None, *, fixed: bool) -> Scope:
    """Return the scope of a solve without one.

    Any allocation with k up to 2; for stages that are given, or a solver that is not for any
    allocation, what these are for, with k = 1. Memory is read as its true peak, as far as a solver
    can: what a GPU holds follows from the order of its own operations, so that a plan which fits
    still fits when times drift.
    """
    if solver is None and not fixed:
        return Scope.usual()
    reading: MemoryReading = "sum" if solver in SUM_ALONE else "peak"
    free: Allocation = "general" if solver in ANY_ALLOCATION else "contiguous"
    most = None if solver == "replicated" else 1
    return Scope(allocation="fixed" if fixed else free, memory=reading, replicas=most)


def solver_names() -> list[str]:
    """Return the names of all solvers that are installed."""
    return sorted({*SOLVERS, *PARTITIONED, *(point.name for point in entry_points(group=GROUP))})


def load_solver(name: str) -> Solver:
    """Return a solver by name.

    Raises
    ------
    InputError
        With the list of those that are installed.
    SolverError
        If one of another package cannot be loaded; also raised by the solver, where it fails.
    """
    if name in SOLVERS:
        return cast(Solver, find_function(SOLVERS[name]))
    if name in PARTITIONED:
        partitioner, schedule = PARTITIONED[name]
        return partial(find_function(schedule), partitioner)
    for point in entry_points(group=GROUP, name=name):
        with _naming(point):
            return partial(_run_theirs, point, point.load())
    raise InputError(
        f"{name!r} is not known", field="solver", way_out=f"Choose {', '.join(solver_names())}"
    )


def _run_theirs(point: EntryPoint, solver: Solver, problem: Problem, run: Run) -> None:
    run.events.claimant = point.name
    with _naming(point):
        solver(problem, run)


@contextmanager
def _naming(point: EntryPoint) -> Iterator[None]:
    """Name the solver of another package in each error that is a fault of it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")
        raise SolverError(f"the solver {point.name} ({point.value}) failed: {said}") from error


def load_partitioner(name: str) -> Partitioner:
    """Return a partitioner by name, one of `PARTITIONERS`."""
    return cast(Partitioner, find_function(PARTITIONERS[name].function))
