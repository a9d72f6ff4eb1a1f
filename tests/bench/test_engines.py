"""Steps of any kind beside those of engines: cases, ratios and what is missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain
from schedopt.bench.engines import SUITE, engine_case, engine_cases, over_engines
from schedopt.bench.suite import Effort
from schedopt.engine import ENGINES
from tests.bench.suites import holds, measured, one_figure
from tests.layers import layer

ONE = replace(
    layer(2, 4, 1, weight=8, sent=1),
    parameter_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=4,
    workspace_bytes=0,
    update_ns=1,
)
SMALL = Chain(
    layers=tuple(
        replace(ONE, name=name) for name in ("embed", "layers.0", "layers.1", "layers.2", "head")
    ),
    input_bytes=1,
    name="small",
)


def test_no_engine_is_ahead_of_steps_of_any_kind() -> None:
    records = measured([engine_case(SMALL, "a10g:1x2", 4)], Effort(1, 60))
    row = records[0].row
    ratio = over_engines(row)
    assert ratio is not None
    assert ratio <= 1
    assert all(row[f"{engine}_ns"] >= row["any_ns"] for engine in ENGINES)
    assert not [*SUITE.misses(records)]
    holds(SUITE, records, "| small | a10g:1x2 | 4 |")
    ahead = [one_figure(records[0], megatron_ns=row["any_ns"] // 2)]
    assert len([*SUITE.misses(ahead)]) == 1
    seconds = [one_figure(ahead[0], any_ns=1_500_000_000)]
    holds(SUITE, seconds, "1.500 s")
    holds(SUITE, ahead, "small on a10g:1x2, 4 micro-batches")


def test_what_is_missing_has_no_ratio() -> None:
    row = {"any_ns": 10, **{f"{engine}_ns": None for engine in ENGINES}}
    assert over_engines(row) is None
    assert over_engines({**row, "torch_ns": 8}) == pytest.approx(1.25)
    assert over_engines({**row, "any_ns": None, "torch_ns": 8}) is None


def test_only_chains_that_are_there_are_asked() -> None:
    named = replace(SMALL, name="bert-large")
    found = [case.key["chain"] for case in engine_cases([SMALL, named])]
    assert found == ["bert-large", "bert-large"]
    assert len(engine_cases([named], quick=True)) == 1
