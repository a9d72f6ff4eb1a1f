"""The runs of a suite, each recorded once in one document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from schedopt.bench.effort import Effort
from schedopt.bench.machine import describe_machine
from schedopt.errors import InputError, naming_file
from schedopt.interrupts import interrupts

WAY_OUT: Final = "Start anew (--anew), or write to another file (-o)"


class Measurable(Protocol):
    """What becomes one row of a document."""

    @property
    def family(self) -> str:
        """The list that it goes into."""
        ...

    @property
    def given(self) -> dict[str, Any]:
        """What tells it from others of the family."""
        ...

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Return the figures."""
        ...


def new_document(effort: Effort) -> dict[str, Any]:
    """Return a document without figures: machine, versions, date, and what a run may take."""
    return {
        **describe_machine(),
        "workers": effort.workers,
        "time_limit_s": effort.time_limit,
        "seed": effort.seed,
    }


def load_document(
    path: Path, effort: Effort, to_markdown: Callable[[dict[str, Any]], str]
) -> dict[str, Any]:
    """Return what a file holds, to go on with; a new document if there is no such file.

    Parameters
    ----------
    path : Path
    effort : Effort
    to_markdown : callable
        Makes the tables, from a document whose rows are whole.

    Raises
    ------
    InputError
        If it was written otherwise, so that its figures cannot stand beside new ones, or no
        tables can be made of it.
    """
    from schedopt.formats.reading import decode, parse_object, read_bytes

    new = new_document(effort)
    if not path.is_file():
        return new
    with naming_file(path):
        old = parse_object(decode(read_bytes(path)))
    for name, value in new.items():
        if name != "date" and old.get(name) != value:
            raise InputError(
                f"is {old.get(name)!r:.60} there, and {value!r} now",
                field=name,
                way_out=WAY_OUT,
                source=str(path),
            )
    for name, rows in old.items():
        if name not in new and not isinstance(rows, list):
            raise InputError("is no list of runs", field=name, way_out=WAY_OUT, source=str(path))
    try:
        to_markdown(old)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"holds runs that are not whole ({type(error).__name__}: {error!s:.60})",
            way_out=WAY_OUT,
            source=str(path),
        ) from None
    return {**old, "date": new["date"]}


def measure(
    wanted: Sequence[Measurable],
    effort: Effort,
    document: dict[str, Any],
    save: Callable[[dict[str, Any]], None],
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> bool:
    """Measure what a document lacks: a row for each run, in a list for each family.

    Parameters
    ----------
    wanted : sequence of Measurable
    effort : Effort
    document : dict
        Rows are added to it.
    save : callable
        Called with the document after each run.
    on_run : callable
        Called before each run with the number of runs done, of all, and the name of this one.

    Returns
    -------
    bool
        Whether all is measured; not after Ctrl-C, which drops the run that it meets.
    """
    with interrupts() as interrupted:
        for number, one in enumerate(wanted):
            given = one.given
            if any(
                all(row.get(name) == value for name, value in given.items())
                for row in document.get(one.family, [])
            ):
                continue
            on_run(number, len(wanted), label(one.family, given))
            try:
                row = {**given, **one.measure(effort)}
            except KeyboardInterrupt:
                return False
            if interrupted():
                return False
            document.setdefault(one.family, []).append(row)
            save(document)
    return True


def label(family: str, given: dict[str, Any]) -> str:
    """Return in words what tells a row from others."""
    words = [f"{name} {value}" for name, value in given.items() if name != "chain_sha256"]
    return ", ".join([family, *words])
