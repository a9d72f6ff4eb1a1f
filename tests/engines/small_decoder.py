"""A decoder of a few numbers: an embedding, blocks and a head, as modules in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

TOKENS: Final = 11
WIDTH: Final = 8
LENGTH: Final = 5


class Block(nn.Module):
    """A layer with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.tanh(self.linear(inputs))


def modules(blocks: int) -> list[nn.Module]:
    """Return the same modules in every process."""
    torch.manual_seed(5)
    return [
        nn.Embedding(TOKENS, WIDTH),
        *(Block() for _ in range(blocks)),
        nn.Linear(WIDTH, TOKENS),
    ]


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def tokens(steps: int, microbatches: int, samples: int) -> Tensor:
    """Return the tokens of some steps, of shape (steps, microbatches, samples, LENGTH)."""
    made = torch.Generator().manual_seed(7)
    return torch.randint(TOKENS, (steps, microbatches, samples, LENGTH), generator=made)


def train_alone(
    model: Sequence[nn.Module], data: Tensor, rate: float, *, momentum: float = 0
) -> list[float]:
    """Train in one process, a micro-batch after the other; return the loss of each step.

    Targets are the tokens in the other direction.
    """
    whole = nn.Sequential(*model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=rate, momentum=momentum)
    found = []
    for step in data:
        optimizer.zero_grad()
        losses = [loss_of(whole(one), one.flip(-1)) / len(step) for one in step]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(sum(loss.item() for loss in losses))
    return found
