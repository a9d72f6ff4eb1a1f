"""Ranks in processes of their own: what they make of a plan is what one process makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules

from schedopt import InputError, Plan, Platform, Stage, check
from schedopt.actions import Actions, gpu_ranks, make_actions
from schedopt.running import Job, execute
from schedopt.running.controller import MicroBatches
from schedopt.running.torch_runtime import TorchRuntime
from schedopt.running.trained import put_together
from tests import examples
from tests.running import by_hand, faulty
from tests.running.by_hand import ByHand
from tests.running.faulty import fresh, overlapped, stashing
from tests.running.local_run import (
    MOST,
    apart,
    assert_trained,
    gradients,
    prepare,
    profile_of,
    train_unsplit,
)
from tests.running.networks import CASES, buffers, placed
from tests.running.pool import execute_warm, warm_ranks
from tests.running.rank_jobs import (
    LINKS,
    REPLICATED,
    STEPS,
    run_case,
    run_replicated,
)
from tests.running.replicated import replicated_plan

pytestmark = pytest.mark.torch

FAILING = {"fails-forward": "forward", "fails-backward": "backward"}
RUNNING = sorted(CASES.keys() - FAILING.keys())


@cache
def ran(name: str, engine: str) -> list[Any]:
    """Return what each rank of a plan gave."""
    return warm_ranks().run(run_case, len(gpu_ranks(CASES[name].plan())), name, engine)


SLOW = ("gpt2-general", "gpt2-dropout")
"""Cases that only torch's runtime runs by day."""


def engines_of(names: Iterable[str]) -> list[Any]:
    """Return names with each kind of links, of which by day each second name has the other."""
    return [
        pytest.param(
            *(name, engine),
            marks=[pytest.mark.nightly] if name in SLOW or (turn + place) % 2 else [],
        )
        for turn, name in enumerate(names)
        for place, engine in enumerate(LINKS)
    ]


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "runtime") for name in RUNNING),
        *engines_of(RUNNING),
    ],
)
def test_gradients_and_losses_are_those_of_the_unsplit_model(name: str, engine: str) -> None:
    case = CASES[name]
    module, losses = train_unsplit(case.model, case.microbatches)
    count = 1 if engine == "runtime" else case.microbatches
    expected = {key: one / count for key, one in gradients(module).items()}
    assert expected
    for step in range(STEPS):
        of_ranks = [rank[step] for rank in ran(name, engine)]
        [found] = [losses for _, _, losses, _ in of_ranks if losses]
        assert found == pytest.approx(losses, rel=MOST)
        assert sorted(key for own, *_ in of_ranks for key in own) == sorted(expected)
        for key, gradient in (pair for own, *_ in of_ranks for pair in own.items()):
            assert apart(gradient, expected[key]) <= MOST, key
    if engine == "runtime":
        assert_in_order(name)


def assert_in_order(name: str) -> None:
    """The runtime keeps the order of the plan."""
    actions = make_actions(CASES[name].plan(), CASES[name].microbatches)
    for number, (rank, own) in enumerate(zip(ran(name, "runtime"), actions.ranks, strict=True)):
        expected = [
            (number, f"{action.stage}{action.kind}{i}")
            for action in own
            if action.kind in ("F", "B", "I", "W")
            for i in action.micro_batches
        ]
        for _, spans, *_ in rank:
            assert [(whose, action) for whose, action, _, _ in spans] == expected
            moments = [moment for _, _, *both in spans for moment in both]
            assert moments == sorted(moments)


def test_buffers_change_once_where_layers_are_recomputed() -> None:
    case = CASES["recomputed"]
    expected = buffers(train_unsplit(case.model, case.microbatches)[0])
    assert len(expected) == 4
    # Layer 1 is recomputed, layer 2 is not.
    found = ran("recomputed", "runtime")[0][0][3]
    for key, buffer in expected.items():
        assert apart(found[key], buffer) <= MOST, key


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_layer_is_named(name: str) -> None:
    place = "layer 1" if name == "fails-forward" else "layer 0 to 2"
    [message] = ran(name, "runtime")
    assert message.startswith(f"{place}: its {FAILING[name]} raised RuntimeError: no luck")


def refused(plan: Plan, actions: Actions, field: str) -> str:
    with pytest.raises(InputError) as caught:
        runtime(plan, actions)
    assert caught.value.field == field
    return str(caught.value)


