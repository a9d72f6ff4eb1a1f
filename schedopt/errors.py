"""What schedopt raises.

::

    SchedoptError
    ├── InputError         what was given breaks a rule (also a ValueError)
    ├── InvalidPlanError   a solver returned a plan that the check refuses (an internal error)
    ├── RankError          a rank of a run failed or was killed
    └── SolverError        a solver of another package failed

Infeasible is not an error: it is the status of a `schedopt.Result`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class SchedoptError(Exception):
    """Base of everything that schedopt raises on purpose."""


class InputError(SchedoptError, ValueError):
    """What was given breaks a rule.

    Parameters
    ----------
    rule : str
        What is wrong, with the value that was given.
    field : str
        Where, as a path: ``layers[3].forward_ns`` or ``--mem``. Empty for the whole.
    way_out : str
        What to do about it.
    source : str
        The file, if it came from one.
    """

    def __init__(self, rule: str, *, field: str = "", way_out: str = "", source: str = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.field = field
        self.way_out = way_out
        self.source = source

    def within(self, prefix: str) -> InputError:
        """Return the same error, its field seen from one level further out."""
        joint = "" if not prefix or not self.field or self.field.startswith("[") else "."
        return InputError(
            self.rule,
            field=f"{prefix}{joint}{self.field}",
            way_out=self.way_out,
            source=self.source,
        )

    def in_file(self, source: str) -> InputError:
        """Return the same error with the name of the file that it came from."""
        return InputError(self.rule, field=self.field, way_out=self.way_out, source=source)

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.source, self.field, self.rule) if part)
        return f"{text}. {self.way_out}" if self.way_out else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_input_error, (self.rule, self.field, self.way_out, self.source)


def _rebuild_input_error(rule: str, field: str, way_out: str, source: str) -> InputError:
    return InputError(rule, field=field, way_out=way_out, source=source)


@contextmanager
def naming_file(path: str | Path) -> Iterator[None]:
    """Name a file in each error about what it holds, but where it names another one.

    What is no path is shown by the error itself.
    """
    try:
        yield
    except InputError as error:
        named = error.source or not isinstance(path, str | os.PathLike)
        raise (error if named else error.in_file(str(path))) from None


class InvalidPlanError(SchedoptError):
    """A solver returned a plan that the independent check refuses."""


class RankError(SchedoptError):
    """A rank of a run failed or was killed."""


class SolverError(SchedoptError):
    """A solver of another package cannot be loaded, or raised what is not an `InputError`."""
