"""The claims of four papers, a table for each, and how they are computed and kept one by one."""

from __future__ import annotations

import json
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias

from schedopt.bench.claims.result import (
    VERDICTS,
    Case,
    Claim,
    Computed,
    Result,
    Row,
    Section,
    Step,
    judge,
)
from schedopt.bench.records import describe_machine
from schedopt.bench.tables import table
from schedopt.errors import InputError, naming_file
from schedopt.interrupts import Stopped, interrupts, raise_if_stopped

Compute: TypeAlias = Callable[[Step], Computed]
Keep: TypeAlias = Callable[[Claim, Result, float], None]
"""Takes a claim with its result, and the seconds that it took."""

PAPERS: Final = ("cyclic", "timeprest", "complexity", "data_parallel")
PACKAGES: Final = {"sklearn": "scikit-learn"}
"""What is installed under another name than it is imported under."""
MOST_SHOWN: Final = 5
"""Counterexamples of a section in the text; the figures have all."""


def load_table(name: str) -> Iterator[Claim]:
    """Yield the claims of a paper, in the order of its table."""
    rows = tomllib.loads((files(__package__) / f"{name}.toml").read_text(encoding="utf-8"))
    paper = rows.pop("paper")
    for row_id, row in rows.items():
        yield Claim(
            row_id,
            row["says"],
            [*(f"{paper}, {place}" for place in row["places"]), *row.get("other_sources", ())],
            row["compute"],
            {
                says: [Row(**reading) for reading in readings]
                for says, *readings in row["statements"]
            },
            row.get("notes", ()),
        )


CLAIMS: Final = {claim.id: claim for name in PAPERS for claim in load_table(name)}
"""By their ids, in the order of the tables."""


