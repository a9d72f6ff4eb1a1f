"""The pipelines that TiMePReSt is compared with, each as a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from schedopt.account import concurrent_activations, memory, versions
from schedopt.bench.claims.claim import (
    TIMEPREST,
    Claim,
    Finding,
    Part,
    Reading,
    Step,
    Table,
    against,
)
from schedopt.bench.claims.cyclic_plans import equal_stages
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.simulation import simulate
from schedopt.systems import flushes, pipedream
from schedopt.systems.config import SystemConfig

CLAIM: Final = Claim(
    id="T6",
    says="What is said of GPipe, PipeDream, PipeDream-2BW and Flush, Chimera, XPipe and SpecTrain: "
    "makespan, activations, versions and staleness.",
    sources=(
        f"{TIMEPREST}, sections 2 and 3",
        "Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, section 3.1",
    ),
)
VERTICAL: Final = "with vertical sync, not with stashing alone"
EVEN: Final = "an even number of GPUs, whose pipelines cross between two of them"
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
"""What cannot be said as a plan."""


def plan_of(name: str, stages: int, microbatches: int) -> Plan:
    """Return the plan of a system on W equal stages with F = B = 1, checked."""
    config = replace(equal_stages(stages, stages), microbatches=microbatches)
    plan = SYSTEMS[name](config)
    assert not check(plan)
    return plan


def find_pipelines(step: Step, largest: int = 8) -> Finding:
    """Read off the accounts of the plans what is said of them."""
    sizes = range(2, largest + 1)
    gpipes, stale, least, pairs, crossing = [], [], [], [], []
    for stages in sizes:
        step(f"W = {stages}")
        gpipes += [_gpipe(stages, count) for count in range(1, 2 * largest + 1)]
        stale += [_stale(name, stages) for name in ("PipeDream", "PipeDream, vertical sync")]
        least.append(_least_update(stages))
        pairs.append(_flush_and_two_versions(stages))
        crossing.append(_crossing(stages))
    tried = f"W = 2 to {largest}"
    two = f"{tried}, m = 1 to W + 2: plans with a delay of one, checked"
    both = [case for case in stale if case["system"] == "PipeDream"]
    vertical = [case for case in stale if case["system"] != "PipeDream"]
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="GPipe takes 2 (M + W - 1), keeps all M activations and one version",
                readings=[
                    Reading(
                        tried=f"{tried}, M = 1 to {2 * largest}, F = B = 1",
                        counterexamples=[
                            *against(gpipes, "W", "M", "makespan", "printed"),
                            *against(gpipes, "W", "M", "activations", "M"),
                            *(case for case in gpipes if case["versions"] != 1),
                        ],
                    )
                ],
            ),
            Part(
                says="PipeDream updates weights t with gradients of the weights t - W + 1 in all "
                "stages",
                readings=[
                    Reading(
                        tried=f"{tried}, stashing",
                        counterexamples=against(both, "W", "staleness", "printed"),
                    ),
                    Reading(
                        convention=VERTICAL,
                        tried=tried,
                        counterexamples=against(vertical, "W", "staleness", "printed"),
                    ),
                ],
            ),
            Part(
                says="PipeDream keeps several versions of the weights",
                readings=[
                    Reading(
                        tried=tried,
                        counterexamples=[case for case in stale if max(case["versions"]) < 2],
                    )
                ],
            ),
            Part(
                says="m >= W is enough for PipeDream-2BW, two versions and a delay of one",
                readings=[
                    Reading(
                        tried=two,
                        counterexamples=[case for case in least if case["least_m"] > case["W"]],
                    )
                ],
            ),
            Part(
                says="m >= W is needed",
                readings=[
                    Reading(tried=two, counterexamples=against(least, "W", "least_m", "printed"))
                ],
            ),
            Part(
                says="PipeDream-Flush takes less memory than 2BW, and more time",
                readings=[
                    Reading(
                        tried=f"{tried}, 4 W micro-batches a flush",
                        counterexamples=[
                            case
                            for case in pairs
                            if case["flush_bytes"] >= case["two_bytes"]
                            or Fraction(case["flush"]) <= Fraction(case["two"])
                        ],
                    )
                ],
            ),
            Part(
                says="Chimera runs two pipelines in opposite directions, with less idle time than "
                "GPipe and 1F1B with a flush, and one version",
                readings=[
                    Reading(tried=tried, counterexamples=_bad(crossing)),
                    Reading(
                        convention=EVEN,
                        tried=f"{tried}, W micro-batches and twice as many",
                        counterexamples=_bad(case for case in crossing if case["W"] % 2 == 0),
                    ),
                ],
            ),
        ],
        figures={
            "not_a_plan": UNSAID,
            "least_m_of_2bw": {str(c["W"]): c["least_m"] for c in least},
        },
        notes=[f"{name} cannot be said as a plan: {why}." for name, why in UNSAID.items()]
        + ["The source draws Chimera with three stages; its authors ask for an even number."],
        tables=[_table(4, 12)],
    )


def _gpipe(stages: int, count: int) -> dict[str, Any]:
    plan = plan_of("GPipe", stages, count)
    kept = set(concurrent_activations(plan).values())
    return {
        "W": stages,
        "M": count,
        "makespan": simulate(plan, count).makespan_ns,
        "printed": 2 * (count + stages - 1),
        "activations": kept.pop() if len(kept) == 1 else sorted(kept),
        "versions": max(versions(plan).held.values()),
    }


def _stale(name: str, stages: int) -> dict[str, Any]:
    found = versions(plan_of(name, stages, stages))
    worst = [
        max(delay for (_, stage), delay in found.backward_staleness.items() if stage == s)
        for s in range(stages)
    ]
    return {
        "system": name,
        "W": stages,
        "staleness": worst,
        "printed": [stages - 1] * stages,
        "versions": [held for _, held in sorted(found.held.items())],
    }


def _least_update(stages: int) -> dict[str, Any]:
    """Return the least m with which 1F1B that reads one update ago is valid, with two versions."""
    valid = []
    for m in range(1, stages + 3):
        config = equal_stages(stages, stages)
        rule = Rule(update_every=m, forward_reads="delay", delay=1)
        plan = pipedream.one_f_one_b(config, rule)
        if not check(plan) and max(versions(plan).held.values()) <= 2:
            valid.append(m)
    assert valid == list(range(valid[0], stages + 3))
    return {"W": stages, "least_m": valid[0], "printed": stages}


def _flush_and_two_versions(stages: int) -> dict[str, Any]:
    count = 4 * stages
    flush = plan_of("PipeDream-Flush", stages, count)
    two = plan_of("PipeDream-2BW", stages, count)
    return {
        "W": stages,
        "flush_bytes": max(gpu.peak_bytes for gpu in memory(flush)),
        "two_bytes": max(gpu.peak_bytes for gpu in memory(two)),
        "flush": str(Fraction(flush.pattern.period_total_ns, count)),
        "two": str(Fraction(two.pattern.period_total_ns, two.pattern.k)),
    }


def _crossing(stages: int) -> dict[str, Any]:
    """Return makespans of Chimera and of both others, if it has a plan."""
    case: dict[str, Any] = {"W": stages, "makespans": {}, "versions": None}
    for count in (stages, 2 * stages):
        try:
            plan = plan_of("Chimera", stages, count)
        except InputError as error:
            return case | {"refused": str(error)}
        row = [simulate(plan, count).makespan_ns]
        row += [simulate(plan_of(n, stages, count), count).makespan_ns for n in _FLUSHED]
        case["makespans"][str(count)] = row
        case["versions"] = max(versions(plan).held.values())
    return case


_FLUSHED: Final = ("GPipe", "PipeDream-Flush")


def _bad(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases in which Chimera has no plan, idles no less, or keeps several versions."""
    return [
        case
        for case in cases
        if case["versions"] != 1
        or any(mine > min(others) for mine, *others in case["makespans"].values())
        or all(mine == min(others) for mine, *others in case["makespans"].values())
    ]


def _most_activations(plan: Plan) -> int:
    """Return the activations of the GPU that keeps most, of all its stages."""
    of_gpu = Counter[int]()
    for (_, gpu), count in concurrent_activations(plan).items():
        of_gpu[gpu] += count
    return max(of_gpu.values())


def _table(stages: int, count: int) -> Table:
    rows: list[tuple[object, ...]] = []
    for name in SYSTEMS:
        plan = plan_of(name, stages, count)
        found = versions(plan)
        steady = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
        rows.append(
            (
                name,
                plan.rule.update_every,
                simulate(plan, count).makespan_ns,
                str(steady),
                _most_activations(plan),
                max(found.held.values()),
                max(found.forward_staleness.values()),
            )
        )
    rows += [(name, "", "not a plan", "", "", "", "") for name in UNSAID]
    return Table(
        title=f"W = {stages}, F = B = 1: makespan of {count} micro-batches by themselves, time of "
        f"one where the pattern repeats",
        header=["system", "m", "makespan", "T / k", "activations", "versions", "staleness"],
        rows=rows,
    )
