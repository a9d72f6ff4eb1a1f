from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from schedopt.profiling.memory_meter import Meter


def views() -> list[Tensor]:
    base = torch.zeros(10, 10)
    return [base, base.t(), base[1:], base.view(-1), base.expand(3, 10, 10), base.detach()]


def one_after_the_other() -> Tensor:
    first = torch.zeros(100)
    del first
    return torch.zeros(10)


@pytest.mark.parametrize(
    ("make", "now", "most"),
    [
        (lambda: torch.zeros(100, dtype=torch.float64), 800, 800),
        (lambda: torch.zeros(7, dtype=torch.bool), 7, 7),
        (lambda: torch.zeros(7, dtype=torch.bfloat16), 14, 14),
        (lambda: torch.zeros(7, dtype=torch.int64), 56, 56),
        (one_after_the_other, 40, 400),
        (lambda: (torch.zeros(100), torch.zeros(50)), 600, 600),
        (views, 400, 400),
        # A view keeps the whole storage.
        (lambda: torch.zeros(100)[:1], 400, 400),
        (lambda: torch.zeros(100).add_(1).relu_(), 400, 400),
        (lambda: torch.ones(()).expand(100), 4, 4),
        # Several results: values and places, while what is sorted is there.
        (lambda: torch.arange(100.0).sort(), 400 + 800, 400 + 400 + 800),
    ],
)
def test_storages_are_counted_once_as_long_as_they_live(
    make: Callable[[], object], now: int, most: int
) -> None:
    with Meter() as meter:
        kept = make()
        assert (meter.now, meter.most) == (now, most)
    assert meter.now == now
    # It goes on after the meter was left.
    del kept
    assert (meter.now, meter.most) == (0, most)


def test_permanent_tensors_and_their_views_are_not_counted() -> None:
    weight = torch.zeros(100)
    with Meter([weight]) as meter:
        view = weight.view(10, 10)
        weight.add_(1)
    assert (meter.now, meter.most, view.shape) == (0, 0, (10, 10))


def test_an_older_tensor_that_was_left_out_is_not_counted_when_it_is_read() -> None:
    older, meter = torch.zeros(100), Meter()
    meter.leave_out([older])
    with meter:
        view = older[:50]
        assert (meter.now, meter.most) == (0, 0)
    del older, view
    made = [torch.zeros(100) for _ in range(100)]
    with meter:
        views = [one[:50] for one in made]
    assert (meter.now, len(views)) == (100 * 400, 100)


def test_resetting_starts_from_what_lives_now() -> None:
    with Meter() as meter:
        kept = torch.zeros(10)
        gone = torch.zeros(100)
        del gone
        meter.reset()
        assert meter.most == 40
    assert len(kept) == 10


def test_what_autograd_saved_stays_until_its_graph_goes() -> None:
    weight = nn.Parameter(torch.zeros(100))
    with Meter([weight]) as meter:
        loss = weight.exp().sum()
        # The exponential is saved, though nobody else holds it.
        assert meter.now == 400 + 4
        del loss
        assert meter.now == 0
        meter.reset()
        loss = (weight + 1).sum()
        assert (meter.now, meter.most) == (4, 404)
    assert loss.shape == ()


def test_a_backward_is_seen() -> None:
    weight = nn.Parameter(torch.zeros(100))
    weight.grad = torch.zeros(100)
    with Meter([weight, weight.grad]) as meter:
        loss = weight.exp().sum()
        meter.reset()
        torch.autograd.backward(loss)
        # The result of exp and its product with the incoming gradient, which is one number.
        assert meter.most == 4 + 400 + 4 + 400
        del loss
    assert meter.now == 0
