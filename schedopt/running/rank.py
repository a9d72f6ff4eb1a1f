"""One rank: it does the operations of its list, on its stages."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from schedopt.account.timeline import stage_layers
from schedopt.actions import Action, Actions
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.pieces import Piece
from schedopt.profiling.states import own_parameters
from schedopt.running.model_match import Boundary
from schedopt.running.records import Span
from schedopt.running.replica_exchange import Exchange, chunk_of, follow
from schedopt.running.stage_runtime import Before, Data, StageRuntime
from schedopt.running.weight_versions import Weights

if TYPE_CHECKING:
    from schedopt.profiling.model import OptimizerFactory


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a plan runs: the layers of a model with what they take, on a device.

    Parameters
    ----------
    plan : Plan
    actions : Actions
    pieces : sequence of Piece
        All layers; those of other ranks may be without values.
    boundaries : sequence of Boundary
        What each layer hands on.
    optimizer : callable
        From parameters to an optimizer.
    data, before : callable
        As for `StageRuntime`.
    names : mapping of int to str
        What the model calls a parameter, by its identity.
    device : torch.device
    begin : callable
        Called at the start of each operation, with the instant since when what it needs is there.
    copy : callable
        Copies what a stage hands to another one.
    """

    plan: Plan
    actions: Actions
    pieces: Sequence[Piece]
    boundaries: Sequence[Boundary]
    optimizer: OptimizerFactory
    data: Data
    before: Before
    names: Mapping[int, str]
    device: torch.device
    begin: Callable[[int | None], None] = lambda ready_ns: None
    copy: Callable[[Tensor], Tensor] = torch.clone

    @property
    def update_every(self) -> int:
        """The micro-batches of one update."""
        return self.plan.rule.update_every or self.actions.micro_batches


def name_parameters(model: nn.Module, loss: Any) -> dict[int, str]:
    """Return what a model calls its parameters, and those of its loss, by their identity."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if isinstance(loss, nn.Module):
        for name, parameter in loss.named_parameters():
            names.setdefault(id(parameter), f"loss.{name}")
    return names


def build_ranks(work: Workload) -> list[Rank]:
    """Return all ranks of a plan in this process, each with layers of its own."""
    ranks = range(len(work.actions.ranks))
    return [build_rank(_with_copies(work, number), number) for number in ranks]


def build_rank(work: Workload, number: int) -> Rank:
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
    for stage, own in zip(stages, owned, strict=True):
        trained = {work.names[id(p)]: p for p in own if p.requires_grad}
        weights = Weights(trained, work.optimizer(list(trained.values())) if trained else None)
        runtimes[stage] = StageRuntime(
            plan.stages[stage],
            work.pieces,
            [boundary.needs_gradient for boundary in work.boundaries],
            weights,
            work.data,
            work.before,
        )
    return Rank(number, runtimes, work)


def _with_copies(work: Workload, number: int) -> Workload:
    """Return the work of a rank, with copies of the layers that a rank before it has as well."""
    copied = [
        layer
        for stage in work.actions.stages(number)
        if work.actions.owners[stage][0] != number
        for layer in stage_layers(work.plan, stage)
    ]
    if not copied:
        return work
    pieces, names = list(work.pieces), dict(work.names)
    copies = copy.deepcopy([work.pieces[layer] for layer in copied])
    for layer, piece in zip(copied, copies, strict=True):
        pairs = zip(work.pieces[layer].module.parameters(), piece.module.parameters(), strict=True)
        names.update({id(mine): work.names[id(other)] for other, mine in pairs})
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
                if action.version is not None:
                    reads[action.version] += action.count
            shares = {m: n for (of, m), n in self.exchange.shares.items() if of == stage}
            runtime.weights.begin_step(reads or None, shares)
            kinds = {action.kind for action in own}
            runtime.weights.takes_turns = {"U", "BROADCAST_PARAM"} <= kinds

    def perform(self, action: Action, ready_ns: int | None = None) -> Span:
        """Do an operation; what it needs from other ranks is there, since when if that is known."""
        self.sample_memory()
        start = time.monotonic_ns()
        self.work.begin(ready_ns)
        if action.kind == "U":
            self._update(action)
        else:
            for micro_batch in action.micro_batches:
                self._operate(action, micro_batch)
        if self.work.device.type == "cuda":
            torch.cuda.current_stream(self.work.device).synchronize()
        return Span(self.number, action, start, time.monotonic_ns())

    def take_weights(self, broadcast: Action) -> None:
        """Go on with the weights that came for a mini-batch."""
        receives = self.exchange.needs(broadcast)
        came = {chunk_of(receive): self._received.pop(receive) for receive in receives}
        self.stages[broadcast.stage].weights.replace(came)

    def take(self, send: Action) -> Tensor | None:
        """Return what was made to be sent; None for a gradient that nothing needs."""
        return self._outgoing.pop(send)

    def release(self) -> dict[Action, Tensor | None]:
        """Return all that is to be sent, by its sending end."""
        released, self._outgoing = self._outgoing, {}
        return released

    def put(self, receive: Action, tensor: Tensor | None) -> None:
        """Take in what was received."""
        if receive.part is None:
            self._inbox(receive)[receive.stage, receive.first] = tensor
        elif tensor is not None:
            self._received[receive] = tensor

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
        """Update a stage, with what came from its replicas."""
        weights = self.stages[action.stage].weights
        merged = {}
        for chunk, total in self.exchange.merges.get((action.stage, action.first), ()):
            own = weights.gradient_chunk(action.first, chunk) if total.own else None
            summed = total.add_up(own, self._received.__getitem__)
            assert summed is not None
            merged[chunk] = summed
        for receive in self.exchange.needs(action):
            del self._received[receive]
        if merged:
            weights.set_gradients(action.first, merged)
        weights.update(action.first, self.work.update_every)
        for send in self.exchange.sends_after.get((action.stage, "U", action.first), ()):
            self._outgoing[send] = weights.weights_chunk(chunk_of(send))

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
        for chunk in self.exchange.cleared.get((action.stage, action.kind, micro_batch), ()):
            nothing = torch.zeros_like(stage.weights.empty_chunk(chunk, self.work.device))
            stage.weights.set_gradients(mini_batch, {chunk: nothing})
        with stage.weights.adding(mini_batch):
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

    def _share_gradient(self, action: Action, micro_batch: int) -> None:
        """Let other replicas have what a backward was the last to add to."""
        weights = self.stages[action.stage].weights
        mini_batch = micro_batch // self.work.update_every
        for send in self.exchange.sends_after.get((action.stage, action.kind, micro_batch), ()):
            self._outgoing[send] = weights.gradient_chunk(mini_batch, chunk_of(send))
        weights.used(mini_batch)

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
