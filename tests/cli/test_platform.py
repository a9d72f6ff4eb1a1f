"""Platforms of several nodes on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from schedopt import Platform
from tests.cli.commands import GPT2, ROOT, run, solve_json

TWO = ROOT / "instances" / "two-nodes.platform.json"
STAR = ROOT / "instances" / "three-on-a-switch.platform.json"


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("solved") / "plan.json"
    done = run("solve", "--chain", GPT2, "--platform", TWO, "-o", path)
    assert done.returncode == 0, done.stderr
    assert str(Platform.load(TWO)) in done.stdout
    return path


@pytest.fixture
def plan(solved: Path, tmp_path: Path) -> Path:
    """Return a copy of a plan, for a test to change."""
    return Path(shutil.copy(solved, tmp_path))


def test_a_plan_for_nodes_holds_them_and_is_valid(plan: Path) -> None:
    document = json.loads(plan.read_text())
    nodes = document["platform"]["network"]["nodes"]
    assert [(node["name"], node["gpus"]) for node in nodes] == [("left", 4), ("right", 4)]
    assert nodes[0]["link"]["bandwidth_bytes_per_s"] == 12 * 10**9
    done = run("check", plan)
    assert done.returncode == 0
    assert "left-right 1.00 GB/s" in done.stdout
    shown = run("show", plan).stdout
    assert "left>right" in shown
    assert run("simulate", plan, "--microbatches", "8").returncode == 0


def test_fix_keeps_the_nodes_or_takes_others(plan: Path) -> None:
    before = json.loads(plan.read_text())["pattern"]["period_total_ns"]
    assert solve_json("--fix", plan)["period_ns"] == before
    assert solve_json("--fix", plan, "--mem", "3G")["period_ns"] <= before
    slow = json.loads(TWO.read_text())
    slow["links"][0]["bandwidth"] = "1MB/s"
    other = plan.parent / "slow.json"
    other.write_text(json.dumps(slow))
    document = solve_json("--fix", plan, "--platform", other)
    assert document["status"] == "optimal"
    assert document["period_ns"] > before


def test_show_tells_the_ways_of_a_platform() -> None:
    shown = run("show", STAR).stdout
    for words in ("6 GPUs of 4.00 GB", "one - switch - two", "latency 10.000 us", "0-1", "4.00 GB"):
        assert words in shown


def test_k_periodic_patterns_on_a_switch() -> None:
    document = solve_json("--chain", GPT2, "--platform", STAR, "--max-k", "2", "--time-limit", "5")
    assert document["status"] in ("optimal", "feasible")
    assert document["period_ns"] >= document["lower_bound_ns"]
