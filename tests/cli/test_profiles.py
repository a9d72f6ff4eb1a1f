"""``schedopt solve`` with a profile: tensor groups and the size of micro-batches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from schedopt import Result
from schedopt.checking import check
from schedopt.sweeping import Sweep
from tests.cli.commands import printed, run
from tests.solving.test_sizes import PROFILE, chain

MACHINE = ("--gpus", "4", "--mem", "100000", "--bandwidth", "1GB/s", "--time-limit", "20")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    PROFILE.save(path)
    return path


def test_sizes_and_groups_are_chosen(profile: Path) -> None:
    told = json.loads(printed("solve", "--chain", profile, *MACHINE, "--batch", "8", "--json"))
    assert [size["samples"] for size in told["sizes"]] == [1, 2, 4]
    assert told["scope"]["tensor"] is None
    assert told["step_ns"] == min(size["step_ns"] or 10**9 for size in told["sizes"])


def test_groups_that_no_node_holds_are_left_out_and_named(profile: Path, tmp_path: Path) -> None:
    small = ("--gpus", "1", *MACHINE[2:], "--batch", "4")
    told = json.loads(printed("solve", "--chain", profile, *small, "--json"))
    left_out = "tensor groups of 2 GPUs: no node has more than 1"
    assert told["notes"] == [left_out]
    plan, page = tmp_path / "plan.json", tmp_path / "page.html"
    assert f"Left out  {left_out}" in printed("solve", "--chain", profile, *small, "-o", plan)
    printed("report", plan, "-o", page)
    assert left_out in page.read_text()
    forbidden = printed("solve", "--chain", profile, *small, "--tensor-parallel", "1", "--json")
    assert json.loads(forbidden)["notes"] == []


def test_groups_may_be_forbidden(profile: Path) -> None:
    told = printed("solve", "--chain", profile, *MACHINE, "--batch", "8", "--tensor-parallel", "1")
    assert "tensor groups" not in told
    assert "Micro-batches" in told


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "variants: micro-batches of 1, 2 and 4 samples. Choose one (--samples 4), or ask"),
        (("--samples", 3), "--samples: there are no micro-batches of 3 samples. Choose 1 or 2 or"),
        (("--batch", 8, "--tensor-parallel", 8), "no node holds a group of 8 GPUs. Give 4 at most"),
        (("--batch", 3, "--tensor-parallel", 0), "--tensor-parallel: 0 is out of range"),
    ],
)
def test_what_is_refused(profile: Path, more: tuple[str | int, ...], message: str) -> None:
    done = run("solve", "--chain", profile, *MACHINE, *map(str, more))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_sizes_that_were_not_measured_on_one_gpu_are_refused(tmp_path: Path) -> None:
    groups = [variant for variant in PROFILE.variants if variant.tensor > 1]
    replace(PROFILE, variants=tuple(groups)).save(tmp_path / "groups.json")
    done = run("solve", "--chain", tmp_path / "groups.json", *MACHINE, "--batch", "8")
    assert done.returncode == 2
    assert "groups.json: variants: no variant of" in done.stderr


def test_one_size_may_be_asked_for(profile: Path) -> None:
    told = json.loads(printed("solve", "--chain", profile, *MACHINE, "--samples", "2", "--json"))
    assert told["scope"]["microbatches"] is None
    step = ("--batch", "8", "--samples", "2", "--json")
    told = json.loads(printed("solve", "--chain", profile, *MACHINE, *step))
    assert told["scope"]["tensor"] is None
    assert told["scope"]["microbatches"] == 4


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_comparisons_and_sweeps_take_one_size(profile: Path, command: str, tmp_path: Path) -> None:
    output = ("-o", tmp_path / "out.json")
    done = run(command, "--chain", profile, *MACHINE, *output)
    assert done.returncode == 2
    assert "profile.json: variants: micro-batches of 1, 2 and 4 samples" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_a_comparison_has_steps_in_groups(profile: Path, tmp_path: Path) -> None:
    only = ("--systems", "zero_1,schedopt_step", "--microbatches", "4", "--plans", tmp_path)
    printed("compare", "--chain", profile, "--samples", "2", *MACHINE, *only)
    system, ours = (Result.load(tmp_path / f"{name}.json") for name in ("zero_1", "schedopt_step"))
    assert system.problem.degrees == (1,)
    assert ours.problem.degrees == PROFILE.with_size(2).degrees
    assert len(ours.problem.degrees) > 1
    assert system.plan is not None
    assert ours.plan is not None
    assert not check(ours.plan)
    assert ours.plan.pattern.period_total_ns <= system.plan.pattern.period_total_ns


def test_a_sweep_has_steps_in_groups_and_goes_on(profile: Path, tmp_path: Path) -> None:
    machine = ("--gpus", "4", "--bandwidth", "1GB/s", "--time-limit", "20", "--jobs", "1")
    asked = ("sweep", "--chain", profile, "--samples", "2", *machine, "--batch", "8",
             "-o", tmp_path / "sweep.json")  # fmt: skip
    printed(*asked, "--mem", "100000", "--plans", tmp_path / "plans")
    printed(*asked, "--mem", "100000,200000")
    sweep = Sweep.load(tmp_path / "sweep.json")
    assert len(sweep.points) == 2
    assert sweep.chain_sha256 == PROFILE.with_size(2).sha256
    (path,) = (tmp_path / "plans").iterdir()
    plan = Result.load(path).plan
    assert plan is not None
    assert not check(plan)
    assert len(plan.problem.degrees) > 1
    # Of another size it is another sweep.
    other: list[str | Path] = [*asked, "--mem", "100000"]
    other[other.index("--samples") + 1] = "1"
    done = run(*other)
    assert done.returncode == 2
    assert "the sweep is of another chain" in done.stderr


def test_show_prints_variants_and_layers(profile: Path, tmp_path: Path) -> None:
    shown = printed("show", profile)
    assert f"layers in {len(PROFILE.variants)} variants" in shown
    chain(1, 1).save(tmp_path / "chain.json")
    assert "Forward" in printed("show", tmp_path / "chain.json")


def test_a_chain_has_no_groups(tmp_path: Path) -> None:
    chain(1, 1).save(tmp_path / "chain.json")
    more = ("--batch", "8", "--tensor-parallel", "2")
    done = run("solve", "--chain", tmp_path / "chain.json", *MACHINE, *more)
    assert done.returncode == 2
    assert "--tensor-parallel: the chain says nothing of tensor groups" in done.stderr


def test_groups_need_a_batch(tmp_path: Path) -> None:
    chain(1, 1).save(tmp_path / "chain.json")
    done = run("solve", "--chain", tmp_path / "chain.json", *MACHINE, "--tensor-parallel", "2")
    assert done.returncode == 2
    assert "--tensor-parallel: tensor groups are searched for in a training step" in done.stderr
