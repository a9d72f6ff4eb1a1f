"""What ``schedopt solve --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from typing import Any

from schedopt.account import bubble, memory
from schedopt.cli.flags import say_note, say_ways
from schedopt.result import Infeasibility, Result
from schedopt.validation import as_ratio


def summarise(result: Result) -> dict[str, Any]:
    """Return a result as a JSON document: times in ns, memory in bytes."""
    period, bound, gap = result.period, result.lower_bound, result.gap
    why = result.infeasibility
    document: dict[str, Any] = {
        "status": result.status,
        "period_ns": number(period),
        "period_exact": None if period is None else list(as_ratio(period)),
        "lower_bound_ns": number(bound),
        "lower_bound_exact": None if bound is None else list(as_ratio(bound)),
        "gap": None if gap is None else float(gap),
        "bounds": [asdict(bound) | {"proof": str(bound.proof)} for bound in result.bounds],
        "scope": asdict(result.problem.scope),
        "pattern": None,
        "stages": None,
        "bubble": None,
        "memory_bytes": None,
        "memory_peak_bytes": None,
        "solver": result.solver,
        "seconds": result.seconds,
        "ladder": [asdict(phase) | {"note": say_note(phase.note)} for phase in result.ladder],
        "infeasibility": None if why is None else _summarise_why(why),
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


def _summarise_why(why: Infeasibility) -> dict[str, Any]:
    return asdict(why) | {"proof": str(why.proof), "wider": say_ways(why.wider)}


def number(value: Fraction | None) -> int | float | None:
    """Return an exact number for readers: whole, or rounded."""
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)
