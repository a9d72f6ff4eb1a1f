"""Runs of plans with tensor groups, whose GPUs have a part of each layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt import Chain, InputError
from schedopt.errors import RankError
from schedopt.profile import Variant
from schedopt.running import Job, execute
from tests.meshes import MICROBATCHES, Shape, plan_on, profiled
from tests.running.pool import execute_warm

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def measured() -> tuple[Chain, tuple[Variant, ...]]:
    """Return the chain of the decoder, and what it is in groups of two."""
    return profiled()


def job(shape: Shape, measured: tuple[Chain, tuple[Variant, ...]], **more: Any) -> Job:
    given = {"model": "tests.meshes:build", "backend": "p2p", **more}
    return Job(plan=plan_on(shape, *measured), microbatches=MICROBATCHES, steps=1, **given)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 1, 2),
        pytest.param(Shape(1, 2, 2, shard="parameter"), marks=pytest.mark.nightly),
        pytest.param(Shape(2, 2, 2, shard="optimizer", recompute=True), marks=pytest.mark.nightly),
        pytest.param(Shape(2, 2, 2, shard="gradient"), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_run_trains_as_one_process_does(
    shape: Shape, measured: tuple[Chain, tuple[Variant, ...]]
) -> None:
    report = execute_warm(job(shape, measured))
    outcome = report.outcome
    assert outcome.gradient_difference is not None
    assert outcome.weight_difference is not None
    assert max(outcome.gradient_difference, outcome.weight_difference) < 1e-9
    assert report.gpus == list(range(shape.gpus))
    assert len(outcome.records) == len(report.predicted.memory_bytes) == shape.gpus
    planned = report.predicted.weights_bytes
    for before, after in zip(planned, report.measured.weights_bytes, strict=True):
        # Chunks are cut between elements, and what lies in two of them is there whole.
        assert abs(before - after) <= (64 if shape.shard in ("none", "optimizer") else before / 10)
    # All of a group do the same, whatever else is counted.
    for figures in (report.predicted, report.measured):
        assert figures.transfers == report.predicted.transfers > 0
    saved = report.measured.saved_bytes
    assert min(one or 0 for one in saved) > 0
    assert report.measured.live == report.predicted.live


def refused(shape: Shape, measured: tuple[Chain, tuple[Variant, ...]], **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(shape, measured, **more)
    return str(caught.value)


def test_what_runs_no_groups_says_so(measured: tuple[Chain, tuple[Variant, ...]]) -> None:
    shape = Shape(2, 1, 2)
    assert "which the backend logical cannot" in refused(shape, measured, backend="logical")
    assert "which the backend pytorch cannot" in refused(shape, measured, backend="pytorch")
    assert "which synthetic layers cannot" in refused(shape, measured, model=None)
    plan = plan_on(shape, *measured)
    first, second = plan.stages
    with pytest.raises(InputError, match="groups of several sizes are not run yet"):
        Job(
            plan=replace(plan, stages=(first, replace(second, tensor=1))),
            model="tests.meshes:build",
            backend="p2p",
            microbatches=MICROBATCHES,
        )


@pytest.mark.nightly
def test_a_process_of_a_group_that_dies_ends_all(
    measured: tuple[Chain, tuple[Variant, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIES", "3")
    asked = job(Shape(2, 1, 2), measured, model="tests.meshes:build_dying", compare=False)
    with pytest.raises(RankError, match="rank 3 was ended by SIGKILL"):
        execute(asked)
