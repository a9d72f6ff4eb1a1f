"""1F1B in its steady state: at most S - s micro-batches in flight at stage s of S."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Plan, Platform, Rule, Stage, check
from schedopt.account import concurrent_activations, memory
from schedopt.problem import Problem
from schedopt.solvers.eager import report_eager
from schedopt.solvers.one_f_one_b_star import report_stages
from schedopt.solving import Run
from schedopt.systems.config import SystemConfig
from schedopt.systems.pipedream import one_f_one_b
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.brute_force import group_numbers
from tests.strategies import chains, platforms, stars

Report = Callable[[Problem, Sequence[Stage], Run], None]


def stage_by_layer(chain: Chain, platform: Platform) -> list[Stage]:
    """Return a layer for each GPU, and the rest on the last one."""
    last = min(len(chain.layers), len(platform.gpus)) - 1
    ends = [*range(last), len(chain.layers) - 1]
    return [Stage(layers=(number, end), gpus=(number,)) for number, end in enumerate(ends)]


def eager_plan(
    chain: Chain, platform: Platform, stages: list[Stage], report: Report = report_eager
) -> Plan | None:
    problem = Problem(chain=chain, platform=platform)
    run = Run(problem)
    report(problem, stages, run)
    return run.best()


star_plan = partial(eager_plan, report=report_stages)


def in_flight(plan: Plan) -> list[int]:
    counts = concurrent_activations(plan)
    return [counts[number, stage.gpus[0]] for number, stage in enumerate(plan.stages)]


def least_period(chain: Chain, platform: Platform, stages: list[Stage]) -> tuple[int, list[int]]:
    """Return the least period at which 1F1B* keeps S - s micro-batches at most, and how many."""
    cuts = tuple((stage.first, stage.last, stage.gpus[0]) for stage in stages)
    period = 1
    while True:
        groups = group_numbers(chain, platform, cuts, period)
        most = range(len(stages), 0, -1)
        if groups is not None and all(g <= m for g, m in zip(groups, most, strict=True)):
            return period, groups
        period += 1


@trials(100)
@given(chains(), platforms(unequal=True))
def test_equals_brute_force_with_memory_links_and_unequal_gpus(
    chain: Chain, platform: Platform
) -> None:
    stages = stage_by_layer(chain, platform)
    period, fewest = least_period(chain, platform, stages)
    # As many more as every stage so far has room for.
    kept, spare = [], len(stages)
    for number, count in enumerate(fewest):
        spare = min(spare, len(stages) - number - count)
        kept.append(count + spare)
    ample = platform.with_gpus([replace(gpu, memory_bytes=10**6) for gpu in platform.gpus])
    unlimited = eager_plan(chain, ample, stages)
    assert unlimited is not None
    assert check(unlimited) == ()
    assert unlimited.pattern.period_total_ns == period
    found = in_flight(unlimited)
    for number, (count, asked) in enumerate(zip(found, kept, strict=True)):
        # A stage that takes no time, and none behind it, keeps a micro-batch less.
        rest = chain.layers[stages[number].first :]
        takes_time = any(a.forward_ns + a.backward_ns for a in rest)
        assert count == asked if takes_time else count <= asked
        assert count <= len(stages) - number
    needs = [need.sum_bytes for need in memory(unlimited)]
    fits = all(need <= gpu.usable_bytes for need, gpu in zip(needs, platform.gpus, strict=True))
    plan = eager_plan(chain, platform, stages)
    assert (plan is not None) == fits
    star = star_plan(chain, platform, stages)
    if plan is not None:
        assert plan.pattern == unlimited.pattern
        assert star is not None
        assert star.pattern.period_total_ns <= period


@trials(60)
@given(chains(), platforms(roomy=True, unequal=True))
def test_with_free_transfers_the_period_is_the_largest_load(
    chain: Chain, platform: Platform
) -> None:
    free = Platform(platform.gpus)
    stages = stage_by_layer(chain, free)
    loads = [
        sum(
            free.gpus[stage.gpus[0]].duration_ns(time)
            for a in chain.layers[stage.first : stage.last + 1]
            for time in (a.forward_ns, a.backward_ns)
        )
        for stage in stages
    ]
    plan = eager_plan(chain, free, stages)
    assert plan is not None
    assert plan.pattern.period_total_ns == max(1, *loads)


def sending(*rows: tuple[int, int, int]) -> Chain:
    """Return layers by their forward and backward, and the bytes that they keep and send."""
    return Chain(layers=tuple(layer(f, b, size, sent=size) for f, b, size in rows))


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Chain, Platform]:
    """Draw layers that take time, each for a GPU; links are free or have two directions."""
    count = draw(st.integers(1, 5))
    length, size = st.integers(1, 6), st.integers(0, 5)
    chain = sending(*((draw(length), draw(length), draw(size)) for _ in range(count)))
    if draw(st.booleans()):
        return chain, Platform(count, 10**6)
    latency = draw(st.integers(0, 1))
    return chain, Platform(count, 10**6, bandwidth=10**9, latency=latency, duplex="full")


@trials(60)
@given(pipelines())
def test_a_run_of_1f1b_is_no_faster_and_keeps_no_less(pipeline: tuple[Chain, Platform]) -> None:
    chain, platform = pipeline
    stages = stage_by_layer(chain, platform)
    run = one_f_one_b(SystemConfig(chain=chain, platform=platform, microbatches=4), Rule(), stages)
    plan = eager_plan(chain, platform, stages)
    assert plan is not None
    period = run.pattern.period
    assert plan.pattern.period_total_ns <= ceil(period)
    assert all(a <= b for a, b in zip(in_flight(plan), in_flight(run), strict=True))
    if platform.link is None:
        assert plan.pattern.period_total_ns == ceil(period)
        assert in_flight(plan) == in_flight(run) == list(range(len(stages), 0, -1))


def test_by_hand_three_equal_stages() -> None:
    # Each takes 3 of 3 ns. 1F1B keeps 3, 2 and 1 micro-batches, of a byte each.
    chain, platform = sending(*[(1, 2, 1)] * 3), Platform(3, 3)
    stages = stage_by_layer(chain, platform)
    plan = eager_plan(chain, platform, stages)
    assert plan is not None
    assert (plan.pattern.period_total_ns, in_flight(plan)) == (3, [3, 2, 1])
    assert eager_plan(chain, Platform(3, 2), stages) is None


def test_by_hand_1f1b_keeps_more_than_it_must_and_does_not_slow_down_to_save_it() -> None:
    # Stages of 2, 2 and 4 ns. At T = 4 the first two make one group: 1F1B* keeps 2, 2 and 1, and
    # so fits with 2 bytes for the first GPU, where 1F1B keeps 3.
    chain = sending((1, 1, 1), (1, 1, 1), (2, 2, 1))
    for room, kept in ((3, [3, 2, 1]), (2, None)):
        platform = Platform(3, room)
        stages = stage_by_layer(chain, platform)
        star, plan = star_plan(chain, platform, stages), eager_plan(chain, platform, stages)
        assert star is not None
        assert (star.pattern.period_total_ns, in_flight(star)) == (4, [2, 2, 1])
        assert (plan and in_flight(plan)) == kept
        assert plan is None or plan.pattern.period_total_ns == 4


def test_by_hand_no_forward_is_earlier_than_what_it_needs() -> None:
    # Spans from the end at T = 4: stages of 2 ns, 2 and 4, 3 + 3 ns of transfers, 10, and a stage
    # of 2 ns, 12. So 1F1B* keeps 3, 1 and 1. Stage 1 may keep 2, but stage 0 cannot begin earlier.
    # At T = 3 the first one would keep 5: 2, 3 + 2, 5 + 6, 12 + 2 ns.
    platform = Platform(3, 99, bandwidth=10**9, duplex="full")
    chain = sending((1, 1, 3), (1, 1, 0), (1, 1, 0))
    plan = eager_plan(chain, platform, stage_by_layer(chain, platform))
    assert plan is not None
    assert (plan.pattern.period_total_ns, in_flight(plan)) == (4, [3, 1, 1])


def test_by_hand_1f1b_is_slow_where_both_directions_share_a_link() -> None:
    # From the end: a stage of 5 ns, transfers of 2 x 3 ns, a stage of 6 ns. Two micro-batches may
    # be in flight, so the link is in a group with a stage: 5 + 6 or 6 + 6 ns. A run in which every
    # other micro-batch is sent in another order takes 18 ns for two.
    chain = sending((5, 1, 2), (1, 4, 2))
    platform = Platform(2, 99, bandwidth=10**9, latency=1)
    stages = stage_by_layer(chain, platform)
    plan = eager_plan(chain, platform, stages)
    assert plan is not None
    assert (plan.pattern.period_total_ns, in_flight(plan)) == (11, [2, 1])
    run = one_f_one_b(SystemConfig(chain=chain, platform=platform, microbatches=4), Rule(), stages)
    assert (run.pattern.k, run.pattern.period_total_ns) == (2, 18)


@trials(30)
@given(stars())
def test_links_that_several_cuts_share_are_refused(star: tuple[Chain, Platform]) -> None:
    # What GPU 1 has to do with 0 and with 2 goes through its own link.
    chain, platform = star
    with pytest.raises(InputError, match="links that several cuts share"):
        eager_plan(chain, platform, stage_by_layer(chain, platform))
