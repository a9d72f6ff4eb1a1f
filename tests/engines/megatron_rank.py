"""A rank of Megatron's pipeline schedules on CPUs, which trains its own GPT as an export says."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.engines import megatron_arguments, small_decoder
from tests.engines.packages import load, quietly

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


@contextmanager
def on_cpus() -> Iterator[None]:
    """Let Megatron do on CPUs what it does on GPUs; random numbers are the CPU's."""
    here = torch.device("cpu")
    random = load("megatron.core.tensor_parallel.random")
    with ExitStack() as stack:
        stack.enter_context(OnCpus())
        for place, name, function in (
            (torch.cuda, "current_device", lambda: here),
            (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
            (random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
            (random, "_set_cuda_rng_state", lambda *_, **__: None),
        ):
            stack.enter_context(patch.object(place, name, function))
        yield


@contextmanager
def configured(text: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Make Megatron's groups of ranks; return the arguments of a file and the configuration."""
    found = megatron_arguments.parse(text)
    state = load("megatron.core.parallel_state")
    config = megatron_arguments.configured(
        "transformer",
        found,
        hidden_size=small_decoder.WIDTH,
        num_attention_heads=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float64,
        # Between CPUs what is on its way must stay where it is.
        deallocate_pipeline_outputs=False,
        batch_p2p_comm=False,
        # As its script sets it by default where ranks have several stages.
        overlap_p2p_comm="microbatch_group_size_per_vp_stage" in found,
    )
    state.initialize_model_parallel(
        pipeline_model_parallel_size=found["pipeline_model_parallel_size"],
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
    )
    try:
        with on_cpus():
            load("megatron.core.tensor_parallel").model_parallel_cuda_manual_seed(1)
            yield found, config
    finally:
        state.destroy_model_parallel()


def train(rank: int, text: str, samples: int) -> dict[str, Any]:
    """Train some steps; return losses, orders, weights by name, and the runs of each layer."""
    with configured(text) as (found, config):
        replicated = load("megatron.core.distributed").DistributedDataParallel
        gradients = megatron_arguments.configured("gradients", found)
        chunks = [
            replicated(config, gradients, gpt(config, found, chunk=chunk))
            for chunk in range(config.virtual_pipeline_model_parallel_size or 1)
        ]
        _tell(config, gradients, chunks)
        return _train(chunks, found["global_batch_size"] // found["micro_batch_size"], samples)


def train_alone(rank: int, text: str, samples: int) -> dict[str, Any]:
    """Train the same model in one process, without a schedule; return losses and weights."""
    with configured(text) as (found, config):
        model = gpt(config, found, chunk=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        losses = []
        microbatches = found["global_batch_size"] // found["micro_batch_size"]
        for step in small_decoder.tokens(STEPS, microbatches, samples):
            optimizer.zero_grad()
            own = [
                small_decoder.loss_of(model(one, *_masks(one)), one.flip(-1)) / len(step)
                for one in step
            ]
            sum(own, torch.zeros(())).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(sum(loss.item() for loss in own))
        return {"losses": losses, "weights": {n: one.detach() for n, one in named(model)}}


def _tell(config: Any, gradients: Any, chunks: Sequence[Any]) -> None:
    """Set what the schedule calls to add gradients up, as Megatron's script does."""
    config.finalize_model_grads_func = load("megatron.core.distributed").finalize_model_grads
    if gradients.overlap_grad_reduce:
        single = len(chunks) == 1
        for name, own in (("no_sync_func", "no_sync"), ("grad_sync_func", "start_grad_sync")):
            functions = [getattr(chunk, own) for chunk in chunks]
            setattr(config, name, functions[0] if single else functions)


def gpt(config: Any, found: dict[str, Any], *, chunk: int) -> Any:
    """Return what Megatron builds of a stage of this rank; weights follow from their names."""
    state = load("megatron.core.parallel_state")
    specs = load("megatron.core.models.gpt.gpt_layer_specs")
    tied = "untie_embeddings_and_output_weights" not in found
    with quietly():
        model = load("megatron.core.models.gpt").GPTModel(
            config,
            specs.get_gpt_layer_local_spec(),
            vocab_size=small_decoder.TOKENS,
            max_sequence_length=small_decoder.LENGTH,
            pre_process=state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
            post_process=state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
            share_embeddings_and_output_weights=tied,
            vp_stage=chunk,
        )
    model.double()
    for name, parameter in named(model):
        made = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=made) / 3)
    return model


def named(model: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters with the number that their layer has in the whole model."""
    for name, parameter in model.named_parameters():
        match = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
        if match:
            layer = model.decoder.layers[int(match[1])]
            name = f"layers.{layer.layer_number - 1}.{match[2]}"
        yield name, parameter


def _train(chunks: Sequence[Any], microbatches: int, samples: int) -> dict[str, Any]:
    state = load("megatron.core.parallel_state")
    replica, replicas = state.get_data_parallel_rank(), state.get_data_parallel_world_size()
    parameters = [one for chunk in chunks for one in chunk.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    losses, orders = [], []
    runs = _count_runs(chunks)
    for step in small_decoder.tokens(STEPS, microbatches, samples):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        order: list[tuple[str, int, int]] = []
        own = _run_step(chunks, step[replica::replicas], order)
        for one in parameters:
            one.grad = one.main_grad
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(one["loss"] for one in own) / microbatches)
        orders.append(order)
    weights = {name: one.detach() for chunk in chunks for name, one in named(chunk.module)}
    each = {number: count * replicas / STEPS / microbatches for number, count in runs.items()}
    return {"losses": losses, "orders": orders, "weights": weights, "runs": each}


def _count_runs(chunks: Sequence[Any]) -> dict[int, int]:
    """Return counts that go on: how often each layer begins a forward."""
    counts: dict[int, int] = {}

    def count(layer: Any) -> None:
        counts[layer.layer_number - 1] += 1

    for chunk in chunks:
        for layer in chunk.module.decoder.layers:
            counts[layer.layer_number - 1] = 0
            layer.register_forward_pre_hook(lambda layer, *_: count(layer))
    return counts


def _run_step(
    chunks: Sequence[Any], step: Tensor, order: list[tuple[str, int, int]]
) -> list[dict[str, float]]:
    """Run a step by Megatron's own schedule; note kind, chunk and micro-batch of what it runs."""
    schedules = load("megatron.core.pipeline_parallel.schedules")

    def forward(source: Iterator[tuple[int, Tensor]], model: Any) -> Any:
        i, one = next(source)
        turn = chunks.index(model), i
        order.append(("F", *turn))
        output = model(one, *_masks(one))
        output.turn = turn
        return output, partial(_loss, turn, one.flip(-1))

    def backward(inputs: Any, outputs: Any, *others: Any) -> Any:
        [output] = outputs if isinstance(outputs, list) else [outputs]
        order.append(("B", *output.turn))
        return own_backward(inputs, outputs, *others)

    own_backward = schedules.backward_step
    with patch.object(schedules, "backward_step", backward):
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


def _masks(one: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of tokens, and what each of them does not see."""
    samples, length = one.shape
    places = torch.arange(length).expand(samples, length)
    return places, torch.ones(1, 1, length, length).triu(1).bool()


def _loss(
    turn: tuple[int, int], targets: Tensor, output: Tensor
) -> tuple[Tensor, dict[str, float]]:
    loss: Any = small_decoder.loss_of(output, targets)
    loss.turn = turn
    return loss, {"loss": loss.item()}
