"""When cyclic data parallelism runs what, and for how long a stage keeps its activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from schedopt.account import residencies
from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Picture, Reading, Step, against
from schedopt.bench.claims.cyclic_plans import (
    CONSTRUCTORS,
    STEPS,
    cyclic_plan,
    equal_stages,
    timeline_of,
)
from schedopt.drawing.charts import chart_simulation
from schedopt.drawing.picture import draw_picture
from schedopt.plan import Plan
from schedopt.simulation import simulate
from schedopt.systems import data_parallel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STARTS: Final = Claim(
    id="C1",
    says="Micro-batch n starts 2 (n - 1) steps after the first, each stage is computed by exactly "
    "one GPU at each step, and the pattern repeats after 2 N steps.",
    sources=(f"{CDP}, Figure 1", f"{CDP}, section 2.2"),
)
OCCUPIED: Final = Claim(
    id="C2",
    says="A GPU that runs stage j for a micro-batch is occupied for 2 (N - j + 1) steps.",
    sources=(f"{CDP}, Lemma 1",),
)
SHOWN: Final = 4
"""A step in the pictures, ns, where a transfer takes 1."""
LARGEST_LONGER: Final = 8
"""N with other lengths of F and B."""


def find_starts(step: Step, largest: int = 16) -> Finding:
    """Read starts, use of the stages and period off the plans of CDP-v1 and v2."""
    cases = []
    for count in range(2, largest + 1):
        step(f"N = {count}")
        cases += [_starts(name, count, STEPS[0]) for name in ("v1", "v2", "v2, pipeline")]
        if count <= LARGEST_LONGER:
            cases += [_starts("v2", count, steps) for steps in STEPS[1:]]
    same = [case for case in cases if case["F, B"] == STEPS[0]]
    longer = [case for case in cases if case not in same]
    tried = f"N = 2 to {largest}, CDP-v1 and v2 on N GPUs, and one GPU a stage, each plan checked"

    def part(says: str, measured: str) -> Part:
        wrong = against(same, "rule", "N", measured, f"printed_{measured}")
        return Part(says=says, readings=[Reading(tried=tried, counterexamples=wrong)])

    wrong = [
        *against(longer, "rule", "N", "F, B", "starts", "printed_starts"),
        *against(longer, "rule", "N", "F, B", "at_once", "printed_at_once"),
        *against(longer, "rule", "N", "F, B", "period", "printed_period"),
    ]
    return Finding(
        claim=STARTS,
        parts=[
            part("micro-batch n starts 2 (n - 1) steps after the first", "starts"),
            part("exactly one GPU computes each stage at each step", "at_once"),
            part("the pattern of N micro-batches repeats after 2 N steps", "period"),
            Part(
                says="so it is where a backward takes longer, with F + B for two steps",
                readings=[
                    Reading(
                        tried=f"N = 2 to {LARGEST_LONGER}, CDP-v2, F : B = 1 : 2 and 2 : 3",
                        counterexamples=wrong,
                    )
                ],
            ),
        ],
        figures={"plans": len(cases)},
        notes=[
            "Steps count from 0; transfers take no time. On N GPUs, GPU n runs micro-batch n of "
            "each N, and the delay between GPUs is given to the plan; with one GPU for each stage "
            "it follows from 1F1B alone."
        ],
        pictures=[
            Picture(name=name, title=title, draw=lambda name=name: draw_timeline(name))  # type: ignore[misc]
            for name, title in (
                ("dp", "Data parallelism, N = 3: a training step of equal stages"),
                ("v1", "CDP-v1, N = 3: three training steps of equal stages"),
                ("v2", "CDP-v2, N = 3: three training steps of equal stages"),
            )
        ],
    )


def find_occupied(step: Step, largest: int = 16) -> Finding:
    """Measure for how long each stage keeps the activations of a micro-batch."""
    cases = []
    for count in range(2, largest + 1):
        step(f"N = {count}")
        for steps in STEPS if count <= LARGEST_LONGER else STEPS[:1]:
            cases += _occupied(count, steps)
    same = [case for case in cases if case["F, B"] == STEPS[0]]
    tried = f"N = 2 to {largest}, CDP-v2 on N GPUs, all stages and micro-batches"
    return Finding(
        claim=OCCUPIED,
        parts=[
            Part(
                says="stage j keeps the activations of a micro-batch for 2 (N - j + 1) steps",
                readings=[
                    Reading(
                        tried=f"{tried}, from the start of F to the end of B",
                        counterexamples=against(same, "N", "j", "steps", "printed"),
                    )
                ],
            ),
            Part(
                says="so it is where a backward takes longer, with F + B for two steps",
                readings=[
                    Reading(
                        tried=f"N = 2 to {LARGEST_LONGER}, CDP-v2, F : B = 1 : 2 and 2 : 3",
                        counterexamples=against(cases, "N", "j", "F, B", "steps", "printed"),
                    )
                ],
            ),
        ],
        figures={"stages": len(cases)},
    )


def _starts(version: str, count: int, steps: tuple[int, int]) -> dict[str, Any]:
    plan = cyclic_plan(version, count, steps)
    timeline, both = timeline_of(plan), sum(steps)
    first = timeline.at("F", 0, 0).start_ns
    return {
        "rule": version,
        "N": count,
        "F, B": steps,
        "starts": [timeline.at("F", 0, n).start_ns - first for n in range(count)],
        "printed_starts": [both * n for n in range(count)],
        "at_once": computing(plan),
        "printed_at_once": [1],
        "period": plan.pattern.period_total_ns * count // plan.pattern.k,
        "printed_period": both * count,
    }


def computing(plan: Plan) -> list[int]:
    """Return by how many GPUs a stage is computed at an instant; several where that changes."""
    timeline = timeline_of(plan)
    found: set[int] = set()
    for stage in range(len(plan.stages)):
        busy = [0] * timeline.length_ns
        for operation, _, run in timeline.operations():
            if operation.stage == stage:
                for instant in range(run.start_ns, run.end_ns):
                    busy[instant % timeline.length_ns] += 1
        found |= set(busy)
    return sorted(found)


def _occupied(count: int, steps: tuple[int, int]) -> list[dict[str, Any]]:
    found = kept(cyclic_plan("v2", count, steps))
    return [
        {
            "N": count,
            "F, B": steps,
            "j": stage + 1,
            "steps": sorted({end - start for start, end in spans}),
            "printed": [sum(steps) * (count - stage)],
        }
        for stage, spans in enumerate(found)
    ]


def kept(plan: Plan) -> list[list[tuple[int, int]]]:
    """Return for each stage from when to when each micro-batch keeps its activations, ns."""
    found: list[list[tuple[int, int]]] = [[] for _ in plan.stages]
    for residency in residencies(plan):
        if residency.kind == "activation":
            assert residency.start_ns is not None
            assert residency.end_ns is not None
            found[residency.stage].append((residency.start_ns, residency.end_ns))
    return found


def draw_timeline(name: str, count: int = 3) -> Figure:
    """Draw some training steps of data parallelism, or of cyclic data parallelism.

    A transfer takes a quarter of a step, so that it can be seen what is sent when.
    """
    setting = equal_stages(count, count, (SHOWN, SHOWN), latency_ns=0)
    shown = 3 if name == "dp" else 3 * count
    plan = (data_parallel.overlapped if name == "dp" else CONSTRUCTORS[name])(setting)
    return draw_picture(chart_simulation(simulate(plan, shown, timing="pattern")))
