"""When each operation and transfer of each micro-batch runs, and where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm
from typing import NamedTuple

from schedopt.checking.copies import copied_bytes
from schedopt.checking.parts import Part
from schedopt.plan import Operation, Plan, Transfer

Item = Operation | Transfer
Name = tuple[str, int]
"""What runs once for each micro-batch: ``("B", 2)``, ``("activation", 0)``.

On the replica behind that of the micro-batch W is ``("W+1", 2)``, and the transfer that takes
there what W needs is ``("weight_half+1", 2)``.
"""


class Slot(NamedTuple):
    """The item that runs a class of micro-batches modulo k, `behind` the first that it covers."""

    item: Item
    behind: int


class Use(NamedTuple):
    """An item for its `first` micro-batch, in ns, and again every `every` micro-batches.

    Its place is that in the plan.
    """

    item: Item
    place: str
    first: int
    start: int
    length: int
    every: int


@dataclass(frozen=True)
class Timeline:
    """The occurrences of a plan whose structure is sound.

    In period q an item runs micro-batch q k + h from q T + t (Beaumont et al. 2021, section 3.1).
    Each item lies behind its place; a name has k slots, None where no transfer is listed. Of a fold
    the timeline is that of the first part.
    """

    plan: Plan
    items: tuple[tuple[str, Item], ...]
    slots: Mapping[Name, tuple[Slot | None, ...]]
    part: Part | None = None
    _lengths: dict[tuple[str | int, ...], int] = field(default_factory=dict, repr=False)
    _spans: dict[Name, dict[int, tuple[int, int]]] = field(default_factory=dict, repr=False)
    _repeats: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False)

    @cached_property
    def by_stage(self) -> tuple[tuple[tuple[str, Item], ...], ...]:
        """The items of each stage; a boundary transfer belongs to the stage that it follows."""
        rows: list[list[tuple[str, Item]]] = [[] for _ in self.plan.stages]
        for place, item in self.items:
            rows[item.stage].append((place, item))
        return tuple(map(tuple, rows))

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Each item once on each of the GPUs on which it runs in turn, item after item."""
        k = self.plan.pattern.k
        found: list[Use] = []
        for place, item in self.items:
            every = self.repeat(*self.stages_of(item))
            for first in range(item.shift, item.shift + every, k):
                start, length = self.start(item, first), self.length(item, first)
                found.append(Use(item, place, first, start, length, every))
        return tuple(found)

    @cached_property
    def uses_by_stage(self) -> tuple[tuple[Use, ...], ...]:
        """The same of each stage."""
        rows: list[list[Use]] = [[] for _ in self.plan.stages]
        for use in self.uses:
            rows[use.item.stage].append(use)
        return tuple(map(tuple, rows))

    def is_split(self, stage: int) -> bool:
        """Whether the backward of a stage runs in halves."""
        return ("I", stage) in self.slots

    def backward(self, stage: int) -> Name:
        """Name what sends the gradient on: B, or I of a split stage."""
        return ("I" if self.is_split(stage) else "B", stage)

    def slot(self, name: Name, micro_batch: int) -> Slot | None:
        """Return what runs a micro-batch, or None where nothing is listed."""
        classes = self.slots.get(name)
        return None if classes is None else classes[micro_batch % self.plan.pattern.k]

    def start(self, item: Item, first: int) -> int:
        """When an item starts whose first covered micro-batch is `first`, in ns."""
        pattern = self.plan.pattern
        return (first - item.shift) // pattern.k * pattern.period_total_ns + item.start_ns

    def span(self, name: Name, micro_batch: int) -> tuple[int, int]:
        """When the item that runs a micro-batch starts and ends, in ns."""
        known = self._spans.setdefault(name, {})
        found = known.get(micro_batch)
        if found is None:
            slot = self.slots[name][micro_batch % self.plan.pattern.k]
            assert slot is not None
            item, behind = slot
            start = self.start(item, micro_batch - behind)
            end = start + self.length(item, micro_batch - behind)
            found = known[micro_batch] = start, end
        return found

    def length(self, item: Item, first: int) -> int:
        """How long an item lasts whose first covered micro-batch is `first`, in ns."""
        if isinstance(item, Operation):
            gpu = self.plan.stages[item.stage].gpu(first + item.replica)
            if item.kind == "U" and self.part is not None:
                # Shares differ by a byte, and the longest shows what is too long in some part.
                return max(self.length_on(item, one) for one in self.part.same[gpu])
            return self.length_on(item, gpu)
        source, target = self.ends(item, first)
        copy = -1 if item.source_stage is None else item.source_stage
        key = item.tensor, item.stage, copy, source, target, item.chunk, item.chunks, item.covers
        found = self._lengths.get(key)
        if found is None:
            found = self._lengths[key] = self.plan.platform.transfer_ns(
                self.carried(item), source, target, self.plan.lanes(item)
            )
        return found

    def length_on(self, operation: Operation, gpu: int) -> int:
        """How long an operation lasts on a GPU, in ns."""
        key = operation.kind, operation.stage, gpu
        once = self._lengths.get(key)
        if once is None:
            once = self._lengths[key] = self._measure(*key)
        return once if operation.kind == "U" else once * operation.covers

    def _measure(self, kind: str, stage: int, gpu: int) -> int:
        """How long an operation of one micro-batch lasts on a GPU, in ns."""
        fields = {
            "F": "forward_ns",
            "B": "backward_ns",
            "I": "backward_input_ns",
            "W": "backward_weight_ns",
            "R": "forward_ns",
            "U": "update_ns",
        }
        runs = (
            self.plan.stages[stage].recompute if kind == "R" else [self.plan.stages[stage].layers]
        )
        machine = self.plan.platform.gpus[gpu]
        once = sum(
            machine.duration_ns(getattr(self.plan.costs.layers[layer], fields[kind]) or 0)
            for first, last in runs
            for layer in range(first, last + 1)
        )
        if kind != "U":
            return once
        # Experts that no other replica has are in no chunk, and updated by this one.
        alone = 0 if self.experts[stage] else self._total(stage, "expert_parameter_bytes")
        whole = alone + self.size(stage, "parameter_bytes", self.held(stage, gpu))
        share = alone + self.size(stage, "parameter_bytes", self.home(stage, gpu))
        # An update of a shard takes its share of the whole.
        return -(-once * share // whole) if whole else once

    def ends(self, transfer: Transfer, micro_batch: int) -> tuple[int, int]:
        """From which GPU to which GPU a transfer goes."""
        stage = self.plan.stages[transfer.stage]
        if transfer.source is not None and transfer.target is not None:
            sender = stage
            if transfer.source_stage is not None:
                sender = self.plan.stages[transfer.source_stage]
            return (
                sender.gpu(micro_batch + transfer.source),
                stage.gpu(micro_batch + transfer.target),
            )
        here = stage.gpu(micro_batch)
        there = self.plan.stages[transfer.stage + 1].gpu(micro_batch)
        return (here, there) if transfer.tensor == "activation" else (there, here)

    def carried(self, transfer: Transfer) -> int:
        """How many bytes a transfer carries, from each GPU of a group that sends."""
        if transfer.is_boundary:
            last = self.plan.stages[transfer.stage].last
            whole = self.plan.costs.layers[last].activation_bytes
            return -(-whole // self.plan.lanes(transfer)) * transfer.covers
        if transfer.tensor == "weight_half":
            return self.size(transfer.stage, "saved_weight_bytes")
        if transfer.source_stage is not None:
            whole = copied_bytes(self.plan, transfer.source_stage, transfer.stage)
            return -(-whole // self.plan.lanes(transfer))
        part = "parameter_bytes" if transfer.tensor == "weights" else "gradient_bytes"
        return self._chunk_size(transfer.stage, part, transfer.chunk, transfer.chunks)

    @property
    def weights_of(self) -> Plan:
        """The plan whose replicas share their weights: that of all parts."""
        return self.plan if self.part is None else self.part.of

    @cached_property
    def experts(self) -> tuple[int, ...]:
        """How many chunks of each stage, the last ones, are those of experts."""
        return tuple(map(self.weights_of.expert_chunks, range(len(self.plan.stages))))

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Into how many chunks the weights of each stage are cut."""
        if self.plan.rule.is_given:
            return tuple(
                len(stage.gpus) + experts
                for stage, experts in zip(self.plan.stages, self.experts, strict=True)
            )
        found = [2 * experts or 1 for experts in self.experts]
        for collective in self.weights_of.pattern.collectives:
            found[collective.stage] = len(self.weights_of.stages[collective.stage].gpus)
        for _, item in self.items:
            if isinstance(item, Transfer) and item.moves_weights and item.source_stage is None:
                found[item.stage] = item.chunks
        return tuple(found)

    def home(self, stage: int, gpu: int) -> frozenset[int]:
        """Return the chunks of a stage that are at home on a GPU; all where nothing is sharded."""
        chunks, whole = self.chunks[stage], self.weights_of.stages[stage]
        gpus = whole.gpus
        if whole.shard == "none":
            return self.held(stage, gpu)
        if experts := self.experts[stage]:
            own = experts + whole.places[gpus.index(gpu)]
            return frozenset(
                [own, *(c for c in range(experts) if gpus[(stage + c) % experts] == gpu)]
            )
        if whole.shard_copies == 1:
            return frozenset(c for c in range(chunks) if gpus[(stage + c) % len(gpus)] == gpu)
        size = len(gpus) // whole.shard_copies
        begin = sorted(gpus).index(gpu) // size * size
        group = {*sorted(gpus)[begin : begin + size]}
        own = [one for one in gpus if one in group].index(gpu)
        return frozenset(c for c in range(chunks) if (stage + c - own) % size == 0)

    def held(self, stage: int, gpu: int) -> frozenset[int]:
        """Return the chunks of a stage that a GPU has: all but those of others' experts."""
        chunks, experts = self.chunks[stage], self.experts[stage]
        if not experts:
            return frozenset(range(chunks))
        one, among = self.plan.stages[stage], self.plan.chain.expert
        own = range(one.places[one.gpus.index(gpu)] % among, experts, among)
        return frozenset([*range(chunks - experts), *(chunks - experts + c for c in own)])

    def size(self, stage: int, part: str, chunks: Collection[int] | None = None) -> int:
        """Return the bytes that chunks of a stage have of a part of its weights.

        By default those of all chunks that are not of experts.
        """
        if chunks is None or (len(chunks) == self.chunks[stage] and not self.experts[stage]):
            return self._total(stage, part)
        return sum(self._chunk_size(stage, part, chunk, self.chunks[stage]) for chunk in chunks)

    def _chunk_size(self, stage: int, part: str, chunk: int, chunks: int) -> int:
        """Return the bytes of one chunk of a part of the weights of a stage, which has `chunks`."""
        common = chunks - self.experts[stage]
        if chunk < common:
            return _cut(self._total(stage, part), chunk, common)
        among = self.plan.chain.expert
        copies = self.experts[stage] // among
        return _cut(self._total(stage, f"expert_{part}"), (chunk - common) // among, copies)

    def _total(self, stage: int, part: str) -> int:
        """Return what the layers of a stage have of a part, bytes."""
        first, last = self.plan.stages[stage].layers
        return sum(getattr(one, part) or 0 for one in self.plan.costs.layers[first : last + 1])

    def stages_of(self, item: Item) -> tuple[int, ...]:
        """Return the stages on which the GPUs of an item depend."""
        if isinstance(item, Transfer) and item.is_boundary:
            return (item.stage, item.stage + 1)
        if isinstance(item, Transfer) and item.source_stage is not None:
            return (item.stage, item.source_stage)
        return (item.stage,)

    def own_gradients(self, stage: int, replayed: int) -> dict[int, list[tuple[int, int]]]:
        """Return when each GPU of a stage has made the gradient of which micro-batch, ns.

        None where gradients go home behind each backward, so that no GPU keeps its own.
        """
        one = self.plan.stages[stage]
        found: dict[int, list[tuple[int, int]]] = {gpu: [] for gpu in one.gpus}
        if one.shard in ("gradient", "parameter"):
            return found
        for replica in range(len(one.gpus)):
            name = (on_replica("W" if self.is_split(stage) else "B", replica), stage)
            for i in range(replayed):
                if self.slot(name, i) is not None:
                    found[one.gpu(i + replica)].append((self.span(name, i)[1], i))
        return found

    def repeat(self, *stages: int) -> int:
        """Return after how many micro-batches stages run on the same GPUs at the same phase."""
        found = self._repeats.get(stages)
        if found is None:
            replicas = (len(self.plan.stages[stage].gpus) for stage in stages)
            found = self._repeats[stages] = lcm(self.plan.pattern.k, *replicas)
        return found

    def duration_of(self, micro_batches: int) -> int:
        """How long a number of micro-batches, a multiple of k, takes in ns."""
        pattern = self.plan.pattern
        return micro_batches // pattern.k * pattern.period_total_ns


def _cut(total: int, chunk: int, chunks: int) -> int:
    return (chunk + 1) * total // chunks - chunk * total // chunks


def lay_out(plan: Plan, part: Part | None = None) -> Timeline:
    """Return the timeline of a plan, or of a part, whose operations and transfers are complete."""
    k = plan.pattern.k
    slots: dict[Name, list[Slot | None]] = {}
    items: list[tuple[str, Item]] = []
    for number, operation in enumerate(plan.pattern.operations):
        items.append((f"operations[{number}]", operation))
        if operation.kind != "U":
            _enter(slots, name_of(plan, operation), operation, k)
    for number, transfer in enumerate(plan.pattern.transfers):
        items.append((f"transfers[{number}]", transfer))
        if not transfer.moves_weights:
            _enter(slots, name_of(plan, transfer), transfer, k)
    return Timeline(plan, tuple(items), {name: tuple(row) for name, row in slots.items()}, part)


def _enter(slots: dict[Name, list[Slot | None]], name: Name, item: Item, k: int) -> None:
    row = slots.get(name) or slots.setdefault(name, [None] * k)
    for behind in range(item.covers):
        row[(item.shift + behind) % k] = Slot(item, behind)


def on_replica(kind: str, replica: int) -> str:
    """Return the kind of a `Name`: ``W+1`` on the replica behind that of the micro-batch."""
    return f"{kind}+{replica}" if replica else kind


def replicas_of(plan: Plan, transfer: Transfer) -> tuple[int, int]:
    """Return from and to which replica a transfer goes, 0 to R - 1 behind that of its micro-batch.

    Of activations and their gradients, which name none: both 0.
    """
    replicas = len(plan.stages[transfer.stage].gpus)
    return (transfer.source or 0) % replicas, (transfer.target or 0) % replicas


def name_of(plan: Plan, item: Item) -> Name:
    """Return what an item runs, or for the tensors of weights its tensor."""
    if isinstance(item, Operation):
        kind, ahead = str(item.kind), item.replica
    else:
        kind, ahead = item.tensor, (item.target or 0) if item.tensor == "weight_half" else 0
    if not ahead:
        return kind, item.stage
    return on_replica(kind, ahead % len(plan.stages[item.stage].gpus)), item.stage


def name_kind(name: Name) -> str:
    """Write the kind of something: ``B``, ``W on replica +1``, ``weight half to replica +1``."""
    kind, _, replica = name[0].partition("+")
    where = f" {'on' if kind == 'W' else 'to'} replica +{replica}" if replica else ""
    return kind.replace("_", " ") + where


def name_place(name: Name, micro_batch: int) -> str:
    """Write where something runs: ``stage 2, micro-batch 5, B``."""
    kind, stage = name
    if kind.startswith(("activation", "gradient", "weight_half")):
        return f"{name_kind(name)} of stage {stage}, micro-batch {micro_batch}"
    return f"stage {stage}, micro-batch {micro_batch}, {name_kind(name)}"


def name_item(item: Item, first: int) -> str:
    """Write what runs: ``B of stage 2, micro-batch 5``."""
    kind = item.kind if isinstance(item, Operation) else item.tensor.replace("_", " ")
    text = kind
    if isinstance(item, Transfer) and item.source_stage is not None:
        text += f" of stage {item.source_stage} to that"
    text += f" of stage {item.stage}, micro-batch"
    text += f" {first}" if item.covers == 1 else f"es {first} to {first + item.covers - 1}"
    if isinstance(item, Transfer) and not item.is_boundary:
        text += f", chunk {item.chunk} of {item.chunks}" if item.chunks > 1 else ""
        text += f", replica {item.source:+} to {item.target:+}"
    elif isinstance(item, Operation) and item.replica:
        text += f", on replica {item.replica:+}"
    return text
