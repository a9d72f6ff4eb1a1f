"""Claims and results by hand, and claims computed small."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from schedopt.bench.claims.result import Case, Claim, Computed, Reading, Result, Row, Section, judge
from schedopt.bench.claims.suite import CLAIMS


def nothing(work: str) -> None:
    """A step that nobody looks at."""


def claim(name: str = "X1", *rows: Row) -> Claim:
    statements = {f"part {n}": [row] for n, row in enumerate(rows or [Row("1 to 3", "all")])}
    sources = ["Nobody 2000, A Book, page 1"]
    return Claim(name, "All is well.", sources, "nowhere:nothing", statements)


def computed(*wrong: Case, **more: Any) -> Computed:
    return Computed({"all": wrong}, **more)


def reading(*wrong: Case, convention: str = "") -> Reading:
    return Reading("1 to 3", wrong, convention)


def result(*sections: Sequence[Reading], **more: Any) -> Result:
    made = [Section(f"part {n}", readings) for n, readings in enumerate(sections)]
    return Result(made or [Section("it", [reading()])], computed(**more), more.get("notes", ()))


def verdicts(name: str, **options: Any) -> list[str]:
    """Return the verdicts on the statements of a claim: yes, if (under a convention), no."""
    words = {"holds": "yes", "holds-under-convention": "if", "fails": "no"}
    return [words[section.verdict] for section in compute(name, **options).sections]


def compute(name: str, **options: Any) -> Result:
    """Compute a claim with other options, which make it quick."""
    module, _, function = CLAIMS[name].compute.partition(":")
    compute = getattr(import_module(f"schedopt.bench.claims.{module}"), function)
    return judge(CLAIMS[name], compute(nothing, **options))
