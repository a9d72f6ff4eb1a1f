"""What is measured on the runs of TiMePReSt, for each W, N and length of a backward."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Any, Final

from schedopt.bench.claims.claim import Step, against
from schedopt.bench.claims.timeprest_runs import LENGTHS, Run, length_of, run_timeprest

AS_LONG: Final = "the backward of a mini-batch takes as long as one forward of a micro-batch"
EARLY: Final = 5
"""Mini-batches whose forwards are measured."""


def measured(
    step: Step, largest: int, names: Iterable[str] = tuple(LENGTHS)
) -> list[dict[str, Any]]:
    """Return what is measured on each run, for W and N from 2 and the lengths of backwards."""
    found = []
    for name in names:
        for stages, count in product(range(2, largest + 1), repeat=2):
            step(f"B = {name}, W = {stages}, N = {count}")
            found.append(_measure(stages, count, name))
    return found


@cache
def _measure(stages: int, count: int, name: str) -> dict[str, Any]:
    run = run_timeprest(stages, count, length_of(name, count))
    return {
        "order": _order(run, name),
        "difference": _difference(run, name),
        "forwards": _forwards(run, name),
        "backward": _backwards(run, name),
    }


def tried_on(largest: int) -> str:
    """Return the range of all runs in words."""
    return f"W, N = 2 to {largest}, backwards of {', '.join(LENGTHS)} forwards"


def wrong_ones(
    cases: list[dict[str, Any]], one: str, other: str, *more: str
) -> list[dict[str, Any]]:
    """Return the runs in which two figures differ, with the figures."""
    shown = dict.fromkeys(("W", "N", "B", *more, one, other))
    found = against(cases, "W", "N", "B", *more, one, other)
    return [{name: case[name] for name in shown} for case in found]


def _order(run: Run, name: str) -> dict[str, Any]:
    ahead: set[int] = set()
    for stage in range(run.stages):
        between = run.order(stage).split("B")
        ahead |= {len(between[i]) for i in run.steady}
    every = {
        run.points(run.backward_ns(i + 1, s)[0] - run.backward_ns(i, s)[0])
        for i in run.steady
        for s in range(run.stages)
    }
    return {
        "W": run.stages,
        "N": run.count,
        "B": name,
        "ahead": _one(ahead),
        "every": _one(every),
        "printed": run.count + 1,
        "N + L": run.count + run.backward,
    }


def _one(found: set[int]) -> object:
    return found.pop() if len(found) == 1 else sorted(found)


def _difference(run: Run, name: str) -> dict[str, Any]:
    v = _one({run.version_difference(i + 1) for i in run.steady})
    return {
        "W": run.stages,
        "N": run.count,
        "B": name,
        "L": run.backward,
        "v": v,
        "printed": (run.stages + run.count - 2) // run.count,
        "is_one": v == 1,
        "printed_is_one": run.stages <= run.count + 1,
    }


def _forwards(run: Run, name: str) -> list[dict[str, Any]]:
    last = run.stages - 1
    arrives, _ = run.backward_ns(0, 0)
    found = []
    for mini in range(min(EARLY, run.mini_batches)):
        first, end = mini * run.count, (mini + 1) * run.count - 1
        taken = run.points(run.end("F", last, end) - run.start("F", 0, first))
        found.append(
            {
                "W": run.stages,
                "N": run.count,
                "B": name,
                "mini_batch": mini + 1,
                "points": taken,
                "printed": run.stages + run.count - 1 + mini,
                "early": run.end("F", 0, end) <= arrives,
            }
        )
    return found


def _backwards(run: Run, name: str) -> dict[str, Any]:
    """Return how long backwards take from the last stage to the first."""
    last = run.stages - 1
    taken = {run.points(run.backward_ns(i, 0)[1] - run.backward_ns(i, last)[0]) for i in run.steady}
    return {"W": run.stages, "N": run.count, "B": name, "points": _one(taken)}
