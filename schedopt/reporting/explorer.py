"""One page on which one moves among plans: complete in itself, without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from schedopt.account import PlanReport
from schedopt.drawing import chart_simulation
from schedopt.drawing.charts import MOST_DRAWN
from schedopt.errors import InputError
from schedopt.folding import whole
from schedopt.plan import Plan
from schedopt.reporting.exploration import Entry, Exploration
from schedopt.reporting.markup import described, escape, table, unbroken
from schedopt.reporting.tables import Table, alike_together, memory_table, stage_table
from schedopt.reporting.templates import fill_template, shown_in
from schedopt.reporting.timeline import encode_view
from schedopt.reporting.words import WORDS, bound_sentences
from schedopt.simulation import Simulation, simulate
from schedopt.units import counted, format_bytes, format_duration

MOST_BOXES: Final = 300_000
"""Operations and transfers of all timelines of a page, which is then of about 5 MB."""


@dataclass(frozen=True)
class Page:
    """A page, and what it had no room for.

    Parameters
    ----------
    text : str
        HTML.
    left_out : int
        Plans whose timeline is not on it.
    """

    text: str
    left_out: int


def render_explorer(
    exploration: Exploration,
    *,
    on_plan: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Page:
    """Return a page about some plans: the same one for the same plans.

    Each plan is shown with its figures, stages, memory and bound, and with the timeline of a step
    as long as `MOST_BOXES` allows; those that are filled on the map come first.

    Parameters
    ----------
    exploration : Exploration
    on_plan : callable
        Called with the number of plans done, of all, and the name of one in work.
    """
    entries = exploration.entries
    order = sorted(range(len(entries)), key=lambda number: not entries[number].filled)
    documents: dict[int, dict[str, Any]] = {}
    plans: list[Plan] = []
    room, left_out = MOST_BOXES, 0
    for number in order:
        entry = entries[number]
        on_plan(len(documents), len(entries), entry.name)
        step = None if entry.result is None else _simulated(entry, room)
        document = _document(entry, exploration.table)
        if isinstance(step, Simulation):
            room -= len(step.events)
            plans.append(step.plan)
            document |= _drawn(step)
        elif step is not None:
            left_out += 1
            document["lacking"] = unbroken(step)
        documents[number] = document
    drawn = [number for number in order if "view" in documents[number]]
    text = fill_template(
        "explorer.html",
        "explorer.js",
        data={
            "axes": [
                {
                    "name": axis.name,
                    "values": [*map(unbroken, axis.values)],
                    "ordered": axis.ordered,
                }
                for axis in exploration.axes
            ],
            "entries": [documents[number] for number in range(len(entries))],
            "lines": exploration.lines,
            "joined": exploration.joined,
            "across": exploration.across,
            "up": exploration.up,
            "limit": exploration.limit_bytes,
            "beside": exploration.beside,
            "picked": _first_two(drawn, entries),
        },
        shown=shown_in(plans),
        title=escape(exploration.title),
        lead=escape(exploration.lead),
        map=escape(
            f"Each point is a plan: {exploration.across} from left to right, {exploration.up} from "
            f"bottom to top; lower left is better. Filled: {exploration.filled}."
            + (" Dashed: the bound, below which nothing can be." if exploration.joined else "")
            + (" The dashed line is the memory of a GPU." if exploration.limit_bytes else "")
        ),
        table=table(exploration.table),
        words=described(WORDS),
    )
    return Page(text, left_out)


def _first_two(drawn: Sequence[int], entries: Sequence[Entry]) -> tuple[int, int]:
    """Return what is shown first: the fastest that is filled, and the next one that is slower."""
    known = [number for number in drawn if entries[number].filled] or [*drawn] or [0]

    def time(number: int) -> Fraction:
        return entries[number].time or Fraction(0)

    first, *others = sorted(known, key=time)
    return first, next((number for number in others if time(number) > time(first)), first)


def _simulated(entry: Entry, room: int) -> Simulation | str | None:
    """Return the step of an entry, or why it is not on the page; None without a plan."""
    assert entry.result is not None
    plan = entry.result.plan
    if plan is None:
        return None
    try:
        step = simulate(whole(plan, MOST_DRAWN), entry.microbatches)
    except InputError as error:
        return f"Not drawn: {error}."
    if len(step.events) > room:
        return (
            f"Not drawn: its {len(step.events)} operations and transfers would make the page too "
            "large. Fewer micro-batches (--microbatches) or points make room."
        )
    return step


def _document(entry: Entry, rows: Table) -> dict[str, Any]:
    """Return what is known of an entry without a plan."""
    names = zip(rows.columns[rows.keys :], entry.cells[rows.keys :], strict=True)
    sentences = []
    if entry.result is not None and entry.result.plan is not None:
        sentences = [*map(unbroken, bound_sentences(entry.result))]
    return {
        "at": entry.at,
        "name": unbroken(entry.name),
        "figures": [[name.replace("- ", "-"), unbroken(cell)] for name, cell in names],
        "memory": entry.memory_bytes,
        "time": None if entry.time is None else float(entry.time),
        "bound": None if entry.bound is None else float(entry.bound),
        "line": entry.line,
        "filled": entry.filled,
        "said": sentences,
        "tables": [],
        "lacking": unbroken(entry.lacking),
    }


def _drawn(step: Simulation) -> dict[str, Any]:
    """Return the timeline of a plan, and what it runs and holds."""
    report = PlanReport(step.plan)
    title = f"A step of {counted(step.microbatches, 'micro-batch')}"
    stages, memory = alike_together(stage_table(report)), alike_together(memory_table(report))
    return {
        "view": encode_view(title, chart_simulation(step, report), step.plan),
        "step": [
            [title, unbroken(format_duration(step.makespan_ns))],
            ["Bubble of the step", f"{float(step.bubble):.1%}"],
            ["Fullest GPU", unbroken(format_bytes(max(report.needed_bytes)))],
        ],
        "tables": [_rows(stages), _rows(memory)],
    }


def _rows(rows: Table) -> dict[str, Any]:
    kinds = [
        "words" if name in rows.words else "" if name in rows.left else "figure"
        for name in rows.columns
    ]
    cells = [[unbroken(cell) for cell in row] for row in rows.rows]
    return {"title": rows.title, "columns": rows.columns, "kinds": kinds, "rows": cells}
