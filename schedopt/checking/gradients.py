"""When each GPU makes or receives each version of its weights, by replaying every buffer."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from schedopt.checking.buffers import Buffers
from schedopt.checking.timeline import Item, Timeline, name_item, on_replica
from schedopt.checking.violations import Violation
from schedopt.plan import Operation, Transfer

# At one instant: ends and arrivals, then updates, then what starts.
_ARRIVE: Final = 0
_UPDATE: Final = 1
_SEND_GRADIENT: Final = 2
_START_UPDATE: Final = 3
_SEND_WEIGHTS: Final = 4
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
    """Replay gradients, updates and weights of `replayed` micro-batches from a cold start.

    Violations are reported for the first `checked` of them.
    """
    replay = _Replay(timeline, stage, replayed, checked)
    replay.run()
    replay.find_lost()
    return History(replay.made, replay.parts, tuple(replay.violations.values()))


class _Replay(Buffers):
    """The events of one stage, in the order of their times."""

    def run(self) -> None:
        k = self.timeline.plan.pattern.k
        self.push_own()
        self.push_copies()
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

    def push_copies(self) -> None:
        """Await the gradients of copies that are made on GPUs of this stage."""
        for partner, made in self.copies.items():
            for gpu in self.gpus:
                for end, i in made.get(gpu, ()):
                    add = partial(
                        self.add, f"stage {partner}", i, gpu, self.wanted.bits([i], partner)
                    )
                    self.push(end, _ARRIVE, add)

    def _begin(self, item: Operation | Transfer) -> tuple[int, Callable[..., None]]:
        if isinstance(item, Operation):
            return _START_UPDATE, self.start_update
        if item.tensor == "weights":
            return _SEND_WEIGHTS, self.send_weights
        if item.source_stage is not None:
            return _SEND_GRADIENT, self.send_copy
        return _SEND_GRADIENT, self.send_gradient

    def add_own(self, place: str, micro_batch: int, replica: int, time: int) -> None:
        gpu = self.timeline.plan.stages[self.stage].gpu(micro_batch + replica)
        self.add(place, micro_batch, gpu, self.wanted.bits([micro_batch]), time)

    def add(self, place: str, first: int, gpu: int, bits: int, time: int) -> None:
        """Add gradients of the mini-batch of a micro-batch to all chunks on a GPU."""
        mini_batch = first // self.m
        buffer = self.buffer(gpu, mini_batch)
        again = 0
        for chunk in self.held[gpu]:
            own = bits & self.whole[chunk]
            again |= buffer[chunk] & own
            buffer[chunk] |= own
            self.update_soon(gpu, chunk, mini_batch, time)
        if again:
            twice = self.wanted.describe(again, mini_batch)
            self.report(
                "gradient",
                place,
                "twice",
                first,
                f"counts {twice} at {time} ns, though the gradient on GPU {gpu} has it already",
            )

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
        whole = self.buffer(gpu, mini_batch)[chunk] == self.whole[chunk]
        return whole and (gpu, chunk, mini_batch) not in self.coming

    def note(self, gpu: int, chunk: int, version: int, time: int) -> None:
        """Note that a version of a chunk is there, and the version that is whole with it."""
        self.parts[gpu, chunk][version] = time
        together = (_EVERY_GPU if self.scattered else gpu, version)
        self.there[together] = self.there.get(together, 0) + 1
        if self.there[together] == (len(self.parts) if self.scattered else len(self.held[gpu])):
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
            self.report_empty(place, item, first, source, time)
            return
        if self.at_home and item.chunk not in self.home[source]:
            self.buffer(source, mini_batch)[item.chunk] = 0
        end = time + self.timeline.length(item, first)
        arrive = partial(self.receive_gradient, place, item, first, target, carried)
        self.push(end, _ARRIVE, arrive)

    def send_copy(self, place: str, item: Transfer, first: int, time: int) -> None:
        """Send what a copy has made by then on a GPU, without what came there."""
        source, target = self.timeline.ends(item, first)
        mini_batch = first // self.m
        assert item.source_stage is not None
        made = [
            i
            for end, i in self.copies[item.source_stage].get(source, ())
            if end <= time and i // self.m == mini_batch
        ]
        if not made:
            self.report_empty(place, item, first, source, time)
            return
        bits = self.wanted.bits(made, item.source_stage)
        end = time + self.timeline.length(item, first)
        self.push(end, _ARRIVE, partial(self.receive_copy, place, item, first, target, bits))

    def receive_copy(
        self, place: str, item: Transfer, first: int, target: int, bits: int, time: int
    ) -> None:
        for chunk in self.held[target]:
            if bits & self.whole[chunk]:
                self.report_late(place, item, first, target, chunk, time)
        self.add(place, first, target, bits, time)

    def receive_gradient(
        self, place: str, item: Transfer, first: int, target: int, carried: int, time: int
    ) -> None:
        mini_batch = first // self.m
        buffer = self.buffer(target, mini_batch)
        own = buffer[item.chunk]
        what = f"{name_item(item, first)} reaches GPU {target} at {time} ns"
        self.report_late(place, item, first, target, item.chunk, time)
        if item.mode == "reduce":
            if own & carried:
                twice = self.wanted.describe(own & carried, mini_batch)
                self.report("gradient", place, "twice", first, f"{what} and counts {twice} twice")
            buffer[item.chunk] = own | carried
        else:
            if own & ~carried:
                lost = self.wanted.describe(own & ~carried, mini_batch)
                self.report("gradient", place, "lost", first, f"{what} and overwrites {lost}")
            buffer[item.chunk] = carried
        self.update_soon(target, item.chunk, mini_batch, time)

    def report_empty(self, place: str, item: Transfer, first: int, source: int, time: int) -> None:
        self.report(
            "gradient",
            place,
            "empty",
            first,
            f"{name_item(item, first)} starts at {time} ns, when GPU {source} has nothing of "
            f"mini-batch {first // self.m}",
        )

    def report_late(
        self, place: str, item: Transfer, first: int, target: int, chunk: int, time: int
    ) -> None:
        """Report a gradient of a chunk that comes after its mini-batch was applied."""
        applied: dict[int, int] = {}
        if chunk in self.home[target]:
            applied = self.parts[target, chunk] if self.sharded else self.made[target]
        version = first // self.m + 1
        if version in applied:
            self.report(
                "gradient",
                place,
                "late",
                first,
                f"{name_item(item, first)} reaches GPU {target} at {time} ns, "
                f"{time - applied[version]} ns after version {version} came there",
            )

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
