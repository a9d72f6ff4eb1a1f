"""Values of published tables that their columns cannot have, and names of columns that are none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from schedopt.bench.published.cells import check_column
from schedopt.bench.published.tables import Tables
from schedopt.errors import InputError


@pytest.mark.parametrize(
    ("column", "usual", "wrong", "words"),
    [
        ("stages", 8, 0, "rows[1].stages: 0 is no whole number from 1 to"),
        ("stages_count", 8, 1.5, "rows[1].stages_count: 1.5 is no whole number from 1 to"),
        ("rank", 0, -1, "rows[1].rank: -1 is no whole number from 0 to"),
        ("parameters_billion", 39.1, -1, "rows[1].parameters_billion: -1 is no time"),
        ("bytes", 4, -4, "rows[1].bytes: -4 is no time"),
        ("output_mib", 0.5, "big", "rows[1].output_mib: 'big' is no time"),
        ("model", "13B", None, "rows[1].model: is empty. Say what this line is of"),
        ("gpu", "L4", "", "rows[1].gpu: is empty"),
        ("flags", ["slow"], [3], "rows[1].flags[0]: 3 is no text"),
        ("layers_per_stage", [4, 4], [4, "x"], "rows[1].layers_per_stage[1]: 'x' is no whole"),
        ("layers_per_stage", [[0, 1]], [[0, -1]], "rows[1].layers_per_stage[0][1]: -1 is no whole"),
        ("layers_per_stage", [[0, 1]], [[0], []], "rows[1].layers_per_stage[1]: is an empty list"),
        ("gpu_tp", [["L4", 2]], [["L4", 0]], "rows[1].gpu_tp[0][1]: 0 is no whole number from 1"),
        ("gpu_tp", [["L4", 2]], [[]], "rows[1].gpu_tp[0]: [] is no GPU and tensor degree"),
        ("gpu_tp", [[["L4", 2]]], [[["L4", 2], [2]]], "rows[1].gpu_tp[0][1]: [2] is no GPU and"),
        ("allocated_by_rank_bytes", {"0": 5}, {"0": 5, "b": 6}, "'b' is no rank"),
        ("allocated_by_rank_bytes", {"0": 5}, {"0": "5"}, "'5' is no time"),
    ],
)
def test_a_value_that_its_column_cannot_have(
    column: str, usual: object, wrong: object, words: str
) -> None:
    check_column(column, [usual, usual, usual])
    with pytest.raises(InputError, match=re.escape(words)):
        check_column(column, [usual, wrong, usual])


@pytest.mark.parametrize(
    ("column", "value"),
    [("tp", None), ("stage", None), ("flag", None), ("gpu_tp", None), ("step_ns", None)],
)
def test_what_is_not_stated_is_no_fault(column: str, value: None) -> None:
    check_column(column, [value, value])


@pytest.mark.parametrize("columns", [["model", "model"], ["model", 3], ["model", None]])
def test_columns_have_names_of_their_own(columns: list[object], tmp_path: Path) -> None:
    path = tmp_path / "some" / "table.json"
    path.parent.mkdir()
    document = {"format": "schedopt-data/1", "notes": [], "columns": columns, "rows": []}
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"table.json: columns\[1\]: .* is no name, or stands"):
        Tables(tmp_path).lines("some/table", "model")
