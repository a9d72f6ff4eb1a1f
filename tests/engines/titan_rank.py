"""A rank of torchtitan's pipeline on CPUs, which trains what an export makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from tests.engines import titan_decoder
from tests.engines.packages import load

RATE: Final = 0.02
STEPS: Final = 2


def train(rank: int, folder: str, blocks: int) -> dict[str, Any]:
    """Train some steps; return losses, the orders, and the weights by name."""
    config = titan_decoder.exported_config(folder)
    config.parallelism.spmd_backend = "partial_dtensor"
    config.training.mixed_precision_param = "float32"
    configs = load("torchtitan.config")
    pipeline = load("torchtitan.distributed.pipeline_parallel")
    dims = load("torchtitan.distributed.parallel_dims")
    world = torch.distributed.get_world_size()
    with patch.object(dims, "device_type", "cpu"):
        parallel = dims.ParallelDims.from_config(config.parallelism, world)
        parallel.build_mesh()
    order: list[tuple[str, int, int]] = []
    again: dict[str, int] = {}
    model = titan_decoder.decoder(blocks)

    def parallelize(part: nn.Module, **options: Any) -> Any:
        count_forwards(part, again)
        return load("torchtitan.models.llama3").parallelize_llama(part, **options)

    # Its parts compute in the precision that is asked for, and there is none above this one.
    with patch.dict(configs.TORCH_DTYPE_MAP, float32=torch.float64):
        schedule, parts, has_first, has_last = pipeline.pipeline_llm(
            model,
            parallel_dims=parallel,
            training=config.training,
            parallelism=config.parallelism,
            compile_config=configs.CompileConfig(),
            ac_config=config.activation_checkpoint,
            dump_folder="",
            device=torch.device("cpu"),
            model_config=model.config,
            parallelize_fn=parallelize,
            loss_fn=lambda outputs, targets: (titan_decoder.loss_of(outputs, targets), None),
        )
    optimizer = torch.optim.SGD((p for one in parts for p in one.parameters()), lr=RATE)
    losses, orders = [], []
    samples, total = config.training.local_batch_size, config.training.global_batch_size
    replica = parallel.get_mesh("batch").get_local_rank() if total > samples else 0
    for every in titan_decoder.tokens(STEPS, total):
        step = every[replica * samples :][:samples]
        optimizer.zero_grad()
        order.clear()
        # The first step runs the stages once more, to see the shapes of what they send.
        again.clear()
        found: list[torch.Tensor] = []
        given = (step,) if has_first else ()
        target = step.flip(-1) if has_last else None
        with noting(order):
            schedule.step(*given, target=target, losses=found if has_last else None)
        losses.append(sum(loss.item() for loss in found))
        for part in parts:
            for parameter in part.parameters():
                assert parameter.grad is not None
                parameter.grad /= total
        optimizer.step()
        orders.append([*order])
    prefix = "_checkpoint_wrapped_module."
    weights = {
        name.replace(prefix, ""): one.full_tensor() if hasattr(one, "full_tensor") else one
        for part in parts
        for name, one in part.state_dict().items()
    }
    return {"losses": losses, "orders": orders, "weights": weights, "forwards": again}


@contextmanager
def noting(order: list[tuple[str, int, int]]) -> Iterator[None]:
    """Note kind, stage and micro-batch of what the stages of this process run."""
    forward, backward = PipelineStage.forward_one_chunk, PipelineStage.backward_one_chunk

    def noted_forward(self: Any, chunk: int, *args: Any, **options: Any) -> Any:
        order.append(("F", self.stage_index, chunk))
        return forward(self, chunk, *args, **options)

    def noted_backward(self: Any, chunk: int, *args: Any, **options: Any) -> Any:
        order.append(("B", self.stage_index, chunk))
        return backward(self, chunk, *args, **options)

    with (
        patch.object(PipelineStage, "forward_one_chunk", noted_forward),
        patch.object(PipelineStage, "backward_one_chunk", noted_backward),
    ):
        yield


def count_forwards(part: nn.Module, counts: dict[str, int]) -> None:
    """Count how often each block begins a forward."""

    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    for name, block in part.get_submodule("layers").named_children():
        block.register_forward_pre_hook(lambda *_, name=name: count(name))
