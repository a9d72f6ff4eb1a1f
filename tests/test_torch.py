"""Whether a training script of one's own gets the stages, the order and the gradients of a plan."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from schedopt import Chain, InputError, Platform, Result, Scope, check, solve
from schedopt.examples import train_pipeline
from schedopt.plan import Plan
from schedopt.profiling import as_model, profile
from schedopt.torch import pipeline, split
from tests import examples
from tests.running.local_run import apart, place
from tests.running.networks import stages_of
from tests.running.pool import warm_ranks
from tests.torch_ranks import (
    MICROBATCHES,
    MODELS,
    RANKS,
    STEPS,
    Built,
    batch,
    dropping,
    gradients,
    run_example,
    run_readme,
    run_rows,
    sequential,
    steady,
    train,
)

pytestmark = pytest.mark.torch


def chain_of(factory: Callable[[], Built]) -> Chain:
    return profile(as_model(factory(), factory="tests:any"), warmup=0, repeats=2)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """Return a plan of each case, made for its model."""
    example = chain_of(train_pipeline.build)
    solved = solve(example, Platform(RANKS, 10**9), scope=Scope(allocation="contiguous")).plan
    assert solved is not None
    four, drops = chain_of(sequential), chain_of(dropping)
    two = (0, 1, 0), (2, 3, 1)
    found = {
        "example": solved,
        "spread": place(four, *stages_of((0, 0, 0), (1, 1, 1), (2, 2, 1), (3, 3, 0)), split=(2,)),
        "again": place(drops, *stages_of(*two, recompute=((0, 1), (3, 3)))),
        "kept": place(drops, *stages_of(*two)),
    }
    for name, plan in found.items():
        assert check(plan) == (), name
    return found


@pytest.fixture(scope="module")
def folder(plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the plans are."""
    folder = tmp_path_factory.mktemp("plans")
    for name, plan in plans.items():
        Result(problem=plan.problem, plan=plan, status="feasible").save(folder / f"{name}.json")
    return str(folder)


