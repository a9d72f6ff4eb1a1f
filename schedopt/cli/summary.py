"""What ``schedopt solve --json`` prints."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

from schedopt.account import bubble, memory
from schedopt.result import Result, as_ratio


def summarise(result: Result) -> dict[str, Any]:
    """Return a result as a JSON document: times in ns, memory in bytes."""
    period, bound, gap = result.period, result.lower_bound, result.gap
    document: dict[str, Any] = {
        "status": result.status,
        "period_ns": number(period),
        "period_exact": None if period is None else list(as_ratio(period)),
        "lower_bound_ns": number(bound),
        "lower_bound_exact": None if bound is None else list(as_ratio(bound)),
        "gap": None if gap is None else float(gap),
        "bounds": [dataclasses.asdict(one) for one in result.bounds],
        "scope": dataclasses.asdict(result.problem.scope),
        "pattern": None,
        "stages": None,
        "bubble": None,
        "memory_bytes": None,
        "memory_peak_bytes": None,
        "solver": result.solver,
        "seconds": result.seconds,
        "ladder": [dataclasses.asdict(rung) for rung in result.ladder],
        "infeasibility": None
        if result.infeasibility is None
        else dataclasses.asdict(result.infeasibility),
    }
    if result.plan is not None:
        needs = memory(result.plan)
        pattern = result.plan.pattern
        document |= {
            "pattern": {"k": pattern.k, "period_total_ns": pattern.period_total_ns},
            "stages": [
                {
                    "layers": list(stage.layers),
                    "gpus": list(stage.gpus),
                    "recompute": [list(run) for run in stage.recompute],
                }
                for stage in result.plan.stages
            ],
            "bubble": float(bubble(result.plan)),
            "memory_bytes": [need.reading(result.problem.scope.memory) for need in needs],
            "memory_peak_bytes": [need.peak_bytes for need in needs],
        }
    return document


def number(value: Fraction | None) -> int | float | None:
    """Return an exact number for readers: whole, or rounded."""
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)
