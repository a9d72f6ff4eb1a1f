"""The suite of `schedopt.bench.solvers`: ranks, comparisons, tables and picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from schedopt.bench.best_known import BestKnown
from schedopt.bench.cases import OWN
from schedopt.bench.pictures import REFERENCE, draw_profiles
from schedopt.bench.records import RUNS, InstanceKey, Record
from schedopt.bench.solvers import BASELINES, NAMES, title_of
from schedopt.bench.suite import Records, Suite, Table
from schedopt.bench.tables import Row, mean_ratio, number, show, summarize
from schedopt.problem import Scope
from schedopt.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Best: TypeAlias = dict[InstanceKey, Fraction]
"""The least period that is known of each instance, ns."""
Rows: TypeAlias = list[dict[str, Any]]
ORDER = {name: place for place, name in enumerate(NAMES)}


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return runs by chain and platform, on each in the order of the methods."""
    return sorted(
        records,
        key=lambda run: (
            run["level"] == OWN,
            run["chain"],
            run["chain_sha256"],
            run["gpus"],
            -(run["bandwidth_bytes_per_s"] or 0),
            run["memory_bytes"],
            run["batch"] or 0,
            _place(run["solver"]),
        ),
    )


def methods_of(records: Iterable[Record]) -> list[str]:
    """Return the names of the methods that ran, in their order."""
    return sorted({record["solver"] for record in records}, key=_place)


def _place(solver: str) -> tuple[int, str]:
    return ORDER.get(solver, len(ORDER)), solver


def best_periods(records: Iterable[Record], known: Iterable[BestKnown]) -> Best:
    """Return the least period of each instance, of the runs and of the best-known plans, ns."""
    best = {entry.instance: entry.plan.period for entry in known if entry.plan is not None}
    for record in records:
        if record.period is not None:
            best[record.instance] = min(record.period, best.get(record.instance, record.period))
    return best


def _frame(records: Iterable[Record], best: Best) -> Rows:
    """Return a row for each run: its ratio to the best period, and what is counted."""
    return [
        {
            "solver": run["solver"],
            "level": run["level"],
            "ratio": number(None if run.period is None else run.period / best[run.instance]),
            "possible": run.instance in best,
            "proven": run.proven,
            "refused": run["status"] == "refused",
            "seconds": run["seconds"],
        }
        for run in records
    ]


def ranks(records: Records, best: Best) -> Rows:
    """Return how each method did.

    Each row has the numbers of runs, plans, runs on instances of which a plan is known (possible),
    proofs and refusals; its period over the best known, where it has a plan (mean: geometric,
    worst); seconds (median, longest); and *feasible*, plans over possible.
    """
    rows = summarize(
        _frame(records, best),
        "solver",
        runs=("ratio", "size"),
        plans=("ratio", "count"),
        possible=("possible", "sum"),
        proven=("proven", "sum"),
        refused=("refused", "sum"),
        mean=("ratio", mean_ratio),
        worst=("ratio", "max"),
        median_s=("seconds", "median"),
        longest_s=("seconds", "max"),
    )
    for row in rows:
        row["feasible"] = row["plans"] / row["possible"] if row["possible"] else None
    return sorted(rows, key=lambda row: _place(row["solver"]))


def by_level(records: Records, best: Best) -> Rows:
    """Return the geometric mean of each method's period over the best, by memory level."""
    means = summarize(_frame(records, best), "level solver", mean=("ratio", mean_ratio))
    levels = sorted({mean["level"] for mean in means}, key=_level)
    shown = {(mean["solver"], mean["level"]): show(mean["mean"], ".3f") for mean in means}
    return [
        {"method": f"`{name}`", **{level: shown.get((name, level), "") for level in levels}}
        for name in methods_of(records)
    ]


def _level(level: str) -> tuple[bool, Decimal]:
    return (True, Decimal(0)) if level == OWN else (False, Decimal(level))


