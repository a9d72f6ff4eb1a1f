"""One rank of a plan on torch's own runtime for pipelines, with the time of each action."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from schedopt.actions import Action, Actions, halved_stages, make_rows
from schedopt.plan import Plan
from schedopt.profiling.devices import make_clock
from schedopt.profiling.pieces import Piece
from schedopt.running.fitting import Boundary
from schedopt.running.pipelining import make_schedule, make_stages, run_step
from schedopt.running.spans import Span
from schedopt.running.stage_module import Inputs, StageModule
from schedopt.running.stage_work import Before


class TorchRuntime:
    """One rank of a plan.

    The default process group is there, with as many processes as ranks have actions.

    Parameters
    ----------
    plan : Plan
    actions : Actions
        Of all ranks.
    rank : int
    pieces : sequence of Piece
        All layers of the model. Those of the stages of this rank lie on its device.
    boundaries : sequence of Boundary
        What each layer hands on.
    device : torch.device
    data : callable
        From a micro-batch to the inputs of the model by name, over which layers may write.
    before : callable
        Called with a layer and a micro-batch right before each forward of the layer, also where
        it is computed again.
    begin : callable
        Called at the start of each operation.

    Attributes
    ----------
    losses : dict of int to float
        Of each micro-batch of the last step, on the rank of the last stage.

    Raises
    ------
    InputError
        For a plan that the runtime cannot run, or a torch without such a runtime.
    """

    def __init__(
        self,
        plan: Plan,
        actions: Actions,
        rank: int,
        pieces: Sequence[Piece],
        boundaries: Sequence[Boundary],
        device: torch.device,
        data: Inputs,
        before: Before,
        begin: Callable[[int | None], None] = lambda ready_ns: None,
    ) -> None:
        self._rows = make_rows(plan, actions)
        self._rank = rank
        self._begin = begin
        self.losses: dict[int, float] = {}
        self._losses: list[Tensor] = []
        self._clock = make_clock(device)
        self._marks: list[tuple[Action, Any, Any]] = []
        modules = {
            number: StageModule(
                plan.stages[number], pieces, data, before, number in halved_stages(plan)
            )
            for number in self._rows.stages[rank]
        }
        stages = make_stages(plan, self._rows, modules, boundaries, device, self._span)
        self._schedule = make_schedule(stages, self._rows, self._keep_loss)

    def step(self) -> list[Span]:
        """Run all micro-batches once.

        Gradients are added up in ``.grad``, as in every way to run a plan: an update divides
        them by the number of micro-batches.

        Returns
        -------
        list of Span
            Forwards and backwards, or halves of backwards, in the order of their starts.

        Raises
        ------
        InputError
            Naming the layer that fails.
        """
        self._marks.clear()
        self._losses.clear()
        self._clock.settle()
        start_ns, start = time.monotonic_ns(), self._clock.mark()
        run_step(self._schedule, self._rows)
        self._clock.settle()
        # None but on the rank of the last stage.
        found = [float(loss) for loss in self._losses]
        self.losses = dict(zip(self._rows.micro_batches, found, strict=False))
        return [
            Span(
                self._rank,
                action,
                start_ns + self._clock.between(start, begin),
                start_ns + self._clock.between(start, end),
            )
            for action, begin, end in self._marks
        ]

    def _keep_loss(self, output: Tensor, target: object) -> Tensor:
        """Return the output of the last layer, which is the loss."""
        self._losses.append(output.detach())
        return output

    @contextmanager
    def _span(self, action: Action) -> Iterator[None]:
        self._begin(None)
        start = self._clock.mark()
        yield
        self._marks.append((action, start, self._clock.mark()))
