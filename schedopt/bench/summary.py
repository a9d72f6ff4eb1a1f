"""What many runs say together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import geometric_mean, median

from schedopt.bench.markdown import table
from schedopt.bench.records import Record
from schedopt.units import format_bytes, format_duration


@dataclass(frozen=True)
class Standing:
    """How one solver did.

    Parameters
    ----------
    solver : str
    runs, plans, proven, refused : int
        Of so many runs: with a plan, with a proof (optimal or infeasible), not done at all.
    mean, worst : float or None
        Its period over the best that any solver found, where it has a plan: geometric mean, most.
    median_s, longest_s : float
    """

    solver: str
    runs: int
    plans: int
    proven: int
    refused: int
    mean: float | None
    worst: float | None
    median_s: float
    longest_s: float


def best_periods(records: Iterable[Record]) -> dict[tuple[object, ...], Fraction]:
    """Return the best period of each case, ns."""
    best: dict[tuple[object, ...], Fraction] = {}
    for record in records:
        if record.period is not None:
            best[record.case] = min(record.period, best.get(record.case, record.period))
    return best


def standings(records: Sequence[Record]) -> list[Standing]:
    """Return how each solver did, in the order of their first runs."""
    best = best_periods(records)
    of_solver: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_solver[record.solver].append(record)
    return [_standing(solver, runs, best) for solver, runs in of_solver.items()]


def by_level(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """Return for each memory level the geometric mean of each solver's period over the best."""
    best = best_periods(records)
    groups: dict[str, dict[str, list[float]]] = {}
    for record in records:
        ratios = groups.setdefault(record.level, {}).setdefault(record.solver, [])
        if record.period is not None:
            ratios.append(float(record.period / best[record.case]))
    return {
        level: {solver: geometric_mean(found) if found else None for solver, found in row.items()}
        for level, row in groups.items()
    }


def _standing(
    solver: str, runs: list[Record], best: dict[tuple[object, ...], Fraction]
) -> Standing:
    ratios = [float(run.period / best[run.case]) for run in runs if run.period is not None]
    seconds = [run.seconds for run in runs]
    return Standing(
        solver,
        len(runs),
        len(ratios),
        sum(run.status in ("optimal", "infeasible") for run in runs),
        sum(run.status == "refused" for run in runs),
        geometric_mean(ratios) if ratios else None,
        max(ratios, default=None),
        median(seconds),
        max(seconds),
    )


def to_markdown(records: Sequence[Record]) -> str:
    """Return the tables of a suite as Markdown: solvers, memory levels, every case."""
    solvers = list(dict.fromkeys(record.solver for record in records))
    lines = ["# Solvers side by side", "", _protocol(records), ""]
    lines += table(
        ["solver", "runs", "plans", "proven", "refused", "over best, mean", "most", "median s",
         "longest s"],
        [
            [one.solver, one.runs, one.plans, one.proven, one.refused, _ratio(one.mean),
             _ratio(one.worst), f"{one.median_s:.3f}", f"{one.longest_s:.3f}"]
            for one in standings(records)
        ],
    )  # fmt: skip
    lines += [
        "",
        "Period over the best that any solver found, geometric mean, by memory level:",
        "",
    ]
    lines += table(
        ["memory level", *solvers],
        [
            [level, *(_ratio(row.get(solver)) for solver in solvers)]
            for level, row in by_level(records).items()
        ],
    )
    lines += ["", "Every case, with the period that each solver found (the best in bold):", ""]
    lines += table(
        ["chain", "layers", "GPUs", "memory", "level", "bandwidth", "bound", *solvers],
        _case_rows(records, solvers),
    )
    return "\n".join(lines) + "\n"


def _protocol(records: Sequence[Record]) -> str:
    def values(name: str) -> str:
        return ", ".join(dict.fromkeys(str(getattr(record, name)) for record in records))

    return (
        f"schedopt {values('schedopt')}, Python {values('python')}, {values('machine')}, "
        f"{values('date')}; seed {values('seed')}, workers {values('workers')}, time limit "
        f"{values('time_limit_s')} s a run. Contiguous allocations, k = 1. A memory level is the "
        "memory of a GPU over the least with which a contiguous plan exists; instances of theorems "
        "have their own memory."
    )


def _case_rows(records: Sequence[Record], solvers: Sequence[str]) -> list[list[object]]:
    best = best_periods(records)
    cases: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        cases[record.case].append(record)
    rows = []
    for case, runs in cases.items():
        one = runs[0]
        bounds = [Fraction(*run.bound_exact) for run in runs if run.bound_exact is not None]
        found = {run.solver: _period(run, best.get(case)) for run in runs}
        rows.append(
            [
                one.chain,
                one.layers,
                one.gpus,
                format_bytes(one.memory_bytes),
                one.level,
                one.bandwidth,
                format_duration(max(bounds)) if bounds else "",
                *(found.get(solver, "") for solver in solvers),
            ]
        )
    return rows


def _period(run: Record, best: Fraction | None) -> str:
    if run.period is None:
        return run.status
    text = format_duration(run.period)
    return f"**{text}**" if run.period == best else text


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
