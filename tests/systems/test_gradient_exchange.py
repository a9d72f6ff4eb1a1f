"""Reducing the gradient against gathering what W needs, by hand and against whole plans."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest

from schedopt import Chain, InputError, Plan
from schedopt.account import load, traffic
from schedopt.systems.gradient_exchange import Exchange, choose_exchange
from tests.examples import data_parallel, layer
from tests.exchanges import all_gather, mixed_exchange, ring

HALF_PRECISION = 2


def square(n: int, b: int) -> Chain:
    """Return a matrix of n x n in 16 bits, with b samples in a micro-batch."""
    whole, row = n * n * HALF_PRECISION, b * n * HALF_PRECISION
    sizes = {"parameter_bytes": whole, "gradient_bytes": whole, "saved_weight_bytes": 2 * row}
    only = layer(1, 2, 2 * whole, row, backward_input_ns=1, backward_weight_ns=1, **sizes)
    return Chain(layers=(only,))


def gathers(n: int, b: int, replicas: int) -> bool:
    """Return whether one micro-batch of b samples on each GPU gathers rather than reduces."""
    (found,) = choose_exchange(square(n, b), replicas, replicas)
    return found.tensor == "weight_half"


def test_a_square_matrix_by_hand() -> None:
    # n = 8, b = 1, 4 GPUs, 1 micro-batch each. The gradient has 128 bytes: 2 * 3/4 * 128 = 192.
    # W needs 8 + 8 numbers of 2 bytes: 3/4 * 4 * 32 = 96. W of 3 other micro-batches: 3 ns.
    (found,) = choose_exchange(square(8, 1), 4, 4)
    assert found == Exchange(0, Fraction(192), Fraction(96), Fraction(3))
    assert found.tensor == "weight_half"
    assert str(found) == (
        "layer 0: the gradient sends 192 B a GPU, what W needs 96 B and 3 ns more of W"
    )


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_a_square_matrix_gathers_iff_all_samples_are_fewer_than_its_rows(replicas: int) -> None:
    # For two GPUs that is b < n / 2 of Boehm 2022, for the samples of one of them.
    for n, b in product(range(1, 25), range(1, 25)):
        assert gathers(n, b, replicas) == (replicas * b < n)


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_half_the_rows_is_the_bound_of_all_samples_against_half_an_all_reduce(
    replicas: int,
) -> None:
    # A reduce-scatter is the first half of a ring all-reduce. All samples: B = R b < n / 2.
    for n, b in product(range(1, 25), range(1, 25)):
        (found,) = choose_exchange(square(n, b), replicas, replicas)
        assert found.gathered_bytes is not None
        assert (found.gathered_bytes < found.reduced_bytes / 2) == (replicas * b < Fraction(n, 2))


def test_where_both_send_the_same_the_gradient_is_reduced() -> None:
    (found,) = choose_exchange(square(8, 2), 4, 4)
    assert found.gathered_bytes == found.reduced_bytes
    assert found.tensor == "weight_gradient"


def test_more_micro_batches_in_an_update_favour_the_gradient() -> None:
    chosen = [choose_exchange(square(8, 1), 2, m)[0].tensor for m in (2, 6, 8, 16)]
    assert chosen == ["weight_half", "weight_half", "weight_gradient", "weight_gradient"]


def test_one_gpu_sends_nothing() -> None:
    (found,) = choose_exchange(square(8, 1), 1, 4)
    assert found == Exchange(0, Fraction(0), Fraction(0), Fraction(0))
    assert found.tensor == "weight_gradient"


def test_a_layer_that_does_not_say_what_w_needs_reduces_and_says_so() -> None:
    halves = square(8, 1).layers[0]
    silent = layer(1, 1, 6, gradient_bytes=6)
    first, second = choose_exchange(Chain(layers=(halves, silent)), 3, 3)
    assert first.tensor == "weight_half"
    assert second == Exchange(1, Fraction(8), missing="layers[1].saved_weight_bytes")
    assert second.tensor == "weight_gradient"
    assert "layers[1].saved_weight_bytes is absent" in str(second)


def test_a_layer_without_a_gradient_is_refused() -> None:
    with pytest.raises(InputError, match=r"layers\[0\].gradient_bytes"):
        choose_exchange(Chain(layers=(layer(1, 1, 6),)), 2, 2)


@pytest.mark.parametrize(("replicas", "micro_batches"), [(0, 2), (2, 0), (1.5, 2), (2, True)])
def test_bad_counts(replicas: int, micro_batches: int) -> None:
    with pytest.raises(InputError, match=r"replicas|micro_batches"):
        choose_exchange(square(2, 1), replicas, micro_batches)


def sent_by_each_gpu(plan: Plan) -> set[Fraction]:
    """Return what GPUs send for an update in a whole plan, bytes."""
    assert plan.rule.update_every is not None
    sent = dict.fromkeys(range(len(plan.platform.gpus)), Fraction(0))
    for (source, _), count in traffic(plan).items():
        sent[source] += count * plan.rule.update_every
    return set(sent.values())


@pytest.mark.parametrize("make", [all_gather, ring])
def test_plans_that_gather_send_and_work_as_much(make: Callable[[], Plan]) -> None:
    plan = make()
    replicas = len(plan.platform.gpus)
    (found,) = choose_exchange(plan.chain, replicas, replicas)
    assert sent_by_each_gpu(plan) == {found.gathered_bytes}
    only = plan.chain.layers[0]
    assert found.extra_ns is not None
    own = only.forward_ns + only.backward_ns
    assert {one.busy_ns * replicas for one in load(plan)} == {own + found.extra_ns}


def test_plans_that_reduce_send_as_much() -> None:
    found = choose_exchange(data_parallel().chain, 2, 2)
    assert sent_by_each_gpu(data_parallel()) == {sum(one.reduced_bytes for one in found)}
    first, second = choose_exchange(mixed_exchange().chain, 2, 2)
    assert first.gathered_bytes is not None
    assert sent_by_each_gpu(mixed_exchange()) == {first.gathered_bytes + second.reduced_bytes}
