"""Findings by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedopt.bench.claims.claim import Claim, Finding, Part, Reading


def nothing(what: str) -> None:
    """A step that nobody looks at."""


def claim(name: str = "X1") -> Claim:
    return Claim(id=name, says="All is well.", sources=["Nobody 2000, A Book, page 1"])


def reading(*wrong: dict[str, Any], convention: str = "") -> Reading:
    return Reading(tried="1 to 3", counterexamples=wrong, convention=convention)


def finding(*parts: Sequence[Reading], name: str = "X1", **more: Any) -> Finding:
    made = [Part(says=f"part {n}", readings=readings) for n, readings in enumerate(parts)]
    return Finding(claim=claim(name), parts=made or [Part(says="it", readings=[reading()])], **more)
