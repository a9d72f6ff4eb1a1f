"""Peak memory of a rank from shapes, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt.bench.published.simumax_memory import Model, peak_bytes, read_models
from schedopt.errors import InputError

NOTES = ["Some words.", "Shapes: tiny: hidden 8, heads 4, kv 2, ffn 12, vocabulary 100; "
         "mixed: hidden 8, heads 4, kv 4, ffn 12, vocabulary 10, experts 6 top 2, expert ffn 3, "
         "shared 5"]  # fmt: skip


def line(**changes: Any) -> dict[str, Any]:
    usual = {"model": "tiny", "layers": 4, "dense_layers": None, "tp": 1, "cp": 1, "ep": 1}
    return {**usual, "pp": 2, "dp": 3, "sequence": 10, "mbs": 1, "microbatches": 5, **changes}


def test_shapes_are_read_from_the_notes() -> None:
    assert read_models(NOTES) == {
        "tiny": Model(8, 4, 2, 12, 100),
        "mixed": Model(8, 4, 4, 12, 10, 6, 2, 3, 5),
    }


def test_a_dense_pipeline() -> None:
    models = read_models(NOTES)
    # Queries and output 8 x 8, keys and values 8 x 4 each; three products of 8 x 12.
    layer = 2 * 64 + 2 * 32 + 3 * 96
    ends = 100 * 8
    states = (2 * layer + ends) * (6 + 12 / 3)
    # Two norms with what enters them, queries, keys, values, these turned, the output; statistics.
    attention = 2 * (4 * 8 + 2 * 8 + 4 * 4) + 4 * 4
    kept = attention + 3 * 2 * 12
    product = 4 * 12 * 10
    first = states + 2 * (2 * kept * 10) + 2 * layer + product
    assert peak_bytes(line(), models, 0) == first
    last = states + 2 * kept * 10 + 2 * layer + product + 2 * 100 * (8 + 10)
    assert peak_bytes(line(), models, 1) == last
    halved = peak_bytes(line(tp=2, pp=1), models, 0)
    whole = peak_bytes(line(pp=1), models, 0)
    assert halved == whole / 2
    # A context of twice the length on twice the GPUs shares the optimizer state once more.
    more = peak_bytes(line(cp=2, sequence=20), models, 0)
    assert first - more == (2 * layer + ends) * (12 / 3 - 12 / 6)


def test_experts_are_shared_out() -> None:
    models = read_models(NOTES)
    one, two = (
        peak_bytes(line(model="mixed", dense_layers=1, pp=1, dp=2, ep=ep), models, 0)
        for ep in (1, 2)
    )
    # Three layers of six experts of 3 x 8 x 3; half of them, with half the replicas.
    experts = 3 * 6 * 72
    assert one - two == experts * (6 + 12 / 2) - experts / 2 * (6 + 12)


def test_a_model_without_a_shape() -> None:
    with pytest.raises(InputError, match="other has no shape"):
        peak_bytes(line(model="other"), read_models(NOTES), 0)
