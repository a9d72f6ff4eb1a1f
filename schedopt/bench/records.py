"""What was measured, one line of JSON a run, so that an interrupted suite goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from schedopt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of one solver.

    Parameters
    ----------
    chain, chain_sha256, layers
        The chain.
    gpus, memory_bytes, level, bandwidth
        The platform, and how its memory was chosen.
    solver, time_limit_s, seed, workers
        What ran.
    status : str
        As in a result, or "refused" where the solver does not do such problems.
    period_exact, bound_exact : (int, int) or None
        The normalized period and the best bound, ns.
    seconds : float
    schedopt, python, machine, date
        Where and with what.
    """

    chain: str
    chain_sha256: str
    layers: int
    gpus: int
    memory_bytes: int
    level: str
    bandwidth: str
    solver: str
    time_limit_s: float
    seed: int
    workers: int
    status: str
    period_exact: tuple[int, int] | None
    bound_exact: tuple[int, int] | None
    seconds: float
    schedopt: str
    python: str
    machine: str
    date: str

    @property
    def case(self) -> tuple[str, int, int, str]:
        """What was solved."""
        return self.chain_sha256, self.gpus, self.memory_bytes, self.bandwidth

    @property
    def key(self) -> tuple[object, ...]:
        """What must agree for a run to count as done."""
        limits = self.time_limit_s, self.seed, self.workers
        return *self.case, self.solver, *limits, self.schedopt

    @property
    def period(self) -> Fraction | None:
        """The normalized period, ns."""
        return None if self.period_exact is None else Fraction(*self.period_exact)


def append_record(path: Path, record: Record) -> None:
    """Add a line to a file of records."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def load_records(path: Path) -> list[Record]:
    """Return the records of a file; none if there is no such file.

    A last line that was cut off is taken away.

    Raises
    ------
    InputError
        Naming the line that is no record.
    """
    if not path.exists():
        return []
    if not path.is_file():
        raise InputError(
            "is no plain file, so that no run can be read back",
            way_out="Name a file that ends in .jsonl",
            source=str(path),
        )
    from schedopt.formats.reading import read_bytes

    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError:
        raise InputError(
            "is not UTF-8 text", way_out="Write to another file", source=str(path)
        ) from None
    except InputError as error:
        raise error.in_file(str(path)) from None
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        from schedopt.formats import write_whole

        write_whole(path, whole)
    return [_read(line, number, path) for number, line in enumerate(whole.splitlines(), start=1)]


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each solver on each case."""
    return list({(record.case, record.solver): record for record in records}.values())


def _read(line: str, number: int, path: Path) -> Record:
    names = {field.name for field in fields(Record)}
    try:
        document: dict[str, Any] = json.loads(line)
        for name in ("period_exact", "bound_exact"):
            if document[name] is not None:
                top, bottom = document[name]
                document[name] = (int(top), int(bottom))
        if set(document) != names:
            raise ValueError
        return Record(**document)
    except (ValueError, TypeError, KeyError):
        raise InputError(
            "is no record of a run",
            field=f"line {number}",
            way_out="Take the line away, or write to another file",
            source=str(path),
        ) from None
