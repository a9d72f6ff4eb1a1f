"""Plans with replicas, all ranks in one process, against plain torch and formulas by hand."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from schedopt import Chain, InputError, Pattern, Plan, Platform, Rule, check
from schedopt.account.reading import Reader
from schedopt.actions import Actions, make_actions, parse_actions, sent_bytes
from schedopt.running.reference import emulate
from schedopt.running.trained import Trained
from schedopt.simulation import simulate
from schedopt.systems.catalogue import SYSTEMS, find_system
from schedopt.systems.config import SystemConfig
from tests.actions.interpreters import run
from tests.budgets import PROFILE, nightly_but, trials
from tests.examples import EXAMPLES
from tests.random_plans import quickened
from tests.running import by_hand
from tests.running.by_hand import ByHand
from tests.running.local_run import (
    MOST,
    Optimizer,
    apart,
    assert_live,
    assert_nothing_left,
    assert_trained,
    assert_versions,
    prepare,
    profile_of,
    sequential,
    start,
)
from tests.running.replicated import (
    NAMES,
    ONE_SIZE,
    cyclic,
    exchanged,
    gathered,
    quick,
    replicated_plan,
    system,
)
from tests.systems.test_every_system import plans as random_plans

MODEL = by_hand.net()
OPTIMIZERS: dict[str, Optimizer] = {
    "plain": by_hand.plain,
    "sgd": by_hand.sgd,
    "adamw": by_hand.adamw,
}


@cache
def chain() -> Chain:
    return profile_of(MODEL)


@cache
def plan_of(name: str) -> tuple[Plan, int]:
    return replicated_plan(name, chain())


def takes_turns(actions: Actions) -> bool:
    """Return whether some rank makes some updates of a stage and is sent the others."""
    kinds: dict[tuple[int, int], set[str]] = defaultdict(set)
    for rank, action in actions.order:
        kinds[rank, action.stage] |= {action.kind} if action.makes_version else set()
    return any({"U", "BROADCAST_PARAM"} <= found for found in kinds.values())


def optimizers_of(name: str, actions: Actions) -> list[str]:
    """Return all that a plan may have; by day one of them, another one for the next plan."""
    if takes_turns(actions):
        return ["plain"]
    every = [*OPTIMIZERS]
    return every if PROFILE == "nightly" else [every[NAMES.index(name) % len(every)]]


@pytest.mark.parametrize("name", nightly_but(ONE_SIZE, NAMES))
def test_gradients_and_weights_are_those_of_formulas(name: str) -> None:
    plan, count = plan_of(name)
    actions = make_actions(plan, count)
    assert plan.rule.update_every is not None
    for optimizer in optimizers_of(name, actions):
        alone = emulate(prepare(plan, MODEL, count, OPTIMIZERS[optimizer])[0])
        local = start(plan, MODEL, count, OPTIMIZERS[optimizer])
        hand: ByHand | None = None
        for number in range(2):
            local.batches.load(number)
            hand = ByHand(plan, MODEL, local.inputs(), optimizer, after=hand)
            hand.train()
            if number == 0:
                assert_trained([alone], hand)
            assert_trained(local.step(), hand)
            assert_nothing_left(local)
        assert_live(local, simulate(plan, count), is_long=True)
        assert_versions(local, simulate(plan, count))


@pytest.mark.parametrize("name", nightly_but(ONE_SIZE[::2], NAMES))
def test_versions_that_are_read_are_those_of_the_account(name: str) -> None:
    """Also where the newest on the GPU is read, or that of the first stage."""
    planned, count = plan_of(name)
    m = planned.rule.update_every
    live = Rule(update_every=m, forward_reads="live")
    newest = Rule(update_every=m, forward_reads="live", backward_reads="live")
    entry = Rule(update_every=m, forward_reads="entry")
    seen = set()
    for rule in (planned.rule, live, newest, entry):
        plan = replace(planned, rule=rule)
        if check(plan):
            # A version that the first stage has may be absent elsewhere, and of weights that are
            # gathered what comes is of the rule that the plan was made for.
            gathering = any(stage.shard == "parameter" for stage in plan.stages)
            assert rule is entry or (gathering and rule is not planned.rule)
            continue
        reader = Reader(simulate(plan, count))
        for _, action in make_actions(plan, count).order:
            for i in action.micro_batches if action.reads_weights else ():
                wanted = reader.reads(action.stage, i)[action.kind]  # type: ignore[index]
                assert action.version == max(0, wanted), f"{action} under {rule}"
                seen.add(action.version)
    assert len(seen) > 2


def some(items: Sequence[Any], most: int, stride: int) -> Sequence[Any]:
    """Return all of a few, and of many some: a prime step lets all chunks and hops have a turn."""
    return items[:: 1 if len(items) < most else stride]


@pytest.mark.parametrize("name", nightly_but(ONE_SIZE[1::2], NAMES))
def test_lists_run_and_are_refused_without_a_transfer(name: str) -> None:
    plan, count = plan_of(name)
    actions = make_actions(plan, count)
    assert parse_actions(str(actions)) == actions
    assert run(actions.ranks)
    assert run(actions.ranks, buffered=True)
    lists = actions.ranks
    few, of_sends, of_transfers = (20, 11, 5) if PROFILE == "nightly" else (10, 37, 23)
    sends = [one for own in lists for one in own if one.is_send and one.part]
    for send in some(sends, few, of_sends):
        if send.part is not None and send.part.is_taken and "ahead" in name:
            continue  # The next one from there takes along what is left.
        gone = {send, send.other_end, replace(send, kind="REDUCE_GRAD")}
        text = "\n".join(",".join(str(one) for one in own if one not in gone) for own in lists)
        with pytest.raises(InputError):
            parse_actions(text)
    everything = plan.pattern.transfers
    assert everything
    for left_out in some(everything, few, of_transfers):
        rest = tuple(one for one in everything if one is not left_out)
        less = replace(plan, pattern=replace(plan.pattern, transfers=rest))
        if left_out.is_boundary and all(
            (one.tensor, one.stage) != (left_out.tensor, left_out.stage) for one in rest
        ):
            continue  # Then it counts as free, and is sent all the same.
        if left_out.tensor == "weight_gradient" and "ahead" in name:
            continue  # As above.
        with pytest.raises(InputError):
            make_actions(less, count)


def test_lists_by_hand() -> None:
    """`cyclic`: the gradient of stage 2 stays where it is, that of 1 comes back to its replica."""
    ranks = str(make_actions(EXAMPLES["cyclic"](), 3)).splitlines()
    assert ranks[1] == (
        "0F1v0,0SEND_F1,0RECV_G0r0-1,0G0r0-1,0RECV_B1,0B1v0,0SEND_G1r1-2,0RECV_V2r2-1,0V0"
    )
    assert "1RECV_G1r4-3,1G1r4-3,1RECV_B2,1B2v0,1SEND_B2,1U0,1SEND_V2r3-4" in ranks[3]
    assert ranks[5].endswith("2F2v0,2B2v0,2SEND_B2,2U0")


def test_what_is_counted_twice_or_lost_is_named() -> None:
    good = str(make_actions(exchanged(chain()), 2))
    for mode, message in (("+", "counts micro-batch 1 twice"), ("", "loses micro-batch 0")):
        send = f"0SEND_G1r1-0{mode}"
        again = good.splitlines()
        again[0] = again[0].replace(",0U0", f",0RECV_G1r1-0{mode},0G1r1-0{mode},0U0")
        # Before the other rank takes in what it is sent, it has micro-batch 1 alone.
        again[1] = again[1].replace("0G0r0-1+", f"{send},0G0r0-1+")
        with pytest.raises(InputError, match=message):
            parse_actions("\n".join(again))


def test_a_circle_of_gradients_names_its_actions() -> None:
    lists = str(make_actions(exchanged(chain()), 2)).splitlines()
    send, receive = "0SEND_G0r0-1+", "0RECV_G0r1-0+"
    assert lists[0].index(send) < lists[0].index(receive)
    lists[0] = lists[0].replace(send, "x").replace(receive, send).replace("x", receive)
    with pytest.raises(InputError, match="wait for each other in a cycle") as error:
        parse_actions("\n".join(lists))
    assert "G0r" in str(error.value)


def test_data_parallelism_has_the_gradient_of_the_unsplit_model() -> None:
    """Also where a parameter is shared, frozen or has no gradient, and with dropout."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, value: Tensor) -> Tensor:
            output: Tensor = self.line(value)
            return output

    torch.manual_seed(7)
    shared = nn.Linear(6, 6)
    layers = [shared, nn.Tanh(), Odd(), nn.Linear(6, 6).requires_grad_(False), shared, nn.Tanh()]
    model = sequential(*layers, nn.Linear(6, 3), value=torch.randn(5, 6).double())
    of = profile_of(model)
    for plan in (exchanged(of, 5), gathered(of, 3, 2)):
        every = plan.rule.update_every or 1
        local = start(plan, model, every, torch.optim.AdamW)
        module = copy.deepcopy(model.module)
        for i in range(every):
            model.loss(module(local.batches(i, ["input"])["input"])).backward()  # type: ignore[misc]
        trained = {name: own for name, own in module.named_parameters() if own.requires_grad}
        wanted = Trained(
            {(0, name): own.grad / every for name, own in trained.items() if own.grad is not None},
            {name: own.detach() for name, own in trained.items()},
        )
        optimizer = torch.optim.AdamW(module.parameters())
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= every
        optimizer.step()
        assert_trained(local.step(), wanted)


