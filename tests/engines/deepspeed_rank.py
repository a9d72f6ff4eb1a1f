"""A rank of DeepSpeed's pipeline engine on CPUs, which trains what an export makes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.engines import small_decoder

RATE: Final = 0.5
MOMENTUM: Final = 0.5
STEPS: Final = 3


def train(rank: int, folder: str, blocks: int, microbatches: int, samples: int) -> dict[str, Any]:
    """Train some steps; return losses, the order of the first, and the weights by module."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    # Its messages through shared memory would be compiled first.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    planned = load(f"{folder}/pipeline.py")
    with open(planned.CONFIG) as file:
        config = json.load(file)
    # It asks whether one knows its optimizer, and clips unless it is told not to.
    config |= {"zero_allow_untested_optimizer": True, "gradient_clipping": 0.0}
    model = planned.PlannedPipelineModule(
        small_decoder.modules(blocks), loss_fn=small_decoder.loss_of
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    order, forwards = record(engine), count_forwards(model.forward_funcs)
    data = small_decoder.tokens(STEPS, microbatches, samples)
    replica, replicas = engine.grid.data_parallel_id, engine.grid.data_parallel_size
    losses = [engine.train_batch(pairs(step[replica::replicas])).item() for step in data]
    count = 2 * engine.micro_batches
    first = model._local_start
    return {
        "losses": losses,
        "orders": [order[begin : begin + count] for begin in range(0, len(order), count)],
        "weights": {
            first + n: {name: one.detach() for name, one in module.state_dict().items()}
            for n, module in enumerate(model.forward_funcs)
        },
        "forwards": {first + n: count / len(order) * 2 for n, count in enumerate(forwards)},
        "batch": engine.train_batch_size(),
        "zero": engine.zero_optimization_stage(),
    }


def load(path: str) -> Any:
    """Import a file."""
    spec = spec_from_file_location("planned_pipeline", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pairs(step: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for one in step:
        yield one, one.flip(-1)


def count_forwards(modules: Sequence[nn.Module]) -> list[int]:
    """Return how often each of some modules begins a forward: counts that go on."""
    counts = [0] * len(modules)

    def count(number: int) -> None:
        counts[number] += 1

    for number, module in enumerate(modules):
        module.register_forward_pre_hook(lambda *_, number=number: count(number))
    return counts


def record(engine: Any) -> list[tuple[str, int]]:
    """Return a list that gets what the engine executes: kind, and micro-batch of a step.

    A micro-batch is known by the buffer that holds it from its forward to its backward.
    """
    from deepspeed.runtime.pipe import schedule

    found: list[tuple[str, int]] = []
    held: dict[int, int] = {}
    forwards = 0

    def forward(self: Any, buffer_id: int) -> None:
        nonlocal forwards
        held[buffer_id] = forwards % self.micro_batches
        forwards += 1
        found.append(("F", held[buffer_id]))
        type(self)._exec_forward_pass(self, buffer_id)

    def backward(self: Any, buffer_id: int) -> None:
        found.append(("B", held.pop(buffer_id)))
        type(self)._exec_backward_pass(self, buffer_id)

    own = {schedule.ForwardPass: forward, schedule.BackwardPass: backward}
    engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, **own}
    return found
