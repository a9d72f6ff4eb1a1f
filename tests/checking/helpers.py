from __future__ import annotations

from collections.abc import Iterable

from schedopt.checking import Violation, check
from schedopt.plan import Plan
from schedopt.result import Result


def kinds(subject: Plan | Result) -> set[str]:
    return {violation.kind for violation in check(subject)}


def of_kind(subject: Plan | Result, kind: str) -> list[Violation]:
    return [violation for violation in check(subject) if violation.kind == kind]


def places(subject: Plan | Result, kind: str) -> list[str]:
    return [violation.place for violation in of_kind(subject, kind)]


def words(violations: Iterable[Violation]) -> str:
    return "\n".join(map(str, violations))
