"""Starting everything as soon as possible, in the order of the pattern."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise, product
from typing import Final

from schedopt.plan import Operation, Plan, Transfer
from schedopt.simulation.events import Event, move
from schedopt.tied_weights import exchanging_stages


def shift_left(
    plan: Plan, events: list[Event], length_ns: Callable[[Event], int] | None = None
) -> list[Event]:
    """Return the events, each as early as the order of the pattern allows.

    With `length_ns` they last as long as it says, such as what was measured.

    What two events share (a GPU, a link, an activation or its gradient, the weights of a stage on
    a GPU) they use in the order of the pattern. So each GPU runs its operations in that order, and
    holds at no time more than the pattern makes it hold. For that an activation or a gradient comes
    no sooner than its GPU is through with what ends before it comes, and has begun what begins
    before: the operation that reads it comes behind both.
    """
    users: dict[Hashable, _Uses] = defaultdict(_Uses)
    found = []
    passing = any(transfer.tensor == "weight_half" for transfer in plan.pattern.transfers)
    coming = passing or any(stage.shard != "none" for stage in plan.stages)
    making = _making_weights(plan, coming)
    running = _Running(plan, events)
    copies = _Copies(plan)

    def used_by(event: Event) -> list[Hashable]:
        also = (("weights", stage, event.gpu) for stage in copies.added_to(event))
        return [*_uses(plan, event), *also, *(_halves(event) if passing else ())]

    def earliest(event: Event, things: Iterable[Hashable]) -> int:
        return max(
            users[thing].free_from(event.start_ns)
            for thing in (*things, *_taken_at_start(plan, event, coming))
        )

    for together in _in_order(plan, events, copies):
        lengths = [event.length_ns if length_ns is None else length_ns(event) for event in together]
        used = [used_by(event) for event in together]
        begins = [earliest(event, things) for event, things in zip(together, used, strict=True)]
        for number, event in enumerate(together):
            if _is_boundary(event) and (meanwhile := running.at_end_of(event)) is not None:
                begun = earliest(meanwhile, used_by(meanwhile))
                begins[number] = max(begins[number], begun - lengths[number])
        _hold_up(users, together, lengths, begins, making)
        for event, begin, length, things in zip(together, begins, lengths, used, strict=True):
            found.append(move(event, begin, length))
            for thing in things:
                users[thing].add(event.end_ns, begin + length)
            if _leaves_replica(event):
                for gpu in (event.source, event.gpu):
                    users["moved", gpu].add(event.end_ns, begin + length)
    return found


def _making_weights(plan: Plan, coming: bool) -> frozenset[tuple[str, int]]:
    """Return the kinds of operations that are held up, each with its stage.

    Where shards or what W needs come and go, all; else those at whose end a version may be made.
    """
    listed = {(operation.kind, operation.stage) for operation in plan.pattern.operations}
    return frozenset(
        (kind, stage)
        for kind, stage in listed
        if coming or kind == "U" or (kind in ("B", "W") and ("U", stage) not in listed)
    )


def _taken_at_start(plan: Plan, event: Event, coming: bool) -> tuple[Hashable, ...]:
    """Return the things whose uses free the memory that an event may take when it starts.

    Where shards or what W needs come and go, operations wait for them; so does, in a stage whose
    gradients or parameters are sharded, what brings them, and so does what brings what W needs.
    """
    if isinstance(event.item, Operation):
        return _frees(event.gpu) if coming else ()
    brings = plan.stages[event.item.stage].shard in ("gradient", "parameter")
    return _frees(event.gpu) if brings or event.item.tensor == "weight_half" else ()


def _hold_up(
    users: Mapping[Hashable, _Uses],
    together: list[Event],
    lengths: list[int],
    begins: list[int],
    making: frozenset[tuple[str, int]],
) -> None:
    """Let new tensors come no sooner than the GPU lets go of what it lets go of before.

    What it lets go of at the same instant ends together with them. So do operations that may make
    new weights, as what comes to their GPU and goes from it ends apart from them.
    """
    ends = {
        number: max(users[thing].free_from(event.end_ns) for thing in _frees(event.gpu))
        for number, event in enumerate(together)
        if (
            (event.item.kind, event.item.stage) in making
            if isinstance(event.item, Operation)
            else event.item.moves_weights or event.item.is_boundary
        )
    }
    late = list(ends)
    while late:
        for number in late:
            begins[number] = max(begins[number], ends[number] - lengths[number])
        freed: dict[int | None, int] = {}
        for event, begin, length in zip(together, begins, lengths, strict=True):
            gpu = event.gpu if isinstance(event.item, Operation) else event.source
            if isinstance(event.item, Operation) or _leaves_replica(event):
                freed[gpu] = max(freed.get(gpu, 0), begin + length)
        for number in ends:
            ends[number] = max(ends[number], freed.get(together[number].gpu, 0))
        late = [number for number in ends if begins[number] + lengths[number] < ends[number]]


def _is_boundary(event: Event) -> bool:
    return isinstance(event.item, Transfer) and event.item.is_boundary


class _Running:
    """Which operation each GPU runs in the pattern at an instant."""

    def __init__(self, plan: Plan, events: list[Event]) -> None:
        self.plan = plan
        self.of_gpu: dict[int, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.start_ns):
            if isinstance(event.item, Operation) and event.length_ns:
                self.of_gpu[event.gpu].append(event)

    def at_end_of(self, transfer: Event) -> Event | None:
        """Return what runs where and when a transfer ends, unless that begins with what it brings.

        At its own start it has let go of what it reads.
        """
        own, instant = self.of_gpu[transfer.gpu], transfer.end_ns
        number = bisect_right(own, instant, key=lambda event: event.start_ns) - 1
        if number < 0 or own[number].end_ns <= instant:
            return None
        brought = {*_tensors(self.plan, transfer)}
        return None if brought & {*_tensors(self.plan, own[number])} else own[number]


def _leaves_replica(event: Event) -> bool:
    return isinstance(event.item, Transfer) and not event.item.is_boundary


def _frees(gpu: int) -> tuple[Hashable, Hashable]:
    """Return the things whose uses, when they end, free memory of a GPU.

    Operations; and transfers of weights, which end what is held to be sent, or replace a version.
    """
    return ("gpu", gpu), ("moved", gpu)


@dataclass
class _Uses:
    """When the users of a thing end: in the pattern, ascending, and at the latest now."""

    ends: list[int] = field(default_factory=list)
    latest: list[int] = field(default_factory=lambda: [0])

    def free_from(self, instant: int) -> int:
        """Return when all users are through that have ended at an instant of the pattern."""
        return self.latest[bisect_right(self.ends, instant)]

    def add(self, end_ns: int, now_ns: int) -> None:
        self.ends.append(end_ns)
        self.latest.append(max(self.latest[-1], now_ns))


def _uses(plan: Plan, event: Event) -> Iterator[Hashable]:
    """Yield the things that an event uses."""
    item = event.item
    if isinstance(item, Operation):
        for gpu in {event.gpu, *map(plan.stages[item.stage].gpu, _mates(plan, event))}:
            yield "gpu", gpu
            yield "weights", item.stage, gpu
    else:
        yield from plan.platform.route(event.source or 0, event.gpu, plan.lanes(item))
        if item.moves_weights:
            source = item.stage if item.source_stage is None else item.source_stage
            yield "weights", source, event.source
            yield "weights", item.stage, event.gpu
    yield from _tensors(plan, event)


def _halves(event: Event) -> Iterator[tuple[Hashable, ...]]:
    """Yield what W needs, by the GPU where it lies, that an event makes, moves or reads."""
    item = event.item
    if isinstance(item, Operation):
        gpus = [event.gpu] if item.kind in ("I", "W") else []
    else:
        gpus = [event.source or 0, event.gpu] if item.tensor == "weight_half" else []
    for gpu in gpus:
        for micro_batch in range(event.first, event.first + event.count):
            yield "weight_half", item.stage, gpu, micro_batch


def _tensors(plan: Plan, event: Event) -> Iterator[tuple[Hashable, ...]]:
    """Yield the activations and gradients that an event makes, moves or reads."""
    item = event.item
    names: tuple[tuple[str, int], ...] = ()
    if isinstance(item, Transfer):
        if item.is_boundary:
            names = ((item.tensor, item.stage),)
    elif item.kind == "F":
        names = (("activation", item.stage - 1), ("activation", item.stage))
    elif item.kind in ("B", "I"):
        names = (("gradient", item.stage), ("gradient", item.stage - 1))
    for name in names:
        for micro_batch in _mates(plan, event) or range(event.first, event.first + event.count):
            yield *name, micro_batch


def _mates(plan: Plan, event: Event) -> tuple[int, ...]:
    """Return the micro-batches whose operations start together, and so wait for the same."""
    item, together = event.item, plan.chain.together
    if together == 1 or not isinstance(item, Operation) or item.kind == "U":
        return ()
    return plan.stages[item.stage].mates(event.first, together)


class _Copies:
    """Which stages add the gradients of a copy up where they lie, on the GPU that makes them."""

    def __init__(self, plan: Plan) -> None:
        self.stages = plan.stages
        self.targets: dict[int, list[int]] = defaultdict(list)
        for source, target in exchanging_stages(plan.chain, plan.stages):
            self.targets[source].append(target)

    def added_to(self, event: Event) -> list[int]:
        """Return the other stages to whose gradient an operation adds on its GPU."""
        if not isinstance(event.item, Operation) or event.item.kind not in ("B", "W"):
            return []
        return [
            target
            for target in self.targets.get(event.item.stage, ())
            if event.gpu in self.stages[target].gpus
        ]


def _in_order(plan: Plan, events: list[Event], copies: _Copies) -> Iterator[list[Event]]:
    """Yield the events so that each comes after all that have ended when it starts.

    Those that end at the same instant come together, but one by one if they take no time.
    """
    ordered = sorted(events, key=lambda event: (event.end_ns, event.start_ns))
    for (_, takes_time), group in groupby(
        ordered, key=lambda event: (event.end_ns, event.length_ns > 0)
    ):
        together = list(group)
        if takes_time or len(together) == 1:
            yield together
        else:
            yield from ([event] for event in _instant(plan, together, copies))


def _instant(plan: Plan, events: list[Event], copies: _Copies) -> list[Event]:
    """Order events without length of one instant: by what they need, releases first."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(events)))
    every = plan.rule.update_every or 1
    sharing: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for number, event in enumerate(events):
        covered = range(event.first, event.first + event.count)
        if _is_of_mini_batch(plan, event.item):
            first = event.first // every * every
            covered = range(first, first + every)
        for key in (*_tensors(plan, event), *_halves(event)):
            sharing[key].append(number)
        if getattr(event.item, "tensor", "") != "weight_half":
            stages = {event.item.stage, getattr(event.item, "source_stage", None)} - {None}
            stages.update(copies.added_to(event))
            for stage, micro_batch in product(stages, covered):
                sharing["stage", stage, micro_batch].append(number)

    for key, numbers in sharing.items():
        ordered = sorted(numbers, key=lambda n: (_place(events[n]), _leaves(events[n], key)))
        graph.add_edges_from(pairwise(ordered))

    def priority(number: int) -> tuple[bool, int, tuple[int, int]]:
        acquires = getattr(events[number].item, "kind", "") in ("F", "R")
        return acquires, events[number].first, _place(events[number])

    return [events[n] for n in nx.lexicographical_topological_sort(graph, key=priority)]