def runtime(plan: Plan, actions: Actions) -> TorchRuntime:
    work, *_ = prepare(examples.contiguous(), by_hand.net(), 2)
    return TorchRuntime(replace(work, plan=plan, actions=actions), 0)


def test_plans_that_the_runtime_cannot_run_are_refused() -> None:
    for plan in (examples.covering(), examples.double_buffered()):
        message = refused(plan, make_actions(plan, 4), "rule.update_every")
        assert "updated within a step: " in message
    actions = make_actions(examples.contiguous(), 2)
    message = refused(examples.data_parallel(), actions, "stages[0].gpus")
    assert "stage 0 lies on 2 GPUs" in message
    assert "backend p2p" in message
    plan = placed((0, 0, 0), (1, 1, 1), split=(1,))()
    both = (plan.stages[0], Stage(layers=(1, 1), gpus=(1,), recompute=((1, 1),)))
    message = refused(replace(plan, stages=both), make_actions(plan, 2), "stages[1].recompute")
    assert "stage 1 is computed again" in message


def test_a_torch_without_the_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(schedules, "_PipelineScheduleRuntime")
    plan = examples.contiguous()
    message = refused(plan, make_actions(plan, 2), "backend")
    assert f"torch {torch.__version__} have no _PipelineScheduleRuntime" in message
    assert "2.11 to 2.13" in message


@pytest.mark.parametrize(("name", "engine"), engines_of(REPLICATED))
def test_replicas_make_the_gradients_and_weights_of_formulas(name: str, engine: str) -> None:
    plan, count = replicated_plan(name, profile_of(by_hand.net()))
    found = warm_ranks().run(run_replicated, len(gpu_ranks(plan)), plan, count, engine)
    model = by_hand.net()
    batches = MicroBatches(model, count, 0, torch.device("cpu"))
    hand: ByHand | None = None
    for step in range(STEPS):
        batches.load(step)
        inputs = [batches(i, ["input"])["input"] for i in range(count)]
        hand = ByHand(plan, model, inputs, "sgd", after=hand)
        hand.train()
        assert_trained(put_together([rank[step] for rank in found]), hand)


@pytest.mark.parametrize("backend", ["logical", "p2p"])
@pytest.mark.parametrize("make", [stashing, overlapped, fresh])
def test_a_job_agrees_with_one_process(make: Any, backend: Any) -> None:
    job = Job(plan=make(), model=faulty.BUILD, backend=backend, microbatches=6, steps=1)
    report = execute(job) if backend == "logical" else execute_warm(job)
    assert report.outcome.agrees
    most = 0.0 if make is stashing else 1e-6
    for difference in (report.outcome.gradient_difference, report.outcome.weight_difference):
        assert difference is not None
        assert difference <= most
    assert report.measured.live == report.predicted.live
    assert report.measured.weights_bytes == report.predicted.weights_bytes
    document = report.to_json()
    assert len(document["losses"]) == 1
    assert len(document["versions"]) == len(job.plan.stages)
    assert (max(document["versions"]) > 1) == (make is not overlapped)
    if backend == "p2p" and make is not stashing:
        assert report.measured.transfers == report.predicted.transfers > 0
    kinds = {span.action.kind for span in report.planned}
    sent = {stashing: {"F"}, overlapped: {"SEND_G"}, fresh: {"SEND_G", "SEND_V"}}
    assert kinds >= sent[make]


@pytest.mark.parametrize(
    ("make", "message"), [(stashing, "p2p"), (overlapped, r"stage 0 lies on 2 GPUs.*p2p")]
)
def test_the_runtime_of_torch_refuses_updates_and_replicas(make: Any, message: str) -> None:
    plan = make()
    job = Job(plan=plan, model=faulty.BUILD, backend="pytorch", microbatches=4)
    with pytest.raises(InputError, match=message):
        execute_warm(job)


@pytest.mark.parametrize("backend", ["logical", "p2p"])
def test_synthetic_layers_send_what_the_plan_sends(backend: Any) -> None:
    platform = Platform(gpus=2, memory="1T", bandwidth=10**5, duplex="full")
    plan = overlapped(platform=platform, unit_ns=10**6)
    assert check(plan) == ()
    job = Job(plan=plan, model=None, backend=backend, microbatches=4, steps=1)
    report = execute(job) if backend == "logical" else execute_warm(job)
    assert report.measured.live == report.predicted.live
    if backend == "p2p":
        assert report.measured.transfers == report.predicted.transfers
        assert report.measured.transfers_ns >= report.predicted.transfers_ns
