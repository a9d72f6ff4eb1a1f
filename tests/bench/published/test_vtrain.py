"""What follows the backwards of vTrain's runs, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schedopt.bench.published.prediction import Prediction
from schedopt.bench.published.tables import Tables
from schedopt.bench.published.vtrain import COLUMNS, predict_all

HIDDEN, LAYERS, VOCABULARY = 1024, 8, 51200
CARD, LINK, MEMORY = 12.5, 300, 1555
"""Bytes per ns."""
SHAPE = {
    **{"parameters_billion": 0.2, "mbs": 1, "hidden": HIDDEN, "heads": 16, "layers": LAYERS},
    **{"sequence": 512, "microbatches": 4},
}


def write(folder: Path, hardware: str, lines: list[dict[str, Any]]) -> Tables:
    columns = COLUMNS.split()
    rows = [[line[name] for name in columns] for line in lines]
    document = {"format": "schedopt-data/1", "hardware": hardware, "notes": []}
    path = folder / "vtrain" / "runs.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**document, "columns": columns, "rows": rows}))
    return Tables(folder)


@pytest.mark.parametrize(
    ("hardware", "tensor", "replicas", "rate"),
    [
        # Four replicas lie in each node: the ring leaves it over four cards.
        ("GPUs, 8 a node", 2, 16, 4 * CARD),
        ("GPUs", 2, 16, 4 * CARD),
        ("GPUs, 4 a node", 2, 16, 2 * CARD),
        ("GPUs, 8 a node", 8, 16, CARD),
        ("GPUs, 8 a node", 16, 2, CARD),
        # Four and two in its nodes, or two and four.
        ("GPUs, 8 a node", 2, 6, 2 * CARD),
        ("GPUs, 8 a node", 2, 4, LINK),
        # Faster than the links of a node is no ring.
        ("GPUs, 64 a node", 1, 128, LINK),
    ],
)
def test_a_ring_leaves_a_node_over_the_cards_of_its_replicas(
    hardware: str, tensor: int, replicas: int, rate: float, tmp_path: Path
) -> None:
    same = {**SHAPE, "tp": tensor, "step_ns": 10**9}
    lines = [{**same, "dp": replicas, "pp": 2}, {**same, "dp": 1, "pp": 1}]
    (step,) = (
        one
        for one in predict_all(write(tmp_path, hardware, lines))
        if isinstance(one, Prediction) and one.test == "a"
    )
    head = VOCABULARY / (12 * HIDDEN)

    def behind(stages: int, per_weight: float) -> float:
        weights = (12 * HIDDEN**2 * LAYERS / stages + VOCABULARY * HIDDEN) / tensor
        return weights * (34 / MEMORY + per_weight)

    # Fitted on the other line: four forwards and backwards, three times as long, of one stage.
    layer = (10**9 - behind(1, 0)) / (4 * 4 * (LAYERS + head))
    # The last of two stages has the head: its first forward comes behind one of the first stage,
    # whose last backward comes behind its own.
    passes = 4 * (4 * (LAYERS / 2 + head) + LAYERS / 2)
    ring = 2 * (replicas - 1) / replicas * 4 / rate
    assert step.predict().value == pytest.approx(passes * layer + behind(2, ring), rel=1e-6)
