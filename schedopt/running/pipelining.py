"""One rank of a plan on torch's own runtime for pipelines.

The runtime is not public. All that is used of it to run a plan is named in this file, and looked
for before it is used.

It adds the transfers itself, and knows no recompute of its own: runs of layers that are computed
again are so inside their backward. It runs both halves of the backward of stage 0 in W.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.clocks import make_clock
from schedopt.profiling.pieces import Piece, blaming
from schedopt.running.action import Action, ActionKind
from schedopt.running.actions import Actions
from schedopt.running.fitting import Boundary
from schedopt.running.rows import Rows, make_rows
from schedopt.running.spans import Span
from schedopt.running.stage_module import Inputs, StageModule
from schedopt.running.stage_work import Before

_SUPPORTED: Final = "2.11 to 2.13"
_OF_SCHEDULES: Final = ("_Action", "_PipelineScheduleRuntime")
_OF_RUNTIME: Final = ("_prepare_schedule_with_comms", "step")
_OF_STAGES: Final = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
_OF_A_STAGE: Final = ("fwd_cache", "bwd_cache")


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
        _check_torch()
        rows = make_rows(plan, actions)
        _check_group(actions, device)
        self._rank = rank
        self._micro_batches = rows.micro_batches
        outputs = [_outline(boundaries[stage.last]) for stage in plan.stages]
        halves = {action.stage for action in actions.ranks[rank] if action.kind == "I"}
        self._stages = [
            _TorchStage(
                StageModule(plan.stages[number], pieces, data, before, number in halves),
                number,
                outputs,
                device,
                self._micro_batches,
                self._span,
            )
            for number in actions.stages(rank)
        ]
        self._begin = begin
        self.losses: dict[int, float] = {}
        self._clock = make_clock(device)
        self._marks: list[tuple[Action, Any, Any]] = []
        self._schedule = self._lowered(rows)
        # Sets up what all ranks share; the runtime expects it before the first transfer.
        dist.all_reduce(torch.zeros(1, device=device))

    def _lowered(self, rows: Rows) -> Any:
        """Return the runtime with the actions in its own words."""
        runtime = schedules._PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
            self._stages, len(self._micro_batches), loss_fn=_keep_loss, scale_grads=False
        )
        runtime._prepare_schedule_with_comms(
            {
                rank: [schedules._Action.from_str(action) for action in row]
                for rank, row in enumerate(rows.ranks)
            }
        )
        return runtime

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
        self._clock.settle()
        start_ns, start = time.monotonic_ns(), self._clock.mark()
        # The runtime hands part of this to the loss, which takes nothing from it.
        nothing = torch.zeros(len(self._micro_batches))
        losses: list[Tensor] = []
        with _our_errors(), torch.enable_grad():
            self._schedule.step(target=nothing, losses=losses, return_outputs=False)
        self._clock.settle()
        # None but on the rank of the last stage.
        found = [float(loss.detach()) for loss in losses]
        self.losses = dict(zip(self._micro_batches, found, strict=False))
        return [
            Span(
                self._rank,
                action,
                start_ns + self._clock.between(start, begin),
                start_ns + self._clock.between(start, end),
            )
            for action, begin, end in self._marks
        ]

    @contextmanager
    def _span(self, action: Action) -> Iterator[None]:
        self._begin(None)
        start = self._clock.mark()
        yield
        self._marks.append((action, start, self._clock.mark()))


class _TorchStage(PipelineStage):
    """A stage as the runtime knows it.

    Parameters
    ----------
    layers : StageModule
    number : int
    outputs : sequence of Tensor
        Of each stage of the plan, without memory.
    device : torch.device
    micro_batches : sequence of int
        Which ones the runtime's 0, 1, ... are.
    span : callable
        Gives a context that takes the time of an action.
    """

    def __init__(
        self,
        layers: StageModule,
        number: int,
        outputs: Sequence[Tensor],
        device: torch.device,
        micro_batches: Sequence[int],
        span: Callable[[Action], Any],
    ) -> None:
        super().__init__(
            layers,
            number,
            len(outputs),
            device,
            input_args=(outputs[number - 1],) if number else (),
            output_args=(outputs[number],),
        )
        _check_names(self, _OF_A_STAGE)
        self._layers = layers
        self._micro_batches = micro_batches
        self._span = span

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """Run F."""
        self._layers.micro_batch = self._micro_batches[fwd_chunk_id]
        with self._span(self._action("F", fwd_chunk_id)):
            return super().forward_one_chunk(fwd_chunk_id, *given, **named)

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        """Run B or I."""
        _, received = self.fwd_cache[bwd_chunk_id]
        kind: ActionKind = "B" if full_backward else "I"
        with self._span(self._action(kind, bwd_chunk_id)), self._blaming():
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        # Buffers stay for the next step, and would keep their gradients.
        for value in received:
            value.grad = None
        gradients = self.bwd_cache[bwd_chunk_id]
        self.bwd_cache[bwd_chunk_id] = tuple(
            None if one is None else one.contiguous() for one in gradients
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run W."""
        with self._span(self._action("W", bwd_chunk_id)), self._blaming():
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Send nothing beforehand: the neighbour may be this rank, which gloo refuses."""
        return []

    def _action(self, kind: ActionKind, number: int) -> Action:
        return Action(self.stage_index, kind, self._micro_batches[number])

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        """Name the layers of the stage, unless one of them was named already."""
        try:
            yield
        except Exception as error:
            if _named(error) is not None:
                raise
            cause = error.__cause__ or error
            with blaming(self._layers.name, "backward"):
                raise cause from cause.__cause__


def _outline(boundary: Boundary) -> Tensor:
    """Return what a stage hands on, without memory."""
    return boundary.empty(torch.device("meta")).requires_grad_(boundary.needs_gradient)


def _keep_loss(output: Tensor, target: object) -> Tensor:
    """Return the output of the last layer, which is the loss."""
    return output


@contextmanager
def _our_errors() -> Iterator[None]:
    """Let what names a layer through as it was, without what the runtime wraps and logs."""
    logger = logging.getLogger(schedules.__name__)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except Exception as error:
        found = _named(error)
        if found is None:
            raise
        raise found from found.__cause__
    finally:
        logger.disabled = disabled


def _named(error: BaseException | None) -> InputError | None:
    """Return the first `InputError` among an error and its causes."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__
    return error


def _check_group(actions: Actions, device: torch.device) -> None:
    """Refuse transfers between GPUs that the default process group does not make."""
    if len(actions.ranks) > 1 and device.type != "cpu" and dist.get_backend() == "gloo":
        raise InputError(
            f"torch's runtime cannot run this: gloo sends nothing that lies on {device}, and NCCL "
            "is not used",
            field="backend",
            way_out="Use p2p or logical",
        )


def _check_torch() -> None:
    """Refuse a torch whose runtime lacks what is used here."""
    _check_names(schedules, _OF_SCHEDULES)
    _check_names(schedules._PipelineScheduleRuntime, _OF_RUNTIME)
    _check_names(PipelineStage, _OF_STAGES)


def _check_names(owner: object, names: Sequence[str]) -> None:
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        raise InputError(
            f"the pipelines of torch {torch.__version__} have no {', '.join(missing)}",
            field="backend",
            way_out=f"Take torch {_SUPPORTED}, or use p2p",
        )
