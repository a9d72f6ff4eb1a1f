"""How short periods get by longer patterns."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

from schedopt.bench.claims.claim import (
    COMPLEXITY,
    Claim,
    Finding,
    Part,
    Reading,
    Step,
    Table,
    against,
)
from schedopt.families import theorem_4
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import solve

CLAIM: Final = Claim(
    id="P3",
    says="For every k there are chains on which no pattern of fewer than k micro-batches is as "
    "good as one of k: T / k = 2 (1 + 1 / k).",
    sources=(f"{COMPLEXITY}, Theorem 4",),
)
MOST_K: Final = 7


def find_periods_of_theorem_4(step: Step, most_k: int = MOST_K) -> Finding:
    """Prove the least period of the theorem's chain for each k and each j up to k."""
    cases = []
    for k in range(1, most_k + 1):
        for j in range(1, k + 1):
            step(f"k = {k}, patterns of {j}")
            cases.append(_solve(k, j))
    unproven = [case for case in cases if case["status"] != "optimal"]
    tried = f"k = 1 to {most_k}, patterns of 1 to k micro-batches, each proven"
    best = {case["k"]: case["period"] for case in cases if case["j"] == case["k"]}
    needless = [
        case for case in cases if case["j"] < case["k"] and case["period"] == best[case["k"]]
    ]
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="no pattern of up to j micro-batches beats 2 (1 + 1 / j), and one reaches it",
                readings=[
                    Reading(
                        tried=tried,
                        counterexamples=[*unproven, *against(cases, "k", "j", "period", "printed")],
                    )
                ],
            ),
            Part(
                says="no pattern of fewer than k micro-batches is as good as one of k",
                readings=[Reading(tried=tried, counterexamples=[*unproven, *needless])],
            ),
        ],
        figures={"proofs": len(cases), "least_period": {str(k): best[k] for k in best}},
        tables=[_table(cases, most_k)],
    )


def _solve(k: int, longest: int) -> dict[str, Any]:
    """Return the least T / k of the theorem's chain with patterns up to a length."""
    instance = theorem_4(k)
    stages = instance.known[-1].stages
    scope = Scope(allocation="fixed", max_k=longest)
    result = solve(
        instance.chain, instance.platform, stages=stages, scope=scope, solver="periodic", workers=1
    )
    unit = instance.chain.provenance["unit_ns"]
    return {
        "k": k,
        "j": longest,
        "status": result.status,
        "period": _in_units(result, unit),
        "printed": str(2 * (1 + Fraction(1, longest))),
    }


def _in_units(result: Result, unit: int) -> str:
    return "none" if result.period is None else str(result.period / unit)


def _table(cases: list[dict[str, Any]], most_k: int) -> Table:
    found = {(case["k"], case["j"]): case["period"] for case in cases}
    lengths = range(1, most_k + 1)
    return Table(
        title="The least T / k, by the longest pattern that is allowed",
        header=["chain for k", *(f"j = {j}" for j in lengths)],
        rows=[(k, *(found.get((k, j), "") for j in lengths)) for k in lengths],
    )
