"""What each GPU has of the gradients and weights of a stage, while they are replayed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from schedopt.checking.copies import find_partners
from schedopt.checking.timeline import Timeline
from schedopt.checking.violations import Violation
from schedopt.checking.wanted import Wanted
from schedopt.plan import Operation, Transfer

Event = Callable[[int], None]


@dataclass
class Buffers:
    """The buffers of one stage while time goes on.

    A buffer is a set of gradients of one mini-batch: see `Wanted`. A chunk is updated where it is
    at home; where nothing is sharded that is everywhere. Of experts a GPU has the chunks of those
    that it has, of which a gradient is whole when all GPUs have made theirs that have the same.
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
        self.wanted = Wanted(self.m, find_partners(plan, self.stage))
        self.copies = {
            partner: self.timeline.own_gradients(partner, self.replayed)
            for partner in self.wanted.partners
        }
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
        self.held = {gpu: sorted(self.timeline.held(self.stage, gpu)) for gpu in self.gpus}
        self.whole = self._whole_chunks()
        for gpu in self.gpus:
            self.made[gpu] = {}
            for chunk in self.home[gpu] if self.scattered else self.held[gpu]:
                self.parts[gpu, chunk] = {}
                self.newest[gpu, chunk] = 0

    def _whole_chunks(self) -> list[int]:
        """Return what the whole gradient of each chunk is."""
        found = [self.wanted.whole] * self.chunks
        stage, experts = self.timeline.plan.stages[self.stage], self.timeline.experts[self.stage]
        for chunk in range(self.chunks - experts, self.chunks):
            own = [i for i in range(self.m) if chunk in self.held[stage.gpu(i)]]
            found[chunk] = self.wanted.bits(own)
        return found

    def push(self, time: int, rank: int, event: Event) -> None:
        """Let something happen at an instant, what has a lower rank first."""
        heapq.heappush(self.queue, (time, rank, self.pushed, event))
        self.pushed += 1

    def report(self, kind: str, place: str, topic: str, micro_batch: int, message: str) -> None:
        """Note a violation, one for each place and topic."""
        if micro_batch < self.checked:
            self.violations.setdefault((kind, place, topic), Violation(kind, place, message))

    def buffer(self, gpu: int, mini_batch: int) -> list[int]:
        """Return what a GPU has of the gradients of a mini-batch, chunk by chunk."""
        return self.buffers.setdefault((gpu, mini_batch), [0] * self.chunks)

    def describe_gap(self, gpu: int, mini_batch: int) -> str:
        """Say what a mini-batch lacks that is at home on a GPU; nothing if it is whole."""
        for chunk in self.home[gpu]:
            held = self.buffer(gpu, mini_batch)[chunk]
            if held != self.whole[chunk]:
                missing = self.wanted.describe(self.whole[chunk] & ~held, mini_batch)
                part = f"chunk {chunk} of " if self.chunks > 1 else ""
                return f"{part}mini-batch {mini_batch} lacks {missing}"
        return ""

    def find_lost(self) -> None:
        """Report the first mini-batch of each GPU that never becomes a version there."""
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
        """Yield why chunks of a mini-batch never become a version on a GPU."""
        at_home = any(chunk in self.home[gpu] for chunk in lost)
        if at_home:
            yield self.describe_gap(gpu, mini_batch) or f"mini-batch {mini_batch} is whole"
        if at_home and self.updates:
            yield "no U applies it"
        if not at_home or any(item.tensor == "weights" for _, item in self.transfers):
            yield "its weights do not come"
