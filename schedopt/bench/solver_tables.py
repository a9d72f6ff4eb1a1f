"""Solvers side by side, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schedopt.bench.best_known import BestKnown
from schedopt.bench.contenders import RIVALS, title_of
from schedopt.bench.markdown import opening, table
from schedopt.bench.records import InstanceKey, Record
from schedopt.bench.summary import (
    best_periods,
    by_level,
    duels,
    in_order,
    missed_goals,
    solvers_of,
    standings,
)
from schedopt.problem import Scope
from schedopt.units import format_bandwidth, format_bytes, format_duration


def to_markdown(records: Iterable[Record], known: Sequence[BestKnown], picture: str) -> str:
    """Return the tables of a suite.

    Parameters
    ----------
    records : iterable of Record
        The last run of each contender on each instance.
    known : sequence of BestKnown
    picture : str
        The name of the file that lies beside.
    """
    runs = in_order(records)
    all_well = "No plan refutes a bound."
    if duels(runs):
        all_well = (
            "The exact contiguous plan is proven in all runs, at or below that of each other "
            "partitioner, and there wherever one of them has a plan; no plan refutes a bound."
        )
    lines = opening("Solvers side by side", _protocol(runs), missed_goals(runs), all_well)
    lines += ["", f"![Instances solved within a factor of the best known]({picture})"]
    for part in (_standings(runs, known), _levels(runs, known), _duels(runs), _who(runs)):
        lines += ["", *part]
    lines += ["", *_instances(runs, {one.instance: one for one in known})]
    return "\n".join(lines) + "\n"


def _protocol(records: Sequence[Record]) -> str:
    def values(name: str) -> str:
        return ", ".join(dict.fromkeys(str(getattr(record, name)) for record in records))

    return (
        f"schedopt {values('schedopt')}, Python {values('python')}, {values('machine')}, "
        f"{values('date')}; seed {values('seed')}, workers {values('workers')}, runs at a time "
        f"{values('jobs')}, time limit {values('time_limit_s')} s a run. A memory level is the "
        "memory of a GPU over the least with which a contiguous plan exists; instances of theorems "
        "have their own memory."
    )


def _standings(runs: Sequence[Record], known: Sequence[BestKnown]) -> list[str]:
    scopes = {run.solver: run.scope for run in runs}
    return [
        "## Standings",
        "",
        "*Feasible*: of the instances of which a plan is known, those with a plan. *Over best*: "
        "period over that of the best known plan of any allocation, where there is a plan.",
        "",
        *table(
            ["contender", "asked for", "runs", "plans", "feasible", "proven", "refused",
             "over best, mean", "most", "median s", "longest s"],
            [
                [f"`{one.solver}`", _asked(scopes[one.solver]), one.runs, one.plans,
                 _percent(one.feasible), one.proven, one.refused, _ratio(one.mean),
                 _ratio(one.worst), f"{one.median_s:.3f}", f"{one.longest_s:.3f}"]
                for one in standings(runs, best_periods(runs, known))
            ],
        ),
    ]  # fmt: skip


def _levels(runs: Sequence[Record], known: Sequence[BestKnown]) -> list[str]:
    rows = by_level(runs, best_periods(runs, known))
    return [
        "## By memory level",
        "",
        "Period over the best known, geometric mean over the instances with a plan.",
        "",
        *table(
            ["contender", *rows],
            [
                [f"`{solver}`", *(_ratio(row.get(solver)) for row in rows.values())]
                for solver in solvers_of(runs)
            ],
        ),
    ]


def _duels(runs: Sequence[Record]) -> list[str]:
    return [
        "## The exact contiguous plan beside every other partitioner",
        "",
        "All were asked for contiguous plans with k = 1. Period of the other over ours where both "
        "have a plan.",
        "",
        *table(
            ["other", "both have a plan", "ours is longer", "theirs over ours, mean", "most",
             "only ours has a plan", "only theirs"],
            [
                [f"`{one.other}`", one.both, one.above, _ratio(one.mean), _ratio(one.worst),
                 one.only_ours, one.only_theirs]
                for one in duels(runs)
            ],
        ),
    ]  # fmt: skip


def _who(runs: Sequence[Record]) -> list[str]:
    titled = [(solver, title_of(solver)) for solver in solvers_of(runs)]
    return [
        "## Who is who",
        "",
        *(f"- `{solver}`: {title}" for solver, title in titled if title),
    ]


def _asked(scope: Scope) -> str:
    longest = "any k" if scope.max_k is None else f"k up to {scope.max_k}"
    return f"{scope.allocation}, {'k = 1' if scope.max_k == 1 else longest}"


def _instances(runs: Sequence[Record], known: Mapping[InstanceKey, BestKnown]) -> list[str]:
    of_instance: dict[InstanceKey, list[Record]] = {}
    for run in runs:
        of_instance.setdefault(run.instance, []).append(run)
    return [
        "## Every instance",
        "",
        "The best known plan and the largest proven bound for plans of any allocation; and "
        "contiguous plans: the exact one, and the best of what people use.",
        "",
        *table(
            ["chain", "GPUs", "memory", "level", "links", "best known", "by", "bound", "by", "gap",
             "contiguous", "what people use"],
            [
                _instance(same, known[instance])
                for instance, same in of_instance.items()
                if instance in known
            ],
        ),
    ]  # fmt: skip


def _instance(runs: Sequence[Record], known: BestKnown) -> list[object]:
    plan, bound, gap = known.plan, known.bound, ""
    if plan is not None and bound is not None and bound.period:
        gap = _percent(float(plan.period / bound.period - 1))
    rate = known.bandwidth_bytes_per_s
    exact = next((run for run in runs if run.solver == "contiguous"), None)
    others = [run for run in runs if run.solver in RIVALS and run.period is not None]
    best = min(others, key=lambda run: run.period or 0, default=None)
    return [
        known.chain if plan is None else f"[{known.chain}]({plan.certificate})",
        known.gpus,
        format_bytes(known.memory_bytes),
        runs[0].level,
        "free" if rate is None else format_bandwidth(rate),
        known.status if plan is None else format_duration(plan.period),
        "" if plan is None else f"`{plan.by.solver}`",
        "" if bound is None else format_duration(bound.period),
        "" if bound is None else f"`{bound.by.solver}`",
        gap,
        "" if exact is None else _period(exact),
        "" if best is None else f"{_period(best)} (`{best.solver}`)",
    ]


def _period(run: Record) -> str:
    return run.status if run.period is None else format_duration(run.period)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
