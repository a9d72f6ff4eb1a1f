"""Piper's profile as tables: variants, and edges beside them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schedopt import InputError
from schedopt.importing import import_chain, import_degrees

TABLES = Path(__file__).parents[2] / "instances" / "planners" / "piper"
COLUMNS = ["node", "name", "tp", "variant", "time_ns", "parameter_bytes", "memory_a_bytes"]
ROWS = [
    [0, "tensor", 1, "vanilla", 0, 0, 8],
    [0, "tensor", 1, "recompute", 0, 0, 8],
    [1, "first", 1, "vanilla", 30, 100, 64],
    [1, "first", 1, "recompute", 40, 100, 8],
    [2, "second", 1, "vanilla", 50, 200, 32],
    [2, "second", 1, "recompute", 65, 200, 16],
]
EDGES = [[0, 1, 8], [1, 2, 16]]


def write(folder: Path, rows: list[list[Any]], edges: list[list[Any]] | None) -> Path:
    for name, columns, lines in (
        ("variants", COLUMNS, rows),
        ("edges", ["source", "target", "bytes"], edges),
    ):
        if lines is not None:
            table = {"format": "schedopt-data/1", "columns": columns, "rows": lines}
            (folder / f"{name}.json").write_text(json.dumps(table))
    return folder / "variants.json"


def test_small_tables_by_hand(tmp_path: Path) -> None:
    chain = import_chain(write(tmp_path, ROWS, EDGES), "piper", copies=1).chain
    # What recompute adds to the time is the forward.
    assert [layer.forward_ns for layer in chain.layers] == [10, 15]
    assert [layer.backward_ns for layer in chain.layers] == [20, 35]
    assert [layer.weight_bytes for layer in chain.layers] == [100, 200]
    assert [layer.saved_bytes for layer in chain.layers] == [64, 32]
    assert chain.layers[0].activation_bytes == 16
    assert chain.input_bytes == 8


def test_the_sums_are_those_of_the_publication() -> None:
    """Of all nodes: 972.864 ms on one GPU, 381.699 ms on eight with recompute."""
    profile, _ = import_degrees(TABLES / "variants.json")
    assert [variant.tensor for variant in profile.variants] == [1, 2, 4, 8]
    alone, eight = (profile.variants[place].chain.layers for place in (0, -1))
    assert sum(layer.forward_ns + layer.backward_ns for layer in alone) == 972_864_000
    assert sum(2 * layer.forward_ns + layer.backward_ns for layer in eight) == 381_699_000


def changed(row: int, column: str, value: object) -> Callable[[list[list[Any]]], None]:
    def change(rows: list[list[Any]]) -> None:
        rows[row][COLUMNS.index(column)] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(3, "variant", "half"), r"variants.json: rows\[3\].variant: 'half' is not known"),
        (
            changed(3, "time_ns", 20),
            r"variants.json: rows\[3\].time_ns: recompute takes 20 ns, and 30",
        ),
        (changed(3, "time_ns", 61), r"rows\[3\].time_ns: recompute takes 61 ns, and 30 ns without"),
        (changed(3, "node", 2), r"rows\[4\].name: node 2 is also called 'first'"),
        (changed(2, "time_ns", "30"), r"variants.json: rows\[2\].time_ns: '30' is not a number"),
        (changed(2, "tp", 0), r"variants.json: rows\[2\].tp: 0 is not a whole number from 1"),
        (
            lambda rows: rows.pop(),
            r"rows\[4\].variant: node 2 has no 'recompute' with tensor degree 1",
        ),
        (lambda rows: rows.append(rows[-1]), r"rows\[6\].variant: node 2 has it twice"),
    ],
)
def test_tables_that_are_wrong(
    change: Callable[[list[list[Any]]], None], words: str, tmp_path: Path
) -> None:
    rows = [[*row] for row in ROWS]
    change(rows)
    with pytest.raises(InputError, match=words):
        import_chain(write(tmp_path, rows, EDGES), "piper")


def test_edges_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS, None)
    with pytest.raises(InputError, match=r"edges.json: no such file"):
        import_degrees(path)
    shutil.copy(path, tmp_path / "edges.json")
    with pytest.raises(InputError, match=r"edges.json: source: is not a column"):
        import_degrees(path)


def test_a_degree_that_a_node_lacks_is_told(tmp_path: Path) -> None:
    rows = [*ROWS, *([*row[:2], 2, *row[3:]] for row in ROWS[:4])]
    profile, notes = import_degrees(write(tmp_path, rows, EDGES))
    assert profile.degrees == (1,)
    assert notes[-1] == "Tensor degrees 2 are left out: not all nodes have them."