def comparisons(records: Records) -> Rows:
    """Return the exact contiguous plans against those of all others asked in the same scope.

    Each row has the other method, the numbers of instances for which both have a plan, on which
    that of the other is shorter (above: ours is longer), and for which one alone has a plan; and
    the period of the other over ours where both have one (mean: geometric, worst).
    """
    ours = {run.instance: run for run in records if run["solver"] == REFERENCE}
    scopes = {run["scope"] for run in ours.values()}
    rows = []
    for run in records:
        if run["solver"] == REFERENCE or run["scope"] not in scopes or run.instance not in ours:
            continue
        our, their = ours[run.instance].period, run.period
        ratio = None if our is None or their is None else their / our
        rows.append(
            {
                "solver": run["solver"],
                "ratio": number(ratio),
                "above": ratio is not None and ratio < 1,
                "only_ours": our is not None and their is None,
                "only_theirs": our is None and their is not None,
            }
        )
    found = summarize(
        rows,
        "solver",
        both=("ratio", "count"),
        above=("above", "sum"),
        mean=("ratio", mean_ratio),
        worst=("ratio", "max"),
        only_ours=("only_ours", "sum"),
        only_theirs=("only_theirs", "sum"),
    )
    return sorted(found, key=lambda row: _place(row["solver"]))


def misses(records: Records) -> Iterator[str]:
    """Yield in words what should not be so."""
    for run in records:
        if run["solver"] == REFERENCE and not run.proven and run["status"] != "refused":
            yield f"the contiguous plan is not proven: {_where(run)}"
    for row in comparisons(records):
        if row["above"]:
            yield f"{row['solver']} is below the exact contiguous plan on {row['above']} rows"
        if row["only_theirs"]:
            yield f"{row['solver']} alone has a contiguous plan on {row['only_theirs']} rows"
    for same in by_instance(records).values():
        for run in same:
            for other in same:
                if is_refuted(run, other):
                    names = f"{run['solver']} proved what the plan of {other['solver']}"
                    yield f"{names} refutes: {_where(run)}"


def by_instance(records: Iterable[Record]) -> dict[InstanceKey, list[Record]]:
    """Return the runs on each instance."""
    groups: dict[InstanceKey, list[Record]] = {}
    for record in records:
        groups.setdefault(record.instance, []).append(record)
    return groups


def is_refuted(run: Record, other: Record) -> bool:
    """Whether `other` has a plan where `run` proved that there is none, or none so short."""
    if other.period is None or not run["scope"].covers(other["scope"]):
        return False
    return run["status"] == "infeasible" or (run.bound is not None and run.bound > other.period)


def _where(run: Record) -> str:
    step = "" if run["batch"] is None else f", batch {run['batch']}"
    return f"{run['chain']}, {run['gpus']} GPUs, level {run['level']}{step}"


def _well(records: Records) -> str:
    if not comparisons(records):
        return "No plan refutes a bound."
    return (
        "The exact contiguous plan is proven in all runs, at or below that of each other "
        "partitioner, and there wherever one of them has a plan; no plan refutes a bound."
    )


def _rank_rows(known: Sequence[BestKnown], records: Records) -> Rows:
    asked: dict[str, dict[str, None]] = {}
    for run in records:
        asked.setdefault(run["solver"], {})[_asked(run["scope"])] = None
    rows = ranks(records, best_periods(records, known))
    return [
        {**row, "method": f"`{row['solver']}`", "asked": "; ".join(asked[row["solver"]])}
        for row in rows
    ]


def _instance_rows(known: Sequence[BestKnown], records: Records) -> Rows:
    of_instance = {entry.instance: entry for entry in known}
    return [
        _instance(same, of_instance[instance])
        for instance, same in by_instance(records).items()
        if instance in of_instance
    ]


def _instance_columns(rows: Sequence[Row]) -> str:
    batch = "batch " if any(row["batch"] for row in rows) else ""
    return (
        f"chain gpus memory_bytes=memory level=level links {batch}best_known best_by=by bound "
        "bound_by=by gap contiguous baseline=what~people~use"
    )


def _asked(scope: Scope) -> str:
    if scope.microbatches is not None:
        return f"{scope.allocation}, training steps"
    longest = "any k" if scope.max_k is None else f"k up to {scope.max_k}"
    return f"{scope.allocation}, {'k = 1' if scope.max_k == 1 else longest}"


