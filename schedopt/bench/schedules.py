"""Pattern search against fixed schedules, on GPUs with exactly the memory that each of them needs.

A fixed schedule is a step of m micro-batches with a flush, laid out by its rule without a limit of
memory. Its GPU that needs most, in the reading *sum*, says what memory every GPU has in the
searches. They look for the shortest step of m micro-batches with a flush, and for the least period
without one, on the stages of the fixed schedule and on any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from schedopt.account import bubble
from schedopt.bench.general import BANDWIDTH, chain_key, most_bytes
from schedopt.bench.pictures import draw_schedules
from schedopt.bench.records import Record, exact, fraction, gap_of
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bench.tables import Row, mean_ratio, number, summarize
from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from schedopt.systems.steps import published_step
from schedopt.units import format_duration
from schedopt.validation import LARGEST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULES: Final = ("gpipe", "one_f_one_b_flush", "interleaved", "zero_bubble", "chimera")
"""Names of systems."""
REPLICATED: Final = ("chimera",)
"""Those with two GPUs for each stage."""
MAX_K: Final = 2
"""The k up to which patterns without a flush are searched."""


def schedule_case(chain: Chain, gpus: int, microbatches: int, schedule: str) -> Case:
    """Return a fixed schedule of `SCHEDULES`, and the searches with its memory."""

    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        try:
            plan = fixed_plan(chain, gpus, microbatches, schedule)
        except InputError as error:
            where = f"{error.field}: " if error.field else ""
            return {"refused": f"{where}{error.rule}"}
        return {
            "refused": None,
            "memory_bytes": most_bytes(plan),
            "split_backward": plan.scope.split_backward,
            "fixed": _figures(plan),
            "searches": _searches(plan, chain, microbatches, schedule, effort, proceed),
        }

    key = {"gpus": gpus, "microbatches": microbatches, "schedule": schedule}
    return Case("schedules", {**chain_key(chain), **key}, measure)


def fixed_plan(chain: Chain, gpus: int, microbatches: int, schedule: str) -> Plan:
    """Return the fixed schedule without updates."""
    platform = Platform(gpus, LARGEST, bandwidth=BANDWIDTH)
    if schedule not in REPLICATED:
        return published_step(schedule, chain, platform, microbatches)
    # Replicas add their gradients up, so the parts of the weights must be known.
    layers = tuple(replace(layer, update_ns=None) for layer in chain.layers)
    chain = replace(chain, layers=layers)
    setting = SystemConfig(chain=chain, platform=platform, microbatches=microbatches)
    return find_system(schedule).plan(setting)


def _searches(
    plan: Plan, chain: Chain, microbatches: int, schedule: str, effort: Effort, proceed: Proceed
) -> dict[str, Any]:
    """Return what each search finds, which begins with the plan of the one before it."""
    replicated = schedule in REPLICATED
    memory_bytes = max(1, most_bytes(plan))
    platform = Platform(len(plan.platform.gpus), memory_bytes, bandwidth=BANDWIDTH)
    found: dict[str, Any] = {}
    for goal, initial in (("step", None if replicated else plan), ("period", None)):
        for allocation in ("any",) if replicated else ("order", "any"):
            name = f"{allocation}_{goal}"
            proceed(f"{chain.name}, {len(platform.gpus)} GPUs, {schedule}, {name}")
            result = solve(
                chain,
                platform,
                scope=Scope(
                    allocation="fixed" if allocation == "order" else "general",
                    microbatches=microbatches if goal == "step" else None,
                    max_k=None if goal == "step" else MAX_K,
                    split_backward=plan.scope.split_backward,
                ),
                stages=plan.stages if allocation == "order" else (),
                initial=initial,
                **effort.options,
            )
            initial = result.plan
            found[name] = _search_figures(result)
    return found


def _figures(plan: Plan) -> dict[str, Any]:
    return {"period_exact": exact(plan.pattern.period), "bubble": round(float(bubble(plan)), 4)}


def _search_figures(result: Result) -> dict[str, Any]:
    """Return what a search found: periods and bounds of a micro-batch, ns."""
    plan = result.plan
    return {
        "status": result.status,
        **({"period_exact": None, "bubble": None} if plan is None else _figures(plan)),
        "bound_exact": exact(result.lower_bound),
        "memory_bytes": None if plan is None else most_bytes(plan),
        "solver": result.solver,
        "seconds": round(result.seconds, 3),
    }


def schedule_cases(
    chains: Sequence[Chain], gpus: Sequence[int], multiples: Sequence[int]
) -> list[Case]:
    """Return the cases; a step has a multiple of the number of GPUs in micro-batches."""
    return [
        schedule_case(chain, count, count * multiple, schedule)
        for chain, count, multiple, schedule in product(chains, gpus, multiples, SCHEDULES)
    ]


SEARCHES: Final = {
    "order_step": "step, same stages",
    "any_step": "step, any stages",
    "order_period": "period, same stages",
    "any_period": "period, any stages",
}
"""The searches, in words."""


def ratio_of(record: Row, search: str) -> Fraction | None:
    """Return how many times as fast as the fixed schedule a search is; None without a plan."""
    figures = {} if record["refused"] else record["searches"].get(search, {})
    period = fraction(figures.get("period_exact"))
    return None if period is None else Fraction(*record["fixed"]["period_exact"]) / period


def _by_schedule(record: Row) -> tuple[int, int]:
    return SCHEDULES.index(record["schedule"]), record["microbatches"] // record["gpus"]


def _names(record: Row) -> dict[str, Any]:
    """Return what tables call a record's schedule and number of micro-batches."""
    system, multiple = find_system(record["schedule"]), record["microbatches"] // record["gpus"]
    per_gpu = "P" if multiple == 1 else f"{multiple} P"
    return {"title": system.title, "source": system.source, "per_gpu": per_gpu}


