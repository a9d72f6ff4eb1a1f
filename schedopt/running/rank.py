"""One rank: it does the operations of its list, on its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from schedopt.actions import Action
from schedopt.profiling.memory_meter import Meter
from schedopt.running.exchange import Chunk, Exchange
from schedopt.running.spans import Span
from schedopt.running.stage_work import StageWork


@dataclass(eq=False)
class Rank:
    """The state of a rank.

    Parameters
    ----------
    number : int
    stages : mapping of int to StageWork
    last_stage : int
        Of the plan: its output is the loss.
    updates_of : int
        The micro-batches of one update.
    device : torch.device
    rank_of : mapping of (int, int) to int
        The rank of each micro-batch in each stage.
    begin : callable
        Called at the start of each operation, with the instant since when what it needs is there.
    copy : callable
        Copies what a stage hands to another one.

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
    stages: Mapping[int, StageWork]
    last_stage: int
    updates_of: int
    device: torch.device
    rank_of: Mapping[tuple[int, int], int]
    begin: Callable[[int | None], None] = lambda ready_ns: None
    copy: Callable[[Tensor], Tensor] = torch.clone
    meter: Meter | None = None
    most_saved: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    exchange: Exchange = field(default_factory=Exchange)
    _received: dict[Action, Tensor] = field(default_factory=dict)
    _values: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    _gradients: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    _outgoing: dict[Action, Tensor | None] = field(default_factory=dict)

    def perform(self, action: Action, ready_ns: int | None = None) -> Span:
        """Do an operation; what it needs from other ranks is there, since when if that is known."""
        self._sample()
        start = time.monotonic_ns()
        self.begin(ready_ns)
        if action.kind == "U":
            self._update(action)
        else:
            for micro_batch in action.micro_batches:
                self._operate(action, micro_batch)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return Span(self.number, action, start, time.monotonic_ns())

    def renew(self, action: Action) -> None:
        """Go on with the weights that came for a mini-batch."""
        came = {_chunk(one): self._received.pop(one) for one in self.exchange.needs(action)}
        self.stages[action.stage].weights.renew(came)

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
            self._boxes(receive)[receive.stage, receive.first] = tensor
        elif tensor is not None:
            self._received[receive] = tensor

    def copied(self, tensor: Tensor | None) -> Tensor | None:
        """Return a copy in memory of its own."""
        return None if tensor is None else self.copy(tensor)

    def count_live(self, spans: Iterable[Span]) -> None:
        """Note how many micro-batches were in flight at once, where another runtime ran them."""
        for stage, work in self.stages.items():
            kinds = [span.action.kind for span in spans if span.action.stage == stage]
            half = "I" if "I" in kinds else "B"
            steps = ((kind == "F") - (kind == half) for kind in kinds)
            work.most_live = max(work.most_live, *accumulate(steps))

    def finish(self) -> None:
        """Look once more at what lies in memory."""
        self._sample()

    def _sample(self) -> None:
        if self.meter is not None:
            self.most_saved = max(self.most_saved, self.meter.now)

    def _update(self, action: Action) -> None:
        """Update a stage, with what came from its replicas."""
        weights = self.stages[action.stage].weights
        merged = {}
        for chunk, total in self.exchange.merges.get((action.stage, action.first), ()):
            own = weights.gradient_part(action.first, chunk) if total.own else None
            found = total.total(own, self._received.__getitem__)
            assert found is not None
            merged[chunk] = found
        for receive in self.exchange.needs(action):
            del self._received[receive]
        if merged:
            weights.set_gradients(action.first, merged)
        weights.update(action.first, self.updates_of)
        for send in self.exchange.behind.get((action.stage, "U", action.first), ()):
            self._outgoing[send] = weights.weights_part(_chunk(send))

    def _share(self, action: Action, micro_batch: int) -> None:
        """Let other replicas have what a backward was the last to add to."""
        weights = self.stages[action.stage].weights
        mini_batch = micro_batch // self.updates_of
        for send in self.exchange.behind.get((action.stage, action.kind, micro_batch), ()):
            self._outgoing[send] = weights.gradient_part(mini_batch, _chunk(send))
        weights.used(mini_batch)

    def _operate(self, action: Action, micro_batch: int) -> None:
        """Run an operation of one micro-batch, and hand on what it made for another stage."""
        with self._metering(action, micro_batch):
            made = self._made(action, micro_batch)
        if action.kind in ("B", "W"):
            self._share(action, micro_batch)
        match action.kind:
            case "F" if action.stage == self.last_stage:
                assert made is not None
                self.losses[micro_batch] = float(made)
            case "F":
                self._hand_on(Action(action.stage, "SEND_F", micro_batch), made)
            case "B" | "I" if action.stage:
                self._hand_on(Action(action.stage, "SEND_B", micro_batch), made)
            case _:
                pass

    def _made(self, action: Action, micro_batch: int) -> Tensor | None:
        """Run it and return what it made. What it takes is let go of on the way, not at the end."""
        work, version = self.stages[action.stage], action.version
        key = (action.stage, micro_batch)
        if action.kind == "F":
            return work.forward(micro_batch, self._values.pop(key, None), version)
        if action.kind == "R":
            work.recompute(micro_batch, version)
            return None
        mini_batch = micro_batch // self.updates_of
        for chunk in self.exchange.cleared.get((action.stage, action.kind, micro_batch), ()):
            nothing = torch.zeros_like(work.weights.empty_part(chunk, self.device))
            work.weights.set_gradients(mini_batch, {chunk: nothing})
        with work.weights.adding(mini_batch):
            match action.kind:
                case "B":
                    return work.backward(micro_batch, self._gradients.pop(key, None), version)
                case "I":
                    return work.backward_input(micro_batch, self._gradients.pop(key, None), version)
                case "W":
                    work.backward_weight(micro_batch, version)
                case _:
                    raise ValueError(f"{action} is no operation")
        return None

    def _hand_on(self, send: Action, tensor: Tensor | None) -> None:
        """Keep what goes to another rank, or give another stage of this one its own copy.

        Where bytes are counted, what waits to be sent does not count as saved.
        """
        receive = send.other_end
        if self.rank_of[receive.stage, send.first] == self.number:
            self._boxes(receive)[receive.stage, send.first] = self.copied(tensor)
        else:
            self._outgoing[send] = tensor if self.meter is None else self.copied(tensor)

    def _boxes(self, receive: Action) -> dict[tuple[int, int], Tensor | None]:
        return self._values if receive.kind == "RECV_F" else self._gradients

    def _metering(self, action: Action, micro_batch: int) -> AbstractContextManager[object]:
        if self.meter is None:
            return nullcontext()
        boxes = {"F": self._values, "B": self._gradients, "I": self._gradients}
        received = boxes.get(action.kind, {}).get((action.stage, micro_batch))
        if received is not None:
            self.meter.note(received)
        # They count as weights. A backward that reads them must not count them as made by it.
        self.meter.leave_out(self.stages[action.stage].weights.older())
        return self.meter


def _chunk(end: Action) -> Chunk:
    """Return which chunk goes between replicas."""
    assert end.part is not None
    return end.part.chunk, end.part.chunks
