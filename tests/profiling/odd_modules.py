"""Modules of two layers whose forwards are hard to cut, each in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from schedopt.profiling import Model

DOUBLE = torch.float64
Forward = Callable[..., Any]


class Two(nn.Module):
    """Two linear layers, a norm and a buffer, with a forward that a test gives."""

    count: Tensor

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.lstm = nn.LSTM(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.given = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.given(self, *args, **kwargs)


def two(forward: Forward, inputs: Any = None, **options: Any) -> Model:
    torch.manual_seed(1)
    module = Two(forward).double()
    given = torch.randn(8, 4, dtype=DOUBLE) if inputs is None else inputs
    return Model(module=module, inputs=given, **options)


def chained(self: Two, x: Tensor) -> Any:
    return self.b(self.a(x).tanh())


def residual(self: Two, x: Tensor, mask: Tensor) -> Any:
    y = self.a(x)
    return self.b(y + self.b(y * mask)) * mask


def relu_after_a_residual(self: Two, x: Tensor) -> Any:
    y = self.a(x)
    y = y + self.b(y)
    y.relu_()
    return self.b(y)


def write_through_a_view(self: Two, x: Tensor) -> Any:
    y = self.a(x)
    flat = y.view(-1)
    y.add_(1.0)
    return self.b(flat.view(8, 4))


def write_into_a_slice(self: Two, x: Tensor) -> Any:
    y = self.a(x) * 1
    y[:, 0] = 0
    return self.b(y)


def write_into_a_slice_behind_dropout(self: Two, x: Tensor) -> Any:
    y = nn.functional.dropout(self.a(x) * 1, training=False)
    y[:, 0] = 0
    return self.b(y)


def mask_of_slices(self: Two, x: Tensor) -> Any:
    mask = torch.zeros(8, 4, dtype=DOUBLE)
    mask[:, 1] = 1
    return self.b(self.a(x) * mask) * mask


def slice_of_a_carried_tensor(self: Two, x: Tensor) -> Any:
    y = self.b(self.a(x))
    filled = torch.zeros(8, 4, dtype=DOUBLE)
    filled[:, 1] = y[:, 0]
    return self.b(self.a(filled).tanh())


def write_over_the_input(self: Two, x: Tensor) -> Any:
    x.add_(1)
    return self.b(self.a(x)) + x.sum()


def same_noise_twice(self: Two, x: Tensor) -> Any:
    noise = torch.rand(8, 4, dtype=DOUBLE)
    return self.b(self.a(x) * noise) * noise


def same_noise_of_the_input_twice(self: Two, x: Tensor) -> Any:
    noise = torch.rand_like(x)
    return self.b(self.a(x) * noise) * noise


def noise_without_gradients(self: Two, x: Tensor) -> Any:
    with torch.no_grad():
        noise = torch.rand(8, 4, dtype=DOUBLE)
    return self.b(self.a(x) * noise) * noise


def mean_without_gradients(self: Two, x: Tensor) -> Any:
    y = self.a(x)
    with torch.no_grad():
        self.count.add_(y.mean())
    return self.b(y) * self.count


def checkpointed(self: Two, x: Tensor) -> Any:
    return self.b(checkpoint(self.a, x, use_reentrant=False))


def mixed_precision(self: Two, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.a(x)
    return self.b(y.double())


def drop_path(self: Two, x: Tensor) -> Any:
    y = self.b(self.a(x))
    for _ in range(2):
        y = self.b(y + self.a(y) * torch.empty(8, 1, dtype=DOUBLE).bernoulli_(0.5))
    return y


def dropout(self: Two, x: Tensor) -> Any:
    y = nn.functional.dropout(self.a(x), 0.5)
    return nn.functional.dropout(self.b(y), 0.5)


def counting(self: Two, x: Tensor) -> Any:
    self.count.add_(1.0)
    return self.b(self.a(x) * self.count) * self.count


def following(self: Two, x: Tensor) -> Any:
    y = self.a(x)
    self.count.copy_(self.count + y.detach().mean())
    return self.b(y) * self.count


def batch_norm(self: Two, x: Tensor) -> Any:
    return self.b(self.norm(self.a(x)))


def batch_norm_twice(self: Two, x: Tensor) -> Any:
    return self.norm(self.b(self.norm(self.a(x))))


def chunks(self: Two, x: Tensor) -> Any:
    one, other = self.a(x).chunk(2, 1)
    return self.b(torch.cat([other, one], 1))


def without_gradients(self: Two, x: Tensor) -> Any:
    with torch.no_grad():
        y = self.a(x)
    return self.b(y)


def detached(self: Two, x: Tensor) -> Any:
    return self.b(self.a(x).detach())


def again(self: Two, x: Tensor) -> Any:
    return self.a(self.b(self.a(x)))


def lstm(self: Two, x: Tensor) -> Any:
    return self.b(self.lstm(self.a(x).view(4, 2, 4))[0])


def by_name(*forwards: Forward) -> dict[str, Forward]:
    return {forward.__name__: forward for forward in forwards}


PLAIN = by_name(chained, relu_after_a_residual, dropout, batch_norm, detached, again)
ODD = by_name(
    write_through_a_view,
    write_into_a_slice,
    write_into_a_slice_behind_dropout,
    mask_of_slices,
    slice_of_a_carried_tensor,
    write_over_the_input,
    same_noise_twice,
    same_noise_of_the_input_twice,
    noise_without_gradients,
    mean_without_gradients,
    checkpointed,
    mixed_precision,
    drop_path,
    counting,
    following,
    batch_norm_twice,
    chunks,
    without_gradients,
)
MASK = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=DOUBLE)
