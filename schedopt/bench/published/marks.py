"""What each test should reach, and which ones do not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from schedopt.bench.records import Record, of_family
from schedopt.bench.suite import Records
from schedopt.bench.tables import Row

PACKAGES: Final = (
    "mist",
    "vocabulary",
    "zero_bubble",
    "sailor",
    "vtrain",
    "simumax",
    "korthikanti",
)
ROWS: Final = "rows"
UNPREDICTED: Final = "unpredicted"
TESTS: Final = "tests"


@dataclass(frozen=True, kw_only=True)
class Test:
    """What is predicted, and how well it should be.

    Parameters
    ----------
    says : str
    unit : {"time", "bytes", "percent"}
        Of its figures.
    reference, mark : list of float
        Mean and largest absolute error, percent; empty where there is none.
    lower : bool
        Whether only what lies above the figure is an error.
    """

    says: str
    unit: Literal["time", "bytes", "percent"]
    reference: Sequence[float] = ()
    mark: Sequence[float] = ()
    lower: bool = False

    def error(self, row: Row) -> float:
        """Return the absolute error of a row, percent."""
        signed = float(row["error_percent"])
        return max(0.0, signed) if self.lower else abs(signed)


@cache
def load_tests() -> Mapping[tuple[str, str], Test]:
    """Return all tests by package and name, in order."""
    table = tomllib.loads((files(__package__) / "tests.toml").read_text(encoding="utf-8"))
    return {
        (package, name): Test(**test)
        for package, tests in table.items()
        for name, test in tests.items()
    }


def pair(values: Sequence[float] | None) -> str:
    """Return a mean and a largest error in words."""
    return " / ".join(f"{value:g}" for value in values or ())


def missed(row: Row) -> bool:
    """Whether a test does not reach its mark."""
    if row["mark"] is None or row["mean"] is None:
        return False
    reached = zip((row["mean"], row["largest"]), row["mark"], strict=False)
    # Marks have one decimal, or two.
    return any(error > mark and round(error, 1) > mark for error, mark in reached)


def misses(records: Records) -> Iterator[str]:
    """Yield the tests that do not reach their mark."""
    for row in of_family(records, TESTS):
        if missed(row):
            worst = max(rows_of(records, row), key=lambda other: abs(other["error_percent"]))
            yield (
                f"{row['package']} {row['test']}: {row['mean']:.2f} / {row['largest']:.2f} %, mark "
                f"{pair(row['mark'])}; worst {worst['row']}, {worst['error_percent']:+.1f} %"
            )


def rows_of(records: Records, test: Row) -> list[Record]:
    """Return the rows on which a test is judged."""
    return [
        row
        for row in of_family(records, ROWS)
        if (row["package"], row["test"]) == (test["package"], test["test"]) and not row["doubt"]
    ]
