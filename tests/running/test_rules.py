"""Rules without a flush, a process a rank: weights are those of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schedopt import InputError, Plan, Rule, check
from schedopt.running import Job, execute
from tests.running import faulty


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_model.py").write_text(faulty.MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def stashing() -> Plan:
    """Return a plan whose weights are updated after every micro-batch (PipeDream's stashing)."""
    plan = faulty.plan()
    # The pattern has no operations that update.
    layers = tuple(replace(layer, update_ns=None) for layer in plan.chain.layers)
    plan = replace(plan, chain=replace(plan.chain, layers=layers), rule=Rule(update_every=1))
    assert check(plan) == ()
    return plan


def test_weights_after_many_updates_are_those_of_one_process() -> None:
    plan = stashing()
    report = execute(Job(plan=plan, model="faulty_model:build", backend="p2p", microbatches=6))
    assert report.outcome.weight_difference == 0
    assert report.outcome.gradient_difference == 0
    assert report.measured.live == report.predicted.live
    assert report.measured.weights_bytes == report.predicted.weights_bytes
    held = report.to_json()["versions"]
    assert len(held) == len(plan.stages)
    assert held[0] > 1


def test_the_runtime_of_torch_cannot_run_them() -> None:
    job = Job(plan=stashing(), model="faulty_model:build", backend="pytorch", microbatches=4)
    with pytest.raises(InputError, match="p2p"):
        execute(job)
