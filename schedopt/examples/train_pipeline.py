"""Train a small language model on the text of this file, as a pipeline of two processes.

::

    schedopt profile schedopt.examples.train_pipeline:build -o chain.json
    schedopt solve --chain chain.json --gpus 2 --mem 1G --allocation contiguous -o plan.json
    torchrun --nproc-per-node 2 -m schedopt.examples.train_pipeline plan.json

Or on a grid of stages with replicas, which share the optimizer state, with a checkpoint at the end
from which the next run goes on, on this plan or another one::

    schedopt solve --chain chain.json --gpus 4 --mem 1G --for torch --batch 32 -o grid.json
    torchrun --nproc-per-node 4 -m schedopt.examples.train_pipeline grid.json state

On GPUs take ``nccl`` instead of ``gloo``, and give `pipeline` the device of the process. For less
precision, put ``torch.autocast`` around `Pipeline.step`.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from schedopt import Result
from schedopt.torch import pipeline

SIZE, LENGTH, WIDTH, HEADS, BLOCKS = 4, 64, 64, 4, 2
MICROBATCHES, STEPS, RATE, NORM = 8, 15, 3e-3, 1.0


class Block(nn.Module):
    """Attention and a perceptron, each added to what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        """Take and return (sample, position, width)."""
        of_heads = (*value.shape[:2], 3, HEADS, WIDTH // HEADS)
        query, key, values = self.qkv(self.first(value)).view(of_heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, values, is_causal=True)
        value = value + self.out(attended.transpose(1, 2).flatten(2))
        hidden = functional.gelu(self.up_proj(self.second(value)))
        output: Tensor = self.down_proj(hidden)
        return value + output


class Language(nn.Module):
    """The loss of the next byte after each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        """Take two tensors of (sample, position)."""
        value = self.embedding(tokens)
        for layer in self.layers:
            value = layer(value)
        logits = self.head(self.norm(value))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def build() -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the model, the same in each process, and the inputs of a micro-batch."""
    torch.manual_seed(0)
    return Language(), draw(SIZE, 0)


def draw(samples: int, step: int) -> dict[str, Tensor]:
    """Return pieces of this file, the same in each process."""
    text = torch.tensor(list(Path(__file__).read_bytes()))
    starts = torch.randint(
        len(text) - LENGTH, (samples,), generator=torch.Generator().manual_seed(step)
    )
    tokens = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])
    return {"tokens": tokens[:, :-1], "following": tokens[:, 1:]}


def main(plan: str, state: str = "") -> None:
    """Train in one of all processes."""
    dist.init_process_group("gloo")
    train(plan, state)
    # The threads of process groups end with the last that holds these, and so before Python does.
    gc.collect()
    dist.destroy_process_group()


def train(plan: str, state: str) -> None:
    """Train, and print the loss where the last stage lies; with `state` go on from there."""
    pipe = pipeline(build(), Result.load(plan), MICROBATCHES)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=RATE)
    if state and Path(state).exists():
        pipe.load(state, optimizer)
    # All replicas and tensor groups know the loss, and one is to print it.
    prints = pipe.mesh["dp"].get_local_rank() == pipe.mesh["tp"].get_local_rank() == 0
    for step in range(STEPS):
        loss = pipe.step(**draw(MICROBATCHES * SIZE, step))
        pipe.clip_grad_norm_(NORM)
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None and prints:
            print(f"step {step}: loss {loss:.3f}", flush=True)
    loss = pipe.eval_step(**draw(MICROBATCHES * SIZE, STEPS))
    if loss is not None and prints:
        print(f"evaluation: loss {loss:.3f}", flush=True)
    if state:
        pipe.save(state, optimizer)


if __name__ == "__main__":
    main(*sys.argv[1:])