def ran(job: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
    """Return what each rank gave."""
    return warm_ranks().run(job, RANKS, *args, **more)


def unsplit(factory: Callable[[], Built]) -> list[tuple[float, dict[str, Tensor]]]:
    """Return loss and gradients of the whole model after each step."""
    model, _ = factory()
    every = {id(parameter) for parameter in model.parameters()}
    told = []
    for step in range(STEPS):
        parts = zip(*(one.chunk(MICROBATCHES) for one in batch(step).values()), strict=True)
        mean = torch.stack([model(*part).sum() for part in parts]).mean()
        mean.backward()  # type: ignore[no-untyped-call]
        told.append((float(mean.detach()), gradients(model, every)))
    return told


@pytest.mark.parametrize("name", ["spread", "rows"])
def test_losses_and_gradients_are_those_of_the_unsplit_model(name: str, folder: str) -> None:
    found = ran(run_rows, folder) if name == "rows" else ran(train, name, folder)
    for step, (loss, expected) in enumerate(unsplit({"rows": steady, **MODELS}[name])):
        of_ranks = [rank[step] for rank in found]
        [told] = [float(one) for one, _ in of_ranks if one is not None]
        assert told == pytest.approx(loss, rel=1e-12)
        assert sorted(key for _, own in of_ranks for key in own) == sorted(expected)
        for _, own in of_ranks:
            for key, gradient in own.items():
                assert apart(gradient, expected[key]) <= 1e-12, key


def test_layers_that_are_computed_again_draw_the_same_numbers(folder: str) -> None:
    for steps in zip(ran(train, "again", folder), ran(train, "kept", folder), strict=True):
        for (loss, again), (other, kept) in zip(*steps, strict=True):
            assert (loss is None) == (other is None)
            assert loss is None or float(loss) == float(other)
            assert again.keys() == kept.keys()
            assert any(gradient.abs().max() > 0 for gradient in kept.values())
            for key, gradient in again.items():
                assert torch.equal(gradient, kept[key]), key


def test_the_example_trains(folder: str) -> None:
    first, last = ran(run_example, folder, in_group=False)
    assert first == ""
    losses = [float(one) for one in re.findall(r"^step \d+: loss (\S+)$", last, re.MULTILINE)]
    [evaluated] = [
        float(one) for one in re.findall(r"^evaluation: loss (\S+)$", last, re.MULTILINE)
    ]
    assert len(losses) == last.count("\n") - 1 == train_pipeline.STEPS
    assert [*losses, evaluated] == pytest.approx(trained_unsplit(), abs=0.002)
    # At first any of 256 bytes is as likely as any other: ln 256 = 5.5.
    assert losses[0] > 5
    assert losses[-1] < 0.75 * losses[0]


def test_the_lines_of_the_readme_train(folder: str) -> None:
    model, _ = train_pipeline.build()
    whole = model(**train_pipeline.draw(16 * train_pipeline.SIZE, 0))
    first, last = ran(run_readme, folder)
    assert first is None
    assert float(last) == pytest.approx(float(whole.detach()), rel=1e-4)


def trained_unsplit() -> list[float]:
    """Return the losses of the example where one process trains the whole model, and evaluates."""
    model, _ = train_pipeline.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=train_pipeline.RATE)
    told = []
    for step in range(train_pipeline.STEPS):
        loss = model(**train_pipeline.draw(train_pipeline.MICROBATCHES * train_pipeline.SIZE, step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train_pipeline.NORM)
        optimizer.step()
        optimizer.zero_grad()
        told.append(float(loss.detach()))
    count = train_pipeline.MICROBATCHES * train_pipeline.SIZE
    return [*told, float(model(**train_pipeline.draw(count, train_pipeline.STEPS)).detach())]


def test_a_stage_is_a_module_that_takes_inputs_by_name(plans: dict[str, Plan]) -> None:
    model, inputs = train_pipeline.build()
    value: tuple[Tensor, ...] = ()
    for rank, takes in enumerate([("tokens",), ("following",)]):
        [(number, module)] = split((model, inputs), plans["example"], rank=rank).items()
        assert (number, module.inputs) == (rank, takes)
        value = (module(*value, **{name: inputs[name] for name in takes}),)
    assert float(value[0].detach()) == pytest.approx(float(model(**inputs).detach()), rel=1e-6)
    assert list(split(sequential(), plans["spread"], rank=0)) == [0, 3]


def told(**given: Any) -> str:
    with pytest.raises(InputError) as caught:
        split(**given)
    return str(caught.value)


def test_what_does_not_fit_is_refused(plans: dict[str, Plan]) -> None:
    plan = plans["kept"]
    assert "was made for tests:any" in told(model=sequential(), plan=plans["example"], rank=0)
    assert "rank: 2 " in told(model=dropping(), plan=plan, rank=2)
    assert "no process group" in told(model=dropping(), plan=plan)
    bare = replace(plan, chain=replace(plan.chain, recipe=None))
    assert "chain.recipe: it does not say where" in told(model=dropping(), plan=bare, rank=0)
    broken = replace(plan, stages=plan.stages[:1])
    assert "plan: it is not valid: " in told(model=dropping(), plan=broken, rank=0)
    assert "plan: 3 is not a Plan" in told(model=dropping(), plan=3, rank=0)
    assert "the factory returned" in told(model=(1,), plan=plan, rank=0)


def test_a_process_group_of_another_size_is_refused(plans: dict[str, Plan]) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
    try:
        with pytest.raises(InputError, match="3 processes, and the plan has stages on 2 GPUs"):
            pipeline(dropping(), plans["kept"], MICROBATCHES)
        with pytest.raises(InputError, match="updated within a step"):
            pipeline(dropping(), examples.covering(), MICROBATCHES)
    finally:
        dist.destroy_process_group()


def test_inputs_that_do_not_fit_are_refused(plans: dict[str, Plan]) -> None:
    alone = place(plans["kept"].chain, *stages_of((0, 1, 0), (2, 3, 0)))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        pipe = pipeline(dropping(), alone, MICROBATCHES)
        with pytest.raises(InputError, match=r"^input: is missing\. Give .* input"):
            pipe.step()
        with pytest.raises(InputError, match=r"is of shape \(11, 4\), and 4 .*\(12, 4\)"):
            pipe.step(torch.zeros(11, 4))
        with pytest.raises(InputError, match=r"2 given by position, .* input\. Give them by these"):
            pipe.step(torch.zeros(12, 4), torch.zeros(12, 4))
        with pytest.raises(InputError, match="3 is not a tensor"):
            pipe.step(3)  # type: ignore[arg-type]
        value = batch(0)["input"]
        torch.manual_seed(0)
        whole = pipe.step(value)
        torch.manual_seed(0)
        assert torch.equal(torch.stack([whole]), torch.stack([pipe.step(input=value)]))  # type: ignore[list-item]
    finally:
        dist.destroy_process_group()
