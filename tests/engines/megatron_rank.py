"""A rank of Megatron's pipeline schedules on CPUs, which trains the layout of an export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.engines import megatron_arguments, small_decoder
from tests.engines.packages import load

RATE: Final = 0.5
STEPS: Final = 2


class OnCpus(TorchFunctionMode):
    """What is asked for on a GPU lies in the memory of the CPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **kwargs)


class Chunk(nn.Module):
    """The modules of a stage, as Megatron's schedules meet a model."""

    def __init__(self, modules: Mapping[str, nn.Module], config: Any) -> None:
        super().__init__()
        self.stages = nn.ModuleDict(modules)
        self.config = config
        self.model_type = load("megatron.core.enums").ModelType.encoder_or_decoder
        self._input: Tensor | None = None

    def set_input_tensor(self, tensors: Sequence[Tensor | None]) -> None:
        [self._input] = tensors

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = tokens if self._input is None else self._input
        for module in self.stages.values():
            hidden = module(hidden)
        return hidden


def train(rank: int, text: str, samples: int) -> dict[str, Any]:
    """Train some steps; return losses, the orders, and the weights by module."""
    found = megatron_arguments.parse(text)
    state = load("megatron.core.parallel_state")
    schedules = load("megatron.core.pipeline_parallel.schedules")
    config = megatron_arguments.configured(
        "transformer",
        found,
        hidden_size=small_decoder.WIDTH,
        num_attention_heads=1,
        pipeline_dtype=torch.float64,
        batch_p2p_comm=False,
        # As its script sets it by default where ranks have several stages.
        overlap_p2p_comm="microbatch_group_size_per_vp_stage" in found,
    )
    state.initialize_model_parallel(
        pipeline_model_parallel_size=found["pipeline_model_parallel_size"],
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
    )
    try:
        chunks = [Chunk(one, config) for one in _stages(rank, config, found["num_layers"])]
        microbatches = found["global_batch_size"] // found["micro_batch_size"]
        data = small_decoder.tokens(STEPS, microbatches, samples)
        optimizer = torch.optim.SGD((p for one in chunks for p in one.parameters()), lr=RATE)
        losses, orders = [], []
        for step in data:
            optimizer.zero_grad()
            order: list[tuple[str, int, int]] = []
            own = _run_step(schedules, chunks, step, order)
            optimizer.step()
            losses.append(sum(one["loss"] for one in own) / microbatches)
            orders.append(order)
        weights = {
            number: {name: one.detach() for name, one in module.state_dict().items()}
            for chunk in chunks
            for number, module in chunk.stages.items()
        }
        return {"losses": losses, "orders": orders, "weights": weights}
    finally:
        state.destroy_model_parallel()


def _stages(rank: int, config: Any, blocks: int) -> Iterator[dict[str, nn.Module]]:
    """Yield the modules of each stage of a rank by number, as Megatron's layout says."""
    kinds = load("megatron.core.transformer.enums").LayerType
    every = [one.double() for one in small_decoder.modules(blocks)]
    layout = config.pipeline_model_parallel_layout
    for chunk, row in enumerate(layout.layout[rank]):
        numbers = [n + 1 for n in layout.get_layer_id_list(vp_stage=chunk, pp_rank=rank)]
        if kinds.embedding in row:
            numbers.insert(0, 0)
        if kinds.loss in row:
            numbers.append(len(every) - 1)
        yield {str(number): every[number] for number in numbers}


def _run_step(
    schedules: Any, chunks: Sequence[Chunk], step: Tensor, order: list[tuple[str, int, int]]
) -> list[dict[str, float]]:
    """Run a step by Megatron's own schedule; note kind, chunk and micro-batch of what it runs."""

    def forward(source: Iterator[tuple[int, Tensor]], model: Chunk) -> Any:
        i, one = next(source)
        turn = chunks.index(model), i
        order.append(("F", *turn))
        # Megatron's tensors have the place in the sequence first.
        output = model(one.t())
        output.turn = turn
        return output, partial(_loss, turn, one.flip(-1).t())

    def backward(inputs: Any, outputs: Any, *others: Any) -> Any:
        [output] = outputs if isinstance(outputs, list) else [outputs]
        order.append(("B", *output.turn))
        return own_backward(inputs, outputs, *others)

    own_backward = schedules.backward_step
    with ExitStack() as stack:
        stack.enter_context(OnCpus())
        stack.enter_context(patch.object(schedules, "backward_step", backward))
        here = torch.device("cpu")
        stack.enter_context(patch.object(torch.cuda, "current_device", lambda: here))
        sources = [iter([*enumerate(step)]) for _ in chunks]
        single = len(chunks) == 1
        result: list[dict[str, float]] = schedules.get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=sources[0] if single else sources,
            model=chunks[0] if single else [*chunks],
            num_microbatches=len(step),
            seq_length=small_decoder.LENGTH,
            micro_batch_size=step.shape[1],
        )
    return result


def _loss(
    turn: tuple[int, int], targets: Tensor, output: Tensor
) -> tuple[Tensor, dict[str, float]]:
    loss: Any = small_decoder.loss_of(output, targets)
    loss.turn = turn
    return loss, {"loss": loss.item()}
