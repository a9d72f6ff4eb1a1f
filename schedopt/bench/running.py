"""Whether plans hold when they run: predicted and measured side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from math import ceil
from typing import Any, Final

from schedopt.bench.cases import least_memory
from schedopt.bench.machine import describe_machine
from schedopt.bench.markdown import opening, table
from schedopt.chain import Chain
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.running.job import Job
from schedopt.running.run import execute
from schedopt.solving import solve
from schedopt.units import format_duration

BANDWIDTH: Final = "12GB/s"
LEVEL: Final = Decimal("1.3")
"""Memory of a GPU over the least with which a contiguous plan exists."""
GOAL: Final = 0.05
"""How far the measured period of sleeping layers may be from the predicted one."""
PERIOD_NS: Final = 100_000_000
"""Sleeping layers are stretched so that a micro-batch takes so long."""
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
WHICH: Final = ("predicted", "measured")


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """Sleeping layers of a chain on so many ranks.

    Parameters
    ----------
    chain : Chain
    kind : str
        Of `KINDS`.
    gpus, microbatches : int
    """

    chain: Chain
    kind: str
    gpus: int
    microbatches: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.gpus} ranks, {self.microbatches} micro-batches"

    def measure(self, steps: int) -> dict[str, Any]:
        """Return what was predicted and measured, medians over so many steps."""
        plan = _plan(self.chain, self.kind, self.gpus)
        stretch = PERIOD_NS * plan.pattern.k / plan.pattern.period_total_ns
        job = Job(
            plan=plan,
            model=None,
            backend="p2p",
            microbatches=self.microbatches,
            steps=steps,
            stretch=stretch,
        )
        found = execute(job).to_json()
        planned, measured = found["predicted"], found["measured"]
        return {
            "chain": self.chain.name,
            "kind": self.kind,
            "gpus": self.gpus,
            "microbatches": self.microbatches,
            "stretch": round(stretch, 4),
            "plan_period_ns": found["plan_period_ns"],
            **{f"predicted_{name}": planned[name] for name in ("period_ns", "step_ns", "bubble")},
            **{f"measured_{name}": measured[name] for name in ("period_ns", "step_ns", "bubble")},
            "live_as_predicted": planned["live"] == measured["live"],
            "saved_over_predicted": _largest(measured["saved_bytes"], planned["saved_bytes"]),
            "load": found["load"],
        }


@cache
def _plan(chain: Chain, kind: str, gpus: int) -> Plan:
    """Return a plan; steps of every length run the same one."""
    least = least_memory(chain, gpus, BANDWIDTH)
    platform = Platform(gpus, ceil(least * LEVEL), bandwidth=BANDWIDTH)
    plan = solve(chain, platform, scope=KINDS[kind], time_limit=5).plan
    assert plan is not None
    return plan


def _largest(found: Sequence[int], planned: Sequence[int]) -> float:
    """Return the ratio that is farthest from 1."""
    ratios = [one / other for one, other in zip(found, planned, strict=True) if other]
    _, farthest = max((abs(ratio - 1), ratio) for ratio in ratios)
    return round(farthest, 4)


def measure_running(
    chain: Chain,
    steps: int,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> dict[str, Any]:
    """Return the figures of all kinds of plans of a chain with machine, versions and date.

    Parameters
    ----------
    chain : Chain
    steps : int
        That are timed in each run.
    on_run : callable
        Called before each run with the number of runs done, of all, and the name of this one.
    """
    wanted = [
        Sleeping(chain=chain, kind=kind, gpus=gpus, microbatches=count)
        for kind in KINDS
        for gpus, count in SIZES
    ]
    rows = []
    for done, one in enumerate(wanted):
        on_run(done, len(wanted), str(one))
        rows.append(one.measure(steps))
    return {**describe_machine(), "steps": steps, "sleeping": rows}


def missed_goals(document: Mapping[str, Any]) -> list[str]:
    """Return in words where the measured period is too far from the predicted one."""
    return [
        f"{row['kind']}, {row['gpus']} ranks, {row['microbatches']} micro-batches: "
        f"{_apart(row, 'period_ns')}, load {row['load']}"
        for row in document["sleeping"]
        if abs(row["measured_period_ns"] / row["predicted_period_ns"] - 1) > GOAL
    ]


def to_markdown(document: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    protocol = (
        f"schedopt {document['schedopt']}, Python {document['python']}, {document['machine']}, "
        f"{document['date']}. Sleeping layers of a chain, a process a rank, over gloo; links "
        f"{BANDWIDTH}, memory {LEVEL} times the least with which a contiguous plan exists. Times "
        f"are stretched so that a micro-batch takes {format_duration(PERIOD_NS)}; medians over "
        f"{document['steps']} steps. The load is that of the machine, over the last minute."
    )
    cells = [
        [
            row["kind"],
            row["gpus"],
            row["microbatches"],
            *(format_duration(round(row[f"{which}_period_ns"])) for which in WHICH),
            _apart(row, "period_ns"),
            _apart(row, "step_ns"),
            *(f"{row[f'{which}_bubble']:.1%}" for which in WHICH),
            "yes" if row["live_as_predicted"] else "no",
            f"{row['saved_over_predicted']:.3f}",
            row["load"],
        ]
        for row in document["sleeping"]
    ]
    header = [
        "plan",
        "ranks",
        "micro-batches",
        "period predicted",
        "measured",
        "difference",
        "of the step",
        "bubble predicted",
        "measured",
        "in flight as predicted",
        "saved bytes over predicted",
        "load",
    ]
    names = ", ".join(sorted({row["chain"] for row in document["sleeping"]}))
    lines = opening(
        "Whether plans hold when they run",
        protocol,
        missed_goals(document),
        f"Each measured period is within {GOAL:.0%} of the predicted one.",
    )
    return "\n".join([*lines, "", f"## {names}", "", *table(header, cells)]) + "\n"


def _apart(row: Mapping[str, Any], name: str) -> str:
    return f"{row[f'measured_{name}'] / row[f'predicted_{name}'] - 1:+.1%}"