def choose_claims(only: str | None) -> list[Claim]:
    """Return the claims with these ids, separated by commas, in the order of the table."""
    if only is None:
        return [*CLAIMS.values()]
    wanted = [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in CLAIMS:
            way_out = f"Choose {', '.join(CLAIMS)}"
            raise InputError(f"{name!r:.60} is not a claim", field="--only", way_out=way_out)
    return [claim for name, claim in CLAIMS.items() if name in wanted]


def load_computation(claim: Claim) -> Compute:
    """Import the function that computes a claim again."""
    module, _, function = claim.compute.partition(":")
    try:
        compute: Compute = getattr(import_module(f"{__package__}.{module}"), function)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "schedopt":
            raise
        package = PACKAGES.get(missing, missing)
        raise InputError(
            f"{package} is not installed, and {claim.id} needs it",
            field="--only",
            way_out=f"Run pip install {package}, or leave {claim.id} out",
        ) from error
    return compute


def run_claims(
    wanted: Sequence[tuple[Claim, Compute]],
    keep: Keep,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> bool:
    """Compute claims again; whether all are done. Ctrl-C drops the claim that it meets.

    `on_run` is called before each piece of work with the number of claims done, of all, and its
    name.
    """
    with interrupts() as interrupted:
        for number, (claim, compute) in enumerate(wanted):

            def step(work: str, number: int = number, name: str = claim.id) -> None:
                raise_if_stopped(interrupted)
                on_run(number, len(wanted), f"{name}: {work}")

            start = time.perf_counter()
            try:
                step("starts")
                result = judge(claim, compute(step))
                raise_if_stopped(interrupted)
            except Stopped:
                return False
            keep(claim, result, time.perf_counter() - start)
    return True


@dataclass(frozen=True)
class StoredRow:
    """What the files hold of a claim: its figures, and its section of the text."""

    figures: Mapping[str, Any]
    text: str


def load_rows(path: Path) -> dict[str, StoredRow]:
    """Return the rows of a file of figures and of the text next to it; none without the file."""
    from schedopt.formats.reading import decode, read_bytes

    if not path.is_file():
        return {}
    with naming_file(path):
        figures = _parse_figures(decode(read_bytes(path)))
    text_path = path.with_suffix(".md")
    with naming_file(text_path):
        _, *parts = decode(read_bytes(text_path)).split("\n## ")
        texts = {part.partition("\n")[0]: f"## {part.rstrip()}" for part in parts}
        for name in figures:
            if name not in texts:
                raise InputError(
                    f"lacks {name}, whose figures are in {path.name}",
                    way_out="Compute all rows, or write to another file (-o)",
                )
    return {name: StoredRow(row, texts[name]) for name, row in figures.items()}


def _parse_figures(text: str) -> dict[str, dict[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        rows = None
    needed = {"id", "claim", "verdict", "convention", "seconds"}
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and needed <= row.keys() and row["verdict"] in VERDICTS
        for row in rows
    ):
        raise InputError("holds no results of claims", way_out="Write to another file (-o)")
    return {row["id"]: row for row in rows}


def save(
    claim: Claim, result: Result, seconds: float, path: Path, rows: dict[str, StoredRow]
) -> None:
    """Put a claim among the rows of a file, and write figures, text and pictures."""
    from schedopt.drawing.files import save_figure
    from schedopt.formats import to_text, write_whole

    for picture in result.computed.pictures:
        save_figure(picture.draw, path.with_name(_picture_name(path.stem, claim, picture.name)))
    text = describe(claim, result, path.stem)
    rows[claim.id] = StoredRow(to_json(claim, result, seconds), text)
    known = [*CLAIMS]
    order = sorted(rows, key=lambda name: known.index(name) if name in known else len(known))
    sorted_rows = [rows[name] for name in order]
    write_whole(path, to_text([dict(row.figures) for row in sorted_rows]))
    write_whole(path.with_suffix(".md"), to_markdown(sorted_rows, path))


def to_json(claim: Claim, result: Result, seconds: float) -> dict[str, Any]:
    """Return what the file holds of a claim."""
    tried = dict.fromkeys(section.readings[0].tried for section in result.sections)
    return {
        "id": claim.id,
        "claim": claim.says,
        "verdict": result.verdict,
        "convention": "; ".join(result.conventions) or None,
        "tried": "; ".join(tried),
        "counterexamples": result.counterexamples,
        "figures": dict(result.computed.figures),
        "seconds": round(seconds, 2),
        "sources": [*claim.sources],
    }


def to_markdown(rows: Sequence[StoredRow], path: Path) -> str:
    """Return the results as Markdown, for a place next to the figures."""
    counts = Counter(row.figures["verdict"] for row in rows)
    lines = [
        "# What the sources claim",
        "",
        "Each row is computed again by plans, account, check, simulation, solvers and runs as "
        f"everything else here. The figures lie in {path.name}.",
        "",
        ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS) + ".",
        "",
        *table(
            ["row", "claim", "verdict", "convention", "seconds"],
            [_overview(row.figures) for row in rows],
        ),
    ]
    for row in rows:
        lines += ["", row.text]
    return "\n".join(lines) + "\n"


def _overview(row: Mapping[str, Any]) -> list[str]:
    link = f"[{row['id']}](#{row['id'].lower()})"
    return [link, row["claim"], row["verdict"], row["convention"] or "", f"{row['seconds']:.1f}"]


def _picture_name(stem: str, claim: Claim, name: str) -> str:
    return f"{stem}-{claim.id}-{name}.svg"


def describe(claim: Claim, result: Result, stem: str = "") -> str:
    """Return a result as Markdown, with the pictures next to a file of this stem, if any."""
    where, computed = describe_machine(), result.computed
    lines = [f"## {claim.id}", "", claim.says, "", *(f"- {source}" for source in claim.sources), ""]
    lines.append(
        f"Verdict: **{result.verdict}**. Computed on {where['date']} by schedopt "
        f"{where['schedopt']}, Python {where['python']}, {where['machine']}."
    )
    readings = [row for section in result.sections for row in _readings(section)]
    lines += ["", *table(["part", "reading", "tried", "found"], readings)]
    for note in result.notes:
        lines += ["", note]
    for shown in computed.tables:
        lines += ["", f"**{shown.title}**", "", *table(shown.header, shown.rows)]
    for picture in computed.pictures if stem else ():
        lines += ["", f"![{picture.title}]({_picture_name(stem, claim, picture.name)})"]
    for section in result.sections:
        lines += _cases(section.says, section.readings[0].counterexamples)
    return "\n".join(lines)


def _readings(section: Section) -> Iterator[list[str]]:
    for reading in section.readings:
        count = len(reading.counterexamples)
        found = f"{count} counterexample{'s' if count > 1 else ''}" if count else "holds"
        yield [section.says, reading.convention or "as printed", reading.tried, found]


def _cases(says: str, cases: Sequence[Case]) -> Iterator[str]:
    if not cases:
        return
    more = f", {MOST_SHOWN} of {len(cases)}" if len(cases) > MOST_SHOWN else ""
    yield from ("", f"Counterexamples to “{says}”{more}:", "")
    for case in cases[:MOST_SHOWN]:
        yield f"- {json.dumps(case, ensure_ascii=False)}"
