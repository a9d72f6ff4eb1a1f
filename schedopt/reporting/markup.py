"""Text and tables as HTML. All that comes from files is escaped here."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from schedopt.reporting.tables import Table
from schedopt.units import printable

_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:s|ms|us|ns|B|KB|MB|GB|TB)\b)")


def escape(text: str) -> str:
    """Return text that says the same in HTML, also within the quotes of an attribute."""
    return html.escape(unbroken(text))


def unbroken(text: str) -> str:
    """Return text of printable letters in which a number and its unit stay on one line."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", printable(text))


def paragraphs(texts: Iterable[str]) -> str:
    """Return a paragraph for each text."""
    return "\n".join(f"<p>{escape(text)}</p>" for text in texts)


def listed(texts: Iterable[str]) -> str:
    """Return a list with an entry for each text."""
    return "<ul>\n" + "\n".join(f"<li>{escape(text)}</li>" for text in texts) + "\n</ul>"


def described(items: Iterable[tuple[str, str]]) -> str:
    """Return names, each with what it means."""
    rows = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in items)
    return '<dl class="pairs">\n' + "\n".join(rows) + "\n</dl>"


def folded(summary: str, content: str, *, open_: bool = False) -> str:
    """Return HTML that a reader folds out."""
    return (
        f"<details{' open' if open_ else ''}><summary>{escape(summary)}</summary>\n"
        f"{content}\n</details>"
    )


def table(rows: Table, *, bars: Sequence[float] = ()) -> str:
    """Return a table, in a box of its own that a narrow screen scrolls.

    `bars` are shares, one for each row, drawn in its last cell.
    """
    head = "".join(
        f'<th scope="col"{_kind(rows, number)}>{escape(name)}</th>'
        for number, name in enumerate(rows.columns)
    )
    body = []
    for place, row in enumerate(rows.rows):
        cells = [
            f'<th scope="row"{_kind(rows, number)}>{escape(cell)}</th>'
            if number < rows.keys
            else f"<td{_kind(rows, number)}>{escape(cell)}</td>"
            for number, cell in enumerate(row)
        ]
        if bars:
            cells[-1] = cells[-1].replace("</td>", f"{_bar(bars[place])}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    title = escape(rows.title)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table>\n'
        f"<caption>{title}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _kind(rows: Table, number: int) -> str:
    name = rows.columns[number]
    if name in rows.words:
        return ' class="words"'
    return "" if name in rows.left else ' class="figure"'


def _bar(share: float) -> str:
    width = 100 * min(1.0, share)
    return f'<span class="bar" aria-hidden="true"><span style="width:{width:.1f}%"></span></span>'


def embedded(document: Any) -> str:
    """Return JSON that may stand in a script element: nothing in it ends the element."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
