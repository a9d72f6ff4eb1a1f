"""Whether torch's runtime and ours make of a plan the gradients of the unsplit model."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules

from schedopt.actions import Actions, make_actions
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.running.torch_rank import TorchRuntime
from schedopt.stage import Stage
from tests import examples
from tests.running.networks import CASES, buffers, gradients, in_turn, run_unsplit
from tests.running.ranks import ENGINES, RANKS, STEPS, relative_difference

FAILING = {"fails-forward": "forward", "fails-backward": "backward"}
RUNNING = sorted(CASES.keys() - FAILING.keys())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each rank of each plan gave."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from tests.running.ranks import run_all; run_all({rank}, {str(folder)!r})",
            ],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    end = time.monotonic() + 120
    told: list[str] = []
    try:
        told.extend(
            process.communicate(timeout=max(0.1, end - time.monotonic()))[0] for process in ranks
        )
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert [process.returncode for process in ranks] == [0] * RANKS, "\n".join(told)
    found: dict[str, list[Any]] = {}
    for name, case in CASES.items():
        count = len(make_actions(case.plan(), case.microbatches).ranks)
        for engine in ENGINES:
            key = name if engine == "runtime" else f"{name}.{engine}"
            files = [folder / f"{name}.{engine}.{rank}" for rank in range(count)]
            found[key] = [torch.load(file, weights_only=False) for file in files]
    return found


@pytest.mark.parametrize("engine", ["", ".threads", ".streams"])
@pytest.mark.parametrize("name", RUNNING)
def test_gradients_and_losses_are_those_of_the_unsplit_model(
    name: str, engine: str, results: dict[str, list[Any]]
) -> None:
    model, losses = run_unsplit(CASES[name])
    for parameter in model.module.parameters():
        if engine and parameter.grad is not None:
            parameter.grad /= CASES[name].microbatches
    expected = gradients(model.module)
    assert expected
    for step in range(STEPS):
        of_ranks = results[name + engine]
        [told] = [one for rank in of_ranks if (one := rank[step][2])]
        assert told == pytest.approx(losses, rel=1e-12)
        found = [rank[step][0] for rank in of_ranks]
        assert sorted(key for rank in found for key in rank) == sorted(expected)
        for rank in found:
            for key, gradient in rank.items():
                assert relative_difference(gradient, expected[key]) <= 1e-12, key


def test_buffers_change_once_where_layers_are_computed_again(
    results: dict[str, list[Any]],
) -> None:
    case = CASES["recomputed"]
    model, _ = run_unsplit(case)
    expected = buffers(model.module)
    assert len(expected) == 4
    # Layer 1 is computed again, layer 2 is not.
    found = results["recomputed"][0][0][3]
    for key, buffer in expected.items():
        assert relative_difference(found[key], buffer) <= 1e-12, key


@pytest.mark.parametrize("name", RUNNING)
def test_operations_run_in_the_order_of_the_plan(name: str, results: dict[str, list[Any]]) -> None:
    actions = make_actions(CASES[name].plan(), CASES[name].microbatches)
    for number, (rank, own) in enumerate(zip(results[name], actions.ranks, strict=True)):
        expected = [
            f"{action.stage}{action.kind}{one}"
            for action in own
            if action.kind in ("F", "B", "I", "W")
            for one in action.micro_batches
        ]
        for _, spans, *_ in rank:
            assert [(whose, action) for whose, action, _, _ in spans] == [
                (number, action) for action in expected
            ]
            moments = [moment for _, _, *both in spans for moment in both]
            assert moments == sorted(moments)


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_layer_is_named(name: str, results: dict[str, list[Any]]) -> None:
    place = "layer 1" if name == "fails-forward" else "layer 0 to 2"
    [[told]] = results[name]
    assert told.startswith(f"{place}: its {FAILING[name]} raised RuntimeError: no luck")


def refused(plan: Plan, actions: Actions, field: str) -> str:
    with pytest.raises(InputError) as caught:
        runtime(plan, actions)
    assert caught.value.field == field
    return str(caught.value)


def runtime(plan: Plan, actions: Actions) -> TorchRuntime:
    return TorchRuntime(
        plan, actions, 0, [], [], torch.device("cpu"), lambda number: {}, lambda layer, number: None
    )


def test_updates_within_a_step_are_refused() -> None:
    for plan in (examples.covering(), examples.double_buffered()):
        told = refused(plan, make_actions(plan, 4), "rule.update_every")
        assert "updated within a step: " in told


def test_replicas_are_refused() -> None:
    actions = make_actions(examples.contiguous(), 2)
    told = refused(examples.data_parallel(), actions, "stages[0].gpus")
    assert "stage 0 lies on 2 GPUs" in told
    assert "backend p2p" in told


def test_a_split_backward_with_recompute_is_refused() -> None:
    plan = in_turn((0, 0, 0), (1, 1, 1), split=(1,))()
    again = replace(
        plan, stages=(plan.stages[0], Stage(layers=(1, 1), gpus=(1,), recompute=((1, 1),)))
    )
    told = refused(again, make_actions(plan, 2), "stages[1].recompute")
    assert "stage 1 is computed again" in told


def test_a_torch_without_the_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(schedules, "_PipelineScheduleRuntime")
    plan = examples.contiguous()
    told = refused(plan, make_actions(plan, 2), "backend")
    assert f"torch {torch.__version__} have no _PipelineScheduleRuntime" in told
    assert "2.11 to 2.13" in told
