"""How hard 3-partition makes scheduling: special methods beside the solvers of all problems.

Instances of Theorems 1 and 2 of Beaumont et al. 2021, whose answer is known: YES where groups were
built, NO where `find_triples`, which shares nothing with the methods, found none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Final, Literal

from schedopt.bench.documents import measure
from schedopt.bench.effort import Effort
from schedopt.bench.exact_cover import cover
from schedopt.checking import check
from schedopt.families.partition import draw_numbers, draw_without_triples, wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.interrupts import interrupts
from schedopt.solvers.packing import Undecided
from schedopt.solving import Run

Partition = Literal["yes", "no"]
PACKING: Final = "packing"
COVER: Final = "exact cover"
GENERIC: Final = {1: "general_cpsat", 2: "periodic"}
"""The exact solver of all problems of the kind, by theorem: any allocation, or a given one."""
GOAL_S: Final = 5.0
"""What a special method should take at most."""
THEOREMS: Final[tuple[Literal[1, 2], ...]] = (1, 2)
PARTITIONS: Final[tuple[Partition, ...]] = ("yes", "no")


@dataclass(frozen=True)
class Extent:
    """Which instances are measured.

    Parameters
    ----------
    sizes, totals : sequence of int
        m and V.
    seeds : int
        Instances of each kind.
    """

    sizes: Sequence[int]
    totals: Sequence[int]
    seeds: int


FULL: Final = Extent(sizes=range(2, 9), totals=(20, 100, 1000), seeds=3)
QUICK: Final = Extent(sizes=(2, 4, 8), totals=(1000,), seeds=1)
"""A part of `FULL`, so that one goes on where the other ended."""


@dataclass(frozen=True)
class Case:
    """One method on one instance.

    Parameters
    ----------
    theorem : {1, 2}
    m, total : int
    partition : {"yes", "no"}
        Whether the numbers have a 3-partition.
    seed : int
    method : str
    """

    theorem: Literal[1, 2]
    m: int
    total: int
    partition: Partition
    seed: int
    method: str
    family: ClassVar[str] = "answers"

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others."""
        return {
            "theorem": self.theorem,
            "m": self.m,
            "V": self.total,
            "partition": self.partition,
            "number": self.seed,
            "method": self.method,
        }

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the answer, what is wrong about it if anything is, and the seconds.

        Raises
        ------
        KeyboardInterrupt
            If somebody asks to stop before the instance and the method are there.
        """
        with interrupts() as asked:
            numbers = _draw(self.m, self.total, self.seed, self.partition)
            reduction = Reduction(self.theorem, numbers)
            _load(self.theorem, self.method)
        if asked():
            raise KeyboardInterrupt
        begin = time.perf_counter()
        answer, wrong = by(self.method, reduction, effort)
        seconds = time.perf_counter() - begin
        if answer != "unknown" and answer != self.partition:
            wrong = f"{answer}, where the numbers are known to say {self.partition}"
        return {"answer": answer, "seconds": round(seconds, 3), "wrong": wrong}


@lru_cache(maxsize=1)
def _draw(m: int, total: int, seed: int, partition: Partition) -> tuple[int, ...]:
    if partition == "yes":
        return draw_numbers(m, total, seed, solvable=True)
    return draw_without_triples(m, total, seed)


@cache
def _load(theorem: Literal[1, 2], method: str) -> None:
    """Answer a small instance once: what is imported or compiled takes longer than an answer.

    With m = 2 it has enough stages for `periodic` to compile what it uses at every m.
    """
    by(method, Reduction(theorem, (3,) * 6), Effort(workers=1, time_limit=1.0))


def by(method: str, reduction: Reduction, effort: Effort) -> tuple[str, str]:
    """Return the answer of a method, and what is wrong about its plan or its groups."""
    if method == COVER:
        return by_cover(reduction, effort)
    return by_solver(reduction, method, effort)


def by_cover(reduction: Reduction, effort: Effort) -> tuple[str, str]:
    """Return the answer for the numbers alone, and what is wrong about its groups."""
    run = Run(
        reduction.problem(),
        time_limit=effort.time_limit,
        seed=effort.seed,
        workers=effort.workers,
    )
    try:
        groups = cover(reduction.numbers, run)
    except Undecided:
        return "unknown", ""
    if groups is None:
        return "no", ""
    return "yes", wrong_groups(groups, reduction.numbers)


def by_solver(reduction: Reduction, solver: str, effort: Effort) -> tuple[str, str]:
    """Return whether a solver finds a plan of the period, and what is wrong about that plan."""
    problem = reduction.problem()
    result = effort.solve(
        problem.chain, problem.platform, scope=problem.scope, stages=problem.stages, solver=solver
    )
    if result.plan is None:
        return ("no" if result.status == "infeasible" else "unknown"), ""
    violations = check(result)
    wrong = str(violations[0]) if violations else ""
    return "yes", wrong or wrong_groups(reduction.groups(result.plan), reduction.numbers)


def cases(m: int, extent: Extent, document: dict[str, Any]) -> Iterator[Case]:
    """Yield what is measured at one m: of a solver of all problems only while it answers."""
    for theorem in THEOREMS:
        for partition in PARTITIONS:
            methods = [PACKING, COVER]
            if not ran_out(document, theorem, partition, m):
                methods.append(GENERIC[theorem])
            for total in extent.totals:
                for seed in range(extent.seeds):
                    for method in methods:
                        yield Case(theorem, m, total, partition, seed, method)


def ran_out(document: dict[str, Any], theorem: int, partition: str, m: int) -> bool:
    """Whether the solver of all problems answered nothing at some smaller m."""
    answered: dict[int, bool] = {}
    for row in document.get(Case.family, []):
        kind = row["theorem"], row["partition"], row["method"]
        if kind == (theorem, partition, GENERIC[theorem]) and row["m"] < m:
            answered[row["m"]] = answered.get(row["m"], False) or row["answer"] != "unknown"
    return not all(answered.values())


def measure_hardness(
    extent: Extent,
    effort: Effort,
    document: dict[str, Any],
    save: Callable[[dict[str, Any]], None],
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> bool:
    """Measure what a document lacks, one m after the other.

    Parameters
    ----------
    extent : Extent
    effort : Effort
    document : dict
        Rows are added to it.
    save : callable
        Called with the document after each run.
    on_run : callable
        Called before each run with the number of runs done, of all at this m, and a name.

    Returns
    -------
    bool
        Whether all is measured; not after Ctrl-C.
    """
    return all(
        measure([*cases(m, extent, document)], effort, document, save, on_run) for m in extent.sizes
    )
