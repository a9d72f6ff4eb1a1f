"""Pictures of sweeps: what stands in them, at every size."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from schedopt.sweeping import Options, Point, Sweep, propagate_monotone
from schedopt.sweeping.picture import save_sweep_picture
from tests.drawing.helpers import texts
from tests.sweeping.helpers import CHAIN, point


def sweep_of(*points: Point) -> Sweep:
    return Sweep(
        chain_name="four",
        chain_sha256=CHAIN.sha256,
        options=Options(),
        points=propagate_monotone(points),
    )


SEVERAL = sweep_of(
    point(8 * 10**9, status="infeasible"),
    point(16 * 10**9, 8 * 10**6, 5 * 10**6),
    point(24 * 10**9, 6 * 10**6, 5 * 10**6),
    point(8 * 10**9, gpus=4),
    point(16 * 10**9, 4 * 10**6, 2 * 10**6, gpus=4, bandwidth_bytes_per_s=12 * 10**9),
)


def test_the_picture_says_what_a_reader_looks_for(tmp_path: Path) -> None:
    save_sweep_picture(SEVERAL, tmp_path / "sweep.svg")
    found = texts(tmp_path / "sweep.svg")
    for text in (
        "four: what more memory buys",
        "memory of a GPU in GB",
        "memory of all GPUs in GB",
        "period of a micro-batch in ms",
        "2 GPUs",
        "4 GPUs",
        "free transfers",
        "links of 12.00 GB/s",
        "bound: no plan is below",
        "no plan is possible",
        "no plan found in time",
    ):
        assert text in found, text
    assert any(text.startswith("Pareto") for text in found)


def test_one_number_of_gpus_needs_one_part_and_no_signs_that_are_not_there(tmp_path: Path) -> None:
    save_sweep_picture(sweep_of(point(16, 8, 8), point(24, 7, 7)), tmp_path / "sweep.svg")
    found = texts(tmp_path / "sweep.svg")
    assert "memory of a GPU in B" in found
    for text in ("memory of all GPUs in B", "no plan is possible", "no plan found in time"):
        assert text not in found


@pytest.mark.parametrize(
    "points",
    [
        [],
        [point(16)],
        [point(0, 1)],
        [point(10**9, 7, 7, gpus=1)],
        [
            point(memory * 10**9, 10**6 * (40 - memory) // gpus, gpus=gpus)
            for gpus, memory in product((1, 2, 4, 8), range(8, 28, 2))
        ],
        [
            point(16 * 10**9, 10**6 - rate, gpus=gpus, bandwidth_bytes_per_s=rate)
            for gpus, rate in product(range(1, 14), range(1, 14))
        ],
    ],
    ids=["none", "without a plan", "no memory", "one", "forty", "many lines"],
)
def test_every_size_is_drawn(points: list[Point], tmp_path: Path) -> None:
    save_sweep_picture(sweep_of(*points), tmp_path / "sweep.svg")
    assert "four: what more memory buys" in texts(tmp_path / "sweep.svg")
