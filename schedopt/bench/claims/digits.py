"""Small pictures of digits, which come with scikit-learn, and networks that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from schedopt.bench.claims.training import Data, Trainee

TESTED: Final = 500
"""Pictures that are kept from training."""


@dataclass(frozen=True)
class Digits:
    """Pictures of 8 x 8 with values from -1 to 1, and what they show."""

    inputs: Tensor
    targets: Tensor

    def batches(self, seed: int, size: int, count: int) -> Data:
        """Return micro-batches from one random order of all pictures after the other."""
        draw = torch.Generator().manual_seed(seed)
        rounds = 1 + count * size // len(self.targets)
        order = torch.cat(
            [torch.randperm(len(self.targets), generator=draw) for _ in range(rounds)]
        )

        def batch(number: int) -> tuple[Tensor, Tensor]:
            chosen = order[number * size : (number + 1) * size]
            return self.inputs[chosen], self.targets[chosen]

        return batch


@cache
def load() -> tuple[Digits, Digits]:
    """Return what is trained on and what is tested with, always the same."""
    found = load_digits()
    inputs = torch.tensor(found.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    targets = torch.tensor(found.target)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    test, train = order[:TESTED], order[TESTED:]
    return Digits(inputs[train], targets[train]), Digits(inputs[test], targets[test])


def make_network(seed: int) -> Trainee:
    """Return two convolutions and two linear layers with random weights, a stage each.

    All but the last are normalised within each picture, so that micro-batches do not mix.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = [
            nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 16, 3, 2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.LayerNorm(32), nn.ReLU()),
            nn.Linear(32, 10),
        ]
    return Trainee(layers, nn.functional.cross_entropy)


def accuracy(network: Trainee, weights: Mapping[str, Tensor], digits: Digits) -> float:
    """Return the share of pictures that are read right."""
    with torch.no_grad():
        out = torch.func.functional_call(
            nn.Sequential(*network.layers), dict(weights), (digits.inputs,)
        )
        return int((out.argmax(1) == digits.targets).sum()) / len(digits.targets)
