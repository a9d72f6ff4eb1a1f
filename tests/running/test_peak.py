"""The most that lies on each rank at once, operations included: as predicted, to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from schedopt import Chain, Layer, Plan, Platform, Scope, Stage, solve
from schedopt.account import memory
from schedopt.cli.run_tables import print_report
from schedopt.profiling import Model, load_model
from schedopt.running import Job, execute
from schedopt.running.controller import make_meter, weights_bytes
from schedopt.running.figures import predict
from schedopt.simulation import simulate
from schedopt.units import format_bytes
from tests.running.exact_layers import exact_chain, exact_model
from tests.running.local_run import place, profile_of, start

COUNTS = (1, 2, 6, 12)
Row = tuple[int, int, int, tuple[tuple[int, int], ...]]


def row(first: int, last: int, gpu: int, *again: tuple[int, int]) -> Row:
    return first, last, gpu, again


FOUR = ((0, 1), (2, 3), (4, 5), (6, 7))
PLANS: dict[str, tuple[Sequence[Row], dict[str, Any]]] = {
    "contiguous": ([row(*ends, gpu) for gpu, ends in enumerate(FOUR)], {}),
    "one stage": ([row(0, 7, 0)], {}),
    "several stages on a GPU": ([row(*ends, gpu % 2) for gpu, ends in enumerate(FOUR)], {}),
    "k = 2": ([row(*ends, gpu) for gpu, ends in zip((0, 1, 0, 2), FOUR, strict=True)], {"k": 2}),
    "recompute": ([row(0, 1, 0, (0, 1)), row(2, 5, 1, (3, 4)), row(6, 7, 2)], {}),
    "recompute, several stages on a GPU": (
        [row(0, 1, 0, (0, 1)), row(2, 3, 1, (2, 3)), row(4, 5, 0), row(6, 7, 1, (6, 6))],
        {},
    ),
    # Of a split stage of several layers not all halves lie there before the first saved is gone.
    "split backward": ([row(0, 2, 0), row(3, 3, 1), row(4, 4, 2), row(5, 7, 0)], {"split": (1, 2)}),
    "all, k = 2": (
        [row(0, 2, 0, (1, 2)), row(3, 3, 1), row(4, 6, 0, (5, 6)), row(7, 7, 1)],
        {"split": (1, 3), "k": 2},
    ),
}
STAR = "1F1B*"


def plain(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Return an optimizer that keeps nothing."""
    return torch.optim.SGD(parameters, 0.1)


@cache
def planned(name: str) -> Plan:
    if name == STAR:
        platform = Platform(gpus=4, memory=24_000, bandwidth=10**11)
        found = solve(exact_chain(), platform, scope=Scope(), solver="contiguous", workers=1).plan
        assert found is not None
        return found
    rows, more = PLANS[name]
    stages = [Stage(layers=(a, b), gpus=(gpu,), recompute=again) for a, b, gpu, again in rows]
    return place(exact_chain(), *stages, **more)


def measured(plan: Plan, model: Model, count: int) -> list[tuple[int, int | None]]:
    """Return the peak of each rank, and what lies there between its operations."""
    local = start(plan, model, count, plain)
    local.step()
    for rank in local.ranks:
        rank.meter = make_meter(rank)
    local.step()
    found: list[tuple[int, int | None]] = []
    for rank in local.ranks:
        assert rank.meter is not None
        found.append((weights_bytes(rank) + rank.meter.most, rank.most_saved))
    return found


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", [*PLANS, STAR])
def test_layers_of_known_bytes(name: str, count: int) -> None:
    plan = planned(name)
    model = exact_model(plan.stages, () if name == STAR else PLANS[name][1].get("split", ()))
    wanted = predict(simulate(plan, count))
    both = zip(wanted.memory_bytes, wanted.saved_bytes, strict=True)
    assert measured(plan, model, count) == list(both)


@pytest.mark.parametrize("name", [*PLANS, STAR])
def test_a_long_step_needs_what_the_plan_needs_and_a_short_one_no_more(name: str) -> None:
    plan = planned(name)
    whole = [need.peak_bytes for need in memory(plan)]
    steps = [predict(simulate(plan, count)).memory_bytes for count in (*COUNTS, 40)]
    assert list(steps[-1]) == whole
    for step in steps:
        assert all(need <= most for need, most in zip(step, whole, strict=True))


def linears() -> tuple[nn.Module, torch.Tensor, Any]:
    layers = [nn.Linear(16, 16, bias=False) for _ in range(8)]
    return nn.Sequential(*layers), torch.randn(32, 16), torch.mean


NAME = f"{__name__}:{linears.__name__}"


@cache
def profiled() -> Chain:
    return profile_of(load_model(NAME))


WHOLE = ("contiguous", "one stage", "several stages on a GPU", "k = 2")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_profiled_model_and_all_that_a_run_says(
    name: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = place(profiled(), *planned(name).stages, k=planned(name).pattern.k)
    job = Job(plan=plan, model=NAME, backend="logical", microbatches=count, steps=1)
    report = execute(job)
    document = json.loads(json.dumps(report.to_json()))
    assert report.measured.memory_bytes == report.predicted.memory_bytes
    assert document["measured"]["memory_bytes"] == document["predicted"]["memory_bytes"]
    whole = [need.peak_bytes for need in memory(plan)]
    assert document["plan_memory_bytes"] == whole
    print_report(report)
    printed = " ".join(capsys.readouterr().out.split())
    need = format_bytes(report.predicted.memory_bytes[0])
    assert f"peak {need} {need} +0.0% 1.00 TB" in printed
    shorter = list(report.predicted.memory_bytes) != whole
    assert shorter == (count < 4 and name != "one stage")
    assert ("Note: so short a step" in printed) == shorter


def test_the_largest_workspace_meets_what_the_layers_up_to_its_own_save() -> None:
    """What the layer behind saves, 4000 bytes, is not there while the first one has its workspace.

    One micro-batch is in flight.
    """
    sizes: dict[str, Any] = {"weight_bytes": 4, "activation_bytes": 0}
    first = Layer(forward_ns=1, backward_ns=1, saved_bytes=6000, workspace_bytes=10_000, **sizes)
    last = Layer(forward_ns=1, backward_ns=1, saved_bytes=4000, workspace_bytes=100, **sizes)
    plan = place(Chain(layers=(first, last), input_bytes=0), Stage(layers=(0, 1), gpus=(0,)))
    report = execute(Job(plan=plan, model=None, backend="logical", microbatches=2, steps=1))
    (predicted,), (measured,) = report.predicted.memory_bytes, report.measured.memory_bytes
    assert predicted == 8 + 6000 + 4000 + 10_000
    assert 0 <= measured - (8 + 6000 + 10_000) < 64


def test_synthetic_layers_keep_their_input_once() -> None:
    chain = replace(exact_chain(), input_bytes=10_000)
    plan = place(
        chain, Stage(layers=(0, 3), gpus=(0,), recompute=((0, 3),)), Stage(layers=(4, 7), gpus=(1,))
    )
    report = execute(Job(plan=plan, model=None, backend="logical", microbatches=6, steps=1))
    for found, wanted in zip(
        report.measured.saved_bytes, report.predicted.saved_bytes, strict=True
    ):
        assert found is not None
        assert wanted is not None
        assert 0 <= found - wanted < 64
