"""A chart as few whole numbers, for a page that draws it."""

from __future__ import annotations

from typing import Any

from schedopt.drawing import Chart
from schedopt.drawing.chart import Box, MemoryRow, Row
from schedopt.plan import Plan
from schedopt.reporting.words import name_layers


def encode_view(title: str, chart: Chart, plan: Plan) -> dict[str, Any]:
    """Return one timeline of a plan as a JSON document."""
    stages = [name_layers(plan, stage) for stage in plan.stages]
    return {"title": title, "stages": stages, **encode_chart(chart)}


def encode_chart(chart: Chart) -> dict[str, Any]:
    """Return a chart as a JSON document, each number as its difference to one before.

    Returns
    -------
    dict
        ``length_ns``, ``numbering``, ``legend`` and ``spans`` ([start, end, name]) as in the chart.
        ``rows`` are those of GPUs, then those of links. Each has its ``name``, the share ``busy``,
        ``kinds`` ([what, stage, length, ns]) and ``boxes``: three numbers a box, the time since the
        end of the one before, ns, its kind, and its number less that of the last box of the same
        kind. A GPU also has ``memory``: ``limit_bytes``, ``values`` ([bytes from an instant on,
        most bytes at the instant]) and ``levels``: two numbers a level, the time since the one
        before, ns, and which of the values it has.
    """
    memory = [*chart.memory, *[None] * len(chart.links)]
    rows = [*chart.gpus, *chart.links]
    return {
        "length_ns": chart.length_ns,
        "numbering": chart.numbering,
        "legend": chart.legend,
        "spans": [[span.start_ns, span.end_ns, span.name] for span in chart.spans],
        "rows": [_row(row, held) for row, held in zip(rows, memory, strict=True)],
    }


def _row(row: Row, memory: MemoryRow | None) -> dict[str, Any]:
    kinds: dict[tuple[str, int, int], int] = {}
    last: dict[int, int] = {}
    boxes: list[int] = []
    end = 0
    for box in row.boxes:
        kind = kinds.setdefault(_kind(box), len(kinds))
        boxes += (box.start_ns - end, kind, box.number - last.get(kind, 0))
        last[kind], end = box.number, box.end_ns
    document = {
        "name": row.name,
        "busy": round(float(row.busy), 6),
        "kinds": list(map(list, kinds)),
        "boxes": boxes,
    }
    return document if memory is None else {**document, "memory": _memory(memory)}


def _kind(box: Box) -> tuple[str, int, int]:
    return box.what, box.stage, box.end_ns - box.start_ns


def _memory(memory: MemoryRow) -> dict[str, Any]:
    values: dict[tuple[int, int], int] = {}
    levels: list[int] = []
    before = 0
    for level in memory.levels:
        value = values.setdefault((level.count, level.most), len(values))
        levels += (level.start_ns - before, value)
        before = level.start_ns
    return {
        "limit_bytes": memory.limit_bytes,
        "values": list(map(list, values)),
        "levels": levels,
    }
