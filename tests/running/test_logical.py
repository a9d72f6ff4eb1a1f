"""What the ranks of a plan make of a model, against plain torch on the unsplit model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from schedopt import Chain, Plan
from schedopt.profiling import Model
from schedopt.running.reference import emulate
from schedopt.simulation import simulate
from tests.budgets import nightly_but, trials
from tests.profiling.networks import tiny
from tests.random_plans import valid_plans
from tests.running.local_run import (
    MOST,
    LocalRun,
    apart,
    assert_live,
    assert_nothing_left,
    gradients,
    kinds_of_plans,
    profile_of,
    sequential,
    start,
    train_unsplit,
)

COUNT = 6


class Scale(nn.Module):
    """Has one parameter for all, and takes its input on."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(1.5))

    def forward(self, value: Tensor) -> Tensor:
        return value * self.by


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def mixed() -> Model:
    torch.manual_seed(1)
    return sequential(
        nn.Flatten(),
        nn.Tanh(),
        nn.Linear(8, 6),
        nn.BatchNorm1d(6),
        nn.ReLU(inplace=True),
        nn.Identity(),
        nn.Linear(6, 5),
        nn.Unflatten(1, (1, 5)),
        nn.Flatten(),
        Scale(),
        nn.GELU(),
        nn.LayerNorm(5),
        nn.LeakyReLU(inplace=True),
        nn.Linear(5, 3),
        nn.Softmax(dim=1),
        value=torch.randn(4, 2, 4).double(),
    )


def partly_frozen() -> Model:
    torch.manual_seed(2)
    return sequential(
        nn.ReLU(inplace=True),
        frozen(nn.Linear(6, 6)),
        nn.ReLU(inplace=True),
        frozen(nn.LayerNorm(6)),
        nn.Linear(6, 5),
        nn.Tanh(),
        frozen(nn.Linear(5, 5)),
        nn.ReLU(inplace=True),
        nn.Linear(5, 4),
        nn.Identity(),
        frozen(nn.Linear(4, 4)),
        nn.ELU(inplace=True),
        value=torch.randn(3, 6).double(),
    )


def with_dropout() -> Model:
    torch.manual_seed(3)
    return sequential(
        nn.Dropout(0.2),
        nn.Linear(6, 8),
        nn.Dropout(0.5, inplace=True),
        nn.Linear(8, 8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.BatchNorm1d(8),
        nn.Linear(8, 3),
        nn.Dropout(0.1),
        value=torch.randn(5, 6).double(),
    )


SEQUENTIAL = {"mixed": mixed, "frozen": partly_frozen, "dropout": with_dropout}
TRACED = ("gpt2-tied", "llama", "bert", "vit", "resnet18")


@cache
def model_of(name: str) -> Model:
    return SEQUENTIAL[name]() if name in SEQUENTIAL else tiny(name, "float64")


@cache
def chain_of(name: str) -> Chain:
    return profile_of(model_of(name))


def assert_trained_alike(plan: Plan, model: Model) -> None:
    local = start(plan, model, COUNT)
    module, losses = train_unsplit(model, COUNT)
    local.step()
    got, wanted = local.done.gradients, gradients(module)
    assert {name for _, name in got} == wanted.keys()
    for name, gradient in wanted.items():
        assert apart(got[0, name], gradient / COUNT) < MOST, name
    found = {i: loss for rank in local.ranks for i, loss in rank.losses.items()}
    assert found == pytest.approx(losses, rel=MOST)
    if all(is_in_order(local)):
        for name, one in module.named_buffers():
            own = local.model.module.get_buffer(name)
            assert apart(own.double(), one.double()) < MOST, name
    assert_live(local, simulate(plan, COUNT))
    assert_nothing_left(local)


def is_in_order(local: LocalRun) -> Iterator[bool]:
    """Yield for each stage whether its forwards run in the order of micro-batches."""
    for stage in range(len(local.plan.stages)):
        order = [
            action.first
            for _, action in local.work.actions.order
            if (action.kind, action.stage) == ("F", stage)
        ]
        yield order == sorted(order)


@pytest.mark.parametrize("name", [*SEQUENTIAL, *nightly_but("llama", TRACED)])
def test_every_kind_of_plan_trains_like_the_unsplit_model(name: str) -> None:
    for plan in kinds_of_plans(chain_of(name), is_slow=name in TRACED).values():
        assert_trained_alike(plan, model_of(name))


@trials(40)
@given(
    plan_and_name=st.sampled_from(sorted(SEQUENTIAL)).flatmap(
        lambda name: st.tuples(valid_plans(given=chain_of(name)), st.just(name))
    )
)
def test_random_plans_train_like_the_unsplit_model(plan_and_name: tuple[Plan, str]) -> None:
    plan, name = plan_and_name
    assert_trained_alike(plan, model_of(name))


@trials(12)
@given(st.deferred(lambda: valid_plans(given=chain_of("gpt2-tied"))))
def test_random_plans_of_tied_weights(plan: Plan) -> None:
    assert_trained_alike(plan, model_of("gpt2-tied"))


def test_dropout_of_a_traced_model_draws_what_one_process_draws() -> None:
    model = tiny("gpt2-dropout", "float64")
    losses = set()
    for plan in kinds_of_plans(profile_of(model), is_slow=True).values():
        local = start(plan, model, COUNT)
        alone = emulate(local.work)
        local.step()
        assert local.done.gradients.keys() == alone.gradients.keys()
        for key, gradient in alone.gradients.items():
            assert apart(local.done.gradients[key], gradient) < MOST
        losses.add(round(sum(sum(rank.losses.values()) for rank in local.ranks), 9))
        local.step()
        losses.add(round(sum(sum(rank.losses.values()) for rank in local.ranks), 9))
    assert len(losses) == 2, "one for each step, the same for all plans"


class Noise(nn.Module):
    """Drops about half of what it takes, and remembers what."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[tuple[bool, ...]] = []

    def forward(self, value: Tensor) -> Tensor:
        mask = torch.rand_like(value) < 0.5
        if not isinstance(mask, FakeTensor):
            self.masks.append(tuple(mask.flatten().tolist()))
        return value * mask


def test_what_is_computed_again_drops_the_same_elements() -> None:
    layers = [nn.Linear(9, 9), Noise(), nn.Tanh(), nn.Linear(9, 9), Noise(), nn.Linear(9, 9)]
    model = sequential(*layers, Noise(), nn.Linear(9, 5), value=torch.randn(8, 9).double())
    for plan in kinds_of_plans(profile_of(model)).values():
        local = start(plan, model, COUNT)
        noises = {
            number: layer
            for number, layer in enumerate(local.model.module.children())
            if isinstance(layer, Noise)
        }
        for noise in noises.values():
            noise.masks.clear()
        local.step()
        again = {
            layer
            for stage in plan.stages
            for first, last in stage.recompute
            for layer in range(first, last + 1)
        }
        every = []
        for number, noise in noises.items():
            found = noise.masks
            times = 2 if number in again else 1
            assert sorted(found) == sorted([*set(found)] * times)
            assert len(set(found)) == COUNT
            every += list(set(found))
        assert len(set(every)) == len(every)
