"""When each operation and transfer of a plan runs, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import NamedTuple, Protocol

from schedopt.account.shard_owners import ShardOwners, part_of
from schedopt.chain import Layer
from schedopt.folding import whole
from schedopt.network import Resource
from schedopt.plan import Kind, Operation, Plan, Transfer
from schedopt.tied_weights import shared_gradient_bytes


class Interval(NamedTuple):
    """An operation or a transfer of one micro-batch: absolute start and end, ns, and its GPU."""

    start_ns: int
    end_ns: int
    gpu: int


class Schedule(Protocol):
    """When the micro-batches 0 to `length` - 1 of a plan run: a hyperperiod, or a finite step."""

    @property
    def plan(self) -> Plan:
        """What runs."""
        ...

    @property
    def length(self) -> int:
        """Micro-batches."""
        ...

    @property
    def length_ns(self) -> int:
        """After how long it repeats; a finite step ends before."""
        ...

    @property
    def end_ns(self) -> int | None:
        """When a finite step ends."""
        ...

    def has(self, kind: Kind, stage: int, micro_batch: int = 0, replica: int = 0) -> bool:
        """Whether a stage has an operation of a kind for a micro-batch, on a replica of it."""
        ...

    def at(self, kind: Kind, stage: int, micro_batch: int, replica: int = 0) -> Interval:
        """Return when an operation runs for a micro-batch, W perhaps on another replica."""
        ...

    def operations(self) -> Iterator[tuple[Operation, int, Interval]]:
        """Yield each operation with its first micro-batch."""
        ...

    def transfers(self) -> Iterator[tuple[Transfer, int, int, int, Interval]]:
        """Yield each transfer with micro-batch, source GPU, bytes and interval at its target."""
        ...


class Timeline:
    """A plan seen micro-batch by micro-batch, which goes on for ever.

    After `length` of them, in `length_ns`, GPUs, rule and pattern repeat together. Folds and
    collectives are spelled out.
    """

    end_ns = None

    def __init__(self, plan: Plan) -> None:
        self.plan = plan = whole(plan)
        pattern = plan.pattern
        every = [pattern.k, *(len(stage.gpus) for stage in plan.stages)]
        if plan.rule.update_every is not None:
            every += [plan.rule.update_every, max(1, len(plan.rule.table))]
        self.length = lcm(*every)
        self.length_ns = pattern.period_total_ns * (self.length // pattern.k)
        self._operations: dict[tuple[Kind, int, int], dict[int, tuple[Operation, int]]] = {}
        for operation in pattern.operations:
            key = (operation.kind, operation.stage, replica_of(plan, operation))
            classes = self._operations.setdefault(key, {})
            for offset in range(operation.covers):
                classes[(operation.shift + offset) % pattern.k] = (operation, offset)
        self.owners = ShardOwners(plan)
        self._stage_ns: dict[tuple[Kind, int, int], int] = {}

    def has(self, kind: Kind, stage: int, micro_batch: int = 0, replica: int = 0) -> bool:
        """Whether a stage has an operation of a kind for a micro-batch, on a replica of it."""
        classes = self._operations.get((kind, stage, replica), {})
        return micro_batch % self.plan.pattern.k in classes

    def at(self, kind: Kind, stage: int, micro_batch: int, replica: int = 0) -> Interval:
        """Return when an operation runs for a micro-batch, W perhaps on another replica."""
        classes = self._operations[kind, stage, replica]
        operation, offset = classes[micro_batch % self.plan.pattern.k]
        return self._run(operation, micro_batch - offset)

    def operations(self) -> Iterator[tuple[Operation, int, Interval]]:
        """Yield each operation with its first micro-batch, over one hyperperiod."""
        for operation in self.plan.pattern.operations:
            for micro_batch in self._micro_batches(operation.shift):
                yield operation, micro_batch, self._run(operation, micro_batch)

    def transfers(self) -> Iterator[tuple[Transfer, int, int, int, Interval]]:
        """Yield each transfer with micro-batch, source GPU, bytes and interval at its target."""
        for transfer in self.plan.pattern.transfers:
            for micro_batch in self._micro_batches(transfer.shift):
                source, target, count = self.ends(transfer, micro_batch)
                start = self.start_ns(transfer, micro_batch)
                lanes = self.plan.lanes(transfer)
                length = self.plan.platform.transfer_ns(count, source, target, lanes)
                yield transfer, micro_batch, source, count, Interval(start, start + length, target)

    def _micro_batches(self, shift: int) -> range:
        k = self.plan.pattern.k
        return range(shift % k, self.length, k)

    def start_ns(self, item: Operation | Transfer, micro_batch: int) -> int:
        """Return when an item starts whose first micro-batch is given."""
        pattern = self.plan.pattern
        periods = (micro_batch - item.shift) // pattern.k
        return periods * pattern.period_total_ns + item.start_ns

    def _run(self, operation: Operation, micro_batch: int) -> Interval:
        gpu = self.plan.stages[operation.stage].gpu(micro_batch + operation.replica)
        start = self.start_ns(operation, micro_batch)
        length = self.stage_ns(operation.kind, operation.stage, gpu) * operation.covers
        return Interval(start, start + length, gpu)

    def ends(self, transfer: Transfer, micro_batch: int) -> tuple[int, int, int]:
        """Return source GPU, target GPU and bytes of a transfer, of each lane of it."""
        plan = self.plan
        stage = plan.stages[transfer.stage]
        if transfer.is_boundary:
            ends = [stage.gpu(micro_batch), plan.stages[transfer.stage + 1].gpu(micro_batch)]
            source, target = ends if transfer.tensor == "activation" else ends[::-1]
        else:
            sender = stage if transfer.source_stage is None else plan.stages[transfer.source_stage]
            source = sender.gpu(micro_batch + (transfer.source or 0))
            target = stage.gpu(micro_batch + (transfer.target or 0))
        return source, target, transfer_bytes(plan, transfer)

    def transfer_ns(self, transfer: Transfer, micro_batch: int) -> int:
        """Return how long a transfer takes."""
        source, target, count = self.ends(transfer, micro_batch)
        return self.plan.platform.transfer_ns(count, source, target, self.plan.lanes(transfer))

    def route(self, transfer: Transfer, source: int, target: int) -> tuple[Resource, ...]:
        """Return the links that a transfer occupies."""
        return self.plan.platform.route(source, target, self.plan.lanes(transfer))

    def stage_ns(self, kind: Kind, stage: int, gpu: int) -> int:
        """Return the duration of an operation of one micro-batch, each layer rounded up."""
        key = (kind, stage, gpu)
        if key not in self._stage_ns:
            device = self.plan.platform.gpus[gpu]
            layers = (recomputed if kind == "R" else stage_layers)(self.plan, stage)
            whole = sum(
                device.duration_ns(layer_ns(self.plan.costs.layers[layer], kind))
                for layer in layers
            )
            if kind == "U":
                total = stage_bytes(self.plan, stage, "parameter_bytes")
                of_experts = stage_bytes(self.plan, stage, "expert_parameter_bytes")
                whole = self.owners.share_ns(whole, total, stage, gpu, of_experts)
            self._stage_ns[key] = whole
        return self._stage_ns[key]


def layer_ns(layer: Layer, kind: Kind) -> int:
    """Return the duration of one layer's part of an operation at speed 1, ns."""
    match kind:
        case "F" | "R":
            return layer.forward_ns
        case "B":
            return layer.backward_ns
        case "I":
            return layer.backward_input_ns or 0
        case "W":
            return layer.backward_weight_ns or 0
        case "U":
            return layer.update_ns or 0


