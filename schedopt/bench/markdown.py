"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table."""
    return [
        "| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |"
        for row in (header, ["---"] * len(header), *rows)
    ]
