"""Whether each W on another replica gets what it needs there, and all that is sent is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from math import lcm

from schedopt.checking.completeness import Numbered, find_repeats, runs_elsewhere
from schedopt.checking.timeline import (
    Name,
    name_kind,
    name_of,
    name_place,
    on_replica,
    replicas_of,
)
from schedopt.checking.violations import Violation
from schedopt.plan import Plan, Transfer

Sent = tuple[str, Transfer]
"""A transfer of what W needs behind its place in the plan."""
Taken = dict[int, dict[int, str]]
"""By replica, and there by micro-batch modulo k: the position of its entry."""


def find_wrong_weight_halves(plan: Plan) -> Iterator[Violation]:
    """Yield what W needs, or a W on another replica, that is missing, doubled or not allowed."""
    halves: dict[int, list[Numbered]] = {}
    sent: dict[int, list[Sent]] = {}
    for number, operation in enumerate(plan.pattern.operations):
        if operation.kind == "W" and runs_elsewhere(plan, operation):
            halves.setdefault(operation.stage, []).append((f"operations[{number}]", operation))
    for number, transfer in enumerate(plan.pattern.transfers):
        if transfer.tensor == "weight_half":
            sent.setdefault(transfer.stage, []).append((f"transfers[{number}]", transfer))
    split = {operation.stage for operation in plan.pattern.operations if operation.kind == "I"}
    for position in sorted(halves.keys() | sent.keys()):
        operations, transfers = halves.get(position, []), sent.get(position, [])
        reason = ""
        if plan.rule.is_given:
            reason = "the rule is given, and no gradient is looked at"
        elif position not in split:
            reason = f"the backward of stage {position} is not split"
        if reason:
            yield from _refuse(plan, operations, "operations", reason)
            yield from _refuse(plan, transfers, "transfer", reason)
        else:
            yield from _find_wrong_in_stage(plan, position, operations, transfers)


def _refuse(plan: Plan, listed: Sequence[Numbered], kind: str, reason: str) -> Iterator[Violation]:
    for place, item in listed:
        yield Violation(kind, place, f"{name_kind(name_of(plan, item))}, but {reason}")


def _find_wrong_in_stage(
    plan: Plan, position: int, operations: Sequence[Numbered], transfers: Sequence[Sent]
) -> Iterator[Violation]:
    stage = plan.stages[position]
    for layer in range(stage.first, stage.last + 1):
        if transfers and plan.costs.layers[layer].saved_weight_bytes is None:
            yield Violation(
                "transfer",
                transfers[0][0],
                f"carries what W needs, but layer {layer} has no saved_weight_bytes",
            )
    yield from _find_wrong_ends(plan, transfers)
    runs = yield from _find_doubled(plan, operations, "operations")
    comes = yield from _find_doubled(plan, transfers, "transfer")
    for replica in range(1, len(stage.gpus)):
        here, there = runs.get(replica, {}), comes.get(replica, {})
        arrival = (on_replica("weight_half", replica), position)
        half = (on_replica("W", replica), position)
        reason = "is missing, though W runs there"
        yield from _find_missing(plan, arrival, here.keys() - there.keys(), "transfer", reason)
        reason = "is missing, though what it needs is sent there"
        yield from _find_missing(plan, half, there.keys() - here.keys(), "operations", reason)
    yield from _find_rootless(plan, transfers)


def _find_wrong_ends(plan: Plan, transfers: Sequence[Sent]) -> Iterator[Violation]:
    k = plan.pattern.k
    for place, item in transfers:
        stage = plan.stages[item.stage]
        source, target = replicas_of(plan, item)
        if target == 0:
            yield Violation("transfer", place, "takes what W needs to where it was made")
            continue
        for i in range(item.shift, item.shift + lcm(k, len(stage.gpus)), k):
            gpu = stage.gpu(i + source)
            if gpu == stage.gpu(i + target):
                yield Violation("transfer", place, f"from GPU {gpu} to itself, micro-batch {i}")
                break


def _find_doubled(
    plan: Plan, listed: Sequence[Numbered], kind: str
) -> Generator[Violation, None, Taken]:
    taken: Taken = {}
    by_name: dict[Name, list[Numbered]] = {}
    for place, item in listed:
        by_name.setdefault(name_of(plan, item), []).append((place, item))
    for name, items in by_name.items():
        what = f"{name_kind(name)} of stage {name[1]}"
        found = yield from find_repeats(items, plan.pattern.k, kind, what)
        taken[int(name[0].partition("+")[2] or 0)] = found
    return taken


def _find_missing(
    plan: Plan, name: Name, classes: set[int], kind: str, reason: str
) -> Iterator[Violation]:
    if classes:
        k = plan.pattern.k
        often = f", for {len(classes)} of every {k} micro-batches" if k > 1 else ""
        yield Violation(kind, name_place(name, min(classes)), reason + often)


def _find_rootless(plan: Plan, transfers: Sequence[Sent]) -> Iterator[Violation]:
    """Yield what is sent on from a replica to which it does not come, from where it was made."""
    k = plan.pattern.k
    onward: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for _, item in transfers:
        source, target = replicas_of(plan, item)
        onward.setdefault((source, item.shift % k), []).append((target, item.shift % k))
    reached = {(0, i) for i in range(k)}
    coming = list(reached)
    while coming:
        found = {target for target in onward.get(coming.pop(), []) if target not in reached}
        reached |= found
        coming += found
    for place, item in transfers:
        source, _ = replicas_of(plan, item)
        if (source, item.shift % k) not in reached:
            yield Violation(
                "transfer",
                place,
                f"sends on what W needs from replica +{source}, to which it never comes",
            )
