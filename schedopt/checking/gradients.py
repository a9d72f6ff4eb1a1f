"""When each GPU makes or receives each version of its weights, by replaying every buffer."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from schedopt.checking.timeline import Item, Timeline, name_item
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


@dataclass(frozen=True)
class History:
    """Which versions of a stage's weights came to be, and when.

    Parameters
    ----------
    made : dict
        For each GPU of the stage, the time in ns of each version after the first, which is there
        from the start.
    violations : tuple of Violation
    """

    made: dict[int, dict[int, int]]
    violations: tuple[Violation, ...]


def replay_gradients(timeline: Timeline, stage: int, replayed: int, checked: int) -> History:
    """Replay the gradients, updates and weights of one stage from a cold start.

    Parameters
    ----------
    timeline : Timeline
    stage : int
    replayed : int
        So many micro-batches run, from 0 on.
    checked : int
        Violations are reported for so many of them.
    """
    replay = _Replay(timeline, stage, replayed, checked)
    replay.run()
    replay.find_lost()
    return History(replay.made, tuple(replay.violations.values()))


@dataclass
class _Replay:
    """The buffers of one stage while time goes on.

    A buffer is a set of micro-batches of one mini-batch, kept as the bits of an integer.
    """

    timeline: Timeline
    stage: int
    replayed: int
    checked: int
    made: dict[int, dict[int, int]] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    buffers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    received: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    updating: set[tuple[int, int]] = field(default_factory=set)
    violations: dict[tuple[str, str, str], Violation] = field(default_factory=dict)
    queue: list[tuple[int, int, int, Event]] = field(default_factory=list)
    pushed: int = 0

    def __post_init__(self) -> None:
        plan = self.timeline.plan
        assert plan.rule.update_every is not None
        self.m = plan.rule.update_every
        self.whole = (1 << self.m) - 1
        self.gpus = plan.stages[self.stage].gpus
        items = self.timeline.by_stage[self.stage]
        self.transfers = [
            (place, item)
            for place, item in items
            if isinstance(item, Transfer) and not item.is_boundary
        ]
        self.updates = [
            (place, item)
            for place, item in items
            if isinstance(item, Operation) and item.kind == "U"
        ]
        self.chunks = self.transfers[0][1].chunks if self.transfers else 1
        for gpu in self.gpus:
            self.made[gpu] = {}
            self.newest[gpu] = 0

    def run(self) -> None:
        k = self.timeline.plan.pattern.k
        last = ("W" if self.timeline.is_split(self.stage) else "B", self.stage)
        for i in range(self.replayed):
            _, end = self.timeline.span(last, i)
            self.push(end, _ARRIVE, partial(self.add_own, i))
        moving: list[tuple[str, Item]] = [*self.updates, *self.transfers]
        for place, item in moving:
            rank, begin = self._begin(item)
            for first in range(item.shift % k, self.replayed, k):
                self.push(
                    self.timeline.start(item, first), rank, partial(begin, place, item, first)
                )
        while self.queue:
            time, _, _, event = heapq.heappop(self.queue)
            event(time)

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

    def is_whole(self, gpu: int, mini_batch: int) -> bool:
        return all(chunk == self.whole for chunk in self.buffer(gpu, mini_batch))

    def add_own(self, micro_batch: int, time: int) -> None:
        gpu = self.timeline.plan.stages[self.stage].gpu(micro_batch)
        mini_batch, position = divmod(micro_batch, self.m)
        buffer = self.buffer(gpu, mini_batch)
        for chunk in range(self.chunks):
            buffer[chunk] |= 1 << position
        self.update_soon(gpu, mini_batch, time)

    def update_soon(self, gpu: int, mini_batch: int, time: int) -> None:
        if not self.updates and self.is_whole(gpu, mini_batch):
            self.push(time, _UPDATE, partial(self.update, gpu))

    def update(self, gpu: int, time: int) -> None:
        while self.is_whole(gpu, self.newest[gpu]):
            self.newest[gpu] += 1
            self.made[gpu][self.newest[gpu]] = time

    def make(self, place: str, gpu: int, mini_batch: int, first: int, time: int) -> None:
        version = mini_batch + 1
        if version in self.made[gpu]:
            return
        if self.newest[gpu] != mini_batch:
            self.report(
                "version",
                place,
                "order",
                first,
                f"version {version} of stage {self.stage} comes to GPU {gpu} at {time} ns, where "
                f"the newest is version {self.newest[gpu]}",
            )
        self.made[gpu][version] = time
        self.newest[gpu] = max(self.newest[gpu], version)
        if not self.updates:
            self.update(gpu, time)

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
        if not self.is_whole(gpu, mini_batch):
            self.report(
                "gradient",
                place,
                "early",
                first,
                f"{name_item(item, first)} starts at {time} ns, but on GPU {gpu} "
                f"{self.describe_gap(gpu, mini_batch)}",
            )
        end = time + self.timeline.length(item, first)
        self.push(end, _UPDATE, partial(self.make, place, gpu, mini_batch, first))

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
        if mini_batch + 1 in self.made[target]:
            made = self.made[target][mini_batch + 1]
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
        self.update_soon(target, mini_batch, time)

    def send_weights(self, place: str, item: Transfer, first: int, time: int) -> None:
        source, target = self.timeline.ends(item, first)
        mini_batch = first // self.m
        if mini_batch + 1 not in self.made[source]:
            self.report(
                "version",
                place,
                "absent",
                first,
                f"{name_item(item, first)} starts at {time} ns, when GPU {source} has version "
                f"{self.newest[source]}, not {mini_batch + 1}",
            )
            return
        end = time + self.timeline.length(item, first)
        self.push(end, _ARRIVE, partial(self.receive_weights, place, item, first, target))

    def receive_weights(
        self, place: str, item: Transfer, first: int, target: int, time: int
    ) -> None:
        mini_batch = first // self.m
        chunks = self.received.setdefault((target, mini_batch), set())
        chunks.add(item.chunk)
        if len(chunks) == self.chunks:
            self.push(time, _UPDATE, partial(self.make, place, target, mini_batch, first))

    def describe(self, bits: int, mini_batch: int) -> str:
        numbers = [n + mini_batch * self.m for n in range(self.m) if bits >> n & 1]
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
        return f"micro-batch{'es' if len(numbers) > 1 else ''} {named}{more}"

    def describe_gap(self, gpu: int, mini_batch: int) -> str:
        for chunk, held in enumerate(self.buffer(gpu, mini_batch)):
            if held != self.whole:
                missing = self.describe(self.whole & ~held, mini_batch)
                part = f"chunk {chunk} of " if self.chunks > 1 else ""
                return f"{part}mini-batch {mini_batch} lacks {missing}"
        return f"mini-batch {mini_batch} is whole"

    def find_lost(self) -> None:
        sent = any(item.tensor == "weights" for _, item in self.transfers)
        for gpu in dict.fromkeys(self.gpus):
            for mini_batch in range(self.checked // self.m):
                if mini_batch + 1 not in self.made[gpu]:
                    place = f"stage {self.stage}, GPU {gpu}, mini-batch {mini_batch}"
                    self.report(
                        "gradient",
                        place,
                        "never",
                        mini_batch * self.m,
                        f"never becomes version {mini_batch + 1} there: "
                        f"{self.describe_gap(gpu, mini_batch)}"
                        f"{', and no U applies it' if self.updates else ''}"
                        f"{', and its weights do not come' if sent else ''}",
                    )
                    break
