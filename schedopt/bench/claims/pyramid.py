"""How many GPUs cyclic data parallelism needs for each stage where a GPU keeps one activation."""

from __future__ import annotations

from dataclasses import replace
from itertools import count as counted
from typing import Any, Final

from schedopt.account.profile import profile_of
from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Reading, Step, Table, against
from schedopt.bench.claims.cyclic_plans import PARAMETERS, STEPS, cyclic_plan, timeline_of
from schedopt.bench.claims.cyclic_steps import kept
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.rule import Rule

CLAIM: Final = Claim(
    id="C5",
    says="With model parallelism in a cycle stage j needs N - j + 1 GPUs and all stages "
    "N (N + 1) / 2, and fewer will not do.",
    sources=(f"{CDP}, Propositions 2 and 3", f"{CDP}, appendix C.3"),
)
MOVING: Final = (
    "micro-batch n of a stage runs on another GPU in the next training step: the i-th of all runs "
    "on GPU i mod (N - j + 1)"
)
PINNED: Final = "micro-batch n of a stage runs on the same GPU in every training step"

Spans = list[tuple[int, int]]


def find_gpus(step: Step, largest: int = 8) -> Finding:
    """Colour the time for which each stage keeps activations, on a line and on a circle."""
    cases = []
    for size in range(2, largest + 1):
        for steps in STEPS:
            step(f"N = {size}, F : B = {steps[0]} : {steps[1]}")
            cases += _cases(size, steps)
    fits = []
    for size in range(2, largest + 1):
        step(f"N = {size}, memory for one activation on each GPU")
        fits += _fits(size)
    totals = [_total(cases, size) for size in range(2, largest + 1)]
    tried = f"N = 2 to {largest}, F : B = 1 : 1, 1 : 2 and 2 : 3, each stage"
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="N - j + 1 GPUs do for stage j, N (N + 1) / 2 for all",
                readings=[
                    Reading(
                        convention=PINNED,
                        tried=f"{tried}: circular arcs coloured exactly",
                        counterexamples=against(cases, "N", "j", "F, B", "pinned", "printed"),
                    ),
                    Reading(
                        convention=MOVING,
                        tried=f"{tried}: intervals coloured over many training steps, and plans "
                        f"with memory for one activation on each GPU, checked",
                        counterexamples=[
                            *against(cases, "N", "j", "F, B", "moving", "printed"),
                            *against(totals, "N", "all", "printed"),
                            *(case for case in fits if not case["fewer"] and not case["valid"]),
                        ],
                    ),
                ],
            ),
            Part(
                says="fewer GPUs will not do, since at all times so many micro-batches are kept",
                readings=[
                    Reading(
                        tried=f"{tried}: the most and the least kept at once; plans with one GPU "
                        f"less for a stage, checked",
                        counterexamples=[
                            *against(cases, "N", "j", "F, B", "at_once", "printed_at_once"),
                            *(case for case in fits if case["fewer"] and case["valid"]),
                        ],
                    )
                ],
            ),
        ],
        figures={
            "training_steps_until_the_moving_assignment_repeats": {
                str(size): _repeats(size) for size in range(2, largest + 1)
            },
            "gpus": totals,
        },
        notes=[
            "The moving assignment repeats after as many training steps as its GPUs and "
            "micro-batches need to come round together."
        ],
        tables=[
            Table(
                title="GPUs for all stages",
                header=["N", "N (N + 1) / 2", "moving", "pinned", "training steps until the "
                        "moving one repeats"],
                rows=[
                    (one["N"], one["printed"], one["all"], one["pinned"], _repeats(one["N"]))
                    for one in totals
                ],
            )
        ],
    )  # fmt: skip


def _cases(size: int, steps: tuple[int, int]) -> list[dict[str, Any]]:
    plan = cyclic_plan("v2", size, steps)
    length = timeline_of(plan).length_ns
    found = []
    for stage, spans in enumerate(kept(plan)):
        level = profile_of([(1, *span) for span in spans], length)
        counts = {one.count for one in level} | {one.most for one in level}
        found.append(
            {
                "N": size,
                "j": stage + 1,
                "F, B": steps,
                "moving": colour_line(_unrolled(spans, length, rounds=3 * size)),
                "pinned": colour_circle(spans, length),
                "at_once": sorted(counts),
                "printed": size - stage,
                "printed_at_once": [size - stage],
            }
        )
    return found


def _unrolled(spans: Spans, length: int, rounds: int) -> Spans:
    return [(start + r * length, end + r * length) for r in range(rounds) for start, end in spans]


def colour_line(spans: Spans) -> int:
    """Return how many GPUs take intervals, each the one that was free first."""
    free: list[int] = []
    for start, end in sorted(spans):
        first = min(free, default=start + 1)
        if first <= start:
            free.remove(first)
        free.append(end)
    return len(free)


def colour_circle(spans: Spans, length: int) -> int:
    """Return the fewest GPUs for intervals that come again after a length, each pinned to one."""
    clash = [
        {
            other
            for other, (begin, stop) in enumerate(spans)
            if other != one and _meet((start, end), (begin, stop), length)
        }
        for one, (start, end) in enumerate(spans)
    ]
    return next(colours for colours in counted(1) if _can_colour(clash, colours, []))


def _meet(one: tuple[int, int], other: tuple[int, int], length: int) -> bool:
    """Whether two intervals overlap in some round."""
    return (other[0] - one[0]) % length < one[1] - one[0] or (one[0] - other[0]) % length < other[
        1
    ] - other[0]


def _can_colour(clash: list[set[int]], colours: int, chosen: list[int]) -> bool:
    node = len(chosen)
    if node == len(clash):
        return True
    taken = {chosen[other] for other in clash[node] if other < node}
    # A colour that nobody has yet is as good as any other such.
    return any(
        _can_colour(clash, colours, [*chosen, colour])
        for colour in range(min(colours, max(chosen, default=-1) + 2))
        if colour not in taken
    )


def _fits(size: int) -> list[dict[str, Any]]:
    """Return whether plans are valid, in all stages and with one GPU less in one of them."""
    found = []
    for fewer in (0, *range(1, size)):
        plan = with_room_for_one(cyclic_plan("v2, model parallel", size), fewer)
        kinds = {violation.kind for violation in check(plan)}
        assert kinds <= {"memory"}
        found.append({"N": size, "fewer": fewer, "valid": not kinds})
    return found


def with_room_for_one(plan: Plan, fewer: int = 0) -> Plan:
    """Return a plan whose GPUs have memory for one activation, and one less for a stage from 1.

    Only what stages send each other is left; where gradients go is another question.
    """
    stages = [
        replace(stage, gpus=stage.gpus[:-1] if number == fewer else stage.gpus)
        for number, stage in enumerate(plan.stages, start=1)
    ]
    sent = [transfer for transfer in plan.pattern.transfers if transfer.is_boundary]
    return replace(
        plan,
        rule=Rule(),
        stages=tuple(stages),
        platform=Platform(len(plan.platform.gpus), 3 * PARAMETERS + 1),
        pattern=replace(plan.pattern, transfers=tuple(sent)),
    )


def _repeats(size: int) -> int:
    """Return the training steps after which GPUs and micro-batches come round together."""
    return timeline_of(cyclic_plan("v2, model parallel", size)).length // size


def _total(cases: list[dict[str, Any]], size: int) -> dict[str, int]:
    mine = [case for case in cases if case["N"] == size and case["F, B"] == STEPS[0]]
    return {
        "N": size,
        "pinned": sum(case["pinned"] for case in mine),
        "all": sum(case["moving"] for case in mine),
        "printed": size * (size + 1) // 2,
    }
