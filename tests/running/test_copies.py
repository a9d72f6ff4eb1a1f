"""Stages with copies of tied weights train as one model does, and the copies stay alike."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from schedopt import Chain, InputError, Plan, Stage, check
from schedopt.actions import gpu_ranks, make_actions, parse_actions, sent_bytes
from schedopt.plan import Kind
from schedopt.profiling import Model
from schedopt.running import Job
from schedopt.running.rank import Rank
from schedopt.running.trained import put_together
from schedopt.stage import SHARDS, Shard
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from schedopt.tied_weights import copy_tied_weights
from tests.actions.interpreters import run
from tests.budgets import nightly_but, trials
from tests.running.local_run import (
    LocalRun,
    apart,
    assert_nothing_left,
    place,
    profile_of,
    sequential,
    start,
)
from tests.running.pool import warm_ranks
from tests.running.rank_jobs import LINKS, run_replicated
from tests.running.replicated import quick, timed

STEPS: Final = 10
CUTS: Final = ((0, 1), (2, 4), (5, 8))
NONE: Final[tuple[Shard, ...]] = ("none",) * 3
ZERO: Final[tuple[Shard, ...]] = ("optimizer", "none", "optimizer")


@cache
def net() -> Model:
    """Return a model whose first and last but one layers with weights are one."""
    torch.manual_seed(5)
    shared = nn.Linear(6, 6)
    layers = [shared, nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), shared]
    return sequential(*layers, nn.Tanh(), nn.Linear(6, 3), value=torch.randn(5, 6).double())


@cache
def chain() -> Chain:
    return copy_tied_weights(profile_of(net()))


def placed(*gpus: Sequence[int], shards: Sequence[Shard] = NONE) -> list[Stage]:
    rows = zip(CUTS, gpus, shards, strict=True)
    return [Stage(layers=cut, gpus=tuple(own), shard=shard) for cut, own, shard in rows]


def step(stages: Sequence[Stage], microbatches: int, *, split: bool = False) -> Plan:
    """Return a step in which each GPU runs all forwards, then all backwards."""
    config = SystemConfig(
        chain=timed(chain(), 10, 20), platform=quick(12), microbatches=microbatches
    )
    if split:
        halves: Any = {"backward_input_ns": 10, "backward_weight_ns": 10}
        layers = tuple(replace(layer, **halves) for layer in config.chain.layers)
        config = replace(config, chain=replace(config.chain, layers=layers))
    numbers = range(len(stages))
    turns: list[Turn] = [("F", number, i) for i in range(microbatches) for number in numbers]
    kinds: tuple[Kind, ...] = ("I", "W") if split else ("B",)
    for i in range(microbatches):
        turns += [(kind, number, i) for number in reversed(numbers) for kind in kinds]
    plan = flush_step(config, stages, turns, split=split)
    assert check(plan) == ()
    return plan


PLANS: Final[dict[str, tuple[Callable[[], Plan], int]]] = {
    "a GPU each": (lambda: step(placed([0], [1], [2]), 4), 4),
    "replicas": (lambda: step(placed([0, 1], [2], [3, 4, 5]), 6), 6),
    "both on a GPU": (lambda: step(placed([0], [1], [0]), 4), 4),
    "on each other's GPUs": (lambda: step(placed([0, 1], [2], [1, 0]), 4), 4),
    "on some GPUs of both": (lambda: step(placed([0, 1], [2], [0]), 4), 4),
    "halves": (lambda: step(placed([0, 1], [2], [3]), 4, split=True), 4),
    "ZeRO-1": (lambda: step(placed([0, 1], [2], [3, 4, 5], shards=ZERO), 6), 6),
    "ZeRO-1 on some GPUs of both": (
        lambda: step(placed([0, 1], [2], [1, 3, 5], shards=ZERO), 6),
        6,
    ),
    "without updates": (
        lambda: place(chain(), *placed([0], [1], [2])),
        4,
    ),
    "without updates, both on a GPU": (
        lambda: place(chain(), *placed([0], [1], [0])),
        4,
    ),
}


WITH_PROCESSES: Final = ("replicas", "on some GPUs of both", "ZeRO-1 on some GPUs of both")


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def train_plainly(microbatches: int) -> dict[str, torch.Tensor]:
    """Train the model as it is, in plain torch; return its weights after all steps."""
    module = copy.deepcopy(net().module)
    loss: Any = net().loss
    optimizer = momentum(module.parameters())
    local = start(step(placed([0], [1], [2]), microbatches), net(), microbatches)
    for number in range(STEPS):
        local.batches.load(number)
        optimizer.zero_grad()
        for value in local.inputs():
            (loss(module(value)) / microbatches).backward()
        optimizer.step()
    return {name: own.detach() for name, own in module.named_parameters()}


@pytest.mark.parametrize("name", PLANS)
def test_ten_steps_are_those_of_the_model_in_one_process(name: str) -> None:
    make, count = PLANS[name]
    local = start(make(), net(), count, momentum)
    wanted = train_plainly(count)
    for _ in range(STEPS):
        found = local.step()
        assert_nothing_left(local)
    holding = [name for one in found for name in one.weights]
    assert {*holding} == wanted.keys()
    # Of what is tied each stage has one.
    assert min(holding.count("0.weight"), holding.count("0.bias")) > 1
    for one in found:
        for own, tensor in one.weights.items():
            assert apart(tensor.reshape(wanted[own].shape), wanted[own]) < 1e-13, own


def test_what_is_sent_takes_as_many_bytes_as_planned() -> None:
    plan = step(placed([0, 1], [2], [3, 4, 5]), 6)
    local = start(plan, net(), 6)
    sends = [one for rank in local.ranks for one in rank.actions if one.kind == "SEND_C"]
    # Three replicas of one stage and two of the other each send the gradient of 42 numbers.
    assert [sent_bytes(plan, one) for one in sends] == [42 * 8] * 5
    assert [sent_bytes(plan, one.other_end) for one in sends] == [42 * 8] * 5
    rooms = [_room(local, one.other_end) for one in sends]
    assert [room.numel() * room.element_size() for room in rooms] == [42 * 8] * 5


def _room(local: LocalRun, receive: Any) -> torch.Tensor:
    rank: Rank = local.ranks[local.work.actions.peer(receive.other_end)]
    return rank.room(receive, torch.device("cpu"))


@pytest.mark.torch
@pytest.mark.parametrize("engine", nightly_but("streams", LINKS))
@pytest.mark.parametrize("name", nightly_but("on some GPUs of both", WITH_PROCESSES))
def test_processes_do_the_same_as_ranks_in_one(name: str, engine: str) -> None:
    make, count = PLANS[name]
    plan = make()
    found = warm_ranks().run(run_replicated, len(gpu_ranks(plan)), plan, count, engine, net)
    local = start(plan, net(), count)
    for number in range(len(found[0])):
        alone = local.step()
        together = put_together([rank[number] for rank in found])
        assert len(together) == len(alone)
        for one, other in zip(together, alone, strict=True):
            for name in ("weights", "gradients"):
                mine, its = getattr(one, name), getattr(other, name)
                assert mine.keys() == its.keys()
                assert all(apart(mine[key], its[key]) < 1e-13 for key in mine)


@trials(100)
@given(
    st.permutations([0, 1, 2, 3]),
    st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3),
    st.lists(st.sampled_from(SHARDS[:2]), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_lists_add_up_wherever_copies_lie(
    mixed: list[int], replicas: list[int], shards: list[Shard], split: bool, apart: bool
) -> None:
    gpus = [range(4 * n, 4 * n + own) if apart else mixed[:own] for n, own in enumerate(replicas)]
    plan = step(placed(*gpus, shards=shards), 4, split=split)
    actions = make_actions(plan, 8)
    assert run(actions.ranks)
    assert parse_actions(str(actions)) == actions


@pytest.mark.parametrize(
    ("gone", "what"),
    [
        ("2C0s0r0-2", "2U0 lacks micro-batches 0, 1, 2, 3 of the copy in stage 0"),
        ("0C0s2r1-1", "0U0 lacks micro-batches 0, 2 of the copy in stage 2"),
    ],
)
def test_lists_in_which_a_copy_is_not_added_are_refused(gone: str, what: str) -> None:
    several = placed([0], [1], [2]) if gone[0] == "2" else placed([1, 0], [2], [1, 3])
    lines = str(make_actions(step(several, 4), 4)).splitlines()
    words = [[word for word in line.split(",") if word != gone] for line in lines]
    assert sum(map(len, words)) == sum(len(line.split(",")) for line in lines) - 1, lines
    with pytest.raises(InputError, match=what):
        parse_actions("\n".join(map(",".join, words)))


def test_a_copy_that_is_added_twice_or_too_early_is_refused() -> None:
    good = str(make_actions(step(placed([0], [1], [2]), 2), 2))
    assert "0RECV_C0s2r2-0,0C0s2r2-0" in good
    twice = good.replace("0C0s2r2-0", "0C0s2r2-0,0C0s2r2-0")
    with pytest.raises(InputError, match=r"0C0s2r2-0 comes before 0RECV_C0s2r2-0"):
        parse_actions(twice)
    early = good.replace(",2SEND_C0s0r2-0", "").replace("2F0v0", "2SEND_C0s0r2-0,2F0v0")
    early = early.replace(",0RECV_C0s2r2-0,0C0s2r2-0", "").replace(
        "0SEND_F0", "0SEND_F0,0RECV_C0s2r2-0,0C0s2r2-0"
    )
    early = early.replace("2RECV_F0,2SEND_C0s0r2-0", "2SEND_C0s0r2-0,2RECV_F0")
    with pytest.raises(InputError, match=r"2SEND_C0s0r2-0 has nothing of mini-batch 0 to send"):
        parse_actions(early)


@pytest.mark.parametrize("shard", SHARDS[2:])
def test_gradients_that_go_home_in_parts_are_refused_before_anything_starts(shard: Shard) -> None:
    plan = step(placed([0, 1], [2], [3]), 4)
    stages = (replace(plan.stages[0], shard=shard), *plan.stages[1:])
    job = Job(
        plan=replace(plan, stages=stages), model="none:at_all", backend="logical", microbatches=4
    )
    with pytest.raises(InputError, match=r"stages\[0\]\.shard: .* copies of tied weights"):
        assert job.processes


def test_torch_runtime_is_refused() -> None:
    from schedopt.actions import make_rows

    plan = place(chain(), *placed([0], [1], [2]))
    with pytest.raises(InputError, match=r"chain\.copied: .*p2p or logical"):
        make_rows(plan, make_actions(plan, 4))
