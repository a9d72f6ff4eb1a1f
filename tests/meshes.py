"""A small decoder that can be split over tensor groups, plans of it on grids, and ranks of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from schedopt import Chain, InputError, Plan, Platform, Result, Stage, check
from schedopt.profile import Variant
from schedopt.profiling import Model, Profiler, as_model
from schedopt.profiling.group_operators import Group
from schedopt.profiling.tensor_parallel import split
from schedopt.stage import Shard
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from schedopt.systems.flushes import interleaved_order, one_f_one_b_order
from schedopt.torch import Pipeline, pipeline
from tests.running.replicated import timed

SIZE, LENGTH, WIDTH, HEADS, TOKENS = 2, 5, 8, 4, 12
MICROBATCHES: Final = 4
RATE, NORM = 0.02, 0.5


class Block(nn.Module):
    """Attention and a perceptron, each added to what it takes; heads and columns can be split."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 10), nn.Linear(10, WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        taken = self.first(value)
        query, key, values = (
            layer(taken).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, values, is_causal=True)
        value = value + self.out(attended.transpose(1, 2).flatten(2))
        output: Tensor = value + self.down(functional.gelu(self.up(self.second(value))))
        return output


class Decoder(nn.Module):
    """The loss of the next token after each. With `dropping` layers draw random numbers."""

    tp_plan: Final = {
        "embedding": "embedding_rowwise",
        **{f"blocks.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"blocks.*.{name}": "rowwise" for name in ("out", "down")},
    }

    def __init__(self, dropping: bool, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.dropout = nn.Dropout(0.5 if dropping else 0.0)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        value = self.dropout(self.embedding(tokens)) * self.scale
        for block in self.blocks:
            value = block(value)
        logits = self.head(self.norm(value))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def build(
    seed: int = 4, *, dropping: bool = False, tied: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the decoder and the inputs of a micro-batch."""
    torch.manual_seed(seed)
    return Decoder(dropping, tied).to(dtype), draw(0, 1)


def build_dying() -> tuple[Any, ...]:
    """Return the decoder with data of which one rank dies when it is asked for a second step's."""

    def data(number: int) -> dict[str, Tensor]:
        if number >= MICROBATCHES and os.environ["RANK"] == os.environ.get("DIES"):
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(number, 1)

    return *build(), None, None, data


def draw(step: int, microbatches: int = MICROBATCHES) -> dict[str, Tensor]:
    """Return a mini-batch."""
    made = torch.Generator().manual_seed(step)
    text = torch.randint(TOKENS, (microbatches * SIZE, LENGTH + 1), generator=made)
    return {"tokens": text[:, :-1].contiguous(), "following": text[:, 1:].contiguous()}


@cache
def profiled(degrees: tuple[int, ...] = (2,), **more: Any) -> tuple[Chain, tuple[Variant, ...]]:
    """Return the chain of the decoder, and what each GPU of a tensor group has of it."""
    how = Profiler(warmup=0, repeats=2, min_share=0)

    def made() -> Model:
        return as_model(build(**more), factory="tests.meshes:build")

    whole = how.chain(made())
    assert whole.recipe is not None
    variants = []
    for degree in degrees:
        part = how.chain(split(made(), Group(degree=degree)), cuts=whole.recipe.cuts)
        variants.append(Variant(tensor=degree, chain=timed(part, 1, 2)))
    return timed(whole, 1, 2), tuple(variants)


@dataclass(frozen=True)
class Shape:
    """Of a grid: stages, replicas, tensor degree, chunks of each rank, and what is shared."""

    stages: int = 2
    replicas: int = 1
    tensor: int = 1
    chunks: int = 1
    shard: Shard = "none"
    recompute: bool = False
    order: tuple[int, ...] = ()
    """Of the replicas, by default ascending."""

    def __str__(self) -> str:
        size = f"{self.stages}x{self.replicas}x{self.tensor}"
        more = f"{self.chunks}" * (self.chunks > 1), "again" * self.recompute
        return "-".join(filter(None, (size, self.shard, *more, "turned" * bool(self.order))))

    @property
    def gpus(self) -> int:
        return self.stages * self.replicas * self.tensor


def plan_on(shape: Shape, chain: Chain, variants: tuple[Variant, ...]) -> Plan:
    """Return a step of 1F1B on a grid, interleaved where ranks have several stages."""
    count = shape.stages * shape.chunks
    # The last one has the head and what follows it.
    ends = [(len(chain.layers) - 3) * number // count for number in range(count)]
    ends.append(len(chain.layers))
    stages = []
    for number in range(count):
        first = number % shape.stages * shape.replicas
        order = shape.order if shape.order and number % shape.stages else range(shape.replicas)
        begin, end = ends[number], ends[number + 1] - 1
        stages.append(
            Stage(
                layers=(begin, end),
                gpus=tuple(shape.tensor * (first + replica) for replica in order),
                tensor=shape.tensor,
                shard=shape.shard,
                recompute=((begin, begin), (begin + 1, end)) if shape.recompute else (),
            )
        )
    platform = Platform(gpus=shape.gpus, memory="1T", bandwidth=10**15, latency=1, duplex="full")
    config = SystemConfig(
        chain=chain, platform=platform, microbatches=MICROBATCHES, variants=variants
    )
    made = list(
        one_f_one_b_order(count, MICROBATCHES)
        if shape.chunks == 1
        else interleaved_order(shape.stages, shape.chunks, MICROBATCHES)
    )
    turns: list[Turn] = made
    plan = flush_step(config, stages, turns)
    assert check(plan) == ()
    return plan


def save_plan(plan: Plan, path: Any) -> None:
    Result(problem=plan.problem, plan=plan, status="feasible").save(path)


Part = tuple[tuple[int, ...], Tensor]
"""Where in the whole it begins, and what lies there."""


def parts_of(pipe: Pipeline, *, gradients: bool = False) -> dict[str, Part]:
    """Return what a rank has of each parameter, or of its gradient."""
    found = {}
    for weight in pipe._owned.parameters:
        tensor = weight.tensor.grad if gradients else weight.tensor
        assert tensor is not None, weight.name
        here = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        found[weight.name] = weight.offsets, here.detach().clone()
    return found


def put_together(ranks: Sequence[dict[str, Part]], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors; where ranks have the same elements they must have the same values."""
    whole = {name: torch.full_like(tensor, torch.nan) for name, tensor in like.items()}
    for rank in ranks:
        for name, (offsets, part) in rank.items():
            place = tuple(slice(a, a + n) for a, n in zip(offsets, part.shape, strict=True))
            known = whole[name][place]
            assert known.shape == part.shape, name
            assert torch.equal(known.isnan(), torch.ones_like(known, dtype=torch.bool)) or (
                torch.allclose(known, part, rtol=0, atol=1e-13)
            ), name
            whole[name][place] = part
    return whole


def train(
    rank: int,
    path: str,
    steps: Sequence[int],
    *,
    load: str = "",
    save: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Train on the mini-batches of some steps; return what came of it."""
    del rank
    plan = Result.load(path)
    pipe = pipeline(build(**more), plan, MICROBATCHES)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=RATE)
    if load:
        pipe.load(load, optimizer)
    told: dict[str, Any] = {"losses": [], "norms": []}
    for number, step in enumerate(steps):
        loss = pipe.step(**draw(step))
        if not number:
            told["gradients"] = parts_of(pipe, gradients=True)
        told["norms"].append(float(pipe.clip_grad_norm_(NORM)))
        optimizer.step()
        optimizer.zero_grad()
        told["losses"].append(None if loss is None else float(loss))
        if save and number in (0, len(steps) - 1):
            # What is saved last takes the place of what was saved first.
            pipe.save(save, optimizer)
    told["weights"] = parts_of(pipe)
    return told


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the gradients of a model, by name."""
    return {
        name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None
    }


def train_whole(steps: Sequence[int], **more: Any) -> dict[str, Any]:
    """Train the whole model in one process."""
    model, _ = build(**more)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    told: dict[str, Any] = {"losses": [], "norms": []}
    for number, step in enumerate(steps):
        loss = model(**draw(step))
        loss.backward()
        if not number:
            told["gradients"] = gradients_of(model)
        told["norms"].append(float(nn.utils.clip_grad_norm_(model.parameters(), NORM)))
        optimizer.step()
        optimizer.zero_grad()
        told["losses"].append(float(loss.detach()))
    told["weights"] = {name: one.detach().clone() for name, one in model.named_parameters()}
    return told


def refused(act: Callable[[], object]) -> str:
    """Return what an act is refused with."""
    try:
        act()
    except InputError as error:
        return str(error)
    return "not refused"


def steps_of_all_sizes(rank: int, path: str, fewer: int = 3) -> dict[str, Any]:
    """Return what steps of fewer micro-batches give, steps that add up, and evaluations."""
    pipe = pipeline(build(), Result.load(path), MICROBATCHES)
    told: dict[str, Any] = {"losses": [], "micro_batches": pipe.micro_batches}

    def keep(loss: Tensor | None) -> None:
        told["losses"].append(None if loss is None else float(loss))

    def clear() -> None:
        for one in pipe.parameters():
            one.grad = None

    keep(pipe.step(**draw(0, fewer)))
    told["fewer"] = parts_of(pipe, gradients=True)
    keep(pipe.eval_step(**draw(1)))
    keep(pipe.eval_step(**draw(2, 2)))
    unchanged = parts_of(pipe, gradients=True)
    told["unchanged"] = all(
        torch.equal(one, told["fewer"][name][1]) for name, (_, one) in unchanged.items()
    )
    keep(pipe.step(**draw(3)))
    told["added"] = parts_of(pipe, gradients=True)
    told["norms"] = [float(pipe.clip_grad_norm_(1e9, p)) for p in (1.0, 2.0, float("inf"))]
    clear()
    # Who needs no inputs need not be given any.
    given = {name: value for name, value in draw(4, 2).items() if name in pipe.inputs}
    keep(pipe.step(**given))
    told["refused"] = [
        refused(lambda: pipe.step(**draw(5, 2 if rank else 3))),
        refused(lambda: pipe.step(**(draw(5) if rank else {"tokens": torch.zeros(3, 3)}))),
        refused(lambda: pipe.step(**draw(5, 3))) if fewer == 2 else "",
        refused(lambda: pipe.clip_grad_norm_(0)),
        refused(lambda: pipe.load("/nowhere/at/all")),
    ]
    return told


class Dropping(nn.Module):
    """Layers that draw random numbers and keep statistics, in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, value: Tensor) -> Tensor:
        value = functional.dropout(self.first(value), 0.5, self.training).tanh()
        output: Tensor = self.third(self.norm(self.second(value)))
        return (output**2).mean()


def build_dropping() -> tuple[nn.Module, Tensor]:
    """Return `Dropping` and the input of a micro-batch."""
    torch.manual_seed(5)
    return Dropping().double(), torch.ones(3, 4, dtype=torch.float64)


def evaluate(rank: int, path: str, folder: str) -> dict[str, Any]:
    """Return what an evaluation gives before and behind a step, and behind loading."""
    pipe = pipeline(build_dropping(), Result.load(path), MICROBATCHES)
    value = torch.linspace(-1, 1, 3 * 4 * MICROBATCHES, dtype=torch.float64).view(-1, 4)
    told: dict[str, Any] = {"losses": []}
    for act in (pipe.eval_step, pipe.step, pipe.eval_step):
        loss = act(value)
        told["losses"].append(None if loss is None else float(loss))
    told["buffers"] = {one.name: one.tensor.clone() for one in pipe._owned.buffers}
    pipe.save(folder)
    other = pipeline(build_dropping(), Result.load(path), MICROBATCHES)
    other.load(folder)
    told["loaded"] = {one.name: one.tensor.clone() for one in other._owned.buffers}
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    told["refused"] = [refused(lambda: other.load(folder, optimizer))]
    pipe.save(folder, torch.optim.AdamW(pipe.parameters()))
    told["refused"].append(refused(lambda: other.load(folder, optimizer)))
    twice = torch.optim.AdamW([{"params": [one]} for one in other.parameters()])
    told["refused"].append(refused(lambda: other.load(folder, twice)))
    told["refused"].append(refused(lambda: other.save(folder, torch.optim.SGD([value]))))
    for name, tensor in told["loaded"].items():
        assert torch.equal(tensor, told["buffers"][name])
    described = Path(folder, ".metadata")
    if rank == 0:
        described.write_bytes(b"none")
    dist.barrier()
    told["refused"].append(refused(lambda: other.load(folder)))
    if rank == 0:
        described.unlink()
    dist.barrier()
    told["refused"].append(refused(lambda: other.save(folder)))
    return told


def load_others(rank: int, path: str, folders: Sequence[str]) -> list[str]:
    """Return what the decoder is refused with that loads other models' checkpoints."""
    del rank
    pipe = pipeline(build(), Result.load(path), MICROBATCHES)
    before = parts_of(pipe)
    messages = [refused(partial(pipe.load, folder)) for folder in folders]
    assert all(torch.equal(one, before[name][1]) for name, (_, one) in parts_of(pipe).items())
    return messages


def train_autocast(rank: int, path: str, folder: str) -> tuple[float | None, dict[str, Part]]:
    """Return loss and gradients under autocast to half the precision, and save the model."""
    del rank
    pipe = pipeline(build(dtype=torch.float32), Result.load(path), MICROBATCHES)
    with torch.autocast("cpu", torch.bfloat16):
        loss = pipe.step(**draw(0))
    pipe.save(folder)
    return None if loss is None else float(loss), parts_of(pipe, gradients=True)
