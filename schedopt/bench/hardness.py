"""How hard 3-partition makes scheduling: special methods against the solvers of all problems.

Instances of Theorems 1 and 2 of Beaumont et al. 2021, whose answer is known: YES where groups were
built, NO where `find_triples`, which shares nothing with the methods, found none.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import product
from statistics import median
from typing import Any, Final, Literal

from schedopt.bench.cases import solve_problem
from schedopt.bench.pictures import draw_hardness
from schedopt.bench.records import Record
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bench.tables import Row
from schedopt.checking import check
from schedopt.errors import InvalidPlanError
from schedopt.families.partition import (
    Triple,
    draw_numbers,
    draw_without_triples,
    find_triples,
    wrong_groups,
)
from schedopt.families.reductions import Reduction
from schedopt.interrupts import Stopped, interrupts
from schedopt.solvers.packing import Undecided
from schedopt.solving import Run
from schedopt.solving.cp_sat import solve_model

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
    """Which m and V are measured, and how many instances of each kind."""

    sizes: Sequence[int]
    totals: Sequence[int]
    seeds: int


FULL: Final = Extent(sizes=range(2, 9), totals=(20, 100, 1000), seeds=3)
QUICK: Final = Extent(sizes=(2, 4, 8), totals=(1000,), seeds=1)
"""A part of `FULL`, so that one goes on where the other ended."""


def method_case(
    theorem: Theorem, m: int, total: int, partition: Partition, seed: int, method: str
) -> Case:
    """Return one method on one instance."""

    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        reduction = Reduction(theorem, _draw(m, total, seed, partition))
        _warm_up(theorem, method)
        proceed(str(case))
        begin = time.perf_counter()
        said, wrong = answer_by(method, reduction, effort)
        seconds = round(time.perf_counter() - begin, 3)
        if said not in ("unknown", partition):
            wrong = f"{said}, where the numbers are known to say {partition}"
        return {"answer": said, "seconds": seconds, "wrong": wrong}

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
    answer_by(method, Reduction(theorem, (3,) * 6), Effort(workers=1, time_limit=60.0))


def answer_by(method: str, reduction: Reduction, effort: Effort) -> tuple[str, str]:
    """Return the answer of a method, and what is wrong about its plan or its groups."""
    problem = reduction.problem()
    if method == COVER:
        try:
            groups = cover(reduction.numbers, Run(problem, **effort.options))
        except Undecided:
            return "unknown", ""
        return ("no", "") if groups is None else ("yes", wrong_groups(groups, reduction.numbers))
    result = solve_problem(problem, solver=method, **effort.options)
    if result.plan is None:
        return ("no" if result.status == "infeasible" else "unknown"), ""
    if violations := check(result):
        return "yes", str(violations[0])
    return "yes", wrong_groups(reduction.groups(result.plan), reduction.numbers)


def cover(numbers: Sequence[int], run: Run) -> list[Triple] | None:
    """Return groups of three positions with the sum V, or None if there are none.

    3-partition as an exact cover, by CP-SAT: how often each triple of numbers is taken, so that
    each number is taken as often as it occurs. `Undecided` if the run ends before.
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


def answer(reduction: Reduction, effort: Effort) -> dict[str, Any]:
    """Return whether a chain has a plan of the period of its theorem, as a JSON document.

    By the special method. Where it finds none, a search through all groups, which may take as long
    as the method, says whether it agrees: if not, it is a fault. The seconds are the method's.
    """
    begin, problem, numbers = time.monotonic(), reduction.problem(), reduction.numbers
    found: tuple[str, str | None, str, str | None] = "unknown", None, "none was found in time", None
    groups: Sequence[Sequence[int]] = ()
    with interrupts() as interrupted:
        result = solve_problem(problem, solver=PACKING, **effort.options)
        seconds = round(time.monotonic() - begin, 3)
        if result.plan is not None:
            groups = reduction.groups(result.plan)
            if wrong := wrong_groups(groups, numbers):
                raise InvalidPlanError(f"{PACKING}: {wrong}")
            proof = "a plan of the period, checked, whose groups are a 3-partition"
            found = "yes", "plan", proof, None
        elif result.infeasibility is not None:
            until = time.monotonic() + effort.time_limit
            search, words = "agrees", "agrees"
            try:
                if find_triples(numbers, lambda: interrupted() or time.monotonic() > until):
                    raise InvalidPlanError(f"{PACKING}: no plan, and there is a 3-partition")
            except Stopped:
                search, words = "not ended", "did not end in time"
            proof = f"{result.infeasibility.proof} finds none; trying all groups {words}"
            found = "no", "infeasible", proof, search
    return {
        **dict(zip(("answer", "proof_kind", "proof", "exhaustive_search"), found, strict=True)),
        "theorem": reduction.theorem,
        "m": reduction.m,
        "V": reduction.total,
        "numbers": [*numbers],
        "groups": [[numbers[position] for position in group] for group in groups],
        "period_ns": reduction.period_ns,
        "seconds": seconds,
    }