def means(records: Records) -> list[dict[str, Any]]:
    """Return a row for each schedule and number of micro-batches a GPU.

    It holds the numbers of runs, refused runs and plans, the mean bubble, and for each search its
    ratios (mean: geometric, least, most; None without plans) and how many plans are proven optimal.
    """
    rows = []
    for record in sorted(records, key=_by_schedule):
        made = not record["refused"]
        bubble = number(record["fixed"]["bubble"] if made else None)
        row = {**_names(record), "bubble": bubble, "plan": made, "refused": not made}
        for name in SEARCHES:
            searched = record["searches"].get(name, {}) if made else {}
            row[name] = number(ratio_of(record, name))
            row[f"{name}_proven"] = searched.get("status") == "optimal"
        rows.append(row)
    figures: dict[str, tuple[str, Any]] = {}
    for name in SEARCHES:
        figures[f"{name}_proven"] = f"{name}_proven", "sum"
        for how, function in (("mean", mean_ratio), ("least", "min"), ("most", "max")):
            figures[f"{name}_{how}"] = name, function
    return summarize(
        rows,
        "title source per_gpu",
        plans=("plan", "sum"),
        refused=("refused", "sum"),
        bubble=("bubble", "mean"),
        **figures,
    )


def _mean_rows(records: Records) -> list[dict[str, Any]]:
    rows = means(records)
    for row in rows:
        for name in SEARCHES:
            mean, least, most = (row[f"{name}_{how}"] for how in ("mean", "least", "most"))
            row[name] = None if mean is None else f"{mean:.3f} ({least:.3f} to {most:.3f})"
            row[f"{name}_proven"] = None if mean is None else row[f"{name}_proven"]
    return rows


def misses(records: Records) -> Iterator[str]:
    """Yield in words where a search is worse than what it could begin with, or than its bound.

    Neither a step nor a period is longer than the fixed schedule once, or again and again; and no
    search on any stages is worse than that on the same ones.
    """
    made = [record for record in records if not record["refused"]]
    for record in made:
        where = f"{record['chain']}, {record['gpus']} GPUs, {record['microbatches']} micro-batches"
        title = _names(record)["title"]
        yield from (f"{where}, {title}: {missed}" for missed in _misses(record))
    for schedule in REPLICATED:
        own = [record for record in made if record["schedule"] == schedule]
        for name, words in SEARCHES.items():
            ratios = _ratios(own, name)
            longer = [ratio for ratio in ratios if ratio < 1]
            if longer:
                yield (
                    f"{find_system(schedule).title}, {words}: longer on {len(longer)} of "
                    f"{len(ratios)} runs, up to {1 / min(longer):.3f} times; it has two GPUs for "
                    "each stage, which no search has"
                )


def _misses(record: Row) -> Iterator[str]:
    for name, search in record["searches"].items():
        ratio, gap, words = ratio_of(record, name), gap_of(search), SEARCHES[name]
        if ratio is None:
            yield f"{words}: {search['status']}, no plan"
            continue
        if ratio < 1 and record["schedule"] not in REPLICATED:
            yield f"{words}: {float(1 / ratio):.3f} times as long"
        if gap is not None and gap < 0:
            yield f"{words}: below its bound"
        if search["memory_bytes"] > record["memory_bytes"]:
            yield f"{words}: more memory than the fixed schedule"
        same = ratio_of(record, name.replace("any_", "order_"))
        if same is not None and ratio < same:
            yield f"{words}: worse than on the same stages"


