"""The placements of the local search: plans, memory and penalties, and what is compiled."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.errors import NumbaError

from schedopt import Chain, InputError, Platform, Problem, Scope, Stage, check
from schedopt.account import memory, memory_without_buffers
from schedopt.account.timeline import Timeline
from schedopt.bounds.scopes import make_bound
from schedopt.plan import Plan
from schedopt.solving import Run
from schedopt.solving.local_search import search as search_module
from schedopt.solving.local_search.annealing import Schedule, anneal, replace_all
from schedopt.solving.local_search.coding import decode, encode
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry, njit_kernel
from schedopt.solving.local_search.params import LocalSearchParams
from schedopt.solving.local_search.penalty import peak_of
from schedopt.solving.local_search.search import LocalSearch
from schedopt.solving.local_search.state import (
    LONGEST,
    MICRO_BATCHES,
    NEED,
    PERIOD,
    SPACE,
    STAGES,
    State,
    Workspace,
    new_workspace,
    restart,
)
from schedopt.solving.local_search.tables import Tables, make_tables
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.test_general import GENERAL, UNIT, scopes, search
from tests.strategies import (
    platforms,
    platforms_of_nodes,
    split_chains,
    stars,
)


@njit_entry
def penalty_at(t: Tables, s: State, period: int, limit: float) -> float:
    """Place all stages at a period."""
    return replace_all(t, s, period, limit)


@njit_entry
def peak_on(t: Tables, s: State, gpu: int) -> int:
    """Return the most that lies on a GPU at once."""
    return peak_of(t, s, gpu)


def plan_of(stages: Sequence[Stage], problem: Problem) -> Plan:
    """Return stages as the greedy rule places them."""
    given = replace(problem, stages=tuple(stages), scope=replace(problem.scope, allocation="fixed"))
    plan = search_module.place_stages(given, Run(given))
    assert plan is not None
    return replace(plan, scope=problem.scope)


@given(
    split_chains(longest=6),
    platforms(most=3, unequal=True) | platforms_of_nodes(most=4),
    scopes,
    st.integers(0, 9),
)
@trials(100)
def test_whatever_it_finds_is_a_plan(
    chain: Chain, platform: Platform, scope: Scope, seed: int
) -> None:
    run = search(Problem(chain=chain, platform=platform, scope=scope), 2000, seed)
    best, period, bound = run.best(), run.period(), run.bound()
    assert best is None or not check(best)
    assert period is None or bound is None or bound <= period


@given(stars(), st.integers(0, 9))
@trials(30)
def test_transfers_of_one_hop_keep_apart(case: tuple[Chain, Platform], seed: int) -> None:
    chain, platform = case
    best = search(Problem(chain=chain, platform=platform, scope=GENERAL), 2000, seed).best()
    assert best is None or not check(best)


@given(
    split_chains(longest=6),
    platforms(most=3, roomy=True),
    st.booleans(),
    st.integers(1, LONGEST),
    st.integers(0, 99),
)
@trials(120, by_day=3)
def test_memory_is_what_the_account_says(
    chain: Chain, platform: Platform, split: bool, k: int, seed: int
) -> None:
    scope = replace(GENERAL, split_backward=split, recompute=True)
    problem = Problem(chain=chain, platform=platform, scope=scope)
    tables = make_tables(problem)
    work, go = new_workspace(tables, len(chain.layers)), np.zeros(1, dtype=np.int64)
    state = work.state
    encode([Stage(layers=(0, len(chain.layers) - 1), gpus=(0,))], state, 1000, k)
    draw = np.random.default_rng(seed)
    anneal(tables, work, draw, Schedule(300, 1, 0.01, 0.03, 0.001), go)
    assert work.found[0] > 0
    period = int(work.best.counts[PERIOD])
    restart(state, work.best, period, k)
    assert penalty_at(lean(tables), lean(state), period, np.inf) == 0
    plan = decode(problem, tables, state)
    assert plan.pattern.k == k
    # The search does not know of what comes before it is read.
    needs = memory_without_buffers(Timeline(plan))
    for gpu, need in enumerate(needs):
        assert state.load[gpu, NEED] == need.sum_bytes
        assert peak_on(lean(tables), lean(state), gpu) == need.peak_bytes
        assert state.load[gpu, SPACE] <= need.sum_bytes


@given(
    split_chains(longest=6),
    platforms(most=3, unequal=True),
    scopes,
    st.integers(1, LONGEST),
    st.integers(1, 60),
    st.integers(0, 99),
)
@trials(400)
def test_nothing_is_given_up_that_is_within_the_limit(
    chain: Chain, platform: Platform, scope: Scope, k: int, period: int, seed: int
) -> None:
    problem = Problem(chain=chain, platform=platform, scope=scope)
    tables = make_tables(problem)
    work, go = new_workspace(tables, len(chain.layers)), np.zeros(1, dtype=np.int64)
    encode([Stage(layers=(0, len(chain.layers) - 1), gpus=(0,))], work.state, period, k)
    draw = np.random.default_rng(seed)
    anneal(tables, work, draw, Schedule(50, period, 0.01, 3.0, 1.0), go)
    penalty = penalty_at(lean(tables), lean(work.state), period, np.inf)
    less = penalty * 0.99 - 1e-9
    # What does not find a place may be shorter there than it is.
    if work.state.overlap[work.state.counts[STAGES] - 1] == 0:
        assert penalty_at(lean(tables), lean(work.state), period, penalty) == penalty
    assert penalty_at(lean(tables), lean(work.state), period, less) > less


@pytest.mark.parametrize(
    "params",
    [
        {"placements": 0},
        {"placements_of_few": 1.5},
        {"shortest": 0},
        {"part": 0},
        {"drops": ()},
        {"drops": (1.0,)},
        {"cold": 0.0},
        {"hot": 1e-9},
        {"warm": 1e-9},
        {"warm": 1.0},
    ],
)
def test_parameters_that_no_search_can_use_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LocalSearchParams(**params)


@pytest.mark.parametrize(
    ("chain", "platform", "period"),
    [
        # Each forward and each backward takes half a ns, rounded up.
        (Chain(layers=(layer(1, 1, saved=1),) * 5), Platform(1, 5, speed=2), 10),
        # Each GPU holds two layers of one micro-batch, which crosses three cuts.
        (
            Chain(layers=(layer(1, 1, saved=1, weight=1, sent=1),) * 4, same_gpu=((0, 2), (1, 3))),
            Platform(2, 4, bandwidth=10**9),
            8 + 2 * 3,
        ),
    ],
    ids=["rounded up", "back and forth"],
)
def test_one_micro_batch_after_the_other_is_found(
    chain: Chain, platform: Platform, period: int
) -> None:
    problem = Problem(chain=chain, platform=platform, scope=replace(GENERAL, memory="sum"))
    assert search(problem, 2000).period() == period


@pytest.mark.parametrize(
    ("best", "summed", "whole"),
    [
        (None, (0.05, 0.15), 0),
        # Two stages of one GPU, 3 bytes each: 6 as a sum, and all of it in the second forward.
        ([Stage(layers=(0, 3), gpus=(0,))], (0.4, 0.6), 0.5),
        ([Stage(layers=(0, 3), gpus=(0,), recompute=((0, 0),))], (0.4, 0.6), 0),
    ],
)
def test_some_annealings_leave_out_what_did_not_help(
    best: list[Stage] | None, summed: tuple[float, float], whole: float
) -> None:
    scope = replace(GENERAL, memory="peak", recompute=True)
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 20), scope=scope)
    run = Run(problem)
    if best:
        run.report(plan_of(best, problem))
    search, draw = LocalSearch(problem, run, 1), np.random.default_rng(0)
    first, *tables = (search._tables_of(draw, number) for number in range(401))
    assert first == search.tables._replace(sparing=0.0)
    assert summed[0] <= mean(1 - one.peak for one in tables) <= summed[1]
    assert mean(1 - one.recompute for one in tables) == pytest.approx(whole, abs=0.1)
    spared = [one for one in tables if one.sparing]
    assert all(one.peak and not one.recompute for one in spared)
    assert len(spared) / len(tables) == pytest.approx(whole / 4, abs=0.05)


def test_a_plan_that_needs_the_peak_is_seldom_searched_by_sum() -> None:
    # Layers 0 and 2 lie on GPU 0 and save 4 bytes for each micro-batch in flight.
    scope = replace(GENERAL, memory="peak")
    layers = (replace(UNIT, weight_bytes=0, saved_bytes=4),) * 3
    stages = [Stage(layers=(n, n), gpus=(n % 2,)) for n in range(3)]
    for room, low, high in ((99, 0.4, 0.6), (8, 0.05, 0.15)):
        problem = Problem(chain=Chain(layers=layers), platform=Platform(2, room), scope=scope)
        run = Run(problem)
        plan = plan_of(stages, problem)
        assert (memory(plan)[0].sum_bytes > room) == (room == 8)
        search, draw = LocalSearch(problem, run, 1), np.random.default_rng(0)
        shares = [mean(1 - search._tables_of(draw, number).peak for number in range(1, 401))]
        run.report(plan)
        shares.append(mean(1 - search._tables_of(draw, number).peak for number in range(1, 401)))
        # Without a plan it is not known whether one fits as a sum, too.
        assert 0.05 <= shares[0] <= 0.15
        assert low <= shares[1] <= high


def test_patterns_are_searched_down_to_the_bound_of_their_length() -> None:
    scope = replace(GENERAL, max_k=2)
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 99), scope=scope)
    run = Run(problem)
    for period, max_k in ((5, 2), (6, 1)):
        run.add_bound(make_bound(Fraction(period), replace(scope, max_k=max_k), "known"))
    search = LocalSearch(problem, run, 1)
    assert search._open_for() == [1, 2]
    assert [search._low(k) for k in (1, 2)] == [6, 10]
    stages = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 3), gpus=(1,))]
    run.report(plan_of(stages, problem))
    assert run.period() == 6
    assert search._open_for() == [2]
    # From given stages it looks for patterns of one micro-batch, of which none is shorter.
    assert not [*search.improve(stages)]
    assert search.placements == 0


def test_patterns_of_one_micro_batch_that_are_near_their_bound_are_not_searched() -> None:
    layer, scope = replace(UNIT, forward_ns=100, backward_ns=150), replace(GENERAL, max_k=2)
    problem = Problem(chain=Chain(layers=(layer,) * 4), platform=Platform(2, 99), scope=scope)
    stages = [Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 3), gpus=(1,))]
    for gap, lengths in (("0.04", [1, 2]), ("0.05", [2])):
        run = Run(problem, gap=Fraction(gap))
        run.add_bound(make_bound(Fraction(477), replace(scope, max_k=1), "known"))
        run.report(plan_of(stages, problem))
        assert run.period() == 500
        assert LocalSearch(problem, run, 1)._open_for() == lengths


def test_an_annealing_looks_no_farther_than_halfway_to_the_bound() -> None:
    layer = replace(UNIT, forward_ns=100, backward_ns=150)
    problem = Problem(chain=Chain(layers=(layer,) * 4), platform=Platform(2, 99), scope=GENERAL)
    run = Run(problem)
    run.add_bound(make_bound(Fraction(480), GENERAL, "known"))
    run.report(plan_of([Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 3), gpus=(1,))], problem))
    assert run.period() == 500
    search = LocalSearch(problem, run, 1)
    periods = []
    for drop in (0.05, 0.01):
        plan = Schedule(steps=1, low=search._low(1), drop=drop, hot=1, cold=1)
        search._prepare(search.workers[0], None, plan, 1, run.period())
        periods.append(search.workers[0].state.counts[PERIOD])
    # Halfway from 480 ns to 499; and by the drop, from 500.
    assert periods == [489, 495]


def test_what_is_compiled_makes_no_array() -> None:
    @njit_kernel
    def make(length: int) -> int:
        return int(np.zeros(length).size)

    with pytest.raises(NumbaError):
        make(3)


def test_annealings_with_recompute_are_longer_the_more_was_looked_at() -> None:
    chain, platform = Chain(layers=(UNIT,) * 20), Platform(2, 10**6)
    lengths: dict[bool, list[int]] = {}
    for recompute in (False, True):
        scope = replace(GENERAL, recompute=recompute)
        problem = Problem(chain=chain, platform=platform, scope=scope)
        search = LocalSearch(problem, Run(problem), 1)
        assert search._steps(longest=True) == 400_000
        lengths[recompute] = []
        for search.placements in (0, 8_000 * 16, 24_000 * 16, 10**9):
            lengths[recompute].append(search._steps(longest=False))
    assert lengths == {False: [400_000] * 4, True: [8_000, 8_000, 24_000, 400_000]}


def test_starts_and_what_was_found_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 60), platform=Platform(2, 10**6), scope=GENERAL)
    run, params = Run(problem, work_limit=4800), LocalSearchParams(placements=800)
    run.begin("general")
    plans: list[Schedule] = []

    def note(tables: Tables, work: Workspace, draw: Any, plan: Schedule, stop: Any) -> int:
        plans.append(plan)
        return anneal(tables, work, draw, plan, stop)

    monkeypatch.setattr(search_module, "anneal", note)
    monkeypatch.setattr(search_module, "can_pack", lambda _: False)
    asked: list[int] = []
    for found in LocalSearch(problem, run, 1, params).rounds(asked.append):
        run.report(found)
    # The first finds a plan. No bound is known that would end it.
    assert [plan.hot for plan in plans[:8]] == [params.hot, params.warm] * 4
    assert [plan.steps for plan in plans[:7]] == [800, 400, 800, 400, 800, 400, 800]
    assert [plan.drop for plan in plans[:7:2]] == [*params.drops]
    assert asked[:4] == [0, 2, 4, 6]


def test_patterns_longer_than_the_best_are_searched_for_a_quarter_of_the_placements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Three stages with room for two activations: thinned 1F1B, of two micro-batches, is best.
    layers, scope = (replace(UNIT, weight_bytes=0),) * 3, replace(GENERAL, max_k=2)
    problem = Problem(chain=Chain(layers=layers), platform=Platform(3, 2), scope=scope)
    run = Run(problem, work_limit=40_000)
    params = LocalSearchParams(placements=4000, placements_of_few=4000, shortest=900)
    run.begin("general")
    run.report(plan_of([Stage(layers=(n, n), gpus=(n,)) for n in range(3)], problem))
    lengths: list[tuple[int, int, int]] = []

    def note(tables: Tables, work: Workspace, draw: Any, plan: Schedule, stop: Any) -> int:
        best, k = run.best(), int(work.state.counts[MICRO_BATCHES])
        assert best is not None
        from_start = plan.steps * (2 if plan.hot == params.warm else 1)
        lengths.append((best.pattern.k, k, from_start))
        return anneal(tables, work, draw, plan, stop)

    monkeypatch.setattr(search_module, "anneal", note)
    monkeypatch.setattr(search_module, "LONGER", 0.5)
    for found in LocalSearch(problem, run, 1, params).rounds(lambda number: None):
        run.report(found)
    # The last two share what is left.
    assert {*lengths[:-2]} - {(1, 1, 4000)} == {(1, 2, 1000), (2, 1, 4000), (2, 2, 4000)}


@pytest.mark.parametrize("known", [0, 1, 2])
def test_what_somebody_else_finds_meanwhile_is_a_start_once(known: int) -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 60), platform=Platform(2, 10**6), scope=GENERAL)
    run = Run(problem, work_limit=60_000)
    run.begin("general")
    whole = [Stage(layers=(0, 59), gpus=(0,))]
    asked: list[int] = []
    news: deque[Sequence[Stage]] = deque([whole] * known)
    for plan in LocalSearch(problem, run, 2).rounds(asked.append, lambda: 1, news):
        run.report(plan)
    assert not news
    # What was found from it is gone on from before the next start.
    assert asked[0] == known + (known > 0)


def test_a_start_of_more_stages_than_it_has_room_for_is_passed_over() -> None:
    chain, platform = Chain(layers=(UNIT,) * 60), Platform(2, 10**6)
    problem = Problem(chain=chain, platform=platform, scope=GENERAL)
    run = Run(problem, work_limit=2000)
    run.begin("general")
    apart = [Stage(layers=(layer, layer), gpus=(layer % 2,)) for layer in range(60)]
    for plan in LocalSearch(problem, run, 1).rounds(lambda number: apart):
        run.report(plan)
    assert run.best() is not None
