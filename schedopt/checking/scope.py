"""Whether a plan is one of those that were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from schedopt.checking.engine import find_inexpressible
from schedopt.checking.timeline import Timeline, name_item
from schedopt.checking.violations import Violation
from schedopt.plan import Plan


def find_out_of_scope(plan: Plan) -> Iterator[Violation]:
    """Yield what the scope does not allow, without looking at durations."""
    scope, pattern = plan.scope, plan.pattern
    if scope.allocation == "contiguous":
        yield from _find_shared_gpus(plan)
        if scope.gpu_order == "given" and not plan.platform.uniform:
            yield from _find_descents(plan)
    if scope.microbatches is not None:
        yield from _find_wrong_step(plan, scope.microbatches)
    elif scope.max_k is not None and pattern.k > scope.max_k:
        yield Violation("scope", "pattern.k", f"{pattern.k} is more than max_k = {scope.max_k}")
    if scope.engine is not None:
        yield from find_inexpressible(plan, scope.engine)
    if not scope.split_backward:
        for number, operation in enumerate(pattern.operations):
            if operation.kind in ("I", "W"):
                yield Violation(
                    "scope", f"operations[{number}]", f"{operation.kind}, but no split is allowed"
                )
    if not scope.recompute:
        for position, stage in enumerate(plan.stages):
            if stage.recompute:
                yield Violation("scope", f"stage {position}", "recomputes, which is not allowed")
    if scope.period_ns is not None and pattern.period_total_ns > pattern.k * scope.period_ns:
        yield Violation(
            "scope",
            "pattern.period_total_ns",
            f"{pattern.period_total_ns} ns for {pattern.k} micro-batches, above "
            f"{scope.period_ns} ns each",
        )


def _find_shared_gpus(plan: Plan) -> Iterator[Violation]:
    """Yield GPUs with more than one stage; with layers apart, only if they are not neighbours."""
    owner: dict[int, int] = {}
    for position, stage in enumerate(plan.stages):
        for gpu in stage.gpus:
            other = owner.setdefault(gpu, position)
            if plan.scope.grain == "layer" and other == position - 1:
                owner[gpu] = position
            elif other != position:
                yield Violation(
                    "scope",
                    f"GPU {gpu}",
                    f"runs stages {other} and {position}, but the allocation is contiguous",
                )


def _find_descents(plan: Plan) -> Iterator[Violation]:
    for position in range(1, len(plan.stages)):
        before, here = max(plan.stages[position - 1].gpus), min(plan.stages[position].gpus)
        apart = plan.scope.grain == "layer" and here == before
        if here <= before and not apart:
            yield Violation(
                "scope",
                f"stage {position}",
                f"runs on GPU {here}, not above GPU {before} of the stage before, and unequal "
                f"GPUs or links keep the GPUs in order",
            )


def _find_wrong_step(plan: Plan, count: int) -> Iterator[Violation]:
    pattern = plan.pattern
    if pattern.k != count:
        yield Violation("scope", "pattern.k", f"{pattern.k} is not the {count} of a step")
    own = pattern.k // pattern.fold
    of_what = "a part" if pattern.fold > 1 else "a step"
    for name in ("operations", "transfers"):
        for number, item in enumerate(getattr(pattern, name)):
            if item.shift < 0 or item.shift + item.covers > own:
                yield Violation(
                    "scope",
                    f"{name}[{number}]",
                    f"shift {item.shift}: micro-batches of {of_what} are 0 to {own - 1}",
                )


def find_crossings(timeline: Timeline) -> Iterator[Violation]:
    """Yield what goes on after the end of a step with a flush."""
    plan = timeline.plan
    if plan.scope.microbatches is None:
        return
    k, period = plan.pattern.k, plan.pattern.period_total_ns
    for place, item in timeline.items:
        every = lcm(k, *(len(plan.stages[s].gpus) for s in timeline.stages_of(item)))
        for first in range(item.shift, item.shift + every, k):
            end = item.start_ns + timeline.length(item, first)
            if end > period:
                yield Violation(
                    "scope",
                    place,
                    f"{name_item(item, first)} ends at {end} ns, {end - period} ns after the step",
                )
                break