def _ratios(records: Records, search: str) -> list[float]:
    """Return the ratios of those records that have a plan."""
    return [float(ratio) for record in records if (ratio := ratio_of(record, search)) is not None]


def _runs(goal: str, records: Records) -> list[dict[str, Any]]:
    """Return a row for each plan, with the figures of the searches for a step or a period."""
    rows = []
    for record in records:
        if record["refused"]:
            continue
        count, fixed = record["microbatches"] if goal == "step" else 1, record["fixed"]
        row = {**record, **_names(record), "bubble": fixed["bubble"]}
        row["fixed"] = _duration(fixed, count)
        for side in ("order", "any"):
            search = record["searches"].get(f"{side}_{goal}")
            if search is None:
                continue
            planned, proven = search["period_exact"] is not None, search["status"] == "optimal"
            row |= {
                side: _duration(search, count) if planned else search["status"],
                f"{side}_ratio": ratio_of(record, f"{side}_{goal}"),
                f"{side}_gap": "proven" if proven else gap_of(search),
                f"{side}_bubble": search["bubble"],
                f"{side}_solver": search["solver"],
            }
        rows.append(row)
    return rows


def _duration(figures: Mapping[str, Any], count: int) -> str:
    """Return the time of a number of micro-batches."""
    return format_duration(count * Fraction(*figures["period_exact"]))


def _refusals(records: Records) -> list[dict[str, Any]]:
    return [{**record, **_names(record)} for record in records if record["refused"]]


def _draw(records: Records) -> Figure:
    made = sorted((record for record in records if not record["refused"]), key=_by_schedule)
    groups: dict[str, list[Record]] = {}
    for record in made:
        names = _names(record)
        groups.setdefault(f"{names['title']}\nm = {names['per_gpu']}", []).append(record)
    rows = {
        label: {name: _ratios(group, name) for name in SEARCHES} for label, group in groups.items()
    }
    return draw_schedules(rows, len({record["chain_sha256"] for record in made}))


PLACE: Final = "chain gpus microbatches=m title=schedule"
SIDES: Final = " ".join(
    f"{side}={which}~stages {side}_ratio=ratio {side}_gap=gap {side}_bubble=bubble "
    f"{side}_solver=solver"
    for side, which in (("order", "same"), ("any", "any"))
)
RUNS: Final = f"{PLACE} memory_bytes=memory fixed bubble {SIDES}"


def _searched(name: str) -> str:
    return f"{name}={SEARCHES[name].replace(' ', '~')} {name}_proven=proven"


SUITE: Final = Suite(
    title="Pattern search against fixed schedules",
    families=("schedules",),
    protocol=f"Links {BANDWIDTH}. A fixed schedule is a step of m micro-batches with a flush, "
    "without updates. Its GPU that needs most, in the reading `sum`, says what memory each GPU has "
    "in the searches. They look for the shortest step of m micro-batches with a flush, and for the "
    f"least period without one (k up to {MAX_K}), on the stages of the schedule and on any. The "
    "backward may be split where the schedule splits it. Ratios are the makespan of the fixed "
    "schedule over that of the step found, or its makespan for each micro-batch over the period "
    "found: above 1, the search is that many times as fast. The bubble is idle time of the GPUs "
    "that have a stage.",
    misses=misses,
    well="Nothing found takes longer than the fixed schedule at its memory, or less than its "
    "bound.",
    tables=[
        Table(
            "Schedules",
            "Of P GPUs. Ratios: geometric mean (least to largest); proven: how many of the plans "
            "found are optimal.",
            "title=schedule source per_gpu=m plans refused bubble "
            + " ".join(map(_searched, SEARCHES)),
            _mean_rows,
        ),
        Table("Steps", "The makespan of m micro-batches, with a flush.", RUNS,
              partial(_runs, "step")),
        Table("Steady states", "The period, and the makespan of the fixed schedule for each "
              "micro-batch.", RUNS, partial(_runs, "period")),
        Table("Refused", "Chains that a schedule cannot do.", f"{PLACE} refused=why", _refusals),
    ],
    overview=Table(
        "Times as fast as the fixed schedule: geometric mean, with its memory",
        "",
        "title=schedule per_gpu=m plans refused "
        + " ".join(f"{name}_mean={words.replace(' ', '~')}" for name, words in SEARCHES.items()),
        means,
        keys=2,
    ),
    draw=_draw,
)  # fmt: skip
