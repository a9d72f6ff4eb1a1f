"""What was measured, one line of JSON a run, so that an interrupted suite goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

from schedopt.errors import InputError
from schedopt.problem import Scope
from schedopt.validation import STRICT, Ratio, check_ratio

InstanceKey = tuple[str, int, int, int | None]
"""What tells an instance from others: the chain's sha256, GPUs, bytes of each, bandwidth."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of one contender.

    Parameters
    ----------
    chain, chain_sha256, layers
        The chain.
    gpus, memory_bytes, bandwidth_bytes_per_s, level
        The platform, without a bandwidth where transfers are free, and how its memory was chosen.
    solver, scope
        Who was asked, and for which plans.
    time_limit_s, seed, workers, jobs
        What a run may take, and how many ran at a time.
    status : str
        As in a result, or "refused" where the solver does not do such problems.
    reason : str
        Why it refused.
    period_exact, bound_exact : (int, int) or None
        The normalized period and the best bound in the scope, ns.
    found_by : str
        Which solver found the plan: of a run of several, the one of them.
    seconds : float
    to_best_s, to_proof_s : float or None
        Seconds to the plan that was the best at the end, and to the proof that none is better or
        that there is none.
    schedopt, python, machine, date
        With what, where and when it ran.
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

    def __post_init__(self) -> None:
        check_ratio(self, "period_exact")
        check_ratio(self, "bound_exact")

    @property
    def instance(self) -> InstanceKey:
        """What was solved."""
        return self.chain_sha256, self.gpus, self.memory_bytes, self.bandwidth_bytes_per_s

    @property
    def asked(self) -> tuple[object, ...]:
        """What was solved, by whom and in which scope."""
        return self.instance, self.solver, self.scope

    @property
    def limits(self) -> tuple[object, ...]:
        """What must agree for a run to count as done, beside what was asked."""
        return self.time_limit_s, self.seed, self.workers, self.schedopt

    @property
    def period(self) -> Fraction | None:
        """The normalized period, ns."""
        return None if self.period_exact is None else Fraction(*self.period_exact)

    @property
    def bound(self) -> Fraction | None:
        """What no plan of the scope can beat, ns."""
        return None if self.bound_exact is None else Fraction(*self.bound_exact)

    @property
    def proven(self) -> bool:
        """Whether nothing is left to find."""
        return self.status in ("optimal", "infeasible")


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
    """Return the last record of each contender on each instance."""
    return list({record.asked: record for record in records}.values())


def _read(line: str, number: int, path: Path) -> Record:
    from schedopt.formats.explaining import build
    from schedopt.formats.reading import parse_object
    from schedopt.formats.values import check_values

    try:
        document = parse_object(line)
        check_values(document)
        return build(Record, document)
    except InputError as error:
        what = ": ".join(part for part in (error.field, error.rule) if part)
        raise InputError(
            f"is no record of a run of this version ({what})",
            field=f"line {number}",
            way_out="Take the line away, or write to another file",
            source=str(path),
        ) from None
