"""The bound of steps by what micro-batches keep over time: by hand, and against steps."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Plan, Platform, Problem, Stage, check
from schedopt.account import memory
from schedopt.bounds import average_step_bound
from schedopt.bounds.averages import Prices, _Step
from schedopt.problem import training_step
from schedopt.scope import Scope
from schedopt.stage import SHARDS
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from tests.bounds.every_step import has_step
from tests.budgets import trials
from tests.layers import layer


def bound_ns(problem: Problem) -> int:
    bound, count = average_step_bound(problem), problem.scope.microbatches
    assert bound is not None
    assert count is not None
    assert bound.scope.covers(problem.scope)
    makespan = bound.period * count
    assert makespan.denominator == 1
    return int(makespan)


def steps(count: int, *, recompute: bool = False) -> Scope:
    return Scope(
        allocation="general", microbatches=count, max_k=None, memory="peak", recompute=recompute
    )


def test_a_byte_is_kept_over_the_span() -> None:
    # Layer 0 keeps 6 bytes for 12 ns of each of 5 micro-batches, and layer 1 6 for 10: 660 bytes
    # times ns, and 12 bytes are there.
    chain = Chain(layers=(layer(1, 1, 6), layer(4, 6, 6)))
    problem = Problem(chain=chain, platform=Platform(2, 6), scope=steps(5))
    assert bound_ns(problem) == 5 * (6 * 12 + 6 * 10) // 12
    # One micro-batch after the other has each layer on a GPU of its own, and takes 60 ns.
    assert not has_step(problem, 54)
    # All work takes the GPUs 30 ns.
    assert bound_ns(replace(problem, platform=Platform(2, 60))) == 30


def test_recompute_is_work() -> None:
    # 90 bytes in all. A micro-batch keeps 30 for 120 ns and 10 for 100, or computes layer 0 again
    # in 10 ns and keeps 30 for 20 ns.
    chain = Chain(layers=(layer(10, 10, 30), layer(50, 50, 10)))
    asked = Problem(chain=chain, platform=Platform(3, 30), scope=steps(12))
    assert 12 * 4600 / 90 - 1 <= bound_ns(asked) <= 614
    # If k of them keep it, 12 (130 - 10 k) = 3 T and 12 (1600 + 3000 k) = 90 T.
    again = bound_ns(replace(asked, scope=steps(12, recompute=True)))
    assert 488 <= again <= 493


def test_before_the_first_backward_all_is_kept() -> None:
    # Until 10 ns each of the 4 GPUs could run forwards of 10 micro-batches, and all that these keep
    # would be there: 2 bytes a ns. Only half of that fits.
    chain = Chain(layers=(layer(5, 5, 10), layer(5, 5, 10)))
    problem = Problem(chain=chain, platform=Platform(4, 10), scope=steps(4))
    assert bound_ns(problem) >= 20 + 5


def test_a_layer_that_fits_shared_alone_is_there_more_than_once() -> None:
    # With 12 of its 20 bytes shared by 4 replicas it leaves room for the 6 that it saves, with 3
    # it does not: so 4 times 8 bytes and 12 are there, and 24 of 68 are left.
    large = replace(
        layer(2, 4, 6, weight=20), parameter_bytes=4, gradient_bytes=4, optimizer_bytes=12
    )
    last = replace(
        layer(1, 1), workspace_bytes=16, parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0
    )
    chain = Chain(layers=(large, last))
    scope = Scope(allocation="general", max_k=None, memory="peak", replicas=None, shard="optimizer")
    problem = training_step(chain, Platform(4, 17), 12, scope)
    # 12 times 6 bytes for 8 ns, and 16 for 2 ns.
    assert 12 * (48 + 32) / 24 - 1 <= bound_ns(problem) <= 40
    # Else 20 bytes are there at least, and the work alone takes longer.
    assert bound_ns(replace(problem, scope=replace(problem.scope, shard="none"))) == 24


def test_says_nothing_of_other_steps() -> None:
    chain = Chain(layers=(layer(1, 2, 4),) * 2)
    problem = Problem(chain=chain, platform=Platform(2, 100), scope=steps(4))
    steady = replace(problem, scope=replace(problem.scope, microbatches=None))
    full = replace(problem, platform=Platform(2, 0))
    assert average_step_bound(steady) is None
    assert average_step_bound(full) is None
    assert average_step_bound(replace(problem, scope=replace(steps(4), grain="layer"))) is None


@trials(400)
@given(st.integers(min_value=0, max_value=2**32))
def test_no_order_of_any_allocation_is_shorter(seed: int) -> None:
    rng = Random(seed)
    heavy = rng.choice([(4, 8), (8, 12), (10, 1)])
    times = [rng.choice([(1, 1), (1, 2), (3, 1), (2, 6)]), heavy]
    chain = Chain(
        layers=tuple(
            Layer(
                forward_ns=forward,
                backward_ns=backward,
                weight_bytes=rng.choice([0, 0, 3]),
                activation_bytes=rng.choice([1, 5]),
                saved_bytes=rng.choice([0, 10, 10, 20]),
                workspace_bytes=rng.choice([0, 0, 4]),
            )
            for forward, backward in times
        ),
        input_bytes=rng.choice([0, 7]),
    )
    most = max(one.weight_bytes + one.saved + (one.workspace_bytes or 0) for one in chain.layers)
    scope = steps(rng.choice([2, 3, 4]), recompute=rng.random() < 0.5)
    room = most + rng.choice([0, 0, 5, 12])
    problem = Problem(chain=chain, platform=Platform(2, room), scope=scope)
    bound = average_step_bound(problem)
    if bound is not None:
        makespan = bound.period * (scope.microbatches or 1)
        assert not has_step(problem, int(makespan) - 1)


def some_problem(rng: Random) -> Problem:
    count, gpus = rng.choice([1, 2, 2, 3, 4]), rng.choice([1, 2, 2, 3, 4])
    layers = []
    for _ in range(count):
        state = [rng.choice([0, 0, rng.randint(1, 20)]) for _ in range(3)]
        layers.append(
            Layer(
                forward_ns=rng.randint(1, 9),
                backward_ns=rng.randint(1, 12),
                weight_bytes=sum(state) + rng.choice([0, 3]),
                parameter_bytes=state[0],
                gradient_bytes=state[1],
                optimizer_bytes=state[2],
                activation_bytes=rng.randint(1, 8),
                saved_bytes=rng.choice([0, 10, 20, 40]),
                workspace_bytes=rng.choice([0, 0, 4]),
                update_ns=rng.choice([0, 3]),
            )
        )
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        recompute=True,
        replicas=None,
        shard=rng.choice(["none", "optimizer", "optimizer", "parameter"]),
    )
    chain = Chain(layers=tuple(layers), input_bytes=rng.choice([0, 3]))
    bandwidth = rng.choice([None, 4 * 10**9])
    platform = Platform(gpus, 10**6, bandwidth=bandwidth, duplex="full")
    return training_step(chain, platform, rng.choice([2, 4, 6, 12]), scope)


def some_step(problem: Problem, rng: Random) -> Plan:
    """Return a step on stages anywhere, with replicas, shards and recompute of their own."""
    layers, gpus = len(problem.chain.layers), len(problem.platform.gpus)
    cuts = sorted(rng.sample(range(1, layers), rng.randint(0, layers - 1)))
    stages: list[Stage] = []
    parts: list[list[int]] = []
    for first, end in zip([0, *cuts], [*cuts, layers], strict=True):
        replicas = rng.choice(problem.replica_counts)
        own = tuple(rng.sample(range(gpus), replicas))
        allowed = SHARDS[: SHARDS.index(problem.scope.shard) + 1]
        shard = rng.choice(allowed) if replicas > 1 else "none"
        recomputed = [number for number in range(first, end) if rng.random() < 0.4]
        layered = shard in ("gradient", "parameter")
        runs = [(number, number) for number in range(first, end)] if layered else [(first, end - 1)]
        parts.append([*range(len(stages), len(stages) + len(runs))])
        stages += [
            Stage(
                layers=run,
                gpus=own,
                shard=shard,
                recompute=tuple((n, n) for n in recomputed if run[0] <= n <= run[1]),
            )
            for run in runs
        ]
    count, late = problem.scope.microbatches or 1, rng.random() ** 3
    ways = [
        [("F", part, i) for part in parts] + [("B", part[::-1], i) for part in parts[::-1]]
        for i in range(count)
    ]
    turns: list[Turn] = []
    while ways:
        way = ways[int(late * rng.random() * len(ways))]
        kind, part, i = way.pop(0)
        turns += [("F" if kind == "F" else "B", number, i) for number in part]
        ways = [way for way in ways if way]
    config = SystemConfig(chain=problem.chain, platform=problem.platform, microbatches=count)
    plan = flush_step(config, stages, turns)
    return replace(plan, scope=problem.scope, rule=problem.rule)


@trials(600)
@given(st.integers(min_value=0, max_value=2**32))
def test_no_step_is_shorter_that_has_just_the_memory(seed: int) -> None:
    rng = Random(seed)
    problem = some_problem(rng)
    try:
        plan = some_step(problem, rng)
    except InputError:
        return
    needed = max(one.peak_bytes for one in memory(plan))
    gpus = [replace(gpu, memory_bytes=needed) for gpu in problem.platform.gpus]
    problem = replace(problem, platform=problem.platform.with_gpus(gpus))
    if check(replace(plan, platform=problem.platform)):
        return
    bound = average_step_bound(problem)
    assert bound is None or bound.period <= plan.pattern.period
    # So it is for any prices.
    step = _Step(problem, problem.scope.microbatches or 1)
    for _ in range(5):
        prices = Prices(
            1.0, rng.random(), rng.choice([0, 0.001, 0.01, 0.1, 1.0]), rng.choice([0, 0.1, 0.3, 1])
        )
        needed_work, divisor = step.least(prices.exact())
        if divisor > 0:
            assert needed_work <= plan.pattern.period_total_ns * divisor


def test_prices_are_whole_numbers() -> None:
    exact = Prices(1.0, 0.5, 2.0, 0.0).exact()
    assert exact.time == 2 * exact.early
    assert exact.kept == 2 * exact.time
    assert exact.instant == pytest.approx(0)
