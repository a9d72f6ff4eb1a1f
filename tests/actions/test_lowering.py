"""Lists of actions against the pattern, and against interpreters that run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given

from schedopt import (
    Chain,
    InputError,
    Operation,
    Pattern,
    Plan,
    Platform,
    Rule,
    Scope,
    Stage,
    check,
)
from schedopt.account import concurrent_activations
from schedopt.actions import Actions, make_actions, parse_actions
from schedopt.rule import BackwardReads
from tests.actions.interpreters import ONE_GPU_EACH, Lists, Place, run
from tests.budgets import trials
from tests.examples import BYTE_A_NS, EXAMPLES, op, weighty
from tests.random_plans import runnable


def examples() -> Iterator[tuple[Plan, int]]:
    for name in ONE_GPU_EACH:
        plan = EXAMPLES[name]()
        for rounds in (1, 2, 5):
            yield plan, rounds * (plan.rule.update_every or 1)


def times_of(plan: Plan, count: int) -> dict[Place, tuple[int, int]]:
    """Return start and end, ns, of each operation by its micro-batch, U by its mini-batch."""
    found: dict[Place, tuple[int, int]] = {}
    pattern = plan.pattern
    names = {"F": "forward_ns", "R": "forward_ns", "B": "backward_ns", "U": "update_ns"}
    names |= {"I": "backward_input_ns", "W": "backward_weight_ns"}
    for item in pattern.operations:
        stage = plan.stages[item.stage]
        runs = stage.recompute if item.kind == "R" else (stage.layers,)
        length = item.covers * sum(
            plan.platform.gpus[stage.gpus[0]].duration_ns(
                getattr(plan.chain.layers[number], names[item.kind]) or 0
            )
            for first, last in runs
            for number in range(first, last + 1)
        )
        for i in range(count):
            for covered in range(item.covers):
                if (i - covered - item.shift) % pattern.k == 0:
                    q = (i - covered - item.shift) // pattern.k
                    start = q * pattern.period_total_ns + item.start_ns
                    number = i // (plan.rule.update_every or 1) if item.kind == "U" else i
                    found[item.kind, item.stage, number] = start, start + length
    return found


def rank_of(plan: Plan, stage: int) -> int:
    used = sorted({stage.gpus[0] for stage in plan.stages})
    return used.index(plan.stages[stage].gpus[0])


def assert_operations(plan: Plan, count: int, lists: Lists) -> None:
    """Everything is once on its rank, in the order of the pattern, with updates in their place."""
    times = times_of(plan, count)
    every = plan.rule.update_every or count
    told = {item.stage for item in plan.pattern.operations if item.kind == "U"}
    seen: set[Place] = set()
    for rank, actions in enumerate(lists):
        order: list[tuple[int, int]] = []
        done: set[Place] = set()
        for action in actions:
            if action.is_transfer:
                continue
            assert rank == rank_of(plan, action.stage)
            covered = {(action.kind, action.stage, i) for i in action.micro_batches}
            assert not covered & seen
            if action.kind == "U":
                assert action.version is None
                whole = range(action.first * every, (action.first + 1) * every)
                assert all({("B", action.stage, i), ("W", action.stage, i)} & done for i in whole)
                assert not action.first or ("U", action.stage, action.first - 1) in done
            elif action.version:
                assert ("U", action.stage, action.version - 1) in done
            if action.kind != "U" or action.stage in told:
                assert len({times[place] for place in covered}) == 1 or action.count > 1
                order += [times[place] for place in sorted(covered)]
            seen |= covered
            done |= covered
        assert order == sorted(order)
        if plan.rule.is_given:
            assert {action.kind for action in actions[-len({a.stage for a in actions}) :]} == {"U"}
    updates = {("U", s, g) for s in range(len(plan.stages)) for g in range(count // every)}
    assert seen == set(times) | updates


def assert_transfers(plan: Plan, count: int, lists: Lists) -> None:
    """Each boundary between ranks is crossed once each way by each micro-batch, no other is."""
    wanted: Counter[tuple[int, Place]] = Counter()
    for stage in range(len(plan.stages) - 1):
        here, there = rank_of(plan, stage), rank_of(plan, stage + 1)
        for i in range(count if here != there else 0):
            wanted[here, ("SEND_F", stage, i)] += 1
            wanted[there, ("RECV_F", stage + 1, i)] += 1
            wanted[there, ("SEND_B", stage + 1, i)] += 1
            wanted[here, ("RECV_B", stage, i)] += 1
    assert wanted == Counter(
        (rank, (action.kind, action.stage, i))
        for rank, actions in enumerate(lists)
        for action in actions
        for i in action.micro_batches
        if action.is_transfer
    )


def carry(plan: Plan, actions: Actions) -> dict[int, int]:
    """Run the total order with data; return the most activations at once by stage."""
    last = len(plan.stages) - 1
    inputs: set[Place] = set()
    live: Counter[int] = Counter()
    most: Counter[int] = Counter()
    moving: set[Place] = set()
    made: set[tuple[int, Place]] = set()
    for rank, action in actions.order:
        s = action.stage
        for i in action.micro_batches:
            match action.kind:
                case "F":
                    if s:
                        made.remove((rank, ("activation", s - 1, i)))
                    made.add((rank, ("activation", s, i)))
                    inputs.add(("saved", s, i))
                    live[s] += 1
                case "B" | "I":
                    inputs.remove(("saved", s, i))
                    made.remove((rank, ("gradient" if s < last else "activation", s, i)))
                    if s:
                        made.add((rank, ("gradient", s - 1, i)))
                    live[s] -= 1
                case "SEND_F" | "SEND_B":
                    name = ("activation", s) if action.kind == "SEND_F" else ("gradient", s - 1)
                    made.remove((rank, (*name, i)))
                    moving.add((*name, i))
                case "RECV_F" | "RECV_B":
                    name = ("activation", s - 1) if action.kind == "RECV_F" else ("gradient", s)
                    moving.remove((*name, i))
                    made.add((rank, (*name, i)))
                case _:
                    pass
        most[s] = max(most[s], live[s])
    assert not inputs | moving
    assert not made
    return most


def assert_versions(plan: Plan, count: int, lists: Lists) -> None:
    """What is read is what the times of the pattern and the rule say."""
    rule, times = plan.rule, times_of(plan, count)
    every = rule.update_every
    assert every is not None
    made: dict[int, list[int]] = {}
    for s in range(len(plan.stages)):
        made[s] = []
        for g in range(count // every):
            ends = [
                times.get(("B", s, i), times.get(("W", s, i), (0, 0)))[1]
                for i in range(g * every, (g + 1) * every)
            ]
            whole = times["U", s, g][1] if ("U", s, g) in times else max(ends)
            made[s].append(max([whole, *made[s][-1:]]))

    def newest(stage: int, kind: str, of: int, i: int) -> int:
        # What applies the gradient of the micro-batch itself comes later, be it in no time.
        return sum(end <= times[kind, of, i][0] for end in made[stage][: i // every])

    for action in (action for actions in lists for action in actions):
        s = action.stage
        for i in action.micro_batches if action.version is not None else ():
            delay = rule.delay if rule.forward_reads == "delay" else None
            if rule.forward_reads == "table":
                delay = rule.table[i % len(rule.table)][s]
            if delay is not None:
                forward = max(0, i // every - delay)
            else:
                of = 0 if rule.forward_reads == "entry" else s
                forward = newest(of, "F", of, i)
            half = "I" if ("I", s, i) in times else "B"
            again = forward
            if ("R", s, i) in times and rule.backward_reads != "forward":
                again = newest(s, "R", s, i)
            behind = {"forward": forward, "recomputed": again}.get(rule.backward_reads)
            if behind is None:
                behind = newest(s, half, s, i)
            expected = {"F": forward, "R": again, half: behind, "W": behind}
            assert action.version == expected[action.kind], f"{action} on {plan.rule}"


def assert_all(plan: Plan, count: int) -> None:
    actions = make_actions(plan, count)
    lists = actions.ranks
    assert_operations(plan, count, lists)
    assert_transfers(plan, count, lists)
    assert run(lists)
    assert run(lists, buffered=True)
    assert parse_actions(str(actions)) == actions
    live = carry(plan, actions)
    instants = Counter(
        (plan.stages[s].gpus, start)
        for (_, s, _), (start, end) in times_of(plan, count).items()
        if start == end
    )
    if max(instants.values(), default=0) > 1:
        return  # In which order things happen at one instant, the pattern does not say.
    limits = concurrent_activations(plan)
    assert all(live[s] <= limits[s, stage.gpus[0]] for s, stage in enumerate(plan.stages))
    if not plan.rule.is_given:
        assert_versions(plan, count, lists)


@trials(250)
@given(runnable())
def test_random_plans(drawn: tuple[Plan, int]) -> None:
    assert_all(*drawn)


@pytest.mark.parametrize("number", range(3 * len(ONE_GPU_EACH)))
def test_the_plans_by_hand(number: int) -> None:
    assert_all(*list(examples())[number])


def test_a_list_by_hand() -> None:
    """`covering`: B of stage 1 ends at 6, when the gradients leave and version 1 is made."""
    assert str(make_actions(EXAMPLES["covering"](), 2)) == (
        "0F0v0,0SEND_F0,0F1v0,0SEND_F1,0RECV_B0-1,0B0-1v0,0U0\n"
        "1RECV_F0,1RECV_F1,1F0v0,1F1v0,1B0-1v0,1SEND_B0-1,1U0\n"
    )


def test_one_backward_may_read_two_versions() -> None:
    plan = EXAMPLES["covering"]()
    plan = replace(
        plan,
        platform=Platform(gpus=2, memory=1000, bandwidth=BYTE_A_NS),
        rule=Rule(update_every=1, forward_reads="delay", delay=6),
    )
    assert not check(plan)
    text = str(make_actions(plan, 8))
    # The gradients come when GPU 0 begins the second forward, 1 ns behind the start of 1F7.
    assert "1U4,1U5,1F6v0,1SEND_B4-5,1F7v1,1B6v0,1B7v1,1SEND_B6-7,1U6,1U7" in text
    assert "1B4-5v0" in text


def alone(rule: Rule, k: int, period: int, *operations: Operation, backward_ns: int = 1) -> Plan:
    """Return a plan of one layer on one GPU, computed again where there is an R."""
    again = ((0, 0),) if any(operation.kind == "R" for operation in operations) else ()
    plan = Plan(
        chain=Chain(layers=(weighty(1, backward_ns, 100),)),
        platform=Platform(gpus=1, memory=10000),
        rule=rule,
        scope=Scope(max_k=k, recompute=True),
        stages=(Stage(layers=(0, 0), gpus=(0,), recompute=again),),
        pattern=Pattern(k=k, period_total_ns=period, operations=operations),
    )
    assert not check(plan)
    return plan


@pytest.mark.parametrize(
    ("reads", "versions"), [("forward", (1, 1, 1)), ("recomputed", (1, 2, 2)), ("live", (1, 2, 4))]
)
def test_what_a_recompute_and_its_backward_read(
    reads: BackwardReads, versions: tuple[int, int, int]
) -> None:
    """Micro-batch i: F at 3i, R at 3i + 4, B at 3i + 11; so version v is made at 3v + 9."""
    rule = Rule(update_every=1, backward_reads=reads)
    plan = alone(rule, 1, 3, op("F", 0, 0, 0), op("R", 0, -1, 1), op("B", 0, -3, 2))
    (actions,) = make_actions(plan, 6).ranks
    found = {action.kind: action.version for action in actions if action.first == 4}
    assert (found["F"], found["R"], found["B"]) == versions


@pytest.mark.parametrize("shift", [0, 1])
def test_an_update_in_no_time_follows_all_gradients_of_its_mini_batch(shift: int) -> None:
    forwards = op("F", 0, 0, 0), op("F", 0, 1, 1)
    backwards = op("B", 0, -2, 0), op("B", 0, -1, 0)
    rule = Rule(update_every=2, forward_reads="delay")
    plan = alone(rule, 2, 2, *forwards, *backwards, op("U", 0, shift - 2, 0), backward_ns=0)
    assert str(make_actions(plan, 2)) == "0F0v0,0F1v0,0B0v0,0B1v0,0U0\n"


def test_micro_batches_out_of_order_are_updated_in_order() -> None:
    order = op("F", 0, 1, 0), op("B", 0, 1, 1), op("F", 0, 0, 2), op("B", 0, 0, 3)
    plan = alone(Rule(update_every=1), 2, 4, *order)
    assert str(make_actions(plan, 2)) == "0F1v0,0B1v0,0F0v0,0B0v0,0U0,0U1\n"


@pytest.mark.parametrize("count", [0, -1, -2, True, 1, 1.5, "2", None, 2**40])
def test_bad_numbers_of_micro_batches(count: object) -> None:
    with pytest.raises(InputError, match="microbatches"):
        make_actions(EXAMPLES["double_buffered"](), count)  # type: ignore[arg-type]
