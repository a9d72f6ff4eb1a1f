"""The paths of a step that an engine runs, against all steps and all orders."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Platform,
    Problem,
    check,
)
from schedopt.account import fits
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.order import EngineOrder
from schedopt.systems.steps import engine_step
from tests.budgets import trials
from tests.solvers.test_engine_step import (
    asked,
    transformer,
)
from tests.strategies import platforms
from tests.transformers import transformers


@trials(60)
@given(transformers(most=4), platforms(most=3, roomy=True), st.integers(1, 2), st.integers(1, 2))
def test_no_step_beats_what_is_said_of_its_cut(
    chain: Chain, platform: Platform, chunks: int, rounds: int
) -> None:
    ranks = len(platform.gpus) if len(platform.gpus) > 1 or chunks == 1 else 1
    chunks = chunks if ranks > 1 else 1
    problem = Problem(chain=chain, platform=platform, scope=asked("megatron", ranks * rounds))
    cuts = EngineCuts(problem, Grid(ranks=ranks, chunks=chunks))
    assume(cuts.exist)
    for begins in cuts.promising(None, lambda: False):
        plan = engine_step(problem, cuts.stages(begins))
        assert check(plan) == ()
        assert cuts.bound(begins) <= cuts.schedule_bound(begins) <= plan.pattern.period_total_ns
        if platform.link is None:
            assert cuts.schedule_bound(begins) == plan.pattern.period_total_ns


@st.composite
def cuts_of_a_shape(draw: st.DrawFn) -> tuple[EngineCuts, list[tuple[int, ...]]]:
    """Draw a shape, and two of its cuts."""
    platform = draw(platforms(most=3, roomy=True))
    ranks = len(platform.gpus)
    chunks = draw(st.integers(1, 2)) if ranks > 1 else 1
    count = ranks * draw(st.integers(1, 3))
    chain = draw(transformers(most=5))
    problem = Problem(chain=chain, platform=platform, scope=asked("megatron", count))
    cuts = EngineCuts(problem, Grid(ranks=ranks, chunks=chunks))
    assume(cuts.exist)
    ways = st.lists(
        st.sampled_from(cuts.places[1:]), min_size=cuts.parts - 1, max_size=cuts.parts - 1
    )
    return cuts, [(0, *sorted(draw(ways) if cuts.parts > 1 else ())) for _ in range(2)]


@trials(200)
@given(cuts_of_a_shape())
def test_a_path_is_as_long_as_its_own_step_and_no_longer_than_any_other(
    drawn: tuple[EngineCuts, list[tuple[int, ...]]],
) -> None:
    cuts, (one, other) = drawn
    times = [cuts.times(begins) for begins in (one, other)]
    own, theirs = (cuts.order.makespan(*both) for both in times)
    path = np.array(cuts.order.critical_path(*times[0]).counts)
    # What takes no time begins before the end, too.
    assert path @ np.hstack(times[0]) in (own, own - 1)
    assert path @ np.hstack(times[1]) <= theirs
    for rank, through in enumerate(cuts.order.rank_paths(*times[0])):
        assert np.array(through.counts) @ np.hstack(times[1]) <= theirs, rank


def test_a_path_goes_through_all_operations_of_a_rank() -> None:
    order = EngineOrder(2, 1, 3)
    lengths, sent = np.array([1, 1, 2, 2]), np.array([5, 0, 5, 0])
    # There and back again: the first rank runs all of its own, or the second one.
    paths = {path.operations: path.transfers for path in order.rank_paths(lengths, sent)}
    assert paths[3, 0, 3, 0] == (0, 0, 0, 0)
    assert paths[1, 3, 1, 3] == (1, 0, 1, 0)


def test_what_stages_of_a_rank_keep_at_once_is_that_of_the_order() -> None:
    # Rank 0 of two with two stages each: 2 + 2 forwards, then one more and a backward in turn.
    order = EngineOrder(2, 2, 4)
    assert sorted(order.held_together[0]) == [(3, 2), (4, 1)]
    assert order.in_flight == [4, 3, 2, 1]


def test_a_stage_without_layers_does_not_hide_what_the_others_of_its_rank_hold() -> None:
    fit, scope = [], asked("megatron", 4, memory="peak")
    for memory in range(1, 60):
        problem = Problem(chain=transformer(4), platform=Platform(2, memory), scope=scope)
        cuts, begins = EngineCuts(problem, Grid(ranks=2, chunks=3)), (0, 1, 2, 4, 5, 5)
        plan = engine_step(problem, cuts.stages(begins))
        fit.append(cuts.may_fit(begins))
        assert fit[-1] == fits(plan, buffers=False), memory
    assert len(set(fit)) == 2
