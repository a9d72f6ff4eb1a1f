"""Torch's own runtime for pipelines.

The runtime is not public. All that is used of it is named in this file, and looked for before it is
used.

It adds the transfers itself, and knows no recompute of its own: runs of layers that are computed
again are so inside their backward. It runs both halves of the backward of stage 0 in W.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from schedopt.actions import Action, ActionKind, Rows
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.profiling.pieces import blaming
from schedopt.running.fitting import Boundary
from schedopt.running.stage_module import StageModule

Around: TypeAlias = Callable[[Action], AbstractContextManager[None]]
"""Gives the context in which an action runs."""

_SUPPORTED: Final = "2.11 to 2.13"
_OF_SCHEDULES: Final = ("_Action", "_PipelineScheduleRuntime")
_OF_RUNTIME: Final = ("_prepare_schedule_with_comms", "step")
_OF_STAGES: Final = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
_OF_A_STAGE: Final = ("fwd_cache", "bwd_cache")


def make_stages(
    plan: Plan,
    rows: Rows,
    modules: Mapping[int, StageModule],
    boundaries: Sequence[Boundary],
    device: torch.device,
    around: Around,
) -> list[PipelineStage]:
    """Return the stages of this rank as the runtime knows them.

    The default process group is there, with a process for each row.

    Parameters
    ----------
    plan : Plan
    rows : Rows
    modules : mapping of int to StageModule
        By stage, ascending. Those of this rank, on its device.
    boundaries : sequence of Boundary
        What each layer hands on.
    device : torch.device
    around : callable

    Raises
    ------
    InputError
        For a torch without such a runtime, or a process group that sends nothing from the device.
    """
    _check_torch()
    _check_group(rows, device)
    outputs = [_outline(boundaries[stage.last]) for stage in plan.stages]
    return [
        _TorchStage(module, number, outputs, device, rows.micro_batches, around)
        for number, module in modules.items()
    ]


def make_schedule(
    stages: Sequence[PipelineStage], rows: Rows, loss: Callable[[Tensor, object], Tensor]
) -> Any:
    """Return the runtime with the rows loaded.

    Parameters
    ----------
    stages : sequence of PipelineStage
    rows : Rows
    loss : callable
        From the output of the last layer, and what is nothing, to what the backward begins with.
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
    dist.all_reduce(torch.zeros(1, device=stages[0].device))
    return runtime


def run_step(schedule: Any, rows: Rows) -> None:
    """Run all micro-batches once. Gradients are added up in ``.grad``.

    Raises
    ------
    InputError
        Naming the layer that fails.
    """
    # The runtime hands part of this to the loss, which takes nothing from it.
    nothing = torch.zeros(len(rows.micro_batches))
    with _our_errors(), torch.enable_grad():
        schedule.step(target=nothing, return_outputs=False)


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
    around : callable
    """

    def __init__(
        self,
        layers: StageModule,
        number: int,
        outputs: Sequence[Tensor],
        device: torch.device,
        micro_batches: Sequence[int],
        around: Around,
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
        self._around = around

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """Run F."""
        self._layers.micro_batch = self._micro_batches[fwd_chunk_id]
        with self._around(self._action("F", fwd_chunk_id)):
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
        with self._around(self._action(kind, bwd_chunk_id)), self._blaming():
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
        with self._around(self._action("W", bwd_chunk_id)), self._blaming():
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


def _check_group(rows: Rows, device: torch.device) -> None:
    """Refuse transfers between GPUs that the default process group does not make."""
    if len(rows.ranks) > 1 and device.type != "cpu" and dist.get_backend() == "gloo":
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
