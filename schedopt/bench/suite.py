"""What every suite has: cases that are measured, goals, tables and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from schedopt.bench.records import (
    WAY_OUT,
    Record,
    RecordFile,
    describe_machine,
    load_records,
    of_family,
    refuse_other,
)
from schedopt.bench.tables import Row, cells, table
from schedopt.errors import InputError
from schedopt.interrupts import interrupts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records: TypeAlias = Sequence[Record]
Proceed: TypeAlias = Callable[[str], None]
"""Called with the name of what comes next; KeyboardInterrupt once somebody asked to stop."""


@dataclass(frozen=True)
class Effort:
    """What a run may take: threads, seconds, and the seed of solvers that draw."""

    workers: int
    time_limit: float
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The options of `solve`, which goes on until it has a proof."""
        limits = {"workers": self.workers, "time_limit": self.time_limit, "seed": self.seed}
        return {**limits, "gap": 0}

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions of records that are measured here and now."""
        limits = {"workers": self.workers, "time_limit_s": self.time_limit, "seed": self.seed}
        return {**describe_machine(), **limits}


@dataclass(frozen=True)
class Case:
    """What becomes one record of a table."""

    family: str
    key: dict[str, Any]
    """The values of the record that identify it within the family."""
    measure: Callable[[Effort, Proceed], dict[str, Any]]
    """Returns its figures. A case of several runs calls the `Proceed` before each."""
    left_out: str = ""
    """The family of its record where `measure` returns no figures, but `why` there are none."""

    def __str__(self) -> str:
        return label(self.family, self.key)

    def is_in(self, records: Iterable[Record]) -> bool:
        """Whether one of the records is of this case."""
        return any(
            record.family in (self.family, self.left_out)
            and all(record.get(name) == value for name, value in self.key.items())
            for record in records
        )


def label(family: str, key: Row) -> str:
    """Return in words what identifies a record."""
    words = [f"{name} {value}" for name, value in key.items() if name != "chain_sha256"]
    return ", ".join([family, *words])


@dataclass(frozen=True)
class Table:
    """A table of a suite."""

    title: str
    """A table without a title belongs to the one before."""
    text: str
    columns: str | Callable[[Sequence[Row]], str]
    """The columns, as `tables.cells` takes them, or makes them from the rows."""
    rows: str | Callable[[Records], Sequence[Row]]
    """The family of its records, or makes rows of all records. No rows, no table."""
    keys: int = 1
    """How many columns say what a row is about."""

    def cells(self, records: Records) -> tuple[list[str], list[list[str]]]:
        """Return headings and cells."""
        rows = of_family(records, self.rows) if isinstance(self.rows, str) else self.rows(records)
        if not rows:
            return [], []
        return cells(rows, self.columns if isinstance(self.columns, str) else self.columns(rows))

    def lines(self, records: Records) -> Iterator[str]:
        """Yield title, text and table in Markdown."""
        headings, rows = self.cells(records)
        if rows:
            yield from ("", f"## {self.title}") if self.title else ()
            yield from ("", self.text) if self.text else ()
            yield from ("", *table(headings, rows))


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A benchmark: its records, goals, tables and picture."""

    title: str
    families: tuple[str, ...]
    protocol: str | Callable[[Records], str]
    misses: Callable[[Records], Iterable[str]]
    """Yields what missed its goal, or is not as it should be."""
    well: str | Callable[[Records], str]
    """What is said where nothing is missed."""
    tables: Sequence[Table]
    summary: Callable[[Records], Iterable[str]] = lambda records: ()
    """Yields the lines that the command prints."""
    overview: Table | None = None
    draw: Callable[[Records], Figure] | None = None
    resumable: bool = True
    """Whether each record is written at once, to go on with; else all are when all is measured."""

    def to_markdown(self, records: Records, picture: str = "") -> str:
        """Return the tables as Markdown; `picture` is the name of the file next to them."""
        protocol, well = (
            text if isinstance(text, str) else text(records) for text in (self.protocol, self.well)
        )
        missed = [f"- {what}" for what in self.misses(records)]
        lines = [f"# {self.title}", "", f"{circumstances(records)}. {protocol}", ""]
        lines += ["Not as it should be:", "", *missed] if missed else [well]
        if picture:
            lines += ["", f"![{self.title}]({picture})"]
        for part in self.tables:
            lines += part.lines(records)
        return "\n".join(lines) + "\n"

    def save_picture(self, records: Records, path: Path) -> None:
        """Draw the records into a file, whole or not at all; the same records, the same bytes."""
        from schedopt.drawing.files import save_figure

        if (draw := self.draw) is not None:
            save_figure(lambda: draw(records), path)

    def load(self, path: Path, effort: Effort | None, **more: Any) -> list[Record]:
        """Return what a file holds, to go on with, measured with the same effort and conditions.

        Nothing if the program has changed since, where that is a condition. Refused if it was
        measured otherwise, or no tables can be made of it.
        """
        records = load_records(path, self.families)
        program = more.get("program")
        if any(record.conditions.get("program") != program for record in records):
            return []
        wanted = {**(effort.conditions if effort else describe_machine()), **more}
        del wanted["date"]
        refuse_other(records, wanted, path)
        try:
            self.to_markdown(records)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"holds runs that are not whole ({type(error).__name__}: {error!s:.60})",
                way_out=WAY_OUT,
                source=str(path),
            ) from None
        return records


def measure(
    batches: Iterable[Sequence[Case]],
    effort: Effort | None,
    file: RecordFile,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
    **more: Any,
) -> bool:
    """Measure the cases that have no record yet; whether all is measured.

    Each batch is asked for when those before are measured, so that it may depend on their records.
    Without an effort the cases take no limits. `on_run` is called before each run with the number
    of cases done, of all of the batch, and a name. Ctrl-C drops the case that it meets.
    """
    conditions = {**(effort.conditions if effort else describe_machine()), **more}
    effort = effort or Effort(workers=1, time_limit=float("inf"))
    with interrupts() as interrupted:

        def proceed(done: int, total: int, name: str) -> None:
            if interrupted():
                raise KeyboardInterrupt
            on_run(done, total, name)

        try:
            for batch in batches:
                for done, case in enumerate(batch):
                    if case.is_in(file.records):
                        continue
                    announce = partial(proceed, done, len(batch))
                    announce(str(case))
                    figures = case.measure(effort, announce)
                    if interrupted():
                        return False
                    family = case.left_out if case.left_out and "why" in figures else case.family
                    file.add(Record(family, {**case.key, **figures}, conditions))
        except KeyboardInterrupt:
            return False
        finally:
            file.flush()
    return True


def circumstances(records: Records) -> str:
    """Return where and when figures were measured, and what a run may take."""
    words = {
        "schedopt": "schedopt {}",
        "python": "Python {}",
        "machine": "{}",
        "date": "{}",
        "workers": "workers {}",
        "jobs": "runs at a time {}",
        "time_limit_s": "time limit {} s a run",
        "seed": "seed {}",
        "steps": "medians over {} steps",
    }
    said = []
    for name, text in words.items():
        values = dict.fromkeys(record.conditions.get(name) for record in records)
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        if any(value is not None for value in values):
            said.append(text.format(", ".join(shown)))
    return ", ".join(said)
