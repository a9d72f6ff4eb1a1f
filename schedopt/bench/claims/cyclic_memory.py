"""How many activations data parallelism keeps, and how many in a cycle."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

from schedopt.account import residencies
from schedopt.account.profile import profile_of
from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Reading, Step, Table, against
from schedopt.bench.claims.cyclic_plans import cyclic_plan, equal_stages, timeline_of
from schedopt.plan import Plan
from schedopt.systems import data_parallel, flushes

CLAIM: Final = Claim(
    id="C3",
    says="On one GPU data parallelism keeps N times the activations of the model, cyclic data "
    "parallelism (N + 1) / 2 times, nearly constant over time.",
    sources=(f"{CDP}, Table 1, Single-GPU DP", f"{CDP}, appendix C.1"),
)
IN_A_ROW: Final = "one GPU runs the N operations of a time step one after another"
AT_ONCE: Final = "the N operations of a time step run at once"
FROM_END: Final = f"{AT_ONCE}, and activations count from the end of F"
FROM_START: Final = f"{AT_ONCE}, and activations count from the start of F"


def find_activations(step: Step, largest: int = 16, largest_serial: int = 8) -> Finding:
    """Measure the most and the least that is kept, over a period."""
    cases = []
    for count in range(2, largest + 1):
        step(f"N = {count}")
        setting = equal_stages(count, count)
        cases.append(_case("DP", "at once", data_parallel.overlapped(setting)))
        cases.append(_case("CDP", "at once", cyclic_plan("v2", count)))
        if count <= largest_serial:
            cases.append(_case("DP", "in a row", flushes.gpipe(equal_stages(count, 1))))
            cases.append(_case("CDP", "in a row", cyclic_plan("v2, one GPU", count)))
    plain, cycle = ([case for case in cases if case["system"] == name] for name in ("DP", "CDP"))
    at_once, in_a_row = (
        [case for case in cycle if case["operations"] == how] for how in ("at once", "in a row")
    )
    tried = (
        f"N = 2 to {largest} with the N operations of a step at once, on N GPUs added up, and to "
        f"{largest_serial} on one GPU in a row"
    )
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="data parallelism keeps N times the activations of the model",
                readings=[Reading(tried=tried, counterexamples=_against(plain, "most"))],
            ),
            Part(
                says="in a cycle it is never more than (N + 1) / 2 times",
                readings=[
                    Reading(
                        tried=tried,
                        counterexamples=[
                            case
                            for case in cycle
                            if Fraction(case["most"]) > Fraction(case["printed"])
                        ],
                    )
                ],
            ),
            Part(
                says="in a cycle it is (N + 1) / 2 times",
                readings=[
                    Reading(
                        convention=IN_A_ROW,
                        tried=tried,
                        counterexamples=_against(in_a_row, "most"),
                    ),
                    Reading(
                        convention=FROM_END,
                        tried=tried,
                        counterexamples=_against(at_once, "most_from_end_of_F"),
                    ),
                    Reading(
                        convention=FROM_START,
                        tried=tried,
                        counterexamples=_against(at_once, "most"),
                    ),
                ],
            ),
            Part(
                says="in a cycle it is constant over time",
                readings=[
                    Reading(
                        convention=IN_A_ROW,
                        tried=tried,
                        counterexamples=against(in_a_row, "N", "most", "least"),
                    ),
                    Reading(
                        convention=FROM_START,
                        tried=tried,
                        counterexamples=against(at_once, "N", "most", "least"),
                    ),
                ],
            ),
        ],
        figures={"cases": cases},
        tables=[
            Table(
                title="Activations that are kept, in those of the model for a micro-batch",
                header=["N", "DP", "printed", "CDP most", "least", "most in a row", "least",
                        "from the end of F", "printed"],
                rows=list(_rows(cases)),
            )
        ],
    )  # fmt: skip


def _case(system: str, operations: str, plan: Plan) -> dict[str, Any]:
    count = plan.rule.update_every or 1
    spans, shorter = kept(plan)
    length = timeline_of(plan).length_ns
    most, least = _range(spans, length)
    printed = Fraction(count if system == "DP" else count + 1, 1 if system == "DP" else 2)
    return {
        "system": system,
        "operations": operations,
        "N": count,
        "most": _in_models(most, count),
        "least": _in_models(least, count),
        "most_from_end_of_F": _in_models(_range(shorter, length)[0], count),
        "printed": str(printed),
    }


def kept(plan: Plan) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Return bytes, start and end of all activations: from the start of F, and from its end."""
    timeline = timeline_of(plan)
    forward = {
        stage: timeline.stage_ns("F", stage, plan.stages[stage].gpus[0])
        for stage in range(len(plan.stages))
    }
    whole, shorter = [], []
    for residency in residencies(plan):
        if residency.kind == "activation":
            start, end = residency.start_ns or 0, residency.end_ns or 0
            whole.append((residency.count, start, end))
            shorter.append((residency.count, start + forward[residency.stage], end))
    return whole, shorter


def _range(spans: Iterable[tuple[int, int, int]], length: int) -> tuple[int, int]:
    """Return the most and the least bytes at any time."""
    # What is there at the start of the period is there at its end.
    found = profile_of(spans, length)
    first = found[1:] if len(found) > 1 and found[1].start_ns == 0 else found
    return max(level.most for level in found), min(level.count for level in first)


def _in_models(count: int, parts: int) -> str:
    return str(Fraction(count, parts))


def _against(cases: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return against(list(cases), "system", "operations", "N", name, "printed")


def _rows(cases: list[dict[str, Any]]) -> Iterable[tuple[object, ...]]:
    found = {(case["N"], case["system"], case["operations"]): case for case in cases}
    for count in sorted({case["N"] for case in cases}):
        plain, cycle = (found[count, name, "at once"] for name in ("DP", "CDP"))
        row = found.get((count, "CDP", "in a row"), {})
        yield (
            count, plain["most"], plain["printed"], cycle["most"], cycle["least"],
            row.get("most", ""), row.get("least", ""), cycle["most_from_end_of_F"],
            cycle["printed"],
        )  # fmt: skip
