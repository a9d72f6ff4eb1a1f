"""Claims and results by hand, and claims computed small."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

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
    return verdicts_of(compute(name, **options))


def verdicts_of(found: Result) -> list[str]:
    words = {"holds": "yes", "holds-under-convention": "if", "fails": "no"}
    return [words[section.verdict] for section in found.sections]


def compute(name: str, **options: Any) -> Result:
    """Compute a claim with other options, which make it quick."""
    module, _, function = CLAIMS[name].compute.partition(":")
    compute = getattr(import_module(f"schedopt.bench.claims.{module}"), function)
    return judge(CLAIMS[name], compute(nothing, **options))


SMALL: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "C1": ({"largest": 4}, "yes yes yes yes"),
    "C2": ({"largest": 4}, "yes yes"),
    "C3": ({"largest": 3, "largest_serial": 3}, "yes yes if if"),
    "C4": ({"largest": 4, "largest_stalled": 2}, "yes if"),
    "C5": ({"largest": 3}, "if yes"),
    "C6": ({"largest": 3}, "if if yes if if if if if if"),
    "C7": ({"largest": 3, "steps": 3}, "no no no no if"),
    "T1": ({"largest": 4, "largest_checked": 2}, "yes if yes yes"),
    "T2": ({"largest": 6}, "no if"),
    "T3": ({"largest": 4}, "yes if if"),
    "T4": ({"differences": (1, 2), "mini_batches": 4}, "no yes yes"),
    "T6": ({"largest": 4}, "yes if yes yes no yes if"),
    "P1": ({"sizes": (1, 2), "totals": (20, 100), "most_general": 2}, "if if yes"),
    "P2": ({"drawn": 2, "listed": 0}, "yes yes yes if"),
    "P3": ({"most_k": 3}, "yes yes"),
    "P4": ({"most_5": 2, "most_6": 3, "drawn": 3}, "yes yes yes if yes"),
    "B1": ({"nodes": (2, 3)}, "if yes yes yes"),
    "B3": ({"widths": (8,)}, "if"),
    "B4": ({"sizes": [4, 6], "replicas": [2, 3]}, "if if if yes"),
}
"""Options, and the verdicts on the statements. The other claims have tests of their own."""


@cache
def small(name: str) -> Result:
    """Return a claim of `SMALL`, computed once."""
    return compute(name, **SMALL[name][0])