def test_bytes_of_transfers_are_those_of_the_account() -> None:
    for plan, count in map(plan_of, NAMES if PROFILE == "nightly" else ONE_SIZE):
        of = simulate(plan, count)
        wanted = sorted(
            sent // item.covers
            for item, _, _, sent, _ in of.transfers()
            for _ in range(item.covers)
        )
        actions = make_actions(plan, count)
        found = [sent_bytes(plan, one) for own in actions.ranks for one in own if one.is_send]
        assert sorted(count for count in found if count) == [count for count in wanted if count]


@pytest.mark.parametrize("name", [one.name for one in SYSTEMS])
def test_every_system_runs_or_is_refused(name: str) -> None:
    plan = system(name, chain(), 2, 2, platform=quick(2), bucket_bytes=300)
    assert check(plan) == ()
    tensors = {transfer.tensor for transfer in plan.pattern.transfers}
    count = 4 * (plan.rule.update_every or 1)
    if "weight_half" in tensors:
        with pytest.raises(InputError, match="weight_half is not sent yet"):
            make_actions(plan, count)
        return
    alone = emulate(prepare(plan, MODEL, count, by_hand.plain)[0])
    local = start(plan, MODEL, count, by_hand.plain)
    assert_trained(local.step(), alone)


REPLICATED = ("dp_blocking", "dp_overlapped", "dp_bucketed", "chimera", "cdp_v1", "cdp_v2_mp")


