"""How hard 3-partition makes scheduling: special methods against the solvers of all problems.

Instances of Theorems 1 and 2 of Beaumont et al. 2021, whose answer is known: YES where groups were
built, NO where `find_triples`, which shares nothing with the methods, found none.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Literal

from schedopt.bench.records import Record
from schedopt.bench.suite import Case, Effort, Proceed
from schedopt.checking import check
from schedopt.families.partition import Triple, draw_numbers, draw_without_triples, wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.solving import Run, solve
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.packing import Undecided

Partition = Literal["yes", "no"]
Theorem = Literal[1, 2]
PACKING: Final = "packing"
COVER: Final = "exact cover"
SPECIAL: Final = (PACKING, COVER)
GENERIC: Final = {1: "general_cpsat", 2: "periodic"}
"""The exact solver of all problems of the kind, by theorem: any allocation, or a given one."""
THEOREMS: Final[tuple[Theorem, ...]] = (1, 2)
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


def method_case(
    theorem: Theorem, m: int, total: int, partition: Partition, seed: int, method: str
) -> Case:
    """Return one method on one instance.

    Parameters
    ----------
    theorem : {1, 2}
    m, total : int
    partition : {"yes", "no"}
        Whether the numbers have a 3-partition.
    seed : int
    method : str
        Of `SPECIAL` or `GENERIC`.
    """

    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        reduction = Reduction(theorem, _draw(m, total, seed, partition))
        _warm_up(theorem, method)
        proceed(str(case))
        begin = time.perf_counter()
        answer, wrong = answer_by(method, reduction, effort)
        seconds = round(time.perf_counter() - begin, 3)
        if answer not in ("unknown", partition):
            wrong = f"{answer}, where the numbers are known to say {partition}"
        return {"answer": answer, "seconds": seconds, "wrong": wrong}

    size = {"theorem": theorem, "m": m, "V": total}
    key = {**size, "partition": partition, "number": seed, "method": method}
    case = Case("answers", key, measure)
    return case


@lru_cache(maxsize=1)
def _draw(m: int, total: int, seed: int, partition: Partition) -> tuple[int, ...]:
    if partition == "yes":
        return draw_numbers(m, total, seed, solvable=True)
    return draw_without_triples(m, total, seed)


@cache
def _warm_up(theorem: Theorem, method: str) -> None:
    """Answer a small instance once: to import and compile takes longer than an answer.

    With m = 2 it has enough stages for `periodic` to compile what it uses at every m.
    """
    answer_by(method, Reduction(theorem, (3,) * 6), Effort(workers=1, time_limit=1.0))


def answer_by(method: str, reduction: Reduction, effort: Effort) -> tuple[str, str]:
    """Return the answer of a method, and what is wrong about its plan or its groups."""
    problem = reduction.problem()
    if method == COVER:
        try:
            groups = cover(reduction.numbers, Run(problem, **effort.options))
        except Undecided:
            return "unknown", ""
        return ("no", "") if groups is None else ("yes", wrong_groups(groups, reduction.numbers))
    result = solve(
        problem.chain,
        problem.platform,
        scope=problem.scope,
        stages=problem.stages,
        solver=method,
        **effort.options,
    )
    if result.plan is None:
        return ("no" if result.status == "infeasible" else "unknown"), ""
    if violations := check(result):
        return "yes", str(violations[0])
    return "yes", wrong_groups(reduction.groups(result.plan), reduction.numbers)


def cover(numbers: Sequence[int], run: Run) -> list[Triple] | None:
    """Return groups of three positions with the sum V, or None if there are none.

    3-partition as an exact cover, by CP-SAT: how often each triple of numbers is taken, so that
    each number is taken as often as it occurs.

    Raises
    ------
    Undecided
        If the run ends before.
    """
    from ortools.sat.python import cp_model as cp

    total = 3 * sum(numbers) // len(numbers)
    counts = Counter(numbers)
    model: cp.CpModel = cp.CpModel()
    taken = {triple: model.new_int_var(0, len(numbers), "") for triple in _triples(counts, total)}
    for number, count in counts.items():
        times = [triple.count(number) * variable for triple, variable in taken.items()]
        model.add(cp.LinearExpr.sum(times) == count)
    status, solver = solve_model(model, run, simplify=True)
    if status == cp.INFEASIBLE:
        return None
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        raise Undecided
    positions: dict[int, list[int]] = defaultdict(list)
    for position, number in enumerate(numbers):
        positions[number].append(position)
    return [
        (positions[least].pop(), positions[middle].pop(), positions[most].pop())
        for (least, middle, most), variable in taken.items()
        for _ in range(solver.value(variable))
    ]


def _triples(counts: Counter[int], total: int) -> Iterator[tuple[int, int, int]]:
    """Yield each triple of numbers with a sum once, the least number first."""
    values = sorted(counts)
    for position, least in enumerate(values):
        for middle in values[position:]:
            most = total - least - middle
            if most >= middle and not Counter((least, middle, most)) - counts:
                yield least, middle, most


def batches(extent: Extent, records: Sequence[Record]) -> Iterator[list[Case]]:
    """Yield the cases of one m after the other; records may grow between."""
    for m in extent.sizes:
        yield [*cases_of_size(m, extent, records)]


def cases_of_size(m: int, extent: Extent, records: Sequence[Record]) -> Iterator[Case]:
    """Yield the cases of one m: with a solver of all problems only while it answers."""
    for theorem in THEOREMS:
        for partition in PARTITIONS:
            methods = [*SPECIAL]
            if not ran_out(records, theorem, partition, m):
                methods.append(GENERIC[theorem])
            for total in extent.totals:
                for seed in range(extent.seeds):
                    for method in methods:
                        yield method_case(theorem, m, total, partition, seed, method)


def ran_out(records: Sequence[Record], theorem: int, partition: str, m: int) -> bool:
    """Whether the solver of all problems answered nothing at some smaller m."""
    answered: dict[int, bool] = {}
    for row in records:
        kind = row["theorem"], row["partition"], row["method"]
        if kind == (theorem, partition, GENERIC[theorem]) and row["m"] < m:
            answered[row["m"]] = answered.get(row["m"], False) or row["answer"] != "unknown"
    return not all(answered.values())
