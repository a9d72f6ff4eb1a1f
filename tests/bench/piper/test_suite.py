"""The clusters of Piper's tables: read, solved, written; other tables are refused."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt.bench.piper.suite import SUITE, piper_cases
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import load_records, of_family
from schedopt.bench.suite import Effort
from schedopt.errors import InputError
from tests.bench.suites import RESULTS, measured, one_figure

SHIPPED = RESULTS.parent / "instances" / "planners"


def test_the_results_are_of_the_shipped_tables() -> None:
    rows = of_family(load_records(RESULTS / "piper.jsonl", SUITE.families), "piper")
    cases = piper_cases(Tables(SHIPPED))
    assert [
        {name: row[name] for name in case.key} for row, case in zip(rows, cases, strict=True)
    ] == [case.key for case in cases]
    assert not [*SUITE.misses(load_records(RESULTS / "piper.jsonl", SUITE.families))]
    for row in rows:
        if row["status"] == "optimal":
            time, bound = Fraction(*row["period_exact"]), Fraction(*row["bound_exact"])
            assert 0 <= time - bound <= 1


def test_more_memory_or_gpus_are_never_worse() -> None:
    rows = of_family(load_records(RESULTS / "piper.jsonl", SUITE.families), "piper")
    times = {
        (row["gpus"], row["memory_bytes"]): Fraction(*row["period_exact"])
        for row in rows
        if row["period_exact"] and row["bandwidth_bytes_per_s"] == 25 * 10**9
    }
    assert len(times) >= 10
    for (gpus, memory), time in times.items():
        assert all(other >= time for (g, m), other in times.items() if g <= gpus and m <= memory)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Return a folder with a small model of two nodes, on one GPU and on two."""
    folder = tmp_path / "piper"
    folder.mkdir()
    for name in ("variants", "edges", "clusters"):
        shutil.copy(SHIPPED / "piper" / f"{name}.json", folder)
    edit(tmp_path, "edges", rows=[[0, 1, 1000]])
    sync: list[Any] = [{}, {"1": 0}]
    edit(
        tmp_path,
        "variants",
        rows=[
            [0, "a", 1, "vanilla", 1000, 0, 10, 0, *sync],
            [1, "b", 1, "vanilla", 1000, 0, 10, 0, {"0": 0}, {}],
        ],
    )
    edit(tmp_path, "clusters", rows=[[1, 100, 10**9, 2, 2000], [2, 100, 10**9, 2, None]])
    return tmp_path


def edit(folder: Path, name: str, **changes: Any) -> None:
    path = folder / "piper" / f"{name}.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(document))


def test_a_shorter_plan_of_the_planner_is_told(tables: Path) -> None:
    edit(tables, "clusters", rows=[[1, 100, 10**9, 2, 0], [1, 5, 10**9, 2, 2000]])
    records = measured(piper_cases(Tables(tables)), Effort(1, 10.0))
    edge = [one_figure(record, period_exact=[5001, 1]) for record in records[:1]]
    assert len([*SUITE.misses(records)]) == 1  # No plan fits into 5 bytes.
    assert ["Piper's plan is shorter" in line for line in SUITE.misses(edge)] == [True]


def test_two_replicas_share_what_one_gpu_does(tables: Path) -> None:
    records = measured(piper_cases(Tables(tables)), Effort(1, 10.0))
    assert [row["period_exact"] for row in of_family(records, "piper")] == [[2000, 1], [1000, 1]]
    assert "2x1:2~vanilla" in SUITE.to_markdown(records)


@pytest.mark.parametrize(
    ("name", "changes", "parts"),
    [
        ("edges", {"rows": [[0, 7, 1000]]}, ("piper/edges", "rows[0]", "7", "variants")),
        ("clusters", {"rows": [[0, 100, 1, 2, None]]}, ("piper/clusters", "rows[0].gpus", "0")),
        ("clusters", {"rows": [[1, 1.5, 1, 2, None]]}, ("piper/clusters", "rows[0].memory_bytes")),
        (
            "clusters",
            {
                "columns": [
                    "gpus",
                    "memory_gib",
                    "bandwidth_bytes_per_s",
                    "microbatches",
                    "planner_ns",
                ]
            },
            ("clusters.json", "memory_bytes", "column"),
        ),
        ("edges", {"rows": []}, ()),
    ],
)
def test_other_tables_are_refused(
    tables: Path, name: str, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    edit(tables, name, **changes)
    if not parts:
        assert len(piper_cases(Tables(tables))) == 2
        return
    with pytest.raises(InputError) as caught:
        piper_cases(Tables(tables))
    error = caught.value
    told = f"{error.source} {error.field} {error.rule} {error.way_out}"
    assert all(part in told for part in parts), told
    assert error.way_out
