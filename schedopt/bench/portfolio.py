"""Whether `solve` finds by default what the best of its parts finds alone in the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from math import ceil
from typing import Any, Final

from schedopt.bench.cases import compile_search, least_memory
from schedopt.bench.general import BANDWIDTH, chain_key
from schedopt.bench.records import exact, fraction, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table, label
from schedopt.bench.tables import Row, mean_ratio, number, show, summarize
from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.solving.phases import plan_phases
from schedopt.solving.registry import default_scope

LEVELS: Final = (Decimal(1), Decimal("1.5"))
"""Memory of a GPU over the least with which a contiguous plan exists."""
GOAL: Final = Fraction(101, 100)
"""For the period over that of the best part."""
GOAL_LATE_S: Final = 0.5
"""For the seconds that a solve takes beyond its limit."""


def portfolio_cases(
    chains: Sequence[Chain], gpus: Sequence[int], limits: Sequence[int], levels: Sequence[Decimal]
) -> list[Case]:
    """Return a case for each chain, number of GPUs, memory level, limit, and with recompute too."""
    return [
        Case(
            "portfolio",
            {
                **chain_key(chain),
                "gpus": count,
                "level": str(level),
                "recompute": recompute,
                "limit": limit,
            },
            partial(_measure, chain, count, level, recompute, limit),
        )
        for limit in limits
        for chain in chains
        for count in gpus
        for level in levels
        for recompute in (False, True)
    ]


def _measure(
    chain: Chain,
    gpus: int,
    level: Decimal,
    recompute: bool,
    limit: int,
    effort: Effort,
    proceed: Proceed,
) -> dict[str, Any]:
    """Solve by default, and by each part alone in the same scope with the same limit."""
    memory = ceil(least_memory(chain, gpus, BANDWIDTH) * level)
    platform = Platform(gpus, memory, bandwidth=BANDWIDTH)
    scope = replace(default_scope(None, fixed=False), recompute=recompute)
    problem = Problem(chain=chain, platform=platform, scope=scope)
    effort = replace(effort, time_limit=float(limit))
    compile_search()
    result = solve(chain, platform, scope=scope, **effort.options)
    found: dict[str, Fraction] = {}
    for part in parts_of(problem):
        proceed(f"{part} alone")
        period = _solve_alone(problem, part, effort)
        if period is not None:
            found[part] = period
    best = min(found, key=found.__getitem__, default="")
    return {
        "memory_bytes": memory,
        "status": result.status,
        "period_exact": exact(result.period),
        "solver": result.solver,
        "part": best,
        "part_exact": exact(found.get(best)),
        "seconds": round(result.seconds, 3),
    }


def parts_of(problem: Problem) -> list[str]:
    """Return the solvers that answer a problem by default."""
    phases = plan_phases(problem)
    return list(dict.fromkeys(solver for phase in phases for solver in phase.solvers))


def _solve_alone(problem: Problem, part: str, effort: Effort) -> Fraction | None:
    """Return the period that a part finds alone; it may be for a narrower scope only."""
    for scope in (problem.scope, *_narrower(problem.scope)):
        try:
            result: Result = solve(
                problem.chain, problem.platform, scope=scope, solver=part, **effort.options
            )
        except InputError:
            continue
        return result.period
    return None


def _narrower(scope: Scope) -> Iterator[Scope]:
    yield replace(scope, max_k=1)
    yield replace(scope, max_k=1, allocation="contiguous")
    yield replace(scope, max_k=1, allocation="contiguous", recompute=False)


def ratio_of(row: Row) -> Fraction | None:
    """Return the period over that of the best part."""
    period, part = fraction(row["period_exact"]), fraction(row["part_exact"])
    return None if period is None or part is None else period / part


def compared(records: Records) -> list[dict[str, Any]]:
    """Return the records with the figures that follow."""
    return [
        {**row, "ratio": ratio_of(row), "number": number(ratio_of(row)), "late": _late(row)}
        for row in of_family(records, "portfolio")
    ]


def _late(row: Row) -> float:
    return float(max(0.0, row["seconds"] - row["limit"]))


def means(records: Records) -> list[dict[str, Any]]:
    """Return for each limit how many runs there are, the mean ratio and the worst."""
    return summarize(
        compared(records),
        "limit recompute",
        runs=("number", "size"),
        mean=("number", mean_ratio),
        worst=("number", "max"),
        late_s=("late", "max"),
    )


def misses(records: Records) -> Iterator[str]:
    """Yield in words where a part alone is better by more than the goal, or the limit is passed."""
    for record in of_family(records, "portfolio"):
        names = ("chain", "gpus", "level", "recompute", "limit")
        where = label("solve", {name: record[name] for name in names})
        ratio = ratio_of(record)
        if record["period_exact"] is None and record["part_exact"] is not None:
            yield f"{where}: no plan, though {record['part']} alone finds one"
        if ratio is not None and ratio > GOAL:
            yield f"{where}: {show(ratio, '.3f')} times the period of {record['part']} alone"
        if _late(record) > GOAL_LATE_S:
            yield f"{where}: {show(record['seconds'], '.1f')} s"


def _summary(records: Records) -> Iterator[str]:
    ratios = [ratio for row in compared(records) if (ratio := ratio_of(row)) is not None]
    if ratios:
        mean, worst = mean_ratio(map(float, ratios)), max(ratios)
        yield (
            f"{len(ratios)} runs: {mean:.3f} times the period of the best part alone, "
            f"at worst {show(worst, '.3f')}"
        )


SUITE: Final = Suite(
    title="What is found by default, and by each part alone",
    families=("portfolio",),
    protocol="Links of 12 GB/s, half duplex; a memory level is the memory of a GPU over the least "
    "with which a contiguous plan exists. Each part, a solver by name, has the same limit, threads "
    "and seed, for the same scope or the widest one that it can answer. *Ratio* is the period over "
    f"that of the best part, at most {float(GOAL):g}. A solve ends {GOAL_LATE_S:g} s after its "
    "limit at the latest.",
    misses=misses,
    well="No part alone is better by more than that, and all limits are kept.",
    tables=[
        Table("Limits", "", "limit=limit~s recompute runs mean worst late_s", means),
        Table(
            "Runs",
            "",
            "chain gpus level recompute limit=limit~s period_exact solver part part_exact=its "
            "ratio seconds",
            compared,
            keys=5,
        ),
    ],
    summary=_summary,
)
