"""One rank: it does the operations of its list, on its stages."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from schedopt.account.shard_owners import ShardOwners
from schedopt.account.timeline import stage_layers
from schedopt.actions import Action, gpu_ranks, share_of
from schedopt.errors import InputError
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.states import own_parameters
from schedopt.running.records import Span
from schedopt.running.replica_exchange import Exchange, Sum, chunk_of, follow
from schedopt.running.stage_runtime import StageRuntime
from schedopt.running.weight_row import Chunk, WeightRow
from schedopt.running.weight_shards import ScatteredWeights, ShardedWeights, make_weights
from schedopt.running.workload import Workload


def build_ranks(work: Workload) -> list[Rank]:
    """Return all ranks of a plan in this process, each with layers of its own."""
    # All copies are made before a rank gives away what is at home elsewhere.
    numbers = range(len(work.actions.ranks))
    works = [_with_copies(work, number, alone=False) for number in numbers]
    return [_build(own, number) for number, own in enumerate(works)]


def build_rank(work: Workload, number: int) -> Rank:
    """Return the rank of this process."""
    return _build(_with_copies(work, number, alone=True), number)


def _build(work: Workload, number: int) -> Rank:
    """Return a rank of a plan; refuse stages that share parameters, but are updated apart."""
    plan, stages = work.plan, work.actions.stages(number)
    modules = [
        nn.ModuleList(work.pieces[layer].module for layer in stage_layers(plan, stage))
        for stage in stages
    ]
    owned = own_parameters(modules)
    for stage_module, own in zip(modules, owned, strict=True):
        parameters = {id(parameter) for parameter in stage_module.parameters()}
        if not plan.rule.is_given and parameters - {id(parameter) for parameter in own}:
            raise InputError(
                f"two stages share parameters, and rule updates them every "
                f"{plan.rule.update_every} micro-batches",
                field="rule.update_every",
                way_out="Untie the weights, or put both layers into one stage",
            )
    runtimes = {}
    owners, gpu = ShardOwners(plan), sorted(gpu_ranks(plan))[number]
    for stage, own in zip(stages, owned, strict=True):
        trained = {work.names[id(p)]: p for p in own if p.requires_grad}
        shard, home = plan.stages[stage].shard, None
        if share_of(owners, stage, gpu) or (
            shard == "parameter" and len(work.actions.owners[stage]) > 1
        ):
            home = [(chunk, owners.chunks[stage]) for chunk in owners.owned(stage, gpu)]
        weights = make_weights(trained, work.optimizer, shard, home)
        if work.holding is not None:
            weights.ballast = work.holding.at_home(stage, gpu)
            weights.gradients.ballast_bytes = work.holding.gradients_away(stage, gpu)
        runtimes[stage] = StageRuntime(
            plan.stages[stage],
            work.pieces,
            [boundary.needs_gradient for boundary in work.boundaries],
            weights,
            work.data,
            work.before,
        )
    return Rank(number, runtimes, work)


def _with_copies(work: Workload, number: int, *, alone: bool) -> Workload:
    """Return the work of a rank with layers of its own, though other ranks are in its process.

    Unless it is `alone` there, it has copies of the layers that a rank before it has as well. Each
    stage has its own tied weights, of which a stage before it in the process has a copy, too.
    """
    mine = work.actions.stages(number)
    before = mine if alone else range(len(work.plan.stages))
    tied = [s for s in mine if any((one, s) in work.tied for one in before if one < s)]
    others = () if alone else [s for s in mine if s not in tied]
    again = [s for s in others if work.actions.owners[s][0] != number]
    pieces, names = list(work.pieces), dict(work.names)
    for stages in (again, *([stage] for stage in tied)):
        layers = [layer for stage in stages for layer in stage_layers(work.plan, stage)]
        copies = copy.deepcopy([work.pieces[layer] for layer in layers])
        for layer, piece in zip(layers, copies, strict=True):
            pairs = zip(
                work.pieces[layer].module.parameters(), piece.module.parameters(), strict=True
            )
            names.update({id(own): work.names[id(other)] for other, own in pairs})
            pieces[layer] = piece
    return replace(work, pieces=pieces, names=names)


@dataclass(eq=False)
class Rank:
    """The state of a rank.

    Attributes
    ----------
    meter : Meter or None
        Follows what lies in memory, in a step in which bytes count and times do not.
    most_saved : int
        The most that lay there between two operations, bytes.
    losses : dict of int to float
        Of each micro-batch that this rank runs in the last stage.
    exchange : Exchange
        What goes to other replicas and comes from them in this step.
    """

    number: int
    stages: Mapping[int, StageRuntime]
    work: Workload
    meter: Meter | None = None
    most_saved: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    exchange: Exchange = field(default_factory=Exchange)
    _received: dict[Action, Tensor] = field(default_factory=dict)
    """From replicas."""
    _values: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    _gradients: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    """What operations take, by stage and micro-batch."""
    _outgoing: dict[Action, Tensor | None] = field(default_factory=dict)

    @property
    def process(self) -> int:
        """Which of all processes it is: a rank has one for each GPU of its tensor group."""
        return self.work.process(self.number)

    @property
    def actions(self) -> tuple[Action, ...]:
        """What it does in a step."""
        return self.work.actions.ranks[self.number]

    def begin_step(self) -> None:
        """Count versions from 0 again, and who reads them and needs gradients."""
        self.exchange = follow(self.actions, self.work.update_every)
        for stage, runtime in self.stages.items():
            own = [action for action in self.actions if action.stage == stage]
            reads: Counter[int] = Counter()
            for action in own:
                if action.reads_weights and action.version is not None:
                    reads[action.version] += action.count
            weights = runtime.weights
            weights.gradients.begin_step(
                _of_stage(self.exchange.backwards, stage), _of_stage(self.exchange.updates, stage)
            )
            if isinstance(weights, ScatteredWeights):
                weights.begin_step(reads, self.exchange.versions[stage])
            else:
                weights.begin_step(reads or None)
            kinds = {action.kind for action in own if action.makes_version}
            weights.takes_turns = {"U", "BROADCAST_PARAM"} <= kinds
        self._outgoing = dict.fromkeys(self.exchange.offered)

    def perform(self, action: Action, ready_ns: int | None = None) -> Span:
        """Do an operation; what it needs from other ranks is there, since when if that is known."""
        self.sample_memory()
        start = time.monotonic_ns()
        self.work.begin(ready_ns)
        if action.kind == "U":
            self._update(action)
        else:
            with self._gathering(action):
                for micro_batch in action.micro_batches:
                    self._operate(action, micro_batch)
        if self.work.device.type == "cuda":
            torch.cuda.current_stream(self.work.device).synchronize()
        return Span(self.process, action, start, time.monotonic_ns())

    def take_weights(self, broadcast: Action) -> None:
        """Go on with the weights that came for a mini-batch."""
        receives = self.exchange.needs(broadcast)
        came = {chunk_of(receive): self._received.pop(receive) for receive in receives}
        self.stages[broadcast.stage].weights.replace(came)

    def take(self, send: Action) -> Tensor | None:
        """Return what was made to be sent; None for a gradient that nothing needs."""
        made = self._outgoing.pop(send)
        return self.copy_home(send) if send.is_gather else made

    def copy_home(self, send: Action) -> Tensor:
        """Return a copy of weights at home that are sent for an operation, from any thread."""
        return self.stages[send.stage].weights.chunk(chunk_of(send), send.version)

    def release(self) -> dict[Action, Tensor | None]:
        """Return all that is to be sent, by its sending end."""
        released, self._outgoing = self._outgoing, {}
        return released

    def put(self, receive: Action, tensor: Tensor | None) -> None:
        """Take in what was received."""
        if receive.part is None:
            self._inbox(receive)[receive.stage, receive.first] = tensor
        elif tensor is not None:
            self.note(receive, tensor)
            self._received[receive] = tensor

    def note(self, receive: Action, tensor: Tensor) -> None:
        """Count weights that came for an operation, from when they are there."""
        if self.meter is not None and receive.is_gather:
            self.meter.note(tensor)

    def room(self, receive: Action, device: torch.device) -> Tensor:
        """Return room on a device for a chunk that comes from another replica, or for a copy."""
        tensor = self._row(receive).empty(chunk_of(receive), device)
        return self.received(receive, tensor)

    def message(
        self,
        send: Action,
        made: Callable[[Action], Tensor | None],
        received: Callable[[Action], Tensor],
    ) -> Tensor | None:
        """Return what is sent, from what this rank made of it and the results of receives."""
        return self.exchange.message(
            send, made, lambda receive: self._summand(receive, chunk_of(send), received(receive))
        )

    def received(self, receive: Action, tensor: Tensor) -> Tensor:
        """Return a chunk that came, with the bytes that it takes."""
        holding = self.work.holding
        return tensor if holding is None else holding.room(receive, tensor)

    def copied(self, tensor: Tensor | None) -> Tensor | None:
        """Return a copy in memory of its own."""
        return None if tensor is None else self.work.copy(tensor)

    def count_live(self, spans: Iterable[Span]) -> None:
        """Note how many micro-batches were in flight at once, where another runtime ran them."""
        for stage, runtime in self.stages.items():
            kinds = [span.action.kind for span in spans if span.action.stage == stage]
            half = "I" if "I" in kinds else "B"
            steps = ((kind == "F") - (kind == half) for kind in kinds)
            runtime.most_live = max(runtime.most_live, *accumulate(steps))

    def sample_memory(self) -> None:
        """Look at what lies in memory between two operations, and behind the last."""
        if self.meter is not None:
            self.most_saved = max(self.most_saved, self.meter.now)

    def _update(self, action: Action) -> None:
        """Update a stage, or chunks of it, with what came from its replicas."""
        weights = self.stages[action.stage].weights
        merged = {}
        merges = dict(self.exchange.merges[action])
        if isinstance(weights, ScatteredWeights) and action.share is None:
            alone = dict.fromkeys(weights.chunks, Sum(own=True, receives=()))
            merges = alone | merges
        for chunk, total in merges.items():
            own = weights.gradients.chunk(action.first, chunk) if total.own else None
            came = {
                receive: self._summand(receive, chunk, self._received[receive])
                for receive in total.receives
            }
            summed = total.add_up(own, came.__getitem__)
            assert summed is not None
            merged[chunk] = summed
        for receive in self.exchange.needs(action):
            self._received.pop(receive, None)
        if self.work.holding is not None:
            self.work.holding.update(action.stage, self.number)
        if isinstance(weights, ShardedWeights):
            weights.update_chunks(action.first, merged, self.work.update_every)
        else:
            if merged:
                weights.gradients.replace(action.first, merged)
            weights.update(action.first, self.work.update_every)
        for send in self.exchange.sends_after.get((action.stage, "U", action.first), ()):
            if action.share is None or chunk_of(send)[0] in action.share.chunks:
                self._outgoing[send] = None if send.is_gather else weights.chunk(chunk_of(send))

    @contextmanager
    def _gathering(self, action: Action) -> Iterator[None]:
        """Let an operation read weights that came for it, where the rank has only some."""
        weights = self.stages[action.stage].weights
        if not isinstance(weights, ScatteredWeights):
            yield
            return
        receives = self.exchange.needs(action)
        came = {chunk_of(receive): self._received.pop(receive) for receive in receives}
        with ExitStack() as stack:
            with self.meter or nullcontext():
                stack.enter_context(weights.gathering(action.version or 0, came))
            yield

    def _operate(self, action: Action, micro_batch: int) -> None:
        """Run an operation of one micro-batch, and hand on what it made for another stage."""
        stage, kind = action.stage, action.kind
        with self._metering(action, micro_batch):
            made = self._run(action, micro_batch)
        if kind in ("B", "W"):
            self._share_gradient(action, micro_batch)
        if kind == "F" and stage == len(self.work.plan.stages) - 1:
            assert made is not None
            self.losses[micro_batch] = float(made)
        elif kind == "F":
            self._hand_on(Action(stage, "SEND_F", micro_batch), made)
        elif kind in ("B", "I") and stage:
            self._hand_on(Action(stage, "SEND_B", micro_batch), made)

    def _run(self, action: Action, micro_batch: int) -> Tensor | None:
        """Run it and return what it made. What it takes is let go of on the way, not at the end."""
        stage, version = self.stages[action.stage], action.version
        key = (action.stage, micro_batch)
        if action.kind == "F":
            return stage.forward(micro_batch, self._values.pop(key, None), version)
        if action.kind == "R":
            stage.recompute(micro_batch, version)
            return None
        mini_batch = micro_batch // self.work.update_every
        weights = stage.weights
        for chunk in self.exchange.cleared.get((action.stage, action.kind, micro_batch), ()):
            nothing = torch.zeros_like(weights.row.empty(chunk, self.work.device))
            weights.gradients.replace(mini_batch, {chunk: nothing})
        with weights.gradients.adding(mini_batch):
            match action.kind:
                case "B":
                    return stage.backward(micro_batch, self._gradients.pop(key, None), version)
                case "I":
                    return stage.backward_input(
                        micro_batch, self._gradients.pop(key, None), version
                    )
                case "W":
                    stage.backward_weight(micro_batch, version)
                case _:
                    raise ValueError(f"{action} is not an operation")
        return None

    def _row(self, end: Action) -> WeightRow:
        """Return the parameters of which a chunk goes from rank to rank, or all of a copy."""
        row = self.stages[end.stage].weights.row
        if end.part is None or end.part.other_stage is None:
            return row
        return row.of(self.work.tied.get((end.stage, end.part.other_stage), ()))

    def _summand(self, receive: Action, chunk: Chunk, came: Tensor) -> Tensor:
        """Return what came as it is added to a chunk."""
        if receive.kind != "RECV_C":
            return came
        return self.stages[receive.stage].weights.row.spread(chunk, self._row(receive), came)

    def _share_gradient(self, action: Action, micro_batch: int) -> None:
        """Let other replicas have what a backward was the last to add to."""
        gradients = self.stages[action.stage].weights.gradients
        mini_batch = micro_batch // self.work.update_every
        for send in self.exchange.sends_after.get((action.stage, action.kind, micro_batch), ()):
            if send.kind == "SEND_C":
                self._outgoing[send] = gradients.row(mini_batch, self._row(send))
                continue
            self._outgoing[send] = gradients.chunk(mini_batch, chunk_of(send))
            if send.part is not None and send.part.is_taken:
                gradients.taken(mini_batch, chunk_of(send))
        gradients.used(mini_batch)

    def _hand_on(self, send: Action, tensor: Tensor | None) -> None:
        """Keep what goes to another rank, or give another stage of this one its own copy.

        Where bytes are counted, what waits to be sent does not count as saved.
        """
        receive = send.other_end
        if self.work.actions.rank_of[receive.stage, send.first] == self.number:
            self._inbox(receive)[receive.stage, send.first] = self.copied(tensor)
        else:
            self._outgoing[send] = tensor if self.meter is None else self.copied(tensor)

    def _inbox(self, receive: Action) -> dict[tuple[int, int], Tensor | None]:
        return self._values if receive.kind == "RECV_F" else self._gradients

    def _metering(self, action: Action, micro_batch: int) -> AbstractContextManager[object]:
        if self.meter is None:
            return nullcontext()
        inboxes = {"F": self._values, "B": self._gradients, "I": self._gradients}
        received = inboxes.get(action.kind, {}).get((action.stage, micro_batch))
        if received is not None:
            self.meter.note(received)
        # They count as weights. A backward that reads them must not count them as made by it.
        self.meter.leave_out(self.stages[action.stage].weights.older())
        return self.meter


def _of_stage(counts: Mapping[tuple[int, int], int], stage: int) -> dict[int, int]:
    """Return counts by mini-batch, of those by stage and mini-batch."""
    return {mini_batch: count for (of, mini_batch), count in counts.items() if of == stage}
