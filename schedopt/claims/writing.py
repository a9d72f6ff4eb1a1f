"""What was found, into files: figures as JSON, text with tables as Markdown, pictures as SVG."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from schedopt.bench.machine import describe_machine
from schedopt.bench.markdown import table
from schedopt.claims.claim import ORDER, Finding, Part, Picture, Reading
from schedopt.claims.running import Done, to_json

MOST_SHOWN = 5
"""Counterexamples of a part in the text; the figures have all."""


def save(done: Done, path: Path) -> None:
    """Write figures into a file, and text and pictures beside it."""
    from schedopt.drawing.files import save_figure
    from schedopt.formats import to_text, write_whole

    finding, _ = done[-1]
    for picture in finding.pictures:
        save_figure(picture.draw, picture_path(path, finding, picture))
    write_whole(path, to_text([to_json(*one) for one in done]))
    write_whole(path.with_suffix(".md"), to_markdown(done, path))


def picture_path(path: Path, finding: Finding, picture: Picture) -> Path:
    """Return where a picture goes."""
    return path.with_name(f"{path.stem}-{finding.claim.id}-{picture.name}.svg")


def to_markdown(done: Done, path: Path) -> str:
    """Return what was found as Markdown, for a place beside the figures."""
    where = describe_machine()
    counts = Counter(finding.verdict for finding, _ in done)
    rows = [
        [
            f"[{finding.claim.id}](#{finding.claim.id.lower()})",
            finding.claim.says,
            finding.verdict,
            "; ".join(finding.conventions),
            f"{seconds:.1f}",
        ]
        for finding, seconds in done
    ]
    lines = [
        "# What the sources claim",
        "",
        f"Each row is computed again by plans, account, check, simulation, solvers and runs as "
        f"everything else here. schedopt {where['schedopt']}, Python {where['python']}, "
        f"{where['machine']}, {where['date']}. The figures lie in {path.name}.",
        "",
        ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER) + ".",
        "",
        *table(["row", "claim", "verdict", "convention", "seconds"], rows),
    ]
    for finding, _ in done:
        lines += ["", *_section(finding, path)]
    return "\n".join(lines) + "\n"


def _section(finding: Finding, path: Path) -> Iterator[str]:
    claim = finding.claim
    yield from (f"## {claim.id}", "", claim.says, "")
    yield from (f"- {source}" for source in claim.sources)
    yield from ("", f"Verdict: **{finding.verdict}**.", "")
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