def stage_layers(plan: Plan, stage: int) -> Sequence[int]:
    """Return the layers of a stage."""
    first, last = plan.stages[stage].layers
    return range(first, last + 1)


def recomputed(plan: Plan, stage: int) -> Sequence[int]:
    """Return the layers of a stage that are computed again."""
    return [
        layer for first, last in plan.stages[stage].recompute for layer in range(first, last + 1)
    ]


def replica_of(plan: Plan, operation: Operation) -> int:
    """Return the replica that runs an operation, from 0 (that of its micro-batch) to R - 1."""
    return operation.replica % len(plan.stages[operation.stage].gpus)


def transfer_bytes(plan: Plan, transfer: Transfer) -> int:
    """Return what a transfer carries in each of its lanes, bytes.

    Raises
    ------
    InputError
        If it carries what W needs, and a layer does not say how much that is.
    """
    layers = plan.costs.layers
    stage = plan.stages[transfer.stage]
    if transfer.is_boundary:
        return -(-layers[stage.last].activation_bytes // plan.lanes(transfer)) * transfer.covers
    if transfer.tensor == "weight_half":
        members = stage_layers(plan, transfer.stage)
        plan.costs.require("saved_weight_bytes", members, needed_by="sending what W needs")
        return sum(layers[layer].saved_weight_bytes or 0 for layer in members)
    if transfer.source_stage is not None:
        return _copy_bytes(plan, transfer.source_stage, transfer.stage, plan.lanes(transfer))
    name = "gradient_bytes" if transfer.tensor == "weight_gradient" else "parameter_bytes"
    experts = plan.expert_chunks(transfer.stage)
    common = transfer.chunks - experts
    if transfer.chunk < common:
        return part_of(stage_bytes(plan, transfer.stage, name), transfer.chunk, common)
    of_experts, among = expert_bytes(plan, transfer.stage, name), plan.chain.expert
    return part_of(of_experts, (transfer.chunk - common) // among, experts // among)


def _copy_bytes(plan: Plan, source: int, target: int, lanes: int) -> int:
    """Return the gradient that two stages have copies of, bytes a lane: parts of tensor groups."""
    runs = [plan.stages[number].layer_range for number in (source, target)]
    most = max(
        stage.tensor * shared_gradient_bytes(plan.in_group(stage.tensor), *runs)
        for stage in (plan.stages[source], plan.stages[target])
    )
    return -(-most // lanes)


def stage_bytes(plan: Plan, stage: int, name: str) -> int:
    """Return what a field of bytes adds up to in a stage; absent counts as 0."""
    layers = plan.costs.layers
    return sum(getattr(layers[layer], name) or 0 for layer in stage_layers(plan, stage))


def expert_bytes(plan: Plan, stage: int, name: str) -> int:
    """Return the same of the experts of a GPU, where other replicas have them too; else 0."""
    return stage_bytes(plan, stage, f"expert_{name}") if plan.expert_chunks(stage) else 0
