"""Whether plans hold when they run: predicted and measured side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from math import ceil
from typing import Any, Final

from schedopt.bench.cases import least_memory
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bench.tables import Row
from schedopt.chain import Chain
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.running import Job, execute
from schedopt.solving import solve
from schedopt.units import format_duration

BANDWIDTH: Final = "12GB/s"
LEVEL: Final = Decimal("1.3")
"""Memory of a GPU over the least with which a contiguous plan exists."""
GOAL: Final = 0.05
"""How far the measured period of synthetic layers may be from the predicted one."""
PERIOD_NS: Final = 100_000_000
"""Synthetic layers are stretched so that a micro-batch takes this long."""
KINDS: Final[Mapping[str, Scope]] = {
    "contiguous": Scope(),
    "any allocation": Scope(allocation="general"),
    "k up to 2": Scope(max_k=2),
    "split backward": Scope(split_backward=True),
    "recompute": Scope(recompute=True),
    "all together": Scope(allocation="general", max_k=2, split_backward=True, recompute=True),
}
SIZES: Final = ((4, 12), (4, 24), (8, 24), (8, 48))
"""Ranks, and micro-batches of a step."""
FIGURES: Final = ("period_ns", "step_ns", "bubble")


def execution_case(chain: Chain, kind: str, gpus: int, microbatches: int, steps: int) -> Case:
    """Return a plan of a kind of `KINDS`, run by ranks whose layers sleep; medians over steps."""

    def measure(effort: Effort, _: Proceed) -> dict[str, Any]:
        plan = _plan(chain, kind, gpus)
        stretch = PERIOD_NS * plan.pattern.k / plan.pattern.period_total_ns
        job = Job(
            plan=plan,
            model=None,
            backend="p2p",
            microbatches=microbatches,
            steps=steps,
            stretch=stretch,
        )
        report = execute(job).to_json()
        predicted, measured = report["predicted"], report["measured"]
        return {
            "stretch": round(stretch, 4),
            "plan_period_ns": report["plan_period_ns"],
            **{f"predicted_{name}": predicted[name] for name in FIGURES},
            **{f"measured_{name}": measured[name] for name in FIGURES},
            "live_as_predicted": predicted["live"] == measured["live"],
            "saved_over_predicted": _farthest(measured["saved_bytes"], predicted["saved_bytes"]),
            "load": report["load"],
        }

    key = {"chain": chain.name, "kind": kind, "gpus": gpus, "microbatches": microbatches}
    return Case("sleeping", key, measure)


@cache
def _plan(chain: Chain, kind: str, gpus: int) -> Plan:
    """Return a plan; steps of every length run the same one."""
    least = least_memory(chain, gpus, BANDWIDTH)
    platform = Platform(gpus, ceil(least * LEVEL), bandwidth=BANDWIDTH)
    plan = solve(chain, platform, scope=KINDS[kind], time_limit=5).plan
    assert plan is not None
    return plan


def _farthest(measured: Sequence[int], predicted: Sequence[int]) -> float:
    """Return the ratio that is farthest from 1."""
    ratios = [real / said for real, said in zip(measured, predicted, strict=True) if said]
    _, farthest = max((abs(ratio - 1), ratio) for ratio in ratios)
    return round(farthest, 4)


def execution_cases(chain: Chain, steps: int) -> list[Case]:
    """Return all kinds of plans of a chain, on all sizes."""
    return [
        execution_case(chain, kind, gpus, microbatches, steps)
        for kind in KINDS
        for gpus, microbatches in SIZES
    ]


def misses(records: Records) -> Iterator[str]:
    """Yield in words where the measured period is too far from the predicted one."""
    for row in records:
        if abs(row["measured_period_ns"] / row["predicted_period_ns"] - 1) > GOAL:
            where = f"{row['kind']}, {row['gpus']} ranks, {row['microbatches']} micro-batches"
            yield f"{where}: {_difference(row, 'period_ns')}, load {row['load']}"


def _rows(records: Records) -> list[dict[str, Any]]:
    return [
        {
            **row,
            **{f"{which}_period": format_duration(round(row[f"{which}_period_ns"]))
               for which in ("predicted", "measured")},
            "difference": _difference(row, "period_ns"),
            "of_step": _difference(row, "step_ns"),
        }
        for row in records
    ]  # fmt: skip


def _difference(row: Row, name: str) -> str:
    return f"{row[f'measured_{name}'] / row[f'predicted_{name}'] - 1:+.1%}"


SUITE: Final = Suite(
    title="Whether plans hold when they run",
    families=("sleeping",),
    protocol="Synthetic layers of a chain, a process a rank, over gloo; links "
    f"{BANDWIDTH}, memory {LEVEL} times the least with which a contiguous plan exists. Times "
    f"are stretched so that a micro-batch takes {format_duration(PERIOD_NS)}. The load is that of "
    "the machine, over the last minute.",
    misses=misses,
    well=f"Each measured period is within {GOAL:.0%} of the predicted one.",
    tables=[
        Table(
            "Plans",
            "",
            "chain kind=plan gpus=ranks microbatches=micro-batches "
            "predicted_period=period~predicted measured_period=measured difference "
            "of_step=of~the~step predicted_bubble=bubble~predicted measured_bubble=measured "
            "live_as_predicted=in~flight~as~predicted "
            "saved_over_predicted=saved~bytes~over~predicted load",
            _rows,
        )
    ],
    resumable=False,
)
