"""The order of TiMePReSt, and how long its passes take."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from schedopt.bench.claims.claim import TIMEPREST, Claim, Finding, Part, Picture, Reading, Step
from schedopt.bench.claims.timeprest_measures import AS_LONG, EARLY, measured, tried_on, wrong_ones
from schedopt.bench.claims.timeprest_runs import (
    LENGTHS,
    SOURCE_LENGTH,
    config_of,
    length_of,
    run_timeprest,
)
from schedopt.checking import check
from schedopt.drawing.charts import chart_simulation
from schedopt.drawing.picture import draw_picture
from schedopt.simulation import simulate
from schedopt.systems.timeprest import timeprest_plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER: Final = Claim(
    id="T1",
    says="nF1B, backwards first: after the first backward each GPU repeats N forwards and a "
    "backward, so that backwards come every N + 1 time points.",
    sources=(f"{TIMEPREST}, Figures 7, 9 and 10", f"{TIMEPREST}, section 4.2"),
)
FORWARDS: Final = Claim(
    id="T3",
    says="The forwards of the first mini-batch take W + N - 1 time points, those of each later one "
    "a point more, and a backward takes W.",
    sources=(f"{TIMEPREST}, section 4.4, equations 6 to 8",),
)
LONGER: Final = "N + L time points where a backward takes L"
BEFORE: Final = (
    f"{AS_LONG}, and the mini-batch enters before the first backward comes to the first GPU"
)
FIGURES: Final = ((4, 2), (4, 4), (3, 3), (5, 3))
"""W and N of the figures 7a, 7b, 9a, and 9b and 10."""
SAID: Final = (
    # W, N, mini-batch, micro-batch (None: the backward), the last update that it uses.
    (4, 2, 3, None, 1),
    (4, 2, 4, None, 2),
    (4, 2, 5, None, 3),
    (4, 2, 5, 0, 1),
    (4, 2, 3, 0, 0),
    (4, 2, 4, 0, 0),
    (4, 4, 2, None, 1),
    (4, 4, 3, None, 2),
    (4, 4, 3, 0, 0),
    (4, 4, 3, 1, 0),
    (4, 4, 3, 2, 1),
    (4, 4, 3, 3, 1),
)
"""What the text says of the figures 7a and 7b."""


def find_order(step: Step, largest: int = 10, largest_checked: int = 4) -> Finding:
    """Run by the priority rule, and look at order and period in the steady state."""
    cases = [found["order"] for found in measured(step, largest)]
    invalid = []
    for stages, count in product(range(2, largest_checked + 1), repeat=2):
        step(f"check, W = {stages}, N = {count}")
        invalid += [case for name in LENGTHS if (case := _checked(stages, count, name))]
    said = [case for row in SAID if (case := _said(*row))["found"] != case["said"]]
    tried = tried_on(largest)
    same = [case for case in cases if case["B"] == SOURCE_LENGTH]
    return Finding(
        claim=ORDER,
        parts=[
            Part(
                says="in the steady state each GPU runs N forwards, then a backward",
                readings=[Reading(tried=tried, counterexamples=wrong_ones(cases, "ahead", "N"))],
            ),
            Part(
                says="backwards come every N + 1 time points",
                readings=[
                    Reading(tried=tried, counterexamples=wrong_ones(cases, "every", "printed")),
                    Reading(
                        convention=AS_LONG,
                        tried=tried,
                        counterexamples=wrong_ones(same, "every", "printed"),
                    ),
                    Reading(
                        convention=LONGER,
                        tried=tried,
                        counterexamples=wrong_ones(cases, "every", "N + L"),
                    ),
                ],
            ),
            Part(
                says="operations use the updates that the text names",
                readings=[
                    Reading(
                        tried=f"{len(SAID)} statements on figures 7a and 7b", counterexamples=said
                    )
                ],
            ),
            Part(
                says="it is a plan that the check accepts",
                readings=[
                    Reading(
                        tried=f"W, N = 2 to {largest_checked}, all lengths", counterexamples=invalid
                    )
                ],
            ),
        ],
        figures={"runs": len(cases)},
        notes=["A time point is a forward of a micro-batch. Transfers take no time."],
        pictures=[
            Picture(
                name=f"{stages}-{count}",
                title=f"nF1B, W = {stages}, N = {count}: the first mini-batches",
                draw=lambda stages=stages, count=count: _draw_run(stages, count),  # type: ignore[misc]
            )
            for stages, count in FIGURES
        ],
    )


def find_forwards(step: Step, largest: int = 10) -> Finding:
    """Measure from the start to the end of the forwards of each mini-batch."""
    found = measured(step, largest, ("1", "2"))
    cases = [case for one in found for case in one["forwards"]]
    backwards = [one["backward"] for one in found]
    first = [case for case in cases if case["mini_batch"] == 1]
    later = [case for case in cases if case["mini_batch"] > 1]
    tried = f"W, N = 2 to {largest}, backwards of 1 and 2 forwards"
    early = [case for case in later if case["early"] and case["B"] == SOURCE_LENGTH]
    return Finding(
        claim=FORWARDS,
        parts=[
            Part(
                says="the forwards of the first mini-batch take W + N - 1 time points",
                readings=[
                    Reading(tried=tried, counterexamples=wrong_ones(first, "points", "printed"))
                ],
            ),
            Part(
                says="each later mini-batch takes a point more",
                readings=[
                    Reading(
                        tried=f"{tried}, mini-batches 2 to {EARLY}",
                        counterexamples=wrong_ones(later, "points", "printed", "mini_batch"),
                    ),
                    Reading(
                        convention=BEFORE,
                        tried=f"{tried}, mini-batches 2 to {EARLY}",
                        counterexamples=wrong_ones(early, "points", "printed", "mini_batch"),
                    ),
                ],
            ),
            Part(
                says="a backward takes W points",
                readings=[
                    Reading(tried=tried, counterexamples=wrong_ones(backwards, "points", "W")),
                    Reading(
                        convention=AS_LONG,
                        tried=tried,
                        counterexamples=wrong_ones(
                            [case for case in backwards if case["B"] == SOURCE_LENGTH],
                            "points",
                            "W",
                        ),
                    ),
                ],
            ),
        ],
        figures={"steady": _steady(cases)},
        notes=[
            "Once backwards come to the first GPU, mini-batches enter as slowly as they leave, and "
            "all later ones take the same."
        ],
    )


def _checked(stages: int, count: int, name: str) -> dict[str, Any] | None:
    setting = config_of(stages, count, length_of(name, count))
    plan = timeprest_plan(setting, setting.pipeline(), count, bounded=False)
    wrong = [str(violation) for violation in check(plan)]
    period = Fraction(plan.pattern.period_total_ns, plan.pattern.k)
    expected = count + length_of(name, count)
    if not wrong and period == expected:
        return None
    return {"W": stages, "N": count, "B": name, "violations": wrong, "period": str(period)}


def _said(stages: int, count: int, mini: int, micro: int | None, update: int) -> dict[str, Any]:
    run = run_timeprest(stages, count, 1)
    if micro is None:
        instant, _ = run.backward_ns(mini - 1, stages - 1)
    else:
        instant = run.start("F", 0, (mini - 1) * count + micro)
    return {
        "W": stages,
        "N": count,
        "mini_batch": mini,
        "operation": "backward" if micro is None else f"forward of {'ABCD'[micro]}",
        "found": run.through(instant),
        "said": update,
    }


def _steady(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the first and the last measured mini-batches take in the source's figures."""
    return {
        f"W = {stages}, N = {count}": [
            case["points"]
            for case in cases
            if (case["W"], case["N"], case["B"]) == (stages, count, SOURCE_LENGTH)
        ]
        for stages, count in FIGURES
    }


def _draw_run(stages: int, count: int, mini_batches: int = 7) -> Figure:
    """Draw a run; micro-batches are counted from 0, a backward names the first that it covers."""
    run = run_timeprest(stages, count, 1, mini_batches)
    return draw_picture(
        chart_simulation(simulate(run.plan, mini_batches * count, timing="pattern"))
    )