def _leaves(event: Event, key: tuple[Hashable, ...]) -> bool:
    """Whether an event sends what W needs from the GPU of a key of `_halves`."""
    sends = getattr(event.item, "tensor", "") == "weight_half"
    return sends and event.source == key[2]


def _is_of_mini_batch(plan: Plan, item: Operation | Transfer) -> bool:
    """Return whether something concerns a whole mini-batch: its gradients, or what they make."""
    if isinstance(item, Operation):
        return item.kind == "U"
    # Where parameters are sharded, weights are sent to the one micro-batch that reads them.
    gathered = item.tensor == "weights" and plan.stages[item.stage].shard == "parameter"
    return not item.is_boundary and not gathered


_PLACES: Final = {
    "F": (0, 2, 0),
    "activation": (0, 2, 1),
    "R": (1, 0, 0),
    "gradient": (2, -2, -1),
    "B": (2, -2, 0),
    "I": (2, -2, 0),
    "weight_half": (3, 0, 0),
    "W": (3, 0, 1),
    "weight_gradient": (4, 0, 0),
    "U": (5, 0, 0),
    "weights": (6, 0, 0),
}
"""A part of the way; the place in it is the number of the stage, times a factor, plus an offset."""


def _place(event: Event) -> tuple[int, int]:
    """Return where an event stands on the way of a micro-batch and its update."""
    item = event.item
    part, factor, offset = _PLACES[item.kind if isinstance(item, Operation) else item.tensor]
    return part, factor * item.stage + offset
