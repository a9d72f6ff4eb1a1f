from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from schedopt.checking.timeline import Timeline, lay_out
from schedopt.plan import Operation, Transfer
from tests.changes import change_gpu
from tests.examples import contiguous, double_buffered, send, stages, weighty
from tests.exchanges import ring


def two_layers_a_stage() -> Timeline:
    """Return a timeline of stages that end with 3 and 13 bytes."""
    plan = double_buffered()
    sizes = ((2, 1, 1), (3, 4, 6), (11, 0, 0), (13, 0, 0))
    layers = tuple(
        replace(
            weighty(1, 1, 0),
            activation_bytes=sent,
            parameter_bytes=weights,
            gradient_bytes=gradient,
        )
        for sent, weights, gradient in sizes
    )
    chain = replace(plan.chain, layers=layers)
    return lay_out(replace(plan, chain=chain, stages=stages((0, 1, [0, 2]), (2, 3, [1]))))


def moving(tensor: Any, **more: Any) -> Transfer:
    return send(tensor, 0, 0, 0, source=0, target=1, **more)


@pytest.mark.parametrize(
    ("transfer", "count"),
    [
        (send("activation", 0, 0, 0), 3),
        (send("activation", 0, 0, 0, covers=2), 6),
        (send("gradient", 0, 0, 0), 3),
        (moving("weights"), 5),
        (moving("weight_gradient"), 7),
        (moving("weight_gradient", chunk=0, chunks=3), 2),
        (moving("weight_gradient", chunk=1, chunks=3), 2),
        (moving("weight_gradient", chunk=2, chunks=3), 3),
    ],
)
def test_the_bytes_of_a_transfer_follow_from_the_stage(transfer: Transfer, count: int) -> None:
    assert two_layers_a_stage().carried(transfer) == count


@pytest.mark.parametrize(
    ("transfer", "ends"),
    [
        (send("activation", 0, 0, 0), (2, 1)),
        (send("gradient", 0, 0, 0), (1, 2)),
        (moving("weights"), (2, 0)),
    ],
)
def test_the_ends_of_a_transfer_follow_from_the_micro_batch(
    transfer: Transfer, ends: tuple[int, int]
) -> None:
    assert two_layers_a_stage().ends(transfer, 3) == ends


def test_an_occurrence_lies_so_many_periods_after_its_shift() -> None:
    # B of stage 0 has shift -4 and start 2: micro-batch 0 runs it from 18 to 20.
    assert lay_out(contiguous()).span(("B", 0), 0) == (18, 20)


@pytest.mark.parametrize(("micro_batch", "gpu", "length"), [(0, 1, 2), (1, 2, 4), (2, 0, 2)])
def test_w_lasts_as_long_as_it_does_where_it_runs(micro_batch: int, gpu: int, length: int) -> None:
    # GPU 2 is half as fast. Of each micro-batch the fourth operation is W one replica on.
    timeline = lay_out(change_gpu(ring(), 2, speed=Decimal("0.5")))
    _, half = timeline.items[5 * micro_batch + 3]
    assert isinstance(half, Operation)
    assert timeline.plan.stages[0].gpu(micro_batch + half.replica) == gpu
    assert timeline.length(half, micro_batch) == length
