"""What autograd keeps over time, and what workers save that begin in turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schedopt.bench.claims import worker_memory
from schedopt.bench.claims.curves import Curve, curve_by_flops, curve_by_time
from schedopt.bench.claims.worker_memory import find_savings
from schedopt.profiling import Model, estimate
from tests.bench.claims.findings import nothing

TRIANGLE = Curve(spans=((1, 0, 4), (1, 1, 3)), length_ns=4)
"""1, 2, 2, 1 bytes over four steps."""
FLAT = Curve(spans=((3, 0, 4),), length_ns=4)


def stack() -> Model:
    """Return three square layers, each of which keeps what it takes: 4 x 8 numbers."""
    layers = [nn.Linear(8, 8, bias=False) for _ in range(3)]
    return Model(module=nn.Sequential(*layers), inputs=torch.ones(4, 8))


def test_workers_by_hand() -> None:
    assert TRIANGLE.peak(1, cyclic=False) == 2
    assert TRIANGLE.peak(2, cyclic=False) == 2
    # Half a round apart: 1 + 2 at all times.
    assert TRIANGLE.peak(2, cyclic=True) == 1.5
    assert TRIANGLE.peak(4, cyclic=True) == 1.5
    assert FLAT.peak(4, cyclic=True) == 3
    with_more = Curve(TRIANGLE.spans, 4, gradients=((2, 2, 4),)).with_gradients()
    assert with_more.peak(1, cyclic=False) == 4


def test_a_stack_by_hand() -> None:
    """Each layer keeps its input; forwards take 512 operations, backwards twice that.

    The first has no gradient of its input to make.
    """
    curve = curve_by_flops(stack, 10**9)
    forward = 2 * 4 * 8 * 8
    assert curve.length_ns == (3 + 2 + 2 + 1) * forward
    # Kept from before its forward, as that runs, to the end of its backward.
    lengths = sorted(end - start for count, start, end in curve.spans if count == 4 * 8 * 4)
    assert len(lengths) == 3
    assert curve.peak(1, cyclic=False) == 3 * 4 * 8 * 4
    assert sum(count for count, _, _ in curve.gradients) == 3 * 8 * 8 * 4


def test_it_is_what_the_profiler_says() -> None:
    chain = estimate(stack, flops=10**9)
    kept = sum(layer.saved for layer in chain.layers)
    assert curve_by_flops(stack, 10**9).peak(1, cyclic=False) == kept
    assert curve_by_time(stack()).peak(1, cyclic=False) == kept


def test_what_is_kept_twice_counts_once() -> None:
    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.exp() * value

    model = Model(
        module=nn.Sequential(nn.Linear(8, 8, bias=False), Twice()), inputs=torch.ones(4, 8)
    )
    # The input; what exp takes, that is the other factor, and what it makes.
    assert curve_by_time(model).peak(1, cyclic=False) == 3 * 4 * 8 * 4


def of(curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_memory, "curve_by_flops", lambda load, rate: curve)
    monkeypatch.setattr(worker_memory, "_measure", lambda name: curve)


@pytest.mark.parametrize(
    ("curve", "printed", "verdicts"),
    [
        (TRIANGLE, 0.25, ["holds", "holds", "holds"]),
        (TRIANGLE, 0.10, ["holds-under-convention", "holds", "holds"]),
        (TRIANGLE, 0.40, ["fails", "holds", "holds"]),
        (FLAT, 0.25, ["fails", "holds", "holds"]),
    ],
)
def test_parts(
    curve: Curve, printed: float, verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of(curve, monkeypatch)
    found = find_savings(nothing, {"thing": printed}, (2, 4), 1)
    assert [part.verdict for part in found.parts] == verdicts
    assert found.pictures[0].draw() is not None


def test_other_times_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    of(TRIANGLE, monkeypatch)
    monkeypatch.setattr(worker_memory, "_measure", lambda name: FLAT)
    found = find_savings(nothing, {"thing": 0.25}, (2, 4), 1)
    assert [part.verdict for part in found.parts] == ["holds", "holds", "fails"]


def test_more_for_more_workers_is_seen() -> None:
    def case(workers: int, count: int) -> dict[str, Any]:
        return {"model": "m", "workers": workers, "in_turn_bytes": count}

    assert worker_memory._not_falling([case(2, 5), case(4, 4)]) == []
    assert worker_memory._not_falling([case(2, 5), case(4, 6)]) == [case(4, 6)]
