"""One rank: it does the operations of its list, on its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from schedopt.profiling.metering import Meter
from schedopt.running.action import Action
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
        Of each micro-batch, on the rank of the last stage.
    """

    number: int
    stages: Mapping[int, StageWork]
    last_stage: int
    updates_of: int
    device: torch.device
    begin: Callable[[int | None], None] = lambda ready_ns: None
    copy: Callable[[Tensor], Tensor] = torch.clone
    meter: Meter | None = None
    most_saved: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    _values: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    _gradients: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    _outgoing: dict[Action, Tensor | None] = field(default_factory=dict)

    def perform(self, action: Action, ready_ns: int | None = None) -> Span:
        """Do an operation; what it needs from other ranks is there, since when if that is known."""
        self._sample()
        start = time.monotonic_ns()
        self.begin(ready_ns)
        if action.kind == "U":
            self.stages[action.stage].weights.update(action.first, self.updates_of)
        else:
            for micro_batch in action.micro_batches:
                self._operate(action, micro_batch)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return Span(self.number, action, start, time.monotonic_ns())

    def take(self, send: Action) -> Tensor | None:
        """Return what a micro-batch made to be sent; None for a gradient that nothing needs."""
        return self._outgoing.pop(send)

    def release(self) -> dict[Action, Tensor | None]:
        """Return all that is to be sent, by its sending end."""
        released, self._outgoing = self._outgoing, {}
        return released

    def put(self, receive: Action, tensor: Tensor | None) -> None:
        """Take in what was received for a micro-batch."""
        self._boxes(receive)[receive.stage, receive.first] = tensor

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

    def _operate(self, action: Action, micro_batch: int) -> None:
        """Run an operation of one micro-batch, and hand on what it made for another stage."""
        with self._metering(action, micro_batch):
            made = self._made(action, micro_batch)
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
        with work.weights.adding(micro_batch // self.updates_of):
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
        if receive.stage in self.stages:
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
        return self.meter