GOAL_S: Final = 5.0
"""For each answer of a special method."""


def misses(records: Records) -> Iterator[str]:
    """Yield in words each answer that is wrong, and each special one that is late or missing."""
    for row in records:
        name = (
            f"{row['method']}, Theorem {row['theorem']}, m = {row['m']}, V = {row['V']}, "
            f"{row['partition'].upper()}, number {row['number']}"
        )
        if row["wrong"]:
            yield f"{name}: {row['wrong']}"
        elif row["answer"] not in ("unknown", row["partition"]):
            yield f"{name}: the answer is {row['answer']}"
        if row["method"] not in SPECIAL:
            continue
        if row["answer"] == "unknown":
            yield f"{name}: no answer in {row['seconds']} s"
        elif row["seconds"] >= GOAL_S:
            yield f"{name}: {row['seconds']} s, and the goal is {GOAL_S:g} s"


def _protocol(records: Records) -> str:
    totals = ", ".join(str(value) for value in sorted({row["V"] for row in records}))
    return (
        "Instances of Theorems 1 and 2 of Beaumont, Eyraud-Dubois and Shilova 2021: 3 m numbers "
        f"between V / 4 and V / 2, V = {totals}, become a chain that has a plan of one given "
        "period exactly if the numbers have a 3-partition. YES: groups were built. NO: none were "
        "found by trying all, with code that shares nothing with the methods. `packing` is exact "
        "where a period leaves no freedom but who shares a GPU (Theorem 1) or which hole is filled "
        "(Theorem 2); exact cover chooses among all triples of numbers with the sum V, and makes "
        "no plan; the others are the exact solvers of all problems of the kind. Every plan is "
        "checked, and turned back into groups that are checked to be a 3-partition. One that "
        "answered nothing at one m is not asked for a larger one."
    )


def rows_of_theorem(theorem: int, records: Records) -> list[dict[str, Any]]:
    """Return a row for each answer and m of a theorem."""
    own, rows = [row for row in records if row["theorem"] == theorem], []
    for partition, m in product(PARTITIONS, sorted({row["m"] for row in own})):
        group = [row for row in own if (row["partition"], row["m"]) == (partition, m)]
        if not group:
            continue
        special = [row for row in group if row["method"] in SPECIAL]
        met = all(row["answer"] != "unknown" and row["seconds"] < GOAL_S for row in special)
        row = {method: _seconds(group, method) for method in (*SPECIAL, GENERIC[theorem])}
        instances = sum(row["method"] == PACKING for row in group)
        row |= {"m": m, "instances": str(instances), "goal": "met" if met else "missed"}
        row |= {"3-partition": partition.upper(), "cover": row[SPECIAL[1]]}
        row[GENERIC[theorem]] = row[GENERIC[theorem]] or "not asked"
        rows.append(row)
    return rows


def _seconds(rows: Sequence[Row], method: str) -> str:
    """Return the seconds of a method's answers, and how many there are if some are missing."""
    own = [row for row in rows if row["method"] == method]
    answered = [row["seconds"] for row in own if row["answer"] != "unknown"]
    if not answered:
        return "no answer in time" if own else ""
    words = f"{median(answered):.3f} ({max(answered):.3f})"
    return (
        words if len(answered) == len(own) else f"{words}; {len(answered)} of {len(own)} answered"
    )


def _summary(records: Records) -> Iterator[str]:
    for theorem in THEOREMS:
        for method in (*SPECIAL, GENERIC[theorem]):
            rows = [r for r in records if (r["theorem"], r["method"]) == (theorem, method)]
            if rows:
                answered = [row["seconds"] for row in rows if row["answer"] != "unknown"]
                longest = f", longest {max(answered)} s" if answered else ""
                counts = f"{len(answered)} of {len(rows)} answered"
                yield f"Theorem {theorem}, {method}: {counts}{longest}"


def _table(theorem: int) -> Table:
    text = "Seconds: median, and the longest in brackets, of those that were answered."
    names = (
        f"3-partition m instances {PACKING} cover=exact~cover goal=goal:~below~{GOAL_S:g}~s "
        f"{GENERIC[theorem]}={GENERIC[theorem]}"
    )
    return Table(f"Theorem {theorem}", text, names, partial(rows_of_theorem, theorem))


SUITE: Final = Suite(
    title="How hard 3-partition makes scheduling",
    families=("answers",),
    protocol=_protocol,
    misses=misses,
    well=f"Every answer is right, and `packing` and exact cover took less than {GOAL_S:g} s for "
    "each.",
    tables=[_table(theorem) for theorem in THEOREMS],
    summary=_summary,
    draw=lambda records: draw_hardness(
        records, {theorem: (*SPECIAL, GENERIC[theorem]) for theorem in THEOREMS}
    ),
)