@trials(60)
@given(st.sampled_from(REPLICATED).flatmap(lambda name: random_plans(find_system(name))))
def test_random_systems_give_lists_that_run(plan: Plan) -> None:
    for rounds in (1, 3):
        actions = make_actions(plan, rounds * (plan.rule.update_every or 1))
        assert run(actions.ranks)
        assert run(actions.ranks, buffered=True)
        assert parse_actions(str(actions)) == actions


@trials(40)
@given(st.data())
def test_random_times_leave_weights_as_they_are(data: st.DataObject) -> None:
    """Also where operations, transfers or both take no time."""
    gpus = 2 * data.draw(st.integers(1, 2))
    link: dict[str, Any] = {
        "bandwidth": 10**12,
        "latency": data.draw(st.integers(0, 3)),
        "duplex": "full",
    }
    config = SystemConfig(
        chain=data.draw(quickened(chain())),
        platform=Platform(gpus=gpus, memory="1T", **data.draw(st.sampled_from([{}, link]))),
        microbatches=gpus * data.draw(st.integers(1, 2)),
        bucket_bytes=data.draw(st.integers(1, 1000)),
    )
    plan = find_system(data.draw(st.sampled_from(REPLICATED))).plan(config)
    assume(not check(plan))
    local = start(plan, MODEL, 2 * (plan.rule.update_every or 1), by_hand.plain)
    alone = emulate(local.work)
    assert_trained(local.step(), alone)


def test_replicas_that_take_turns_want_an_optimizer_without_a_state() -> None:
    plan = cyclic(chain(), 3, fresh=True, spread=True)
    for optimizer in (by_hand.sgd, by_hand.adamw):
        local = start(plan, MODEL, 6, optimizer)
        with pytest.raises(InputError, match="take turns in updating"):
            local.step()
        # Of each step the first replica makes the only update.
        start(plan, MODEL, 3, optimizer).step()


def test_what_is_not_run_yet_is_refused() -> None:
    plan = exchanged(chain())
    with pytest.raises(InputError, match=r"rule\.update_every: stage 0 has replicas"):
        make_actions(replace(plan, rule=Rule()), 2)


def test_a_replica_without_a_micro_batch_of_its_own_takes_part() -> None:
    """Of three replicas the third has none in a step of two, and is sent the weights."""
    whole = gathered(chain(), 3)
    alone = replace(
        whole,
        rule=replace(whole.rule, update_every=1),
        pattern=Pattern(
            k=1,
            period_total_ns=60,
            operations=tuple(
                replace(operation, shift=0) for operation in whole.pattern.operations[:2]
            ),
            transfers=tuple(
                replace(transfer, start_ns=10 + transfer.start_ns)
                for transfer in whole.pattern.transfers
                if transfer.tensor == "weights"
            ),
        ),
    )
    assert check(alone) == ()
    local = start(alone, MODEL, 2, by_hand.plain)
    hand = ByHand(alone, MODEL, local.inputs(), "plain")
    hand.train()
    assert len(local.ranks) == 3
    assert not any(rank.kind == "F" for rank in local.work.actions.ranks[2])
    assert_trained(local.step(), hand)


def test_the_emulation_and_the_run_part_where_a_gradient_is_changed() -> None:
    """So that the tests above can fail: one rank's share is doubled on its way."""
    plan = exchanged(chain())
    local = start(plan, MODEL, 2, by_hand.plain)
    alone = emulate(local.work)
    local.ranks[0].work = replace(local.work, copy=lambda tensor: 2 * tensor)
    found = local.step()
    worst = [
        max(apart(one, alone.weights[name]) for name, one in part.weights.items())
        for part in found
        if part.weights
    ]
    assert worst[0] > 1e-3
    assert worst[1] < MOST


def test_models_are_not_shared_between_replicas() -> None:
    local = start(exchanged(chain()), MODEL, 2)
    first, second = (rank.stages[0].weights.parameters for rank in local.ranks)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name] is not second[name]
        assert torch.equal(first[name], second[name])
