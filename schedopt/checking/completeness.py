"""Whether each micro-batch has each of its operations and transfers exactly once."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from math import lcm

from schedopt.checking.copies import find_wrong_copies
from schedopt.checking.violations import Violation
from schedopt.plan import Operation, Plan, Transfer

Numbered = tuple[str, Operation | Transfer]
"""An item of the pattern behind its place in the plan."""


def find_wrong_operations(plan: Plan) -> Iterator[Violation]:
    """Yield operations that are missing, doubled or not allowed."""
    numbered = [(f"operations[{n}]", o) for n, o in enumerate(plan.pattern.operations)]
    by_name: dict[tuple[int, str], list[Numbered]] = {}
    for place, operation in numbered:
        if not runs_elsewhere(plan, operation):
            by_name.setdefault((operation.stage, operation.kind), []).append((place, operation))
    for position, stage in enumerate(plan.stages):
        halves = [kind for kind in "IW" if (position, kind) in by_name]
        whole = (position, "B") in by_name
        if halves and whole:
            yield Violation(
                "operations",
                by_name[position, halves[0]][0][0],
                f"{halves[0]} as well as B in stage {position}: a stage splits all its backwards "
                f"or none",
            )
        needed = ["F", *("IW" if halves and not whole else "B"), *("R" if stage.recompute else "")]
        for kind in needed:
            yield from _find_wrong_classes(
                by_name.get((position, kind), []), plan.pattern.k, f"stage {position}", kind
            )
        if not stage.recompute:
            for place, _ in by_name.get((position, "R"), []):
                yield Violation(
                    "operations", place, f"R, but nothing of stage {position} is recomputed"
                )
        if halves:
            yield from _find_unknown_halves(plan, position)
        yield from _find_wrong_updates(plan, position, by_name.get((position, "U"), []))


def runs_elsewhere(plan: Plan, operation: Operation) -> bool:
    """Whether an operation runs on another replica than that of its micro-batch."""
    return operation.replica % len(plan.stages[operation.stage].gpus) != 0


def _find_wrong_classes(
    items: Sequence[Numbered], k: int, subject: str, kind: str
) -> Iterator[Violation]:
    taken = yield from find_repeats(items, k, "operations", f"runs {kind} of {subject}")
    if len(taken) < k:
        first = next(i for i in range(k) if i not in taken)
        yield Violation(
            "operations",
            f"{subject}, micro-batch {first}, {kind}",
            "is missing" + (f" for {k - len(taken)} of every {k} micro-batches" if k > 1 else ""),
        )


def find_repeats(
    items: Iterable[Numbered], k: int, kind: str, what: str
) -> Generator[Violation, None, dict[int, str]]:
    """Find what covers a micro-batch again; return the place of the first for each, modulo k."""
    taken: dict[int, str] = {}
    for place, item in items:
        if item.covers > k:
            yield Violation(kind, place, f"covers {item.covers} micro-batches of a period of {k}")
            continue
        for i in range(item.shift, item.shift + item.covers):
            if i % k in taken:
                yield Violation(
                    kind, place, f"{what}, micro-batch {i}, again, after {taken[i % k]}"
                )
            taken.setdefault(i % k, place)
    return taken


def _find_unknown_halves(plan: Plan, position: int) -> Iterator[Violation]:
    stage = plan.stages[position]
    for layer in range(stage.first, stage.last + 1):
        if plan.costs.layers[layer].backward_input_ns is None:
            yield Violation(
                "operations",
                f"stage {position}",
                f"its backward is split, but layer {layer} has no backward_input_ns",
            )


def _find_wrong_updates(
    plan: Plan, position: int, updates: Sequence[Numbered]
) -> Iterator[Violation]:
    m, k = plan.rule.update_every, plan.pattern.k
    stage = plan.stages[position]
    if m is None:
        for place, _ in updates:
            yield Violation(
                "operations", place, "U, but the rule is given, and no version is looked at"
            )
        return
    length = sum(
        plan.costs.layers[layer].update_ns or 0 for layer in range(stage.first, stage.last + 1)
    )
    if length and not updates:
        yield Violation(
            "operations",
            f"stage {position}, U",
            f"is missing, though an update takes {length} ns at speed 1",
        )
    if updates and k % m:
        yield Violation(
            "operations",
            updates[0][0],
            f"U in a period of {k} micro-batches, which is no multiple of the {m} of an update",
        )
    for place, update in updates:
        if update.covers != 1:
            yield Violation(
                "operations", place, f"U covers {update.covers}; it always applies a mini-batch"
            )
    single = [(place, update) for place, update in updates if update.covers == 1]
    yield from find_repeats(single, k, "operations", f"U of stage {position}")


def find_wrong_transfers(plan: Plan) -> Iterator[Violation]:
    """Yield transfers that are missing, doubled or not allowed."""
    boundary: dict[tuple[str, int], list[tuple[str, Transfer]]] = {}
    weights: dict[int, list[tuple[str, Transfer]]] = {}
    for number, transfer in enumerate(plan.pattern.transfers):
        numbered = (f"transfers[{number}]", transfer)
        if transfer.tensor == "weight_half":
            continue
        if transfer.is_boundary:
            boundary.setdefault((transfer.tensor, transfer.stage), []).append(numbered)
        else:
            weights.setdefault(transfer.stage, []).append(numbered)
    last = len(plan.stages) - 1
    for position in range(last):
        for tensor in ("activation", "gradient"):
            yield from _find_wrong_boundary(
                plan, position, tensor, boundary.get((tensor, position), [])
            )
    for tensor in ("activation", "gradient"):
        for place, _ in boundary.get((tensor, last), []):
            yield Violation("transfer", place, f"{tensor} of stage {last}, which is the last")
    for position, numbered_list in sorted(weights.items()):
        yield from _find_wrong_weight_tensors(plan, position, numbered_list)


def _find_wrong_boundary(
    plan: Plan, position: int, tensor: str, listed: Sequence[tuple[str, Transfer]]
) -> Iterator[Violation]:
    k = plan.pattern.k
    taken = yield from find_repeats(listed, k, "transfer", f"{tensor} of stage {position}")
    if len(taken) == k:
        return
    one, other = plan.stages[position], plan.stages[position + 1]
    reported: set[int] = set()
    for i in range(lcm(k, len(one.gpus), len(other.gpus))):
        here, there = one.gpu(i), other.gpu(i)
        source, target = (here, there) if tensor == "activation" else (there, here)
        occupied = plan.platform.route(source, target)
        if occupied and i % k not in taken and i % k not in reported:
            reported.add(i % k)
            yield Violation(
                "transfer",
                f"{tensor} of stage {position}, micro-batch {i}",
                f"from GPU {source} to GPU {target} is missing",
            )


def _find_wrong_weight_tensors(
    plan: Plan, position: int, listed: Sequence[tuple[str, Transfer]]
) -> Iterator[Violation]:
    m, k = plan.rule.update_every, plan.pattern.k
    if m is None:
        for place, _ in listed:
            yield Violation(
                "transfer", place, "weights move, but the rule is given, and none is looked at"
            )
        return
    if k % m:
        yield Violation(
            "transfer",
            listed[0][0],
            f"weights move in a period of {k} micro-batches, which is no multiple of the {m} of "
            f"an update",
        )
    own = [(place, transfer) for place, transfer in listed if transfer.source_stage is None]
    for place, transfer in own:
        first_place, first = own[0]
        if transfer.chunks != first.chunks:
            yield Violation(
                "transfer",
                place,
                f"{transfer.chunks} chunks, but {first.chunks} in {first_place}, of one stage",
            )
    yield from _find_wrong_experts(plan, position, own)
    for place, transfer in listed:
        yield from find_wrong_copies(plan, place, transfer)
        assert transfer.source is not None
        assert transfer.target is not None
        target = plan.stages[position]
        source = target if transfer.source_stage is None else plan.stages[transfer.source_stage]
        every = lcm(k, len(source.gpus), len(target.gpus))
        for i in range(transfer.shift, transfer.shift + every, k):
            gpu = source.gpu(i + transfer.source)
            if gpu == target.gpu(i + transfer.target):
                yield Violation("transfer", place, f"from GPU {gpu} to itself, micro-batch {i}")
                break


def _find_wrong_experts(
    plan: Plan, position: int, own: Sequence[tuple[str, Transfer]]
) -> Iterator[Violation]:
    """Yield transfers of experts between replicas that do not have the same ones."""
    stage, experts = plan.stages[position], plan.expert_chunks(position)
    if not experts:
        return
    for place, transfer in own:
        if transfer.chunks != 2 * experts:
            yield Violation(
                "transfer",
                place,
                f"{transfer.chunks} chunks of {experts} replicas, some of which have the same "
                f"experts, and not {2 * experts}",
            )
            continue
        places = {
            stage.places[(transfer.shift + end) % experts] % plan.chain.expert
            for end in (transfer.source or 0, transfer.target or 0)
        }
        if transfer.chunk >= experts and places != {transfer.chunk % experts % plan.chain.expert}:
            yield Violation(
                "transfer", place, f"chunk {transfer.chunk} is of experts that not both ends have"
            )


def find_wrong_placements(plan: Plan) -> Iterator[Violation]:
    """Yield items that cover micro-batches of different GPUs."""
    k, last = plan.pattern.k, len(plan.stages) - 1
    for number, operation in enumerate(plan.pattern.operations):
        yield from _find_spread(plan, f"operations[{number}]", operation, (operation.stage,), k)
    for number, transfer in enumerate(plan.pattern.transfers):
        if transfer.is_boundary and transfer.stage < last:
            ends = (transfer.stage, transfer.stage + 1)
            yield from _find_spread(plan, f"transfers[{number}]", transfer, ends, k)


def _find_spread(
    plan: Plan, place: str, item: Operation | Transfer, stages: tuple[int, ...], k: int
) -> Iterator[Violation]:
    if not 1 < item.covers <= k:
        return
    for position in stages:
        stage = plan.stages[position]
        for first in range(item.shift, item.shift + lcm(k, len(stage.gpus)), k):
            ahead = item.replica if isinstance(item, Operation) else 0
            gpus = {stage.gpu(i + ahead): i for i in range(first, first + item.covers)}
            if len(gpus) > 1:
                named = ", ".join(f"{i} on GPU {gpu}" for gpu, i in gpus.items())
                yield Violation(
                    "placement",
                    place,
                    f"covers micro-batches of stage {position} on different GPUs: {named}",
                )
                break
