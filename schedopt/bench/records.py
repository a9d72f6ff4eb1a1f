"""What suites measure: records, one JSON object each, and the files that hold them."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from schedopt.effort import usable_cores
from schedopt.errors import InputError, naming_file
from schedopt.problem import Scope
from schedopt.validation import STRICT, Ratio, check_ratio
from schedopt.version import __version__

RUNS: Final = "runs"
"""The family of `bench solvers`, whose lines name no family and hold the conditions themselves."""
CONDITIONS: Final[tuple[str, ...]] = (
    *("time_limit_s", "seed", "workers", "jobs", "steps", "data", "program"),
    *("schedopt", "python", "machine", "date"),
)
PAUSE_S: Final = 1.0
"""A document is written no more often."""
WAY_OUT: Final = "Start anew (--anew), or write to another file (-o)"

InstanceKey = tuple[str, int, int, int | None, int | None]
"""What identifies an instance: the chain's sha256, GPUs, bytes of each, bytes/s of the links, and
the samples of a training step, or None where micro-batches go on for ever."""


def describe_machine() -> dict[str, str]:
    """Return versions, processor, cores that may be used, and the date."""
    cores = usable_cores()
    return {
        "schedopt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {cores} core{'s' if cores > 1 else ''}",
        "date": datetime.now(UTC).date().isoformat(),
    }


def program_digest() -> str:
    """Return what identifies the program: what its files of source and tables hold."""
    folder, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted((*folder.rglob("*.py"), *folder.rglob("*.toml"))):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Record(Mapping[str, Any]):
    """One measured case of a table; as a mapping its row, the case and its figures."""

    family: str
    row: Mapping[str, Any]
    conditions: Mapping[str, Any]
    """Limits, versions, machine and date, of `CONDITIONS`."""

    def __getitem__(self, name: str) -> Any:
        return self.row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.row)

    def __len__(self) -> int:
        return len(self.row)

    @property
    def instance(self) -> InstanceKey:
        """The chain and the platform of a run of a solver."""
        names = ("chain_sha256", "gpus", "memory_bytes", "bandwidth_bytes_per_s", "batch")
        sha256, gpus, memory, rate, batch = (self[name] for name in names)
        return sha256, gpus, memory, rate, batch

    @property
    def period(self) -> Fraction | None:
        """The normalized period, ns."""
        return fraction(self["period_exact"])

    @property
    def bound(self) -> Fraction | None:
        """What no plan of the scope can beat, ns."""
        return fraction(self["bound_exact"])

    @property
    def proven(self) -> bool:
        """Whether nothing is left to find."""
        return self["status"] in ("optimal", "infeasible")


def of_family(records: Iterable[Record], family: str) -> list[Record]:
    """Return the records of a family."""
    return [record for record in records if record.family == family]


def fraction(pair: Sequence[int] | None) -> Fraction | None:
    """Return a fraction that is stored as numerator and denominator."""
    return None if pair is None else Fraction(*pair)


def exact(period: Fraction | None) -> list[int] | None:
    """Return a period as records have it: numerator and denominator, ns."""
    return None if period is None else list(period.as_integer_ratio())


def gap_of(row: Mapping[str, Any]) -> Fraction | None:
    """Return (period - bound) / bound; None where either is missing or the bound is 0."""
    period, bound = fraction(row["period_exact"]), fraction(row["bound_exact"])
    return None if period is None or not bound else period / bound - 1


@dataclass(frozen=True, kw_only=True)
class RunSchema:
    """The fields of a line of `bench solvers`: one run of one method on one instance.

    The status is that of the result, or "refused" with a reason. Period and bound are in ns;
    `batch` has the samples of a training step, whose period and bound are those of a micro-batch.
    `found_by` is the solver that found the plan. `to_best_s` and `to_proof_s` are seconds to the
    best plan, and to the proof that none is better or that there is none.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    chain: str
    chain_sha256: str
    layers: int
    gpus: int
    memory_bytes: int
    bandwidth_bytes_per_s: int | None
    level: str
    solver: str
    scope: Scope
    time_limit_s: float
    seed: int
    workers: int
    jobs: int
    status: Literal["optimal", "feasible", "infeasible", "unknown", "refused"]
    reason: str
    period_exact: Ratio | None
    bound_exact: Ratio | None
    found_by: str
    seconds: float
    to_best_s: float | None
    to_proof_s: float | None
    schedopt: str
    python: str
    machine: str
    date: str
    batch: int | None = None

    def __post_init__(self) -> None:
        check_ratio(self, "period_exact")
        check_ratio(self, "bound_exact")


