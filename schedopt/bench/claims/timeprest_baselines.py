"""Dutta, Chaki and De, TiMePReSt: the pipelines that it is compared with, each as a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from schedopt.account import concurrent_activations, memory, versions
from schedopt.bench.claims.plans import checked, equal_stages
from schedopt.bench.claims.result import Case, Computed, Step, Table, announced, differing, sole
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.simulation import simulate
from schedopt.systems import flushes, pipedream
from schedopt.systems.config import SystemConfig

SYSTEMS: Final[dict[str, Callable[[SystemConfig], Plan]]] = {
    "GPipe": flushes.gpipe,
    "PipeDream-Flush": flushes.one_f_one_b,
    "Chimera": flushes.chimera,
    "PipeDream": pipedream.pipedream,
    "PipeDream, vertical sync": pipedream.pipedream_vertical,
    "PipeDream-2BW": pipedream.pipedream_2bw,
}
UNSAID: Final = {
    "SpecTrain": "forwards read weights that are predicted from momentum; a rule here names a "
    "version that an update has made",
    "XPipe": "its order is 1F1B without a flush with an update every m micro-batches, but forwards "
    "and backwards read predicted weights, which no rule here names",
}
"""The systems that no plan describes, and why."""


def plan_of(name: str, stages: int, microbatches: int) -> Plan:
    """Return the plan of a system on W equal stages with F = B = 1, checked."""
    return checked(SYSTEMS[name](equal_stages(stages, stages, microbatches=microbatches)))


def find_pipelines(step: Step, largest: int = 8) -> Computed:
    """T6: read off the accounts of the plans what is said of them."""
    gpipes: list[Case] = []
    stale: dict[str, list[Case]] = {"PipeDream": [], "PipeDream, vertical sync": []}
    least, pairs, crossing = [], [], []
    for stages in announced(step, "W = {}", range(2, largest + 1)):
        gpipes += [_measure_gpipe(stages, count) for count in range(1, 2 * largest + 1)]
        for name, cases in stale.items():
            cases.append(_measure_staleness(name, stages))
        least.append(_least_update(stages))
        pairs.append(_compare_flush(stages))
        crossing.append(_measure_chimera(stages))
    idle = [case for case in crossing if not _is_better(case)]
    return Computed(
        {
            "gpipe": [
                *differing(gpipes, "W", "M", "makespan", "printed"),
                *differing(gpipes, "W", "M", "activations", "M"),
                *(case for case in gpipes if case["versions"] != 1),
            ],
            **stale,
            "one version": [c for cases in stale.values() for c in cases if max(c["versions"]) < 2],
            "not enough": [case for case in least if case["least_m"] > case["W"]],
            "least m": least,
            "flush": [
                case
                for case in pairs
                if case["flush_bytes"] >= case["two_bytes"]
                or Fraction(case["flush"]) <= Fraction(case["two"])
            ],
            "chimera": idle,
            "chimera, even W": [case for case in idle if case["W"] % 2 == 0],
        },
        {"tried": f"W = 2 to {largest}", "most_m": 2 * largest},
        figures={
            "not_a_plan": UNSAID,
            "least_m_of_2bw": {str(case["W"]): case["least_m"] for case in least},
        },
        notes=[f"{name} cannot be said as a plan: {why}." for name, why in UNSAID.items()],
        tables=[_overview(4, 12)],
    )


def _measure_gpipe(stages: int, count: int) -> Case:
    plan = plan_of("GPipe", stages, count)
    return {
        "W": stages,
        "M": count,
        "makespan": simulate(plan, count).makespan_ns,
        "printed": 2 * (count + stages - 1),
        "activations": sole(concurrent_activations(plan).values()),
        "versions": max(versions(plan).held.values()),
    }


def _measure_staleness(name: str, stages: int) -> Case:
    found = versions(plan_of(name, stages, stages))
    worst = Counter[int]()
    for (_, stage), delay in found.backward_staleness.items():
        worst[stage] = max(worst[stage], delay)
    return {
        "system": name,
        "W": stages,
        "staleness": [worst[stage] for stage in range(stages)],
        "printed": [stages - 1] * stages,
        "versions": [held for _, held in sorted(found.held.items())],
    }


def _least_update(stages: int) -> Case:
    """Return the least m with which 1F1B that reads one update ago is valid, with two versions."""
    valid = []
    for m in range(1, stages + 3):
        rule = Rule(update_every=m, forward_reads="delay", delay=1)
        plan = pipedream.one_f_one_b(equal_stages(stages, stages), rule)
        if not check(plan) and max(versions(plan).held.values()) <= 2:
            valid.append(m)
    assert valid == list(range(valid[0], stages + 3))
    return {"W": stages, "least_m": valid[0], "printed": stages}


def _compare_flush(stages: int) -> Case:
    plans = [plan_of(name, stages, 4 * stages) for name in ("PipeDream-Flush", "PipeDream-2BW")]
    flush_bytes, two_bytes = (max(gpu.peak_bytes for gpu in memory(plan)) for plan in plans)
    flush, two = (str(Fraction(p.pattern.period_total_ns, p.pattern.k)) for p in plans)
    sizes = {"flush_bytes": flush_bytes, "two_bytes": two_bytes}
    return {"W": stages, **sizes, "flush": flush, "two": two}


def _measure_chimera(stages: int) -> Case:
    """Return makespans of Chimera, GPipe and 1F1B with a flush, if Chimera has a plan."""
    case: Case = {"W": stages, "makespans": {}, "versions": None}
    for count in (stages, 2 * stages):
        try:
            plans = [plan_of(n, stages, count) for n in ("Chimera", "GPipe", "PipeDream-Flush")]
        except InputError as error:
            return case | {"refused": str(error)}
        case["makespans"][str(count)] = [simulate(plan, count).makespan_ns for plan in plans]
        case["versions"] = max(versions(plans[0]).held.values())
    return case


def _is_better(case: Case) -> bool:
    """Whether Chimera has plans with one version, and idles no more and once less than both."""
    pairs = [(own, min(others)) for own, *others in case["makespans"].values()]
    return (
        case["versions"] == 1
        and all(own <= best for own, best in pairs)
        and any(own < best for own, best in pairs)
    )


def _most_activations(plan: Plan) -> int:
    """Return the activations of the GPU that keeps most, of all its stages."""
    by_gpu = Counter[int]()
    for (_, gpu), count in concurrent_activations(plan).items():
        by_gpu[gpu] += count
    return max(by_gpu.values())


def _overview(stages: int, count: int) -> Table:
    rows: list[tuple[object, ...]] = []
    for name in SYSTEMS:
        plan = plan_of(name, stages, count)
        found = versions(plan)
        rows.append(
            (
                name,
                plan.rule.update_every,
                simulate(plan, count).makespan_ns,
                str(Fraction(plan.pattern.period_total_ns, plan.pattern.k)),
                _most_activations(plan),
                max(found.held.values()),
                max(found.forward_staleness.values()),
            )
        )
    rows += [(name, "", "not a plan", "", "", "", "") for name in UNSAID]
    return Table(
        f"W = {stages}, F = B = 1: makespan of {count} micro-batches by themselves, time of one "
        "where the pattern repeats",
        ["system", "m", "makespan", "T / k", "activations", "versions", "staleness"],
        rows,
    )
