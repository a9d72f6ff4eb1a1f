"""One rank of a plan on torch's own runtime for pipelines.

The runtime is not public. All that is used of it is named in this file, and looked for before it is
used.

It adds the transfers itself, and knows no recompute of its own: runs of layers that are recomputed
are so inside their backward. It runs both halves of the backward of stage 0 in W.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from schedopt.actions import Action, ActionKind, Rows, halved_stages, make_rows
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.devices import make_clock
from schedopt.profiling.pieces import blaming
from schedopt.running.model_match import Boundary
from schedopt.running.records import Span
from schedopt.running.stage_module import StageModule
from schedopt.running.workload import Workload

Around: TypeAlias = Callable[[Action], AbstractContextManager[None]]
"""Gives the context in which an action runs."""

_SUPPORTED: Final = "2.11 to 2.13"
_USED: Final = (
    (schedules, ("_Action", "_PipelineScheduleRuntime")),
    (
        PipelineStage,
        (
            "forward_maybe_with_nosync",
            "forward_one_chunk",
            "backward_one_chunk",
            "backward_weight_one_chunk",
        ),
    ),
)
_USED_OF_RUNTIME: Final = ("_prepare_schedule_with_comms", "step", "eval")
_OF_FORWARDS: Final = ("F", "SEND_F", "RECV_F", "UNSHARD", "RESHARD")
_USED_OF_A_STAGE: Final = ("fwd_cache", "bwd_cache")


class TorchRuntime:
    """One rank of a plan.

    The default process group is there, with as many processes as ranks have actions, and the layers
    of the stages of this rank lie on its device. The losses are those of the micro-batches of the
    last step, on the rank of the last stage. A plan that the runtime cannot run is refused, and so
    is a torch without such a runtime.
    """

    def __init__(self, work: Workload, rank: int) -> None:
        self._rows = make_rows(work.plan, work.actions)
        self._rank = rank
        self._begin = work.begin
        self.losses: dict[int, float] = {}
        self._losses: list[Tensor] = []
        self._clock = make_clock(work.device)
        self._marks: list[tuple[Action, Any, Any]] = []

        def inputs(micro_batch: int) -> Mapping[str, Tensor]:
            names = {name for module in modules.values() for name in module.inputs}
            return work.data(micro_batch, names)

        halved = halved_stages(work.plan)
        modules = {
            stage: StageModule(
                work.plan.stages[stage], work.pieces, inputs, work.before, stage in halved
            )
            for stage in self._rows.stages[rank]
        }
        stages = make_stages(
            work.plan, self._rows, modules, work.boundaries, work.device, self._span
        )
        self._schedule = make_schedule(stages, self._rows, self._keep_loss)

    def step(self) -> list[Span]:
        """Run all micro-batches once; return forwards and backwards, or halves, as they started.

        Gradients are added up in ``.grad``, as in every way to run a plan: an update divides
        them by the number of micro-batches.
        """
        self._marks.clear()
        self._losses.clear()
        self._clock.settle()
        start_ns, start = time.monotonic_ns(), self._clock.mark()
        run_step(self._schedule, self._rows)
        self._clock.settle()
        # None but on the rank of the last stage.
        losses = map(float, self._losses)
        self.losses = dict(zip(self._rows.micro_batches, losses, strict=False))
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


def make_stages(
    plan: Plan,
    rows: Rows,
    modules: Mapping[int, StageModule],
    boundaries: Sequence[Boundary],
    device: torch.device,
    around: Around,
    group: dist.ProcessGroup | None = None,
    shown: Callable[[int, StageModule], nn.Module] = lambda number, module: module,
) -> list[PipelineStage]:
    """Return the stages of this rank as the runtime knows them.

    The process group, by default that of all, has a process for each row. The modules are by stage,
    ascending, on the device; `boundaries` are those of all layers, and `shown` gives what the
    runtime is to know of a stage. Refused are a torch without such a runtime, and a process group
    that sends nothing from the device.
    """
    for owner, names in _USED:
        _check_names(owner, names)
    _check_names(schedules._PipelineScheduleRuntime, _USED_OF_RUNTIME)
    if len(rows.ranks) > 1 and device.type != "cpu" and dist.get_backend() == "gloo":
        raise InputError(
            f"torch's runtime cannot run this: gloo sends nothing that lies on {device}, and NCCL "
            "is not used",
            field="backend",
            way_out="Use p2p or logical",
        )
    meta = torch.device("meta")
    ends = [boundaries[stage.last] for stage in plan.stages]
    outputs = [end.empty(meta).requires_grad_(end.needs_gradient) for end in ends]
    return [
        _TorchStage(
            module,
            shown(number, module),
            number,
            outputs,
            device,
            rows.micro_batches,
            around,
            group,
        )
        for number, module in modules.items()
    ]


def make_schedule(
    stages: Sequence[PipelineStage], rows: Rows, loss: Callable[[Tensor, object], Tensor]
) -> Any:
    """Return the runtime with the rows loaded.

    `loss` gives what the backward begins with, from the output of the last layer and an unused
    target.
    """
    runtime = schedules._PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        list(stages), len(rows.micro_batches), loss_fn=loss, scale_grads=False
    )
    runtime._prepare_schedule_with_comms(
        {
            rank: [schedules._Action.from_str(action) for action in row]
            for rank, row in enumerate(rows.ranks)
        }
    )
    # Sets up what all ranks share; the runtime expects it before the first transfer.
    dist.all_reduce(torch.zeros(1, device=stages[0].device), group=stages[0].group)
    return runtime


def run_step(schedule: Any, rows: Rows) -> None:
    """Run all micro-batches once, adding up gradients in ``.grad``; a layer that fails is named."""
    # The runtime hands part of this to the loss, which takes nothing from it.
    nothing = torch.zeros(len(rows.micro_batches))
    with _our_errors(), torch.enable_grad():
        schedule.step(target=nothing, return_outputs=False)


def run_forward(schedule: Any, rows: Rows) -> None:
    """Run the forwards of all micro-batches once, keeping nothing; a layer that fails is named."""
    nothing = torch.zeros(len(rows.micro_batches))
    every = schedule.pipeline_order_with_comms
    schedule.pipeline_order_with_comms = {
        rank: [action for action in row if action.computation_type in _OF_FORWARDS]
        for rank, row in every.items()
    }
    try:
        with _our_errors(), torch.no_grad():
            schedule.eval(target=nothing, return_outputs=False)
    finally:
        schedule.pipeline_order_with_comms = every


class _TorchStage(PipelineStage):
    """A stage as the runtime knows it.

    `outputs` are those of each stage of the plan, without memory, and `micro_batches` which ones
    the runtime's 0, 1, ... are.
    """

    def __init__(
        self,
        layers: StageModule,
        shown: nn.Module,
        number: int,
        outputs: Sequence[Tensor],
        device: torch.device,
        micro_batches: Sequence[int],
        around: Around,
        group: dist.ProcessGroup | None,
    ) -> None:
        super().__init__(
            shown,
            number,
            len(outputs),
            device,
            input_args=(outputs[number - 1],) if number else (),
            output_args=(outputs[number],),
            group=group,
        )
        _check_names(self, _USED_OF_A_STAGE)
        self._layers = layers
        self._dtype = outputs[number].dtype
        self._micro_batches = micro_batches
        self._around = around

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """Run F."""
        self._layers.micro_batch = self._micro_batches[fwd_chunk_id]
        with self._around(self._action("F", fwd_chunk_id)):
            return super().forward_one_chunk(fwd_chunk_id, *given, **named)

    def forward_maybe_with_nosync(self, *given: Any, **named: Any) -> Any:
        """Run the layers; what they return is sent as planned, also where autocast changed it."""
        made = super().forward_maybe_with_nosync(*given, **named)  # type: ignore[no-untyped-call]
        return made.to(self._dtype)

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
        with self._around(self._action(kind, bwd_chunk_id)), self._in_backward():
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        # Buffers stay for the next step, and would keep their gradients.
        for value in received:
            value.grad = None
        gradients = self.bwd_cache[bwd_chunk_id]
        self.bwd_cache[bwd_chunk_id] = tuple(
            None if gradient is None else gradient.contiguous() for gradient in gradients
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Run W."""
        with self._around(self._action("W", bwd_chunk_id)), self._in_backward():
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Send nothing beforehand: the neighbour may be this rank, which gloo refuses."""
        return []

    def _action(self, kind: ActionKind, number: int) -> Action:
        return Action(self.stage_index, kind, self._micro_batches[number])

    @contextmanager
    def _in_backward(self) -> Iterator[None]:
        """Name the layers of the stage, unless one of them was named already.

        A backward runs in the precision of its forward, whatever autocast is on around both.
        """
        try:
            with torch.autocast(self.device.type, enabled=False):
                yield
        except Exception as error:
            if _named(error) is not None:
                raise
            cause = error.__cause__ or error
            with blaming(self._layers.name, "backward"):
                raise cause from cause.__cause__


@contextmanager
def _our_errors() -> Iterator[None]:
    """Let what names a layer through as it was, without what the runtime wraps and logs."""
    logger = logging.getLogger(schedules.__name__)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    except Exception as error:
        named = _named(error)
        if named is None:
            raise
        raise named from named.__cause__
    finally:
        logger.disabled = disabled


def _named(error: BaseException | None) -> InputError | None:
    """Return the first `InputError` among an error and its causes."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__
    return error


def _check_names(owner: object, names: Sequence[str]) -> None:
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        raise InputError(
            f"the pipelines of torch {torch.__version__} have no {', '.join(missing)}",
            field="backend",
            way_out=f"Take torch {_SUPPORTED}, or use p2p",
        )
