"""What was found, into files: figures as JSON, text with tables as Markdown, pictures as SVG."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schedopt.bench.claims.claim import ORDER, Finding, Part, Picture, Reading
from schedopt.bench.claims.registry import CLAIMS
from schedopt.bench.claims.running import Done, to_json
from schedopt.bench.machine import describe_machine
from schedopt.bench.markdown import table
from schedopt.errors import InputError, naming_file

MOST_SHOWN = 5
"""Counterexamples of a part in the text; the figures have all."""


@dataclass(frozen=True)
class Row:
    """What the files hold of a row: its figures, and its section of the text."""

    figures: Mapping[str, Any]
    text: str


def load_rows(path: Path) -> dict[str, Row]:
    """Return the rows that a file of figures and the text beside it hold; none without the file.

    Raises
    ------
    InputError
        If the file holds something else, or the text lacks one of its rows.
    """
    from schedopt.formats.reading import decode, read_bytes

    if not path.is_file():
        return {}
    beside = path.with_suffix(".md")
    with naming_file(path):
        figures = _parse_figures(decode(read_bytes(path)))
    with naming_file(beside):
        sections = _sections(decode(read_bytes(beside)))
        for name in figures:
            if name not in sections:
                raise InputError(
                    f"lacks {name}, whose figures are in {path.name}",
                    way_out="Compute all rows, or write to another file (-o)",
                )
    return {name: Row(found, sections[name]) for name, found in figures.items()}


def _parse_figures(text: str) -> dict[str, dict[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = None
    needed = {"id", "claim", "verdict", "convention", "seconds"}
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and needed <= row.keys() and row["verdict"] in ORDER for row in rows
    ):
        raise InputError("holds no findings of claims", way_out="Write to another file (-o)")
    return {row["id"]: row for row in rows}


def _sections(text: str) -> dict[str, str]:
    """Return the sections of a text by their headings, without blank lines at the end."""
    _, *sections = text.split("\n## ")
    return {section.partition("\n")[0]: f"## {section.rstrip()}" for section in sections}


def save(done: Done, path: Path, before: Mapping[str, Row]) -> None:
    """Write figures into a file, and text and pictures beside it.

    Parameters
    ----------
    done : list of (Finding, float)
        The last one is new.
    path : Path
    before : mapping
        Rows that stay where they are not done again.
    """
    from schedopt.drawing.files import save_figure
    from schedopt.formats import to_text, write_whole

    finding, _ = done[-1]
    for picture in finding.pictures:
        save_figure(picture.draw, picture_path(path, finding, picture))
    new = {
        one.claim.id: Row(to_json(one, seconds), "\n".join(_section(one, path)))
        for one, seconds in done
    }
    known = {name: number for number, name in enumerate(CLAIMS)}
    rows = [
        row
        for _, row in sorted(
            {**before, **new}.items(), key=lambda pair: known.get(pair[0], len(known))
        )
    ]
    write_whole(path, to_text([dict(row.figures) for row in rows]))
    write_whole(path.with_suffix(".md"), to_markdown(rows, path))


def picture_path(path: Path, finding: Finding, picture: Picture) -> Path:
    """Return where a picture goes."""
    return path.with_name(f"{path.stem}-{finding.claim.id}-{picture.name}.svg")


def to_markdown(rows: Sequence[Row], path: Path) -> str:
    """Return what was found as Markdown, for a place beside the figures."""
    figures = [row.figures for row in rows]
    counts = Counter(found["verdict"] for found in figures)
    lines = [
        "# What the sources claim",
        "",
        "Each row is computed again by plans, account, check, simulation, solvers and runs as "
        f"everything else here. The figures lie in {path.name}.",
        "",
        ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER) + ".",
        "",
        *table(
            ["row", "claim", "verdict", "convention", "seconds"],
            [
                [
                    f"[{found['id']}](#{found['id'].lower()})",
                    found["claim"],
                    found["verdict"],
                    found["convention"] or "",
                    f"{found['seconds']:.1f}",
                ]
                for found in figures
            ],
        ),
    ]
    for row in rows:
        lines += ["", row.text]
    return "\n".join(lines) + "\n"


def _section(finding: Finding, path: Path) -> Iterator[str]:
    claim, where = finding.claim, describe_machine()
    yield from (f"## {claim.id}", "", claim.says, "")
    yield from (f"- {source}" for source in claim.sources)
    yield from (
        "",
        f"Verdict: **{finding.verdict}**. Computed on {where['date']} by schedopt "
        f"{where['schedopt']}, Python {where['python']}, {where['machine']}.",
        "",
    )
    yield from table(
        ["part", "reading", "tried", "found"],
        [_row(part, reading) for part in finding.parts for reading in part.readings],
    )
    for note in finding.notes:
        yield from ("", note)
    for shown in finding.tables:
        yield from ("", f"**{shown.title}**", "", *table(shown.header, shown.rows))
    for picture in finding.pictures:
        name = picture_path(path, finding, picture).name
        yield from ("", f"![{picture.title}]({name})")
    for part in finding.parts:
        yield from _cases(part)


def _row(part: Part, reading: Reading) -> list[str]:
    count = len(reading.counterexamples)
    found = "holds" if reading.holds else f"{count} counterexample{'s' if count > 1 else ''}"
    return [part.says, reading.convention or "as printed", reading.tried, found]


def _cases(part: Part) -> Iterator[str]:
    cases = part.readings[0].counterexamples
    if not cases:
        return
    more = f", {MOST_SHOWN} of {len(cases)}" if len(cases) > MOST_SHOWN else ""
    yield from ("", f"Counterexamples to “{part.says}”{more}:", "")
    for case in cases[:MOST_SHOWN]:
        yield f"- {json.dumps(case, ensure_ascii=False)}"
