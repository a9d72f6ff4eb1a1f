"""Pictures in the terminal: a line of letters a GPU, its memory below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from schedopt.drawing.chart import Box, Chart, MemoryRow, Row
from schedopt.units import format_bytes
from schedopt.validation import require_kind

if TYPE_CHECKING:
    from rich.text import Text

NOTES: Final = 32
"""Characters right of the timeline."""
LEAST: Final = 20
"""Characters of the timeline in a narrow terminal."""
MOST_ROWS: Final = 16
"""With more GPUs each gets one line, without memory over time, and links get none."""
COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")


@dataclass(frozen=True)
class Glyphs:
    """What fills a box behind its label, by kind; idle time; memory from none to full."""

    fills: dict[str, str]
    idle: str
    levels: str
    ruler: tuple[str, str, str]


UNICODE: Final = Glyphs(
    fills=dict(zip("FBIWRUagwph", "░▓▓▒░▒><+=*", strict=True)),
    idle=" ",
    levels=" ▁▂▃▄▅▆▇█",
    ruler=("├", "─", "┤"),
)
ASCII: Final = Glyphs(
    fills=dict(zip("FBIWRUagwph", "-==~-~><+=*", strict=True)),
    idle=" ",
    levels=" .:-=+*#@",
    ruler=("|", "-", "|"),
)


def render_chart(chart: Chart, width: int, *, unicode: bool = True) -> Text:
    """Return a chart as lines of text.

    A forward is filled lightly, a backward darkly, idle time is blank, so that it can be read
    without colour. A column shows what takes most of its time, or how busy the GPU is if there
    are too many operations.

    Parameters
    ----------
    chart : Chart
    width : int
        Characters of a line.
    unicode : bool
        Whether the terminal can show more than ASCII.
    """
    from rich.text import Text

    require_kind(chart, Chart, "chart", "Give what chart_plan or chart_simulation returns")
    glyphs = UNICODE if unicode else ASCII
    margin, columns = _margin(chart), _columns(chart, width)
    full = len(chart.gpus) <= MOST_ROWS
    coarse = is_coarse(chart, columns)
    lines = [Text(" " * margin + _ruler(chart, columns, glyphs))]
    for number, (row, memory) in enumerate(zip(chart.gpus, chart.memory, strict=True)):
        busiest = number == chart.busiest
        line = Text(row.name.ljust(margin)) + _timeline(chart, row, columns, glyphs, coarse)
        line.append(f"  {float(row.busy):6.1%} busy", style="bold" if busiest else "")
        if full:
            lines.append(line)
            line = Text(" " * margin + _memory(chart, memory, columns, glyphs) + "  ")
            line.append(_used(memory), style="bold" if memory.lacks else "")
        else:
            line.append(f", memory {memory.share:.1%}", style="bold" if memory.lacks else "")
        lines.append(line)
    if chart.links and full:
        lines.append(Text("Links"))
        lines += [
            Text(row.name.ljust(margin))
            + _timeline(chart, row, columns, glyphs, coarse)
            + f"  {float(row.busy):6.1%} busy"
            for row in chart.links
        ]
    elif chart.links:
        busiest_link = max(chart.links, key=lambda row: row.busy)
        lines.append(
            Text(
                f"Links     {len(chart.links)} in use; {busiest_link.name} is the busiest, "
                f"{float(busiest_link.busy):.1%}"
            )
        )
    return Text("\n").join(lines)


def is_coarse(chart: Chart, columns: int) -> bool:
    """Whether operations are too short for the columns, so that these show how busy a GPU is."""
    return any(2 * len(row.boxes) > columns for row in chart.gpus)


def explain_glyphs(chart: Chart, width: int, *, unicode: bool = True) -> str:
    """Return the legend of the signs that a chart uses in a width."""
    if is_coarse(chart, _columns(chart, width)):
        return (
            "too many operations for the width: 0 to 9 is the busy time in tenths, # all of it, "
            ". less than half a tenth, blank is idle"
        )
    glyphs = UNICODE if unicode else ASCII
    kinds = dict.fromkeys(box.letter for row in chart.gpus for box in row.boxes)
    names = {
        "F": "forward",
        "B": "backward",
        "I": "its input half",
        "W": "its weight half",
        "R": "recompute",
        "U": "weight update",
    }
    shown = [
        f"{name} {kind}{glyphs.fills[kind] * 2}" for kind, name in names.items() if kind in kinds
    ]
    return ", ".join([*shown, "blank is idle", "no room: for one more micro-batch"]) + (
        f". {chart.legend}"
    )


def _margin(chart: Chart) -> int:
    return max(len(row.name) for row in (*chart.gpus, *chart.links)) + 2


def _columns(chart: Chart, width: int) -> int:
    return max(LEAST, width - _margin(chart) - NOTES)


def _ruler(chart: Chart, columns: int, glyphs: Glyphs) -> str:
    line = [" "] * columns
    left, middle, right = glyphs.ruler
    for span in chart.spans:
        begin = span.start_ns * columns // chart.length_ns
        end = max(begin + 1, span.end_ns * columns // chart.length_ns)
        inner = f" {span.name} " if len(span.name) + 4 <= end - begin else ""
        line[begin:end] = (left + inner.center(end - begin - 2, middle) + right)[: end - begin]
    return "".join(line)


def _timeline(chart: Chart, row: Row, columns: int, glyphs: Glyphs, coarse: bool) -> Text:
    from rich.text import Text

    if coarse:
        shares = row.busy_in(columns, chart.length_ns)
        return Text("".join(_tenths(share) for share in shares))
    text = Text()
    for box, run in groupby(_cells(chart, row, columns)):
        count = len(list(run))
        if box is None:
            text.append(glyphs.idle * count)
            continue
        label = next((label for label in chart.labels(box) if len(label) <= count), "")
        style = COLOURS[box.stage % len(COLOURS)] + (" bold" if box.what in ("B", "I") else "")
        text.append(label + glyphs.fills[box.letter] * (count - len(label)), style=style)
    return text


def _tenths(share: float) -> str:
    if share < 0.05:
        return "." if share > 0 else " "
    return "#" if share > 0.999 else str(int(share * 10))


def _cells(chart: Chart, row: Row, columns: int) -> Iterator[Box | None]:
    """Yield for each column the box that takes most of its time; None where it is idle.

    What is too short to take most of any column is shown where its middle lies.
    """
    boxes, first = row.boxes, 0
    for column in range(columns):
        # Times are counted in parts of a column, so that they stay whole numbers.
        begin, end = column * chart.length_ns, (column + 1) * chart.length_ns
        while first < len(boxes) and boxes[first].end_ns * columns <= begin:
            first += 1
        idle, most, best, short = end - begin, 0, None, None
        for box in boxes[first:]:
            if box.start_ns * columns >= end:
                break
            time = min(end, box.end_ns * columns) - max(begin, box.start_ns * columns)
            idle -= time
            if time > most:
                most, best = time, box
            if begin <= (box.start_ns + box.end_ns) * columns // 2 < end:
                short = box
        yield best if most >= idle else short


def _memory(chart: Chart, memory: MemoryRow, columns: int, glyphs: Glyphs) -> str:
    most = memory.most_in(columns, chart.length_ns)
    highest = len(glyphs.levels) - 1
    limit = max(1, memory.limit_bytes)
    return "".join(glyphs.levels[min(highest, -(-count * highest // limit))] for count in most)


def _used(memory: MemoryRow) -> str:
    return f"{memory.share:6.1%} of {format_bytes(memory.limit_bytes)}{memory.room}"
