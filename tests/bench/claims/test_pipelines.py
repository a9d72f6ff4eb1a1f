"""Pipelines that TiMePReSt is compared with, small ones by hand."""

from __future__ import annotations

import pytest

from schedopt.account import versions
from schedopt.bench.claims import pipelines
from schedopt.bench.claims.pipelines import SYSTEMS, find_pipelines, plan_of
from schedopt.systems import flushes
from tests.bench.claims.findings import nothing


def test_pipedream_of_three_stages() -> None:
    # Stage 0 runs 3 forwards before the first backward: weights of two updates ago, 3 versions.
    found = versions(plan_of("PipeDream", 3, 3))
    assert [found.held[stage, stage] for stage in range(3)] == [3, 2, 1]
    assert [found.backward_staleness[0, stage] for stage in range(3)] == [2, 1, 0]


def test_all_is_so_but_one_update_may_come_sooner() -> None:
    found = find_pipelines(nothing, 4)
    assert [part.verdict for part in found.parts] == [
        "holds", "holds-under-convention", "holds", "holds", "fails", "holds",
        "holds-under-convention",
    ]  # fmt: skip
    assert found.figures["least_m_of_2bw"] == {"2": 1, "3": 2, "4": 3}
    table = {row[0]: row[2:] for row in found.tables[0].rows}
    # 2 (M + W - 1), W = 4, M = 12; Chimera idles 2 slots.
    assert table["GPipe"][0] == 30
    assert table["Chimera"][0] == 26
    # Half of the W in flight in each direction, of both stages of GPU 1 (Li and Hoefler 2021,
    # table 2).
    assert table["Chimera"][2] == 4
    assert table["XPipe"][0] == "not a plan"


def test_of_another_schedule_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "GPipe", flushes.one_f_one_b)
    monkeypatch.setitem(SYSTEMS, "PipeDream, vertical sync", SYSTEMS["PipeDream"])
    found = find_pipelines(nothing, 2)
    assert [part.verdict == "fails" for part in found.parts[:2]] == [True, True]
    assert pipelines.CLAIM.id == "T6"
