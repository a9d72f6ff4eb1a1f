"""Whether a plan is one of those that were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from schedopt.checking.engine import find_inexpressible
from schedopt.checking.timeline import Timeline, name_item
from schedopt.checking.violations import Violation
from schedopt.plan import Operation, Plan
from schedopt.scope import allows_most
from schedopt.stage import SHARDS

_Operation = tuple[str, int, int]
"""Kind, stage and micro-batch."""
_BY_LAYER = ("gradient", "parameter")
"""What replicas share of a stage that runs layer by layer."""


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
    yield from _find_forbidden_replicas(plan)
    if scope.period_ns is not None and pattern.period_total_ns > pattern.k * scope.period_ns:
        yield Violation(
            "scope",
            "pattern.period_total_ns",
            f"{pattern.period_total_ns} ns for {pattern.k} micro-batches, above "
            f"{scope.period_ns} ns each",
        )


def _find_forbidden_replicas(plan: Plan) -> Iterator[Violation]:
    """Yield stages with more replicas, shards or GPUs in a group than a scope with some allows."""
    scope, allowed = plan.scope, SHARDS[: SHARDS.index(plan.scope.shard) + 1]
    for position, stage in enumerate(plan.stages):
        place, replicas = f"stage {position}", len(stage.gpus)
        if scope.replicas != 1:
            if not allows_most(scope.replicas, replicas):
                yield Violation(
                    "scope", place, f"{replicas} replicas, of which {scope.replicas} are allowed"
                )
            if replicas > 1 and stage.shard not in allowed:
                yield Violation(
                    "scope", place, f"shares {stage.shard}, but {scope.shard} is the most allowed"
                )
        if stage.shard_copies > 1 and not scope.hybrid:
            yield Violation("scope", place, "has copies of shards, which are not allowed")
        if scope.tensor != 1 and not allows_most(scope.tensor, stage.tensor):
            yield Violation(
                "scope",
                place,
                f"a group of {stage.tensor} GPUs, of which {scope.tensor} are allowed",
            )


def _find_shared_gpus(plan: Plan) -> Iterator[Violation]:
    """Yield GPUs with more than one stage, but for neighbours of one: layers apart, or sharded."""
    owner: dict[int, int] = {}
    for position, stage in enumerate(plan.stages):
        for gpu in stage.gpus:
            other = owner.setdefault(gpu, position)
            apart = plan.scope.grain == "layer" or _continues(plan, position)
            if apart and other == position - 1:
                owner[gpu] = position
            elif other != position:
                yield Violation(
                    "scope",
                    f"GPU {gpu}",
                    f"runs stages {other} and {position}, but the allocation is contiguous",
                )


def _continues(plan: Plan, position: int) -> bool:
    """Whether a stage is a layer of the stage before, which runs layer by layer (`Scope.shard`)."""
    if not position or plan.scope.shard not in _BY_LAYER:
        return False
    both = plan.stages[position - 1 : position + 1]
    return both[0].gpus == both[1].gpus and all(
        stage.first == stage.last
        and (stage.shard in _BY_LAYER or not plan.costs.layers[stage.first].has_state)
        for stage in both
    )


def find_interruptions(timeline: Timeline) -> Iterator[Violation]:
    """Yield what comes between the layers of a contiguous stage that runs layer by layer."""
    plan = timeline.plan
    if plan.scope.allocation != "contiguous" or plan.scope.grain == "layer":
        return
    inner = {number for number in range(len(plan.stages)) if _continues(plan, number)}
    if not inner:
        return
    ran: dict[int, list[tuple[int, _Operation, str]]] = {}
    k = plan.pattern.k
    for place, item in timeline.items:
        if not isinstance(item, Operation) or item.kind == "U":
            continue
        gpus = plan.stages[item.stage].gpus
        for i in range(item.shift % k, lcm(k, len(gpus)), k):
            # What takes no time comes between nothing.
            if timeline.length(item, i):
                row = (timeline.start(item, i), (item.kind, item.stage, i), place)
                ran.setdefault(gpus[(i + item.replica) % len(gpus)], []).append(row)
    for rows in ran.values():
        rows.sort()
        known = {operation for _, operation, _ in rows}
        for number, (_, operation, place) in enumerate(rows):
            wanted = _right_before(plan, inner, operation)
            if wanted not in known or (number and rows[number - 1][1] == wanted):
                continue
            kind, stage, i = operation
            yield Violation(
                "scope",
                place,
                f"{kind}{i} of stage {stage} does not come right behind the layer before, but a "
                "contiguous stage runs its layers one behind the other",
            )
            break


def _right_before(plan: Plan, inner: set[int], operation: _Operation) -> _Operation | None:
    """Return what comes right before an operation of a layer; None if anything may."""
    kind, stage, i = operation
    if kind == "F":
        return ("F", stage - 1, i) if stage in inner else None
    if kind == "B" and plan.stages[stage].recompute and {stage, stage + 1} & inner:
        return "R", stage, i
    if kind in ("B", "R") and stage + 1 in inner:
        return "B", stage + 1, i
    return None


def _find_descents(plan: Plan) -> Iterator[Violation]:
    for position in range(1, len(plan.stages)):
        before, here = max(plan.stages[position - 1].every_gpu), min(plan.stages[position].gpus)
        apart = (plan.scope.grain == "layer" and here == before) or _continues(plan, position)
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
    period, told = plan.pattern.period_total_ns, set[str]()
    for use in timeline.uses:
        end = use.item.start_ns + use.length
        if end > period and use.place not in told:
            told.add(use.place)
            yield Violation(
                "scope",
                use.place,
                f"{name_item(use.item, use.first)} ends at {end} ns, {end - period} ns after the "
                "step",
            )