class RecordFile:
    """Records, and the file that gets each of them at once.

    A file that ends in .json holds one document, with a list for each family, and is written anew,
    at most once a second until it is flushed; any other holds one record a line. The first record
    of a file that was not read replaces what is there.
    """

    def __init__(self, path: Path | None, records: Iterable[Record] = ()) -> None:
        self.path = path
        self.records = list(records)
        self._written = float("-inf")
        self._behind = False

    def flush(self) -> None:
        """Write what was added since the document was written."""
        if self.path and self._behind:
            write_records(self.path, self.records)
            self._written, self._behind = time.monotonic(), False

    def add(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)
        if self.path is None:
            return
        if len(self.records) == 1 or self.path.suffix == ".json" or not self.path.exists():
            self._behind = True
            if time.monotonic() - self._written >= PAUSE_S:
                self.flush()
        else:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_to_line(record))


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write records into a file, whole or not at all."""
    from schedopt.formats import to_text, write_whole

    if path.suffix != ".json":
        write_whole(path, "".join(map(_to_line, records)))
        return
    document: dict[str, Any] = dict(records[-1].conditions) if records else {}
    for record in records:
        document.setdefault(record.family, []).append(dict(record.row))
    write_whole(path, to_text(document))


def load_records(path: Path, families: Sequence[str] = (RUNS,)) -> list[Record]:
    """Return the records of a file; none if there is no such file.

    A last line that was cut off is taken away. For a file of lines that is not there, the document
    of the same name (.json) is read, as earlier versions wrote it. Other families are refused.
    """
    from schedopt.formats.reading import decode, parse_object, read_bytes

    earlier = path.with_suffix(".json")
    if not path.exists() and RUNS not in families and earlier.is_file():
        path = earlier
    if not path.exists():
        return []
    if not path.is_file():
        raise InputError(
            "is not a plain file, so that no run can be read back",
            way_out="Name a file that ends in .jsonl",
            source=str(path),
        )
    with naming_file(path):
        content = read_bytes(path)
        if path.suffix == ".json":
            return _from_document(parse_object(decode(content)), families)
        text = decode(content) if content else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        from schedopt.formats import write_whole

        write_whole(path, whole)
    return [
        _from_line(line, number, path, families)
        for number, line in enumerate(whole.splitlines(), start=1)
    ]


def refuse_other(records: Iterable[Record], wanted: Mapping[str, Any], path: Path) -> None:
    """Refuse records that were measured otherwise: their figures cannot stand next to new ones."""
    for record in records:
        for name, value in wanted.items():
            there = record.conditions.get(name)
            if there != value:
                changed = "the tables have changed since" if name == "data" else ""
                raise InputError(
                    changed or f"is {there!r:.60} there, and {value!r} now",
                    field=name,
                    way_out=WAY_OUT,
                    source=str(path if path.exists() else path.with_suffix(".json")),
                )


def _to_line(record: Record) -> str:
    if record.family == RUNS:
        document = {**record.row, **record.conditions}
        if document["batch"] is None:
            del document["batch"]
    else:
        conditions = dict(record.conditions)
        document = {"family": record.family, **record.row, "conditions": conditions}
    return json.dumps(document, default=asdict) + "\n"


def _from_document(document: dict[str, Any], families: Sequence[str]) -> list[Record]:
    # A family of `bench periodic` is called "steps".
    names = document.keys() & {*CONDITIONS} - {*families}
    conditions = {name: document.pop(name) for name in names}
    for name, rows in document.items():
        if name not in families or not isinstance(rows, list):
            raise InputError("is not a list of runs", field=name, way_out=WAY_OUT)
        if not all(isinstance(row, dict) for row in rows):
            raise InputError("holds runs that are not objects", field=name, way_out=WAY_OUT)
    return [Record(name, row, conditions) for name, rows in document.items() for row in rows]


def _from_line(line: str, number: int, path: Path, families: Sequence[str]) -> Record:
    from schedopt.formats.explaining import build
    from schedopt.formats.reading import parse_object
    from schedopt.formats.values import check_values

    try:
        document = parse_object(line)
        check_values(document)
        if RUNS in families:
            run = build(RunSchema, document)
            values = {field.name: getattr(run, field.name) for field in fields(run)}
            conditions = {name: values.pop(name) for name in CONDITIONS if name in values}
            return Record(RUNS, values, conditions)
        family, conditions = document.pop("family", None), document.pop("conditions", None)
        if family not in families:
            raise InputError(f"{family!r:.60} is not known", field="family")
        if not isinstance(conditions, dict):
            raise InputError("is not an object", field="conditions")
        return Record(family, document, conditions)
    except InputError as error:
        what = ": ".join(part for part in (error.field, error.rule) if part)
        raise InputError(
            f"is not a record of a run of this version ({what})",
            field=f"line {number}",
            way_out="Take the line away, or write to another file",
            source=str(path),
        ) from None
