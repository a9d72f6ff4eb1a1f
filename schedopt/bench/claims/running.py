"""One row after the other, each kept as soon as it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from schedopt.bench.claims.claim import Finding
from schedopt.bench.claims.registry import Find
from schedopt.interrupts import Stopped, interrupts, raise_if_stopped

Done = list[tuple[Finding, float]]
"""Findings with the seconds that they took."""


def run_claims(
    wanted: Mapping[str, Find],
    keep: Callable[[Done], None],
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> bool:
    """Compute rows again.

    Parameters
    ----------
    wanted : mapping
        From the id of a row to what computes it.
    keep : callable
        Called with all that is found so far, after each row.
    on_run : callable
        Called before each piece of work with the number of rows done, of all, and its name.

    Returns
    -------
    bool
        Whether all are done; not after Ctrl-C, which drops the row that it meets.
    """
    done: Done = []
    with interrupts() as interrupted:
        for number, (name, find) in enumerate(wanted.items()):

            def step(what: str, number: int = number, name: str = name) -> None:
                raise_if_stopped(interrupted)
                on_run(number, len(wanted), f"{name}: {what}")

            start = time.perf_counter()
            try:
                step("starts")
                found = find(step)
                raise_if_stopped(interrupted)
            except Stopped:
                return False
            done.append((found, time.perf_counter() - start))
            keep(done)
    return True


def to_json(finding: Finding, seconds: float) -> dict[str, Any]:
    """Return what the file holds of a row."""
    return {
        "id": finding.claim.id,
        "claim": finding.claim.says,
        "verdict": finding.verdict,
        "convention": "; ".join(finding.conventions) or None,
        "tried": "; ".join(dict.fromkeys(part.readings[0].tried for part in finding.parts)),
        "counterexamples": [dict(case) for case in finding.counterexamples],
        "figures": dict(finding.figures),
        "seconds": round(seconds, 2),
        "sources": [*finding.claim.sources],
    }
