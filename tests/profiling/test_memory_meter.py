from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from schedopt.profiling.memory_meter import Meter


def test_a_tensor_counts_its_bytes() -> None:
    with Meter() as meter:
        kept = torch.zeros(100, dtype=torch.float64)
    assert (meter.now, meter.most, kept.shape) == (800, 800, (100,))


def test_a_tensor_that_goes_leaves() -> None:
    with Meter() as meter:
        first = torch.zeros(100)
        del first
        second = torch.zeros(10)
    assert (meter.now, meter.most, len(second)) == (40, 400, 10)


def test_it_goes_on_after_the_meter_was_left() -> None:
    with Meter() as meter:
        kept = torch.zeros(100)
    assert meter.now == 400
    del kept
    assert meter.now == 0


def test_what_lives_at_once_adds_up() -> None:
    with Meter() as meter:
        first, second = torch.zeros(100), torch.zeros(50)
        del first, second
    assert (meter.now, meter.most) == (0, 600)


def test_a_view_is_not_counted_again() -> None:
    with Meter() as meter:
        base = torch.zeros(10, 10)
        views = [base.t(), base[1:], base.view(-1), base.expand(3, 10, 10), base.detach()]
    assert (meter.now, len(views)) == (400, 5)


def test_a_view_keeps_the_whole_storage() -> None:
    with Meter() as meter:
        base = torch.zeros(100)
        view = base[:1]
        del base
    assert (meter.now, view.shape) == (400, (1,))


def test_writing_in_place_takes_nothing() -> None:
    with Meter() as meter:
        value = torch.zeros(100)
        value.add_(1).relu_()
    assert (meter.now, meter.most) == (400, 400)


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


def test_an_expanded_scalar_takes_one_number() -> None:
    with Meter() as meter:
        kept = torch.ones(()).expand(100)
    assert (meter.now, kept.shape) == (4, (100,))


def test_several_results_are_all_counted() -> None:
    with Meter() as meter:
        values, places = torch.arange(100.0).sort()
        assert meter.most == 400 + 400 + 800
    assert len(values) == len(places)


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


def test_what_nobody_saved_does_not_stay() -> None:
    weight = nn.Parameter(torch.zeros(100))
    with Meter([weight]) as meter:
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


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int64])
def test_every_type_counts_its_size(dtype: torch.dtype) -> None:
    with Meter() as meter:
        kept: Tensor = torch.zeros(7, dtype=dtype)
    assert meter.now == 7 * kept.element_size()
