"""The suite of `schedopt.bench.hybrid`: goals, tables and picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.hybrid import ALLOCATIONS, BANDWIDTH, LEVELS, MICROBATCHES, NEAR
from schedopt.bench.pictures import draw_hybrid
from schedopt.bench.planners import PLANNERS
from schedopt.bench.records import Record, of_family
from schedopt.bench.suite import Records, Suite, Table, label
from schedopt.bench.tables import Row, mean_ratio, show
from schedopt.units import format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYSTEMS: Final = {
    "pipeline": "best pipeline",
    "data_parallel": "data parallelism",
    "grid": "grid",
    "best_grid": "best grid",
    "piper": "Piper",
    "pipedream": "PipeDream",
    "alpa": "Alpa-like",
}
"""What our contiguous step is compared with."""
DRAWN: Final = {
    "pipeline": "best pipeline, by our search",
    "grid": "uniform grid, times balanced",
    "best_grid": "best uniform grid, by our search",
}
"""What the picture says in place of a title that is short."""
GOAL_GAP: Final = 0.04
"""For the geometric mean of contiguous steps over their bounds, less 1."""
GOAL_LARGEST_GAP: Final = 0.20
GOAL_MEDIAN_S: Final = 1.0
GOAL_LONGEST_S: Final = 20.0


def over(row: Row, name: str) -> float | None:
    """Return a step over our contiguous one; None where one of the two does not fit."""
    time, ours = row[f"{name}_ns"], row["contiguous_ns"]
    return None if time is None or ours is None else time / ours


def excess(row: Row, name: str = "contiguous") -> float | None:
    """Return a step of ours over its bound; None where one of them is missing."""
    step, bound = row[f"{name}_ns"], row[f"{name}_bound_ns"]
    return None if step is None or not bound else step / bound


def groups(records: Records) -> Iterator[tuple[str, list[Record]]]:
    """Yield the records by memory level, by GPUs, and all, each with what they have in common."""
    rows = of_family(records, "hybrid")
    for level in LEVELS:
        yield level, [row for row in rows if row["level"] == level]
    for gpus in sorted({row["gpus"] for row in rows}):
        yield f"{gpus} GPUs", [row for row in rows if row["gpus"] == gpus]
    yield "all", rows


def nearness(records: Records) -> list[dict[str, Any]]:
    """Return for each group how near our steps are to their bounds, and what they took."""
    found = []
    for name, rows in groups(records):
        if not rows:
            continue
        row: dict[str, Any] = {"group": name, "runs": len(rows)}
        for ours in ALLOCATIONS:
            ratios = [ratio for one in rows if (ratio := excess(one, ours)) is not None]
            spent = [one[f"{ours}_cpu_seconds"] for one in rows]
            row |= {
                f"{ours}_gap": mean_ratio(ratios) - 1 if ratios else None,
                f"{ours}_largest_gap": max(ratios) - 1 if ratios else None,
                f"{ours}_near": sum(ratio <= NEAR for ratio in ratios),
                f"{ours}_median_cpu_s": median(spent),
                f"{ours}_longest_cpu_s": max(spent),
                f"{ours}_longest_s": max(one[f"{ours}_seconds"] for one in rows),
            }
        shorter = [ratio for one in rows if (ratio := over(one, "anywhere")) is not None]
        row["anywhere_over_contiguous"] = mean_ratio(shorter) if shorter else None
        row["best"] = min(shorter, default=None)
        found.append(row)
    return found


def comparisons(records: Records) -> list[dict[str, Any]]:
    """Return for each group what others take over ours: mean (largest; how many do not fit)."""
    found = []
    for name, rows in groups(records):
        if rows:
            row: dict[str, Any] = {"group": name, "runs": len(rows)}
            found.append(row | {system: _compare(rows, system) for system in SYSTEMS})
    return found


def _compare(rows: Sequence[Row], system: str) -> str:
    ratios = [ratio for row in rows if (ratio := over(row, system)) is not None]
    missing = sum(row[f"{system}_ns"] is None for row in rows)
    if not ratios:
        return f"({missing} do not fit)"
    return f"{mean_ratio(ratios):.3f} ({max(ratios):.2f}; {missing})"


def planners(records: Records) -> list[dict[str, Any]]:
    """Return for each planner where its choice fits, and how long its steps are over ours."""
    rows, found = of_family(records, "hybrid"), []
    for name in PLANNERS if rows else ():
        best = [ratio for row in rows if (ratio := over(row, name)) is not None]
        rigid = [ratio for row in rows if (ratio := over(row, f"{name}_rigid")) is not None]
        seconds = [row[f"{name}_cpu_s"] for row in rows]
        found.append(
            {
                "planner": SYSTEMS[name],
                "fits": f"{sum(row[f'{name}_ns'] is not None for row in rows)} of {len(rows)}",
                "rigid_mean": mean_ratio(rigid),
                "mean": mean_ratio(best),
                "worst": max(best, default=None),
                "equal": sum(ratio <= 1.0 for ratio in best),
                "median_s": median(seconds),
                "longest_s": max(seconds),
            }
        )
    return found


def misses(records: Records) -> Iterator[str]:
    """Yield in words where our step is not the shortest, and what misses its goal."""
    rows = of_family(records, "hybrid")
    for row in rows:
        names = ("chain", "gpus", "level")
        where = label("step", {name: row[name] for name in names})
        for system, title in SYSTEMS.items():
            if row[f"{system}_ns"] is None:
                continue
            ratio = over(row, system)
            if ratio is None:
                yield f"{where}: {title} fits, and we have no contiguous step"
            elif ratio < 1:
                yield f"{where}: {title} takes {ratio:.4f} of our contiguous step"
        if (ratio := over(row, "anywhere")) is not None and ratio > 1:
            yield f"{where}: with stages anywhere {ratio:.4f} of the contiguous step"
        for ours in ALLOCATIONS:
            if (ratio := excess(row, ours)) is not None and ratio < 1:
                yield f"{where}: the bound with stages {ours} lies above our step"
    yield from _missed_goals(records)


def _missed_goals(records: Records) -> Iterator[str]:
    for row in nearness(records):
        if row["group"] != "all":
            continue
        gap, largest = row["contiguous_gap"], row["contiguous_largest_gap"]
        if gap is None or gap > GOAL_GAP:
            yield f"gap {show(gap, '%') or 'none'} in the mean, goal {show(GOAL_GAP, '%')}"
        if largest is not None and largest > GOAL_LARGEST_GAP:
            yield f"gap {show(largest, '%')} at most, goal {show(GOAL_LARGEST_GAP, '%')}"
        median_s, longest_s = row["contiguous_median_cpu_s"], row["contiguous_longest_cpu_s"]
        if median_s > GOAL_MEDIAN_S:
            yield f"median {median_s:.1f} CPU s, goal {GOAL_MEDIAN_S:g} s"
        if longest_s > GOAL_LONGEST_S:
            yield f"longest {longest_s:.1f} CPU s, goal {GOAL_LONGEST_S:g} s"


def _problems(records: Records) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "bound": _time(row["contiguous_bound_ns"]),
            "contiguous": _time(row["contiguous_ns"]),
            "gap": None if (ratio := excess(row)) is None else ratio - 1,
            "anywhere": _time(row["anywhere_ns"]),
            "anywhere_gap": None if (ratio := excess(row, "anywhere")) is None else ratio - 1,
            **{system: show(over(row, system), ".3f") for system in SYSTEMS},
        }
        for row in of_family(records, "hybrid")
    ]


def _time(nanoseconds: int | None) -> str:
    return "none" if nanoseconds is None else format_duration(nanoseconds)


def _summary(records: Records) -> Iterator[str]:
    for row in nearness(records):
        if row["group"] == "all":
            yield (
                f"{row['runs']} steps: contiguous {show(row['contiguous_gap'], '%')} above the "
                f"bound in the mean, {show(row['contiguous_largest_gap'], '%')} at most; anywhere "
                f"{show(row['anywhere_over_contiguous'], '.3f')} of that"
            )
    for name in ALLOCATIONS:
        rows = of_family(records, "hybrid")
        seconds = [near for row in rows if (near := row.get(f"{name}_near_s")) is not None]
        if seconds:
            yield (
                f"{name}, within {NEAR - 1:.0%} of the last step: after {median(seconds):.1f} s in "
                f"the median, {max(seconds):.1f} s at most"
            )
    for row in comparisons(records):
        if row["group"] == "all":
            for system, title in SYSTEMS.items():
                yield f"{title} over ours: {row[system]}"


def _draw(records: Records) -> Figure:
    rows = of_family(records, "hybrid")

    def by_level(ratio: Callable[[Record], float | None]) -> dict[str, list[float]]:
        return {
            level: _present(ratio(row) for row in rows if row["level"] == level) for level in LEVELS
        }

    drawn = {
        "proven: no step is shorter": by_level(partial(over, name="contiguous_bound")),
        "schedopt": by_level(partial(over, name="contiguous")),
        "schedopt, stages anywhere": by_level(partial(over, name="anywhere")),
        **{
            DRAWN.get(system, title): by_level(partial(over, name=system))
            for system, title in SYSTEMS.items()
        },
    }
    return draw_hybrid(drawn, len(rows))


def _present(ratios: Iterable[float | None]) -> list[float]:
    return [ratio for ratio in ratios if ratio is not None]


RATIOS: Final = " ".join(f"{name}={title.replace(' ', '~')}" for name, title in SYSTEMS.items())
TABLES: Final[Sequence[Table]] = (
    Table(
        "What others take",
        "The step of each over our contiguous one: geometric mean where it fits (the largest; how "
        "many do not fit).",
        f"group=memory,~or~GPUs runs {RATIOS}",
        comparisons,
    ),
    Table(
        "Planners",
        "Over our contiguous step, geometric mean: as 1F1B at the depth that planners prescribe, "
        "and in the best of three orders. Seconds are CPU seconds to choose.",
        "planner fits rigid_mean=1F1B~over~ours mean=best~order~over~ours worst=most "
        "equal=not~longer median_s longest_s",
        planners,
    ),
    Table(
        "How near to the best",
        "Gaps to the bound of contiguous stages: geometric mean, largest, and how many are within "
        f"{NEAR - 1:.0%}. CPU seconds of the whole solve, which do not depend on what else the "
        "machine does, and the longest on the clock.",
        "group=memory,~or~GPUs runs contiguous_gap=gap contiguous_largest_gap=largest~gap "
        f"contiguous_near=within~{NEAR - 1:.0%} contiguous_median_cpu_s=median~CPU~s "
        "contiguous_longest_cpu_s=longest~CPU~s contiguous_longest_s=longest~on~the~clock",
        nearness,
    ),
    Table(
        "Stages anywhere",
        "Over the contiguous step: geometric mean and least; and gaps to the bound of any "
        "allocation.",
        "group=memory,~or~GPUs runs anywhere_over_contiguous=over~contiguous best=least "
        "anywhere_gap=gap anywhere_largest_gap=largest~gap anywhere_median_cpu_s=median~CPU~s "
        "anywhere_longest_cpu_s=longest~CPU~s anywhere_longest_s=longest~on~the~clock",
        nearness,
    ),
    Table(
        "Every problem",
        "Our steps and the bounds of contiguous ones; what others take over our contiguous step.",
        "chain gpus level memory_bytes bound contiguous gap anywhere anywhere_gap "
        f"contiguous_cpu_seconds=CPU~s {RATIOS}",
        _problems,
    ),
)

SUITE: Final = Suite(
    title="Training steps on stages with replicas",
    families=("hybrid",),
    protocol=f"Links of {BANDWIDTH} between any two GPUs, full duplex; steps of {MICROBATCHES} P "
    "micro-batches on P GPUs, with the sum of the gradients and the update; optimizer state may "
    "be sharded (ZeRO-1), and layers recomputed. Memory is *least*, 1.05 times the least with "
    "which contiguous stages with replicas fit; *ample*, what all layers need on one GPU without "
    "shards and recompute; *tight* and *medium*, a third and two thirds of the way by factors. "
    "Ours is what `solve --batch` finds with contiguous stages, and with stages anywhere. *Best "
    "pipeline* and *best grid* come from the same search with one replica of each stage, and "
    "with the same number of replicas for all stages; *grid* is the best of all uniform grids "
    "whose cuts balance times, recomputed as a whole or not at all; *data parallelism* has all "
    "layers on each GPU. Piper, PipeDream and an Alpa-like programme, each written from its "
    "publication, choose stages and replicas. Steps of others are simulated as ours are: 1F1B at "
    "the prescribed depth, a backward as soon as one is there, and both with up to two more in "
    "flight where these fit; shards as far as allowed; the best counts.",
    misses=misses,
    well="No step of others is shorter than ours, no bound lies above one, and all goals are met.",
    tables=TABLES,
    summary=_summary,
    draw=_draw,
)
