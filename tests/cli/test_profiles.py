"""``schedopt solve`` with a profile: tensor groups and the size of micro-batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def test_groups_may_be_forbidden(profile: Path) -> None:
    told = printed("solve", "--chain", profile, *MACHINE, "--batch", "8", "--tensor-parallel", "1")
    assert "tensor groups" not in told
    assert "Micro-batches" in told


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "micro-batches of 1 and 2 and 4 samples, of which one is chosen for a batch only"),
        (("--batch", 3, "--tensor-parallel", 0), "--tensor-parallel: 0 is out of range"),
    ],
)
def test_what_is_refused(profile: Path, more: tuple[str | int, ...], message: str) -> None:
    done = run("solve", "--chain", profile, *MACHINE, *map(str, more))
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


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
