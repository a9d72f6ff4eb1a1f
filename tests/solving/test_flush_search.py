"""The compiled search for steps with a flush: what it simulates, and what it finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Plan, Platform, Problem, Scope, check
from schedopt.account import fits
from schedopt.solving.flush_search.search import FlushSearch
from schedopt.solving.flush_search.state import Choice
from schedopt.solving.replicas.layout import lay_out_turns
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import chains, platforms


def has_ways_of_their_own(platform: Platform) -> bool:
    """Whether what goes one way does not wait for what comes back."""
    return platform.link is None or platform.link.duplex == "full"


@st.composite
def steps(draw: st.DrawFn) -> Problem:
    """Return a question for a step of a few micro-batches on a few GPUs."""
    scope = scope_of(draw(st.integers(1, 5)), recompute=draw(st.booleans()))
    platform = draw(platforms(unequal=True).filter(has_ways_of_their_own))
    room = draw(st.integers(0, 30))
    platform = platform.with_gpus(tuple(replace(gpu, memory_bytes=room) for gpu in platform.gpus))
    return Problem(chain=draw(chains(tied=True)), platform=platform, scope=scope)


def scope_of(count: int, *, recompute: bool = False) -> Scope:
    return Scope(allocation="general", microbatches=count, memory="peak", recompute=recompute)


def search_all(problem: Problem, moves: int) -> FlushSearch:
    """Search from all starts, with nothing behind the last backwards."""
    search = FlushSearch(problem, [0] * len(problem.chain.layers), 0)
    for start in search.starts():
        search.begin(start, moves)
    return search


def plan_of(search: FlushSearch) -> Plan:
    stages, turns = search.found()
    return lay_out_turns(search.problem, stages, turns)


@given(problem=steps(), moves=st.sampled_from([0, 3, 30]))
@trials(300)
def test_what_it_simulates_is_a_step_that_fits_and_takes_so_long(
    problem: Problem, moves: int
) -> None:
    search = search_all(problem, moves)
    if not search.is_found():
        return
    search.improve(moves)
    plan, count = plan_of(search), problem.scope.microbatches or 1
    # An instant at the very end belongs to the next step.
    assert plan.pattern.period_total_ns <= search.makespan_ns + 1
    # A recompute that is simulated with its backward need not wait for what comes to that.
    if not problem.scope.recompute:
        assert plan.pattern.period_total_ns >= search.makespan_ns
    runs = Counter((one.kind, one.stage) for one in plan.pattern.operations)
    recomputed = sum(bool(stage.recompute) for stage in plan.stages)
    assert runs.total() == count * (2 * len(plan.stages) + recomputed)
    # What comes before it is read is not counted.
    assert fits(plan, buffers=False)
    assert {violation.kind for violation in check(plan)} <= {"memory"}


@given(problem=steps())
@trials(100)
def test_where_the_first_placement_fits_alone_there_is_a_step(problem: Problem) -> None:
    # All on one GPU, a micro-batch at a time: its peak is that of its residencies.
    chain, gpu = problem.chain, Gpu(memory_bytes=0)
    scope = replace(problem.scope, recompute=False)
    alone = replace(problem, platform=Platform([gpu]), scope=scope)
    search = FlushSearch(alone, [0] * len(chain.layers), 0)
    search.begin(next(search.starts()), 0)
    layers = chain.layers
    most = sum(one.weight_bytes + one.saved for one in layers)
    most += (layers[0].saved_input_bytes or 0) + max(one.workspace_bytes or 0 for one in layers)
    assert search.is_found() is (most == 0)
    alone = replace(alone, platform=Platform([replace(gpu, memory_bytes=most)]))
    search = FlushSearch(alone, [0] * len(layers), 0)
    search.begin(next(search.starts()), 0)
    work = sum(one.forward_ns + one.backward_ns for one in layers)
    assert search.makespan_ns == work * (problem.scope.microbatches or 1)


def test_what_begins_leaves_memory_for_what_ends() -> None:
    chain = Chain(layers=(layer(1, 1, 1), layer(1, 1), layer(1, 1, 1)))
    scope = scope_of(3)
    problem = Problem(chain=chain, platform=Platform(2, 2), scope=scope)
    search = FlushSearch(problem, [0] * 3, 0)
    both_ends = np.array([0, 1, 0])
    search.begin(Choice(both_ends, np.zeros_like(both_ends), np.array([3, 0])), 0)
    # The first GPU holds two parts: both of one micro-batch, or the first of two while one comes
    # back. It has 12 ns of work, and waits 1 ns for the first forward and the last backward of the
    # middle each.
    assert search.makespan_ns == 14
    assert check(plan_of(search)) == ()


def test_ends_of_a_chain_share_a_gpu_where_that_balances_times() -> None:
    chain = Chain(layers=(layer(1, 1), layer(2, 2), layer(1, 1)))
    scope = scope_of(4)
    problem = Problem(chain=chain, platform=Platform(2, 0), scope=scope)
    search = search_all(problem, 200)
    # Each GPU has 4 ns of work for a micro-batch, and that of the middle waits 1 ns before and
    # after; neighbours on one GPU would be 6 ns of work.
    assert search.makespan_ns == 18
    plan = plan_of(search)
    assert check(plan) == ()
    assert plan.stages[0].gpus == plan.stages[2].gpus


def test_what_follows_the_last_backward_counts() -> None:
    chain = Chain(layers=(layer(1, 1), layer(1, 1)))
    scope = scope_of(1)
    problem = Problem(chain=chain, platform=Platform(2, 0), scope=scope)
    search = FlushSearch(problem, [0, 5], 0)
    search.begin(next(search.starts()), 100)
    # On two GPUs 1 + 1 + 1 + 5, while the first layer goes back; on one 4, and then 5.
    assert search.makespan_ns == 8


def test_the_same_seed_finds_the_same() -> None:
    chain = Chain(layers=tuple(layer(f, 2 * f, 4, weight=1, sent=1) for f in (3, 1, 4, 1, 5, 9)))
    scope = scope_of(6, recompute=True)
    problem = Problem(chain=chain, platform=Platform(3, 20, bandwidth=10**9), scope=scope)
    plans = []
    for _ in range(2):
        search = search_all(problem, 100)
        search.improve(500)
        plans.append(plan_of(search))
    assert plans[0] == plans[1]
