"""Layers that are moved between stages, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.published.vocabulary import _Host, _layer_ns, _moved

LAYER = 1000.0


def run(method: str, counts: list[int], head: float, busy: float, **more: Any) -> dict[str, Any]:
    """A run whose inner layers take a tenth longer where their GPU always works."""
    times = [count * LAYER * (1 + 0.1 * busy) for count in counts]
    times[-1] += head
    return {
        "method": method,
        "vocabulary": round(head),
        "layers_per_stage": counts,
        "forward_ns": times,
        "backward_ns": times,
        "communication_ns": [0] * len(counts),
        **{"sequence": 1, "hidden": 1, "layers": sum(counts), "heads": 1, "mbs": 1},
        **{"microbatches": 1000, "pp": len(counts)},
        **more,
    }


def even(head: float) -> dict[str, Any]:
    """Four stages of two layers: with many micro-batches the last one sets the pace."""
    busy = 2.0
    for _ in range(100):
        inner = 2 * LAYER * (1 + 0.1 * busy)
        busy = inner / (inner + head)
    return run("base", [2, 2, 2, 2], head, busy)


def test_layers_move_at_the_time_of_inner_ones() -> None:
    line = run("base", [2, 2, 2, 2], 500, 0.0)
    other = run("redis", [2, 2, 3, 1], 500, 0.0)
    assert _layer_ns(line["forward_ns"], line) == LAYER
    assert _moved(line["forward_ns"], line, other) == [2000, 2000, 3000, 1500]


def test_a_gpu_that_waits_less_is_slower() -> None:
    heads = (1000.0, 2000.0, 4000.0)
    host = _Host([even(head) for head in heads])
    assert host._slowing(host.lines[0], "forward_ns") == pytest.approx(0.1, rel=0.02)
    # The stage with three layers works all the time: they take a tenth longer.
    moved = run("redis", [2, 2, 3, 1], 2000, 0.0)
    step = host.moved_ns(host.lines[1], moved)
    assert step == pytest.approx(1000 * 2 * 3 * LAYER * 1.1, rel=0.01)
    alone = _Host([host.lines[1]])
    assert alone.moved_ns(host.lines[1], moved) < 0.99 * step


def test_a_message_takes_what_was_measured() -> None:
    plain = run("base", [2, 2], 0, 0.0)
    told = run("vocab", [2, 2], 0, 0.0, communication_ns=[30, 30])
    passes = plain["forward_ns"], plain["backward_ns"]
    without, measured = _Host([plain]), _Host([plain, told])
    update = without.step_ns(plain, *passes) - 1001 * 4000
    # Each of two GPUs has one exchange for each of 1,000 micro-batches; to fill takes one more.
    assert update < 10
    longer = measured.step_ns(plain, *passes) - without.step_ns(plain, *passes)
    assert longer == pytest.approx(1001 * 30)
    other = {**plain, "sequence": 2}
    assert measured.step_ns(other, *passes) < 1001 * 4010
