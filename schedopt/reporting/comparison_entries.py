"""The systems of a comparison as choices."""

from __future__ import annotations

from schedopt.comparing.comparison import OURS, Comparison, Row
from schedopt.reporting.choices import system_table
from schedopt.reporting.exploration import Axis, Entry, Exploration, refuse_invalid
from schedopt.units import counted, printable


def explore_comparison(comparison: Comparison) -> Exploration:
    """Return the systems of a comparison, those first that fit.

    Raises
    ------
    InputError
        If a plan is not valid, for another reason than its memory.
    """
    table = system_table(comparison)
    rows = comparison.rows
    limits = {gpu.usable_bytes for gpu in comparison.platform.gpus}
    for row in rows:
        if row.result is not None:
            refuse_invalid(row.result, row.system.name, too_large=True)
    return Exploration(
        title=f"Systems side by side: {printable(comparison.chain.name) or 'unnamed model'} on "
        f"{counted(len(comparison.platform.gpus), 'GPU')}",
        lead=f"{comparison.platform}. {counted(len(rows), 'system')}, each with a step of "
        f"{counted(comparison.microbatches, 'micro-batch')} or what comes next to it.",
        axes=(Axis(name="System", values=tuple(row.system.name for row in rows), ordered=False),),
        table=table,
        entries=tuple(
            _entry(number, row, cells, comparison)
            for number, (row, cells) in enumerate(zip(rows, table.rows, strict=True))
        ),
        lines=("systems", "plans of schedopt"),
        joined=False,
        across="memory of the fullest GPU",
        up="time of a micro-batch in a step",
        filled="it fits into the memory",
        limit_bytes=limits.pop() if len(limits) == 1 else None,
        beside=len(rows) > 1,
    )


def _entry(number: int, row: Row, cells: tuple[str, ...], comparison: Comparison) -> Entry:
    figures, result = row.figures, row.result
    lacking = ""
    if figures is None:
        lacking = f"No plan: {row.note}."
    elif result is None:
        lacking = "The comparison does not hold this plan, which is large. Write it with --plans."
    return Entry(
        at=(number,),
        name=row.system.name,
        cells=cells,
        memory_bytes=None if figures is None else figures.most_bytes(comparison.memory),
        time=None if figures is None else figures.step_of_one,
        bound=None,
        line=int(row.system in OURS),
        filled=row.outcome == "fits",
        result=result,
        microbatches=comparison.microbatches if figures is None else figures.microbatches,
        lacking=lacking,
    )
