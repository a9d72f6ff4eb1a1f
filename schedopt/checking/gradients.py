"""When each GPU makes or receives each version of its weights, by replaying every buffer."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from schedopt.checking.timeline import Item, Timeline, name_item, on_replica
from schedopt.checking.violations import Violation
from schedopt.plan import Operation, Transfer

Event = Callable[[int], None]

# At one instant: ends and arrivals, then updates, then what starts.
_ARRIVE: Final = 0
_UPDATE: Final = 1
_SEND_GRADIENT: Final = 2
_START_UPDATE: Final = 3
_SEND_WEIGHTS: Final = 4
_MOST_NAMED: Final = 4
_EVERY_GPU: Final = -1


@dataclass(frozen=True)
class History:
    """Which versions of a stage's weights came to be, and when.

    Parameters
    ----------
    made : dict
        For each GPU of the stage, the time in ns of each version after the first, which is there
        from the start. Where parameters stay at home, on every GPU when all homes have made it.
    parts : dict
        The same for each GPU and chunk; for those at home there, where parameters stay at home.
    violations : tuple of Violation
    """

    made: dict[int, dict[int, int]]
    parts: dict[tuple[int, int], dict[int, int]]
    violations: tuple[Violation, ...]


def replay_gradients(timeline: Timeline, stage: int, replayed: int, checked: int) -> History:
    """Replay gradients, updates and weights of so many micro-batches of a stage from a cold start.

    Violations are reported for the first `checked` of them.
    """
    replay = _Replay(timeline, stage, replayed, checked)
    replay.run()
    replay.find_lost()
    return History(replay.made, replay.parts, tuple(replay.violations.values()))


@dataclass
class _Replay:
    """The buffers of one stage while time goes on.

    A buffer is a set of micro-batches of one mini-batch, kept as the bits of an integer. A chunk is
    updated where it is at home; where nothing is sharded that is everywhere.
    """

    timeline: Timeline
    stage: int
    replayed: int
    checked: int
    made: dict[int, dict[int, int]] = field(default_factory=dict)
    parts: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    buffers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    coming: set[tuple[int, int, int]] = field(default_factory=set)
    received: set[tuple[int, int, int]] = field(default_factory=set)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    updating: set[tuple[int, int]] = field(default_factory=set)
    violations: dict[tuple[str, str, str], Violation] = field(default_factory=dict)
    queue: list[tuple[int, int, int, Event]] = field(default_factory=list)
    pushed: int = 0

    def __post_init__(self) -> None:
        plan = self.timeline.plan
        assert plan.rule.update_every is not None
        self.m = plan.rule.update_every
        self.whole = (1 << self.m) - 1
        self.gpus = tuple(dict.fromkeys(plan.stages[self.stage].gpus))
        shard = plan.stages[self.stage].shard
        self.sharded, self.scattered = shard != "none", shard == "parameter"
        self.at_home = shard in ("gradient", "parameter")
        items = self.timeline.by_stage[self.stage]
        self.transfers = [
            (place, item)
            for place, item in items
            if isinstance(item, Transfer)
            and item.moves_weights
            # What is gathered is not what makes a version.
            and not (self.scattered and item.tensor == "weights")
        ]
        self.updates = [
            (place, item)
            for place, item in items
            if isinstance(item, Operation) and item.kind == "U"
        ]
        self.chunks = self.timeline.chunks[self.stage]
        self.home = {gpu: sorted(self.timeline.home(self.stage, gpu)) for gpu in self.gpus}
        for gpu in self.gpus:
            self.made[gpu] = {}
            for chunk in self.home[gpu] if self.scattered else range(self.chunks):
                self.parts[gpu, chunk] = {}
                self.newest[gpu, chunk] = 0

    def run(self) -> None:
        k = self.timeline.plan.pattern.k
        self.push_own()
        moving: list[tuple[str, Item]] = [*self.updates, *self.transfers]
        for place, item in moving:
            rank, begin = self._begin(item)
            for first in range(item.shift % k, self.replayed, k):
                if isinstance(item, Transfer) and item.tensor == "weights":
                    _, target = self.timeline.ends(item, first)
                    if not self.sharded or item.chunk not in self.home[target]:
                        self.coming.add((target, item.chunk, first // self.m))
                self.push(
                    self.timeline.start(item, first), rank, partial(begin, place, item, first)
                )
        while self.queue:
            time, _, _, event = heapq.heappop(self.queue)
            event(time)

    def push_own(self) -> None:
        """Await the gradients of all micro-batches, also those that other replicas make again."""
        places = {id(item): place for place, item in self.timeline.by_stage[self.stage]}
        last = "W" if self.timeline.is_split(self.stage) else "B"
        for replica in range(len(self.timeline.plan.stages[self.stage].gpus)):
            name = (on_replica(last, replica), self.stage)
            if name not in self.timeline.slots:
                continue
            for i in range(self.replayed):
                slot = self.timeline.slot(name, i)
                if slot is not None:
                    add = partial(self.add_own, places[id(slot.item)], i, replica)
                    self.push(self.timeline.span(name, i)[1], _ARRIVE, add)

    def _begin(self, item: Operation | Transfer) -> tuple[int, Callable[..., None]]:
        if isinstance(item, Operation):
            return _START_UPDATE, self.start_update
        if item.tensor == "weights":
            return _SEND_WEIGHTS, self.send_weights
        return _SEND_GRADIENT, self.send_gradient

    def push(self, time: int, rank: int, event: Event) -> None:
        heapq.heappush(self.queue, (time, rank, self.pushed, event))
        self.pushed += 1

    def report(self, kind: str, place: str, topic: str, micro_batch: int, message: str) -> None:
        if micro_batch < self.checked:
            self.violations.setdefault((kind, place, topic), Violation(kind, place, message))

    def buffer(self, gpu: int, mini_batch: int) -> list[int]:
        return self.buffers.setdefault((gpu, mini_batch), [0] * self.chunks)

    def add_own(self, place: str, micro_batch: int, replica: int, time: int) -> None:
        gpu = self.timeline.plan.stages[self.stage].gpu(micro_batch + replica)
        mini_batch, position = divmod(micro_batch, self.m)
        buffer = self.buffer(gpu, mini_batch)
        if any(chunk >> position & 1 for chunk in buffer):
            self.report(
                "gradient",
                place,
                "twice",
                micro_batch,
                f"counts micro-batch {micro_batch} at {time} ns, though the gradient on GPU {gpu} "
                f"has it already",
            )
        for chunk in range(self.chunks):
            buffer[chunk] |= 1 << position
            self.update_soon(gpu, chunk, mini_batch, time)

    def update_soon(self, gpu: int, chunk: int, mini_batch: int, time: int) -> None:
        if self.updates or chunk not in self.home[gpu]:
            return
        if self.is_due(gpu, chunk, mini_batch):
            self.push(time, _UPDATE, partial(self.update, gpu, chunk))

    def update(self, gpu: int, chunk: int, time: int) -> None:
        while self.is_due(gpu, chunk, self.newest[gpu, chunk]):
            self.newest[gpu, chunk] += 1
            self.note(gpu, chunk, self.newest[gpu, chunk], time)

    def is_due(self, gpu: int, chunk: int, mini_batch: int) -> bool:
        """Whether a GPU can apply a mini-batch to a chunk; where a copy comes, that counts."""
        whole = self.buffer(gpu, mini_batch)[chunk] == self.whole
        return whole and (gpu, chunk, mini_batch) not in self.coming

    def note(self, gpu: int, chunk: int, version: int, time: int) -> None:
        """Note that a version of a chunk is there, and the version that is whole with it."""
        self.parts[gpu, chunk][version] = time
        together = (_EVERY_GPU if self.scattered else gpu, version)
        self.there[together] = self.there.get(together, 0) + 1
        if self.there[together] == (len(self.parts) if self.scattered else self.chunks):
            for one in self.gpus if self.scattered else (gpu,):
                self.made[one][version] = time

    def make(
        self, place: str, gpu: int, chunk: int, mini_batch: int, first: int, time: int
    ) -> None:
        version = mini_batch + 1
        if version in self.parts[gpu, chunk]:
            return
        newest = self.newest[gpu, chunk]
        if newest != mini_batch:
            self.report(
                "version",
                place,
                "order",
                first,
                f"version {version} of stage {self.stage} comes to GPU {gpu} at {time} ns, where "
                f"the newest is version {newest}",
            )
        self.note(gpu, chunk, version, time)
        self.newest[gpu, chunk] = max(newest, version)
        if not self.updates and chunk in self.home[gpu]:
            self.update(gpu, chunk, time)

    def start_update(self, place: str, item: Operation, first: int, time: int) -> None:
        gpu = self.timeline.plan.stages[self.stage].gpu(first)
        mini_batch = first // self.m
        if (gpu, mini_batch) in self.updating:
            self.report(
                "gradient",
                place,
                "twice",
                first,
                f"{name_item(item, first)} applies mini-batch {mini_batch} to GPU {gpu} again",
            )
            return
        self.updating.add((gpu, mini_batch))
        gap = self.describe_gap(gpu, mini_batch)
        if gap:
            self.report(
                "gradient",
                place,
                "early",
                first,
                f"{name_item(item, first)} starts at {time} ns, but on GPU {gpu} {gap}",
            )
        end = time + self.timeline.length(item, first)
        for chunk in self.home[gpu]:
            if (gpu, chunk, mini_batch) not in self.coming:
                self.push(end, _UPDATE, partial(self.make, place, gpu, chunk, mini_batch, first))

    def send_gradient(self, place: str, item: Transfer, first: int, time: int) -> None:
        source, target = self.timeline.ends(item, first)
        mini_batch = first // self.m
        carried = self.buffer(source, mini_batch)[item.chunk]
        if not carried:
            self.report(
                "gradient",
                place,
                "empty",
                first,
                f"{name_item(item, first)} starts at {time} ns, when GPU {source} has nothing of "
                f"mini-batch {mini_batch}",
            )
            return
        if self.at_home and item.chunk not in self.home[source]:
            self.buffer(source, mini_batch)[item.chunk] = 0
        end = time + self.timeline.length(item, first)
        arrive = partial(self.receive_gradient, place, item, first, target, carried)
        self.push(end, _ARRIVE, arrive)

    def receive_gradient(
        self, place: str, item: Transfer, first: int, target: int, carried: int, time: int
    ) -> None:
        mini_batch = first // self.m
        buffer = self.buffer(target, mini_batch)
        own = buffer[item.chunk]
        what = f"{name_item(item, first)} reaches GPU {target} at {time} ns"
        applied: dict[int, int] = {}
        if item.chunk in self.home[target]:
            applied = self.parts[target, item.chunk] if self.sharded else self.made[target]
        if mini_batch + 1 in applied:
            made = applied[mini_batch + 1]
            self.report(
                "gradient",
                place,
                "late",
                first,
                f"{what}, {time - made} ns after version {mini_batch + 1} came there",
            )
        if item.mode == "reduce":
            if own & carried:
                twice = self.describe(own & carried, mini_batch)
                self.report("gradient", place, "twice", first, f"{what} and counts {twice} twice")
            buffer[item.chunk] = own | carried
        else:
            if own & ~carried:
                lost = self.describe(own & ~carried, mini_batch)
                self.report("gradient", place, "lost", first, f"{what} and overwrites {lost}")
            buffer[item.chunk] = carried
        self.update_soon(target, item.chunk, mini_batch, time)

    def send_weights(self, place: str, item: Transfer, first: int, time: int) -> None:
        source, target = self.timeline.ends(item, first)
        mini_batch = first // self.m
        there = self.parts[source, item.chunk] if self.sharded else self.made[source]
        if mini_batch + 1 not in there:
            self.report(
                "version",
                place,
                "absent",
                first,
                f"{name_item(item, first)} starts at {time} ns, when GPU {source} has version "
                f"{max(there, default=0)}, not {mini_batch + 1}",
            )
            return
        end = time + self.timeline.length(item, first)
        self.push(end, _ARRIVE, partial(self.receive_weights, place, item, first, target))

    def receive_weights(
        self, place: str, item: Transfer, first: int, target: int, time: int
    ) -> None:
        mini_batch = first // self.m
        what = f"{name_item(item, first)} reaches GPU {target} at {time} ns"
        if self.sharded and item.chunk in self.home[target]:
            self.report("version", place, "home", first, f"{what}, where that chunk is at home")
            return
        key = (target, item.chunk, mini_batch)
        if self.sharded and key in self.received:
            self.report("version", place, "twice", first, f"{what}, where it came already")
            return
        self.received.add(key)
        arrived = partial(self.make, place, target, item.chunk, mini_batch, first)
        self.push(time, _UPDATE, arrived)

    def describe(self, bits: int, mini_batch: int) -> str:
        numbers = [n + mini_batch * self.m for n in range(self.m) if bits >> n & 1]
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
        return f"micro-batch{'es' if len(numbers) > 1 else ''} {named}{more}"

    def describe_gap(self, gpu: int, mini_batch: int) -> str:
        """Say what a mini-batch lacks that is at home on a GPU; nothing if it is whole."""
        for chunk in self.home[gpu]:
            held = self.buffer(gpu, mini_batch)[chunk]
            if held != self.whole:
                missing = self.describe(self.whole & ~held, mini_batch)
                part = f"chunk {chunk} of " if self.chunks > 1 else ""
                return f"{part}mini-batch {mini_batch} lacks {missing}"
        return ""

    def find_lost(self) -> None:
        for gpu in self.gpus:
            mine = [chunk for place, chunk in self.parts if place == gpu]
            for mini_batch in range(self.checked // self.m):
                lost = [chunk for chunk in mine if mini_batch + 1 not in self.parts[gpu, chunk]]
                if lost:
                    place = f"stage {self.stage}, GPU {gpu}, mini-batch {mini_batch}"
                    reasons = ", and ".join(self.explain_loss(gpu, lost, mini_batch))
                    self.report(
                        "gradient",
                        place,
                        "never",
                        mini_batch * self.m,
                        f"never becomes version {mini_batch + 1} there: {reasons}",
                    )
                    break

    def explain_loss(self, gpu: int, lost: list[int], mini_batch: int) -> Iterator[str]:
        at_home = any(chunk in self.home[gpu] for chunk in lost)
        if at_home:
            yield self.describe_gap(gpu, mini_batch) or f"mini-batch {mini_batch} is whole"
        if at_home and self.updates:
            yield "no U applies it"
        if not at_home or any(item.tensor == "weights" for _, item in self.transfers):
            yield "its weights do not come"
