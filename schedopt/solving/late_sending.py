"""Plans as they are kept: checked, with all that is sent as late as it can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schedopt.account import memory
from schedopt.checking import Violation, check
from schedopt.plan import Plan
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving.just_in_time import meet_readers


def check_sent_late(plan: Plan, *, is_late: bool = False) -> tuple[Plan, tuple[Violation, ...]]:
    """Return a plan whose activations and gradients wait at their maker's, and what is wrong.

    As it is, where it is wrong in more than its memory. Where a GPU has no room for what comes
    early all the same, other transfers make room for it, and then operations move in their order.
    `is_late`: it was made so that they wait.
    """
    violations = check(plan)
    if any(violation.kind != "memory" for violation in violations):
        return plan, violations
    late = plan if is_late else delay_transfers(plan)
    if late is not plan:
        violations = check(late)
    if violations and (lacking := _lacking(late)):
        for other in _others(late, lacking):
            if not check(other):
                return other, ()
    return late, violations


def _others(plan: Plan, lacking: Sequence[int]) -> Iterator[Plan]:
    """Yield the plan with less that comes too early to GPUs that lack memory."""
    first = delay_transfers(plan, first=lacking)
    yield first
    yield delay_transfers(meet_readers(first, lacking))
    yield delay_transfers(meet_readers(plan, lacking))


def _lacking(plan: Plan) -> list[int]:
    """Return the GPUs that lack memory, and to which something comes before it is read."""
    limits = [gpu.usable_bytes for gpu in plan.platform.gpus]
    needs = [need.reading(plan.scope.memory) for need in memory(plan)]
    waiting = [need.by_kind.get("received", 0) for need in memory(plan)]
    return [
        gpu
        for gpu, (need, limit, early) in enumerate(zip(needs, limits, waiting, strict=True))
        if need > limit and early
    ]
