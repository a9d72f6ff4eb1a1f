"""Fournier and Oyallon: how many GPUs each stage needs where a GPU keeps one activation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count as counted

from schedopt.account.profile import profile_of
from schedopt.bench.claims.cyclic import TIMES, cyclic_plan, kept_spans
from schedopt.bench.claims.plans import timeline_of
from schedopt.bench.claims.result import Case, Computed, Step, announced, differing, table_of
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.rule import Rule

Spans = list[tuple[int, int]]


def find_gpus(step: Step, largest: int = 8) -> Computed:
    """C5: colour the time for which each stage keeps activations, on a line and on a circle."""
    sizes = range(2, largest + 1)
    pairs = [(size, times) for size in sizes for times in TIMES]
    cases = [
        case
        for size, times in announced(step, "N = {}, F : B = {}", pairs)
        for case in _colour(size, times)
    ]
    words = "N = {}, memory for one activation on each GPU"
    fits = [case for size in announced(step, words, sizes) for case in _check_fits(size)]
    totals = [_add_up(cases, size) for size in sizes]
    # GPUs and micro-batches come round together after this many training steps.
    repeats = {
        size: timeline_of(cyclic_plan("v2, model parallel", size)).length // size for size in sizes
    }
    return Computed(
        {
            "all": cases,
            "moving": [
                *differing(cases, "N", "j", "F, B", "moving", "printed"),
                *differing(totals, "N", "all", "printed"),
                *(case for case in fits if not case["fewer"] and not case["valid"]),
            ],
            "fewer": [
                *differing(cases, "N", "j", "F, B", "at_once", "printed_at_once"),
                *(case for case in fits if case["fewer"] and case["valid"]),
            ],
        },
        {"tried": f"N = 2 to {largest}, F : B = 1 : 1, 1 : 2 and 2 : 3, each stage"},
        figures={
            "training_steps_until_the_moving_assignment_repeats": {
                str(size): count for size, count in repeats.items()
            },
            "gpus": totals,
        },
        tables=[
            table_of(
                "GPUs for all stages",
                totals,
                {
                    "N": "N",
                    "N (N + 1) / 2": "printed",
                    "moving": "all",
                    "pinned": "pinned",
                    "training steps until the moving one repeats": lambda case: repeats[case["N"]],
                },
            )
        ],
    )


def _colour(size: int, times: tuple[int, int]) -> list[Case]:
    plan = cyclic_plan("v2", size, times)
    length = timeline_of(plan).length_ns
    cases = []
    for stage, triples in enumerate(kept_spans(plan)):
        spans = [(start, end) for _, start, end in triples]
        shifts = [r * length for r in range(3 * size)]
        unrolled = [(start + shift, end + shift) for shift in shifts for start, end in spans]
        found = profile_of([(1, *span) for span in spans], length)
        cases.append(
            {
                "N": size,
                "j": stage + 1,
                "F, B": times,
                "moving": colour_line(unrolled),
                "pinned": colour_circle(spans, length),
                "at_once": sorted({number for one in found for number in (one.count, one.most)}),
                "printed": size - stage,
                "printed_at_once": [size - stage],
            }
        )
    return cases


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

    def meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
        gap = (other[0] - one[0]) % length
        return gap < one[1] - one[0] or -gap % length < other[1] - other[0]

    clash = [
        {n for n, other in enumerate(spans) if n != number and meet(span, other)}
        for number, span in enumerate(spans)
    ]
    return next(colours for colours in counted(1) if _can_colour(clash, colours, []))


def _can_colour(clash: Sequence[set[int]], colours: int, chosen: list[int]) -> bool:
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


def _check_fits(size: int) -> list[Case]:
    """Return whether plans are valid, in all stages and with one GPU less in one of them."""
    cases = []
    for fewer in range(size):
        plan = with_room_for_one(cyclic_plan("v2, model parallel", size), fewer)
        kinds = {violation.kind for violation in check(plan)}
        assert kinds <= {"memory"}
        cases.append({"N": size, "fewer": fewer, "valid": not kinds})
    return cases


def with_room_for_one(plan: Plan, fewer: int) -> Plan:
    """Return a plan whose GPUs have memory for one activation, and one less for a stage from 1.

    Only the transfers between stages are left; where gradients go is another question.
    """
    stages = [
        replace(stage, gpus=stage.gpus[:-1] if number == fewer else stage.gpus)
        for number, stage in enumerate(plan.stages, start=1)
    ]
    boundaries = tuple(transfer for transfer in plan.pattern.transfers if transfer.is_boundary)
    return replace(
        plan,
        rule=Rule(),
        stages=tuple(stages),
        platform=Platform(len(plan.platform.gpus), plan.chain.layers[0].weight_bytes + 1),
        pattern=replace(plan.pattern, transfers=boundaries),
    )


def _add_up(cases: Sequence[Case], size: int) -> dict[str, int]:
    own = [case for case in cases if case["N"] == size and case["F, B"] == TIMES[0]]
    return {
        "N": size,
        "pinned": sum(case["pinned"] for case in own),
        "all": sum(case["moving"] for case in own),
        "printed": size * (size + 1) // 2,
    }
