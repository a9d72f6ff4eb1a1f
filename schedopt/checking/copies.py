"""Copies of tied weights: which stages have some of the same, and how much of it they add up."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.checking.violations import Violation
from schedopt.plan import Plan, Transfer


def find_partners(plan: Plan, stage: int) -> tuple[int, ...]:
    """Return the other stages that have copies of what a stage has, with gradients to add up."""
    if not plan.chain.copied:
        return ()
    others = range(len(plan.stages))
    return tuple(other for other in others if other != stage and copied_bytes(plan, stage, other))


def copied_bytes(plan: Plan, stage: int, other: int) -> int:
    """Return the gradient of what two stages have copies of, bytes, in all GPUs of a tensor group.

    Of each group of layers the stage that has less counts; the first layer has all.
    """
    most = 0
    for degree in {plan.stages[stage].tensor, plan.stages[other].tensor}:
        layers, total = plan.in_group(degree).layers, 0
        for first, *later in plan.chain.copied:
            sizes = {first: layers[first].gradient_bytes or 0}
            sizes |= {layer: layers[layer].tied_gradient_bytes or 0 for layer in later}
            held = [
                [size for layer, size in sizes.items() if layer in plan.stages[number].layer_range]
                for number in (stage, other)
            ]
            if all(held):
                total += min(map(max, held))
        most = max(most, degree * total)
    return most


def find_wrong_copies(plan: Plan, place: str, transfer: Transfer) -> Iterator[Violation]:
    """Yield that a gradient goes to a stage that has no copy of what its source has."""
    source = transfer.source_stage
    if source is not None and source not in find_partners(plan, transfer.stage):
        yield Violation(
            "transfer",
            place,
            f"stages {source} and {transfer.stage} have no copies of the same weights",
        )
