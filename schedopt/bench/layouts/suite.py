"""Layouts that people set by hand: their steps, and how far from the best each is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final

from schedopt.account import memory
from schedopt.bench.layouts.rows import LayoutRow
from schedopt.bench.records import exact, fraction, of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bench.tables import Row
from schedopt.checking import check
from schedopt.errors import InvalidPlanError
from schedopt.exporting.megatron import make_layout
from schedopt.megatron_layout import read_layout
from schedopt.plan import Plan
from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import lay_out_step
from schedopt.solving.engines.shape import EngineShape

FAMILY: Final = "layouts"
GOAL_GAP: Final = Fraction(1, 100)
GOAL_S: Final = 60.0
"""CPU seconds of a line, of one thread."""
PROVEN: Final = Fraction(1, 10_000)
"""Nearer to its bound nothing better is looked for."""


def layout_cases(rows: Sequence[LayoutRow], *, quick: bool = False) -> list[Case]:
    """Return a case for each layout; quick: for those of the first two models."""
    models = [*dict.fromkeys(row.model for row in rows)]
    taken = models[:2] if quick else models
    return [_case(row) for row in rows if row.model in taken]


def _case(row: LayoutRow) -> Case:
    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        return _measure(row, effort)

    key = {
        "place": row.place,
        "model": row.model,
        "pp": row.ranks,
        "chunks": row.chunks,
        "microbatches": row.microbatches,
        "layout": row.layout,
    }
    return Case(FAMILY, key, measure)


def _measure(row: LayoutRow, effort: Effort) -> dict[str, Any]:
    if row.chain is None:
        return {"gpu": row.gpu, "status": "no shape"}
    start = time.process_time()
    cuts = EngineCuts(row.problem, Grid(ranks=row.ranks, chunks=row.chunks))
    shape = EngineShape(cuts)
    shape.keep(cuts.schedule_bound(row.begins), row.begins)
    best = find_best(shape, lambda: time.process_time() - start > effort.time_limit)
    seconds = time.process_time() - start
    # A layout is reported only if Megatron-LM reads it, and its plan passes the check.
    hand = _lay_out(cuts, row.begins)
    ours = hand if best == row.begins else _lay_out(cuts, best)
    layout = make_layout(ours)
    read_layout(layout, ranks=row.ranks)
    bound = min(shape.low, ours.pattern.period_total_ns)
    return {
        "gpu": row.gpu,
        "status": "optimal" if bound == ours.pattern.period_total_ns else "feasible",
        "hand_exact": exact(Fraction(hand.pattern.period_total_ns)),
        "period_exact": exact(Fraction(ours.pattern.period_total_ns)),
        "bound_exact": exact(Fraction(bound)),
        "hand_peak_bytes": _peak(hand),
        "best_peak_bytes": _peak(ours),
        "best_layout": layout,
        "cpu_seconds": round(seconds, 2),
    }


def find_best(shape: EngineShape, stopped: Callable[[], bool]) -> FirstLayers:
    """Return the best cut found of a shape, whose bound rises until it is met or time is up."""
    shape.tabulate()
    for begins in shape.best_starts():
        shape.descend(begins, stopped)
    while shape.is_open and shape.grows_below(shape.known_ns) and not stopped():
        for _ in shape.grow(shape.known_ns, stopped):
            pass
        if shape.known_ns - shape.low <= PROVEN * shape.low:
            break
    return shape.best[1]


def _lay_out(cuts: EngineCuts, begins: FirstLayers) -> Plan:
    """Return the step of a cut, which passes the check.

    Raises
    ------
    InvalidPlanError
        If it does not.
    """
    plan = lay_out_step(cuts.problem, cuts.grid, cuts.stages(begins))
    if found := check(plan):
        raise InvalidPlanError(f"a layout: {found[0]} ({len(found)} in all)")
    return plan


def _peak(plan: Plan) -> int:
    """Return the most that a GPU holds at once, bytes."""
    return max(need.peak_bytes for need in memory(plan))


def _over(row: Row, name: str) -> Fraction | None:
    best = fraction(row.get("period_exact"))
    other = fraction(row.get(name))
    return None if best is None or other is None else other / best


def _rows(records: Records) -> list[Row]:
    """Return the records with what their steps are over the best one."""
    return [
        {
            **record,
            "hand_over_best": _over(record, "hand_exact"),
            "bound_over_best": _over(record, "bound_exact"),
        }
        for record in of_family(records, FAMILY)
    ]


def _misses(records: Records) -> Iterator[str]:
    for row in _rows(records):
        name = f"{row['model']} {row['pp']} x {row['chunks']}, {row['place']}"
        bound = row["bound_over_best"]
        if bound is None:
            yield f"{name}: the shape of the model is not known"
            continue
        if 1 - bound > GOAL_GAP:
            yield f"{name}: the bound is {float(1 - bound):.2%} below the best, the goal is 1 %"
        if row["cpu_seconds"] > GOAL_S:
            yield f"{name}: {row['cpu_seconds']} CPU s, the goal is {GOAL_S:g} s"


def _summary(records: Records) -> Iterator[str]:
    known = [row for row in _rows(records) if row["hand_over_best"] is not None]
    if known:
        better = [row for row in known if row["hand_over_best"] > 1]
        most = max(known, key=lambda row: row["hand_over_best"])
        yield (
            f"{len(known)} layouts: {len(better)} bettered, by up to "
            f"{float(most['hand_over_best']) - 1:.1%} ({most['model']}, {most['pp']} x "
            f"{most['chunks']}); the largest gap to a bound is "
            f"{float(max(1 - row['bound_over_best'] for row in known)):.2%}."
        )


SUITE: Final = Suite(
    title="Layouts set by hand, and the best ones",
    families=(FAMILY,),
    protocol="Each layout is run in the order of Megatron-LM with its pipeline ranks (pp), chunks "
    "and micro-batches (m), on a chain of the shape of its model: work and bytes by formulas, "
    "times by the roofline of the GPU. The best layout has the same ranks and chunks, any number "
    "of layers in each, and no limit of memory; the bound is that of all of them. Limits count CPU "
    "seconds of one thread. Both steps are laid out and checked. The peak is that of the fullest "
    "rank, optimizer states not sharded.",
    misses=_misses,
    well="Each is bettered or proven, within 1 % of the bound, in at most 60 CPU seconds.",
    tables=[
        Table(
            "Steps",
            "",
            "model pp chunks microbatches=m gpu hand_exact=by~hand period_exact=best "
            "hand_over_best=by~hand/best bound_over_best=bound/best hand_peak_bytes=peak~by~hand "
            "best_peak_bytes=peak~of~best cpu_seconds",
            _rows,
            keys=4,
        ),
        Table("Layouts", "", "model pp chunks layout best_layout=best", FAMILY, keys=3),
    ],
    summary=_summary,
)
