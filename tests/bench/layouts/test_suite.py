"""Layouts set by hand: read, scored, bettered or proven; other tables are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from schedopt import Stage, check
from schedopt.bench.layouts.rows import COLUMNS, read_rows
from schedopt.bench.layouts.suite import SUITE, layout_cases
from schedopt.bench.published.tables import Tables
from schedopt.bench.records import Record, load_records, of_family
from schedopt.bench.suite import Effort
from schedopt.engine import why_not_stages
from schedopt.errors import InputError
from schedopt.megatron_layout import read_layout
from schedopt.problem import Problem
from schedopt.systems.steps import engine_step
from tests.bench.suites import RESULTS, holds, measured, one_figure

SHIPPED = RESULTS.parent / "instances" / "published" / "layouts"
SMALL = {
    "model": "small",
    "pp": 3,
    "chunks_per_stage": 1,
    "layout": "Ettt||ttmL",
    "stages": [[1, 3, 0, 0], [0, 0, 0, 0], [0, 2, 1, 1]],
    "hardware": "12 x H100",
    "tp": 2,
    "ep": None,
    "cp": 1,
    "global_batch": 6,
    "mbs": 1,
    "note": "sequence 512",
    "layers": 5,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 1024,
    "vocabulary": 6000,
    "moe": "4 MoE layers after 1 dense; 8 experts, top 2, 1 shared, expert ffn 512",
}


def table(folder: Path, *lines: dict[str, Any]) -> Tables:
    """Write a table of layouts, whose lines are like the small one but for some columns."""
    columns = COLUMNS.split()
    rows = [[{**SMALL, **line}[name] for name in columns] for line in lines]
    document = {"format": "schedopt-data/1", "notes": [], "columns": columns, "rows": rows}
    (folder / "mine.json").write_text(json.dumps(document))
    return Tables(folder)


def every_step(problem: Problem, ranks: int, parts: int) -> Iterator[int]:
    """Yield the step of each layout that Megatron-LM runs, ns."""
    layers = len(problem.chain.layers)
    for begins in combinations_with_replacement(range(1, layers), parts - 1):
        ends = (0, *begins, layers)
        stages = [Stage(layers=(ends[n], ends[n + 1] - 1), gpus=(n % ranks,)) for n in range(parts)]
        if not why_not_stages(problem.chain, stages, "megatron"):
            plan = engine_step(problem, stages)
            assert check(plan) == ()
            yield plan.pattern.period_total_ns


def test_the_best_of_all_layouts_is_found_and_proven(tmp_path: Path) -> None:
    """With chunks without layers, and layers that predict further tokens."""
    tables = table(tmp_path, {}, {"layout": "Et|ttt|tmL", "stages": None})
    row, other = read_rows(tables, "mine")
    assert row.begins == (0, 4, 4)
    # 6 samples over 12 / (3 * 2) replicas.
    assert (row.microbatches, row.gpu) == (3, "h100")
    steps = [*every_step(row.problem, 3, 3)]
    one, two = measured(layout_cases([row, other]), Effort(workers=1, time_limit=60))
    for record in (one, two):
        assert Fraction(*record["period_exact"]) == Fraction(*record["bound_exact"]) == min(steps)
        chunks = read_layout(record["best_layout"], ranks=3)
        assert sum(chunk.layers for chunk in chunks) == 5
        assert sum(chunk.mtp for chunk in chunks) == 1
    assert Fraction(*one["hand_exact"]) > min(steps)
    holds(SUITE, [one, two])


def test_the_results_are_of_the_shipped_table() -> None:
    cases = layout_cases(read_rows(Tables(SHIPPED), "layouts"))
    records = load_records(RESULTS / "layouts.jsonl", SUITE.families)
    rows = of_family(records, "layouts")
    keys = [{name: row[name] for name in case.key} for row, case in zip(rows, cases, strict=True)]
    assert keys == [case.key for case in cases]
    assert not [*SUITE.misses(records)]
    assert len(cases) == 30
    for row in rows:
        hand, best, bound = (
            Fraction(*row[name]) for name in ("hand_exact", "period_exact", "bound_exact")
        )
        assert bound <= best <= hand
        assert bound >= best * Fraction(99, 100)
        read_layout(row["best_layout"], ranks=row["pp"])


def test_what_is_said_of_a_change_to_llama_70b_holds() -> None:
    """Its layout was set by hand for more throughput at the same peak of memory."""
    rows = of_family(load_records(RESULTS / "layouts.jsonl", SUITE.families), "layouts")
    after, before = (row for row in rows if row["model"] == "llama3-70b")
    assert Fraction(*after["hand_exact"]) < Fraction(*before["hand_exact"])
    assert after["hand_peak_bytes"] == before["hand_peak_bytes"]


def test_models_without_a_shape_are_told(tmp_path: Path) -> None:
    unknown = {"hidden": None, "moe": "shape not in the file"}
    cases = layout_cases(read_rows(table(tmp_path, unknown), "mine"))
    (record,) = measured(cases, Effort(workers=1, time_limit=1))
    assert record["status"] == "no shape"
    holds(SUITE, [record], "- small 3 x 1, rows[0]: the shape of the model is not known")


def test_missed_goals_are_told(tmp_path: Path) -> None:
    figures = {"hand_exact": [100, 1], "period_exact": [100, 1], "cpu_seconds": 61.0}
    row = Record("layouts", {"model": "m", "pp": 2, "chunks": 1, "place": "rows[0]", **figures}, {})
    missed = [*SUITE.misses([one_figure(row, bound_exact=[98, 1])])]
    assert missed == [
        "m 2 x 1, rows[0]: the bound is 2.00% below the best, the goal is 1 %",
        "m 2 x 1, rows[0]: 61.0 CPU s, the goal is 60 s",
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layout": "Ettt||ttm"}, r"mine.json: rows\[1\].layout: character 9: the loss"),
        ({"pp": 4}, r"rows\[1\].layout: "),
        ({"chunks_per_stage": 2}, r"rows\[1\].layout: has 3 chunks, not 3 x 2"),
        ({"stages": [[1, 5, 1, 1]]}, r"rows\[1\].stages: are not those of the layout"),
        ({"layers": 6}, r"rows\[1\].layout: has 5 transformer layers, not 6"),
        ({"moe": "some"}, r"rows\[1\].moe: 'some' does not tell the experts"),
        ({"tp": 0}, r"rows\[1\].tp: "),
        ({"hidden": "wide"}, r"rows\[1\].hidden: "),
    ],
)
def test_lines_that_are_wrong_are_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(table(tmp_path, {}, changed), "mine")