def _instance(runs: Records, known: BestKnown) -> dict[str, Any]:
    plan, bound, rate = known.plan, known.bound, known.bandwidth_bytes_per_s
    count = known.microbatches or 1
    row: dict[str, Any] = {
        "chain": known.chain,
        "gpus": known.gpus,
        "memory_bytes": known.memory_bytes,
        "level": runs[0]["level"],
        "links": "free" if rate is None else format_bandwidth(rate),
        "batch": known.batch,
        "best_known": known.status,
    }
    if plan is not None:
        row["chain"] = f"[{known.chain}]({plan.certificate})"
        found = format_duration(plan.period * count)
        row |= {"best_known": found, "best_by": f"`{plan.by.solver}`"}
    if bound is not None:
        proven = format_duration(bound.period * count)
        row |= {"bound": proven, "bound_by": f"`{bound.by.solver}`"}
        if plan is not None and bound.period:
            row["gap"] = plan.period / bound.period - 1
    others = [run for run in runs if run["solver"] in BASELINES and run.period is not None]
    for run in runs:
        if run["solver"] == REFERENCE:
            row["contiguous"] = _period(run)
    if others:
        best = min(others, key=lambda run: run.period or 0)
        row["baseline"] = f"{_period(best)} (`{best['solver']}`)"
    return row


def _period(run: Record) -> str:
    return str(run["status"]) if run.period is None else format_duration(run.period)


def _draw(known: Sequence[BestKnown], records: Records) -> Figure:
    best = best_periods(records, known)
    names = methods_of(run for run in records if run.period is not None)
    eager = [name for name in names if name in BASELINES and name.endswith("_1f1b")]
    groups = {
        "our solvers": [name for name in names if name not in BASELINES],
        "other partitioners, run by 1F1B*": [
            name for name in names if name in BASELINES and name not in eager
        ],
        "other partitioners, run by 1F1B": eager,
    }
    panels: dict[str, Mapping[str, tuple[list[float], int]]] = {}
    for title, group in groups.items():
        if not group:
            continue
        first = [REFERENCE] if REFERENCE in names and REFERENCE not in group else []
        panels[title] = {name: _profile(name, records, best) for name in (*first, *group)}
    return draw_profiles(panels or {"no plans": {}})


def _profile(name: str, records: Records, best: Best) -> tuple[list[float], int]:
    runs = [run for run in records if run["solver"] == name]
    ratios = [float(run.period / best[run.instance]) for run in runs if run.period is not None]
    return ratios, sum(run.instance in best for run in runs)


def solvers_suite(known: Sequence[BestKnown]) -> Suite:
    """Return the suite, whose tables and picture compare with the best-known plans."""
    return Suite(
        title="Solvers side by side",
        families=(RUNS,),
        protocol="A memory level is the memory of a GPU over the least with which a contiguous "
        "plan exists; instances of theorems have their own memory.",
        misses=misses,
        well=_well,
        tables=[
            Table(
                "Ranks",
                "*Feasible*: of the instances of which a plan is known, those with a plan. *Over "
                "best*: period over that of the best known plan of any allocation, where there is "
                "a plan.",
                "method asked=asked~for runs plans feasible proven refused mean=over~best,~mean "
                "worst=most median_s longest_s",
                partial(_rank_rows, known),
            ),
            Table(
                "By memory level",
                "Period over the best known, geometric mean over the instances with a plan.",
                lambda rows: " ".join(rows[0]),
                lambda records: by_level(records, best_periods(records, known)),
            ),
            Table(
                "The exact contiguous plan and every other partitioner",
                "All were asked for contiguous plans with k = 1. Period of the other over ours "
                "where both have a plan.",
                "solver=other both=both~have~a~plan above=ours~is~longer "
                "mean=theirs~over~ours,~mean worst=most only_ours=only~ours~has~a~plan "
                "only_theirs=only~theirs",
                comparisons,
            ),
            Table(
                "The methods",
                "",
                "method description",
                lambda records: [
                    {"method": f"`{name}`", "description": title_of(name)}
                    for name in methods_of(records)
                    if title_of(name)
                ],
            ),
            Table(
                "Every instance",
                "The best known plan and the largest proven bound for plans of any allocation; and "
                "contiguous plans: the exact one, and the best of what people use. Periods; of a "
                "batch, in samples, the whole training step.",
                _instance_columns,
                partial(_instance_rows, known),
            ),
        ],
        overview=Table(
            "Solvers: period over the best known plan",
            "",
            "solver runs plans proven refused mean worst=most median_s longest_s",
            lambda records: ranks(records, best_periods(records, known)),
        ),
        draw=partial(_draw, known),
    )
