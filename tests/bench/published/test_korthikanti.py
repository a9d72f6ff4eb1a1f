"""Steps of even pipelines from their work, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.published.korthikanti import _outside_ns, _rate, _rounds, _step_ns, _work


def line(**changes: Any) -> dict[str, Any]:
    usual = {"layers": 8, "hidden": 16, "heads": 2, "sequence": 4, "mbs": 2, "mode": "full"}
    shape = {"tp": 2, "pp": 4, "chunks_per_stage": 1, "microbatches": 6}
    return {**usual, **shape, **changes}


def test_messages_and_the_update() -> None:
    # A hidden state of 4 x 2 x 16 values of two bytes: half leaves the node, half is gathered.
    message = 128 / 25 + 128 / 300
    weights = (12 * 16**2 * 8 / 4 + 51200 * 16) / 2
    assert _outside_ns(line()) == pytest.approx((2 * message, 34 * weights / 2039))
    assert _outside_ns(line(chunks_per_stage=2))[0] == pytest.approx(4 * message)
    assert _outside_ns(line(pp=1))[0] == 0


def test_work_and_rounds() -> None:
    layer = 24 * 128 * 16 + 4 * 128 * 4
    head = 2 * 128 * 51200
    assert _work(line()) == (8 * 4 * layer + 3 * head) / 8
    assert _rounds(line()) == 9
    assert _rounds(line(chunks_per_stage=2)) == 7.5


@pytest.mark.parametrize("changes", [{}, {"pp": 1}, {"chunks_per_stage": 2}, {"tp": 1}])
def test_the_rate_of_a_step_gives_the_step(changes: dict[str, Any]) -> None:
    step = _step_ns(line(**changes), 0.25)
    assert _rate(line(**changes, step_ns=step)) == pytest.approx(0.25)
