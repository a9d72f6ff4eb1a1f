"""``schedopt show`` and ``schedopt simulate``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from schedopt import Platform
from tests.cli.commands import printed, run
from tests.drawing.helpers import result_of
from tests.examples import EXAMPLES


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    result_of(EXAMPLES["contiguous"]()).save(path)
    return path


def test_show_prints_period_bubble_binding_and_the_step(plan: Path) -> None:
    shown = printed("show", plan)
    for text in ("Period 4 ns", "Bubble 0.0%", "Binding: GPU 0 works 100.0%", "F0+0", "GPU 2",
                 "100.0% of 330 B", "A step of 12 micro-batches"):  # fmt: skip
        assert text in shown


@pytest.mark.parametrize("command", ["show", "simulate"])
def test_pictures_are_written_where_one_says(command: str, plan: Path, tmp_path: Path) -> None:
    shown = printed(command, plan, "-o", tmp_path / "picture.svg")
    assert shown == f"Picture written to {tmp_path / 'picture.svg'}\n"
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_simulate_prints_one_document(plan: Path) -> None:
    done = run("simulate", plan, "--microbatches", "2", "--json")
    document = json.loads(done.stdout)
    # GPU 2 is through with micro-batch 1 at 14, and nothing is in its way then: 15, 17, 18, 20.
    assert document["makespan_ns"] == 20
    assert document["microbatches"] == 2
    assert document["busy_ns"] == [8, 8, 8]
    assert document["bubble"] == pytest.approx(1 - 24 / (3 * 20))
    assert document["memory_peak_bytes"] == [210, 434, 330]


def test_simulate_prints_a_step(plan: Path) -> None:
    shown = printed("simulate", plan, "--microbatches", "4", "--timing", "pattern")
    # The last micro-batch starts 12 ns after the first, which takes 20.
    assert "4 micro-batches in 32 ns, 8 ns each" in shown
    assert "Starting 6 ns, all GPUs in use" in shown
    assert "at the times of the pattern" in shown


@pytest.mark.parametrize(("command", "share"), [("show", "100.6%"), ("simulate", "100.5%")])
def test_a_plan_that_is_over_memory_is_drawn_with_a_warning(
    command: str, share: str, tmp_path: Path
) -> None:
    # Its GPUs need 511, 642 and 330 bytes; in a step no gradient waits, so that GPU 1 needs 641.
    valid = EXAMPLES["contiguous"]()
    short = replace(valid, platform=Platform(gpus=3, memory=[509, 638, 330], bandwidth=10**9))
    path = tmp_path / "short.json"
    result_of(short).save(path)
    done = run(command, path, folder=tmp_path)
    assert done.returncode == 5
    assert done.stderr == (
        f"{path}: over memory: GPU 1 needs 4 B more than its 638 B; 1 more GPU too. "
        f"See: schedopt check {path}\n"
    )
    for text in ("GPU 2", f"{share} of 638 B, too much", "100.0% of 330 B, no room"):
        assert text in done.stdout
    picture = run(command, path, "-o", tmp_path / "short.svg")
    assert (picture.returncode, picture.stderr) == (5, done.stderr)
    assert f"{share} of 638 B, too much" in (tmp_path / "short.svg").read_text()
