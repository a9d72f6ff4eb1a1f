"""What lies in memory on each rank, followed storage by storage, against the account."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import nn

from schedopt import Chain, Plan, Rule, Stage
from schedopt.profiling import Model
from schedopt.profiling.hf import build_model
from schedopt.profiling.saved_tensors import storage_bytes, storage_key
from schedopt.running.controller import make_meter, weights_bytes
from schedopt.running.figures import Figures, predict
from schedopt.simulation import Simulation, simulate
from tests.budgets import nightly_but
from tests.running.local_run import LocalRun, kinds_of_plans, place, profile_of, start

COUNT = 6
HF = {
    "gpt2-tied": "gpt2:layers=2,width=64,heads=2,vocabulary=31",
    "gpt2-dropout": "gpt2:layers=2,width=64,heads=2,vocabulary=31,dropout=0.3",
    "llama": "llama:layers=2,width=64,heads=4,kv_heads=2,mlp=96,vocabulary=31",
    "bert": "bert-base:layers=2,width=64,heads=2,vocabulary=31",
    "vit": "vit-b16:layers=2,width=64,heads=2,classes=5",
    "resnet18": "resnet18:width=16,classes=5",
}
SEQUENTIAL = ("mixed", "normalized")
CHAINS: dict[str, tuple[Model, Chain]] = {}


def layers(name: str) -> list[nn.Module]:
    if name == "normalized":
        return [
            *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True)),
            *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True)),
            *(nn.Linear(64, 64), nn.Identity(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 5)),
        ]
    return [
        *(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64), nn.Tanh()),
        *(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.Dropout(0.3)),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)),
    ]


def measured(name: str) -> tuple[Model, Chain]:
    if name not in CHAINS:
        if name in HF:
            model = build_model(HF[name], batch=4, seq=64, image=64)
        else:
            module = nn.Sequential(*layers(name))
            given = torch.randn(512, 64)
            model = Model(module=module, inputs=given, loss=torch.mean, factory="tests:none")
        CHAINS[name] = model, profile_of(model)
    return CHAINS[name]


def metered(plan: Plan, model: Model) -> LocalRun:
    """Run a step, and a second one under meters."""
    local = start(plan, model, COUNT, torch.optim.AdamW)
    local.step()
    for rank in local.ranks:
        rank.meter = make_meter(rank)
    local.step()
    return local


def most_of(step: Simulation, kinds: Sequence[str]) -> list[int]:
    """Return the most that lies on each rank between operations, of some kinds alone."""
    found = []
    for gpu in sorted({gpu for stage in step.plan.stages for gpu in stage.gpus}):
        lying = [
            residency
            for residency in step.residencies
            if residency.gpu == gpu and residency.kind in kinds
        ]
        starts = [run.start_ns for _, _, run in step.operations() if run.gpu == gpu]
        sums = [
            sum(one.count for one in lying if (one.start_ns or 0) < at < (one.end_ns or 0))
            for at in starts
        ]
        found.append(max(sums))
    return found


def nearly(counts: Iterable[int | None]) -> list[int]:
    return [(count or 0) * 99 // 100 for count in counts]


def assert_bytes(local: LocalRun, wanted: Figures, least: Sequence[int]) -> None:
    """Hold what lies on each rank against the account, and what is saved against the least."""
    for number, rank in enumerate(local.ranks):
        most = wanted.saved_bytes[number]
        assert most is not None
        where = f"rank {number} of {local.plan.stages}: {rank.most_saved} of {most}"
        assert least[number] <= rank.most_saved <= most, where
        assert_weights(local, number, wanted.weights_bytes[number])
        assert rank.meter is not None
        peak = weights_bytes(rank) + rank.meter.most
        assert peak <= wanted.memory_bytes[number] * 1001 // 1000, where


@pytest.mark.parametrize("name", [*nightly_but("gpt2-tied", HF), *SEQUENTIAL])
def test_bytes_of_every_kind_of_plan(name: str) -> None:
    model, chain = measured(name)
    largest = max(layer.activation_bytes for layer in chain.layers)
    for plan in kinds_of_plans(chain, is_slow=name != "mixed").values():
        step = simulate(plan, COUNT)
        wanted = predict(step)
        halves = any(operation.kind == "I" for operation in plan.pattern.operations)
        # The input of a run of layers may be what the layer before saves, or what the run itself
        # saves once it is computed again: it then lies there once, and counts twice.
        sure = nearly(wanted.saved_bytes)
        if any(stage.recompute for stage in plan.stages):
            sure = most_of(step, ("activation", "recomputed", "weight_half"))
        # A sum hands one gradient to all its terms, three embeddings at most: one tensor, which
        # the profile of the weight half of each layer counts.
        shared = 2 * largest if halves and name in HF else 0
        assert_bytes(metered(plan, model), wanted, [least - shared for least in sure])


@pytest.mark.parametrize("delay", [None, 1])
def test_a_version_that_a_backward_reads_counts_once(delay: int | None) -> None:
    model, chain = measured("mixed")
    rows = ((0, 3), (4, 8), (9, len(chain.layers) - 1))
    stages = [Stage(layers=row, gpus=(gpu,)) for gpu, row in enumerate(rows)]
    rule = Rule(update_every=1)
    if delay is not None:
        rule = Rule(update_every=2, forward_reads="delay", delay=delay)
    plan = place(chain, *stages, rule=rule)
    local = metered(plan, model)
    assert any(work.weights.most_held > 1 for rank in local.ranks for work in rank.stages.values())
    wanted = predict(simulate(plan, COUNT))
    assert_bytes(local, wanted, nearly(wanted.saved_bytes))


def assert_weights(local: LocalRun, number: int, wanted: int) -> None:
    """Hold the bytes of weights against the account, which counts a shared buffer each time."""
    rank = local.ranks[number]
    counted = 0
    every: dict[int, int] = {}
    for work in rank.stages.values():
        for module in work.modules:
            own = {storage_key(buffer): storage_bytes(buffer) for buffer in module.buffers()}
            counted += sum(own.values())
            every |= own
    assert weights_bytes(rank) == wanted - (counted - sum(every.values()))
