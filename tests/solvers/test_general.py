"""The local search over any allocation: what it finds is a plan, and good on small chains."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import cycle
from math import ceil
from pathlib import Path
from sys import getrefcount
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Problem, Scope, Stage, solve
from schedopt.bench.cases import least_memory
from schedopt.bounds import lower_bounds
from schedopt.families import lemma_2, section_6_1, theorem_5, theorem_6
from schedopt.families.instance import Instance
from schedopt.solvers import general
from schedopt.solving import Run
from schedopt.solving.local_search import search as search_module
from schedopt.solving.local_search.annealing import Schedule, anneal
from schedopt.solving.local_search.coding import encode
from schedopt.solving.local_search.params import DEFAULTS, LocalSearchParams
from schedopt.solving.local_search.search import LocalSearch
from schedopt.solving.local_search.starts import fixed_patterns
from schedopt.solving.local_search.state import State, new_workspace, restart
from schedopt.solving.local_search.tables import make_tables
from schedopt.solving.requirements import is_contiguous
from tests.bounds.every_plan import has_plan
from tests.budgets import trials
from tests.optima import load
from tests.solvers.asking import plan_of
from tests.solvers.brute_force import every_allocation
from tests.solvers.order_words import least_of
from tests.strategies import (
    short_chains,
    tight_platforms,
)

GENERAL = Scope(allocation="general")
UNIT = Layer(forward_ns=1, backward_ns=2, weight_bytes=1, activation_bytes=1)


def search(problem: Problem, placements: int, seed: int = 0, *, annealings: int = 1) -> Run:
    """Return a run of the search alone, of which every plan was checked."""
    params = LocalSearchParams(placements=placements // annealings)
    run = Run(problem, seed=seed, work_limit=placements)
    for bound in lower_bounds(problem):
        run.add_bound(bound)
    run.begin("general")
    starts = cycle([*fixed_patterns(problem)] or [None])
    for plan in LocalSearch(problem, run, 1, params).rounds(lambda number: next(starts)):
        run.report(plan)
    return run


scopes = st.builds(
    Scope,
    allocation=st.just("general"),
    split_backward=st.booleans(),
    recompute=st.booleans(),
    memory=st.sampled_from(["sum", "peak"]),
    max_k=st.sampled_from([1, 2, None]),
)


@pytest.mark.parametrize(
    "instance",
    [section_6_1(), lemma_2(), theorem_5(2), theorem_6(3), theorem_6(4)],
    ids=lambda instance: instance.chain.name,
)
def test_it_reaches_the_optimum_of_the_theorems(instance: Instance) -> None:
    problem = Problem(chain=instance.chain, platform=instance.platform, scope=GENERAL)
    known = next(fact for fact in instance.known if fact.scope.allocation == "general")
    assert search(problem, 200_000).period() == known.period


@pytest.mark.parametrize("memory", ["sum", "peak"])
@pytest.mark.parametrize("gpus", [3, 5])
def test_two_micro_batches_share_a_period_where_that_is_shorter(gpus: int, memory: Any) -> None:
    # Each GPU holds one layer and what two micro-batches save there. A micro-batch takes 3 ns on
    # each, so that one of them in a period leaves whole turns of 3 ns idle.
    layer = replace(UNIT, weight_bytes=100)
    chain, platform = Chain(layers=(layer,) * gpus), Platform(gpus, 102)
    found = [
        search(
            Problem(chain=chain, platform=platform, scope=replace(GENERAL, max_k=k, memory=memory)),
            64_000,
            annealings=32,
        ).period()
        for k in (1, 2)
    ]
    assert found == [3 * ceil(gpus / 2), Fraction(3 * gpus, 2)]


def test_small_problems_end_at_their_optimum() -> None:
    missed = []
    for golden in load("general"):
        problem = Problem(chain=golden.chain, platform=golden.platform, scope=golden.scope)
        period = search(problem, 3200, annealings=16).period()
        if period != golden.optimum:
            missed.append(golden)
            assert period is None or (golden.optimum or period + 1) < period, golden
    assert len(missed) <= 2


@trials(150)
@given(short_chains(longest=2), tight_platforms(), st.booleans(), st.integers(0, 9))
def test_nothing_is_below_all_orders_of_two_micro_batches(
    chain: Chain, platform: Platform, split: bool, seed: int
) -> None:
    scope = replace(GENERAL, max_k=2, memory="peak", split_backward=split)
    least = least_of(chain, platform, every_allocation(chain, platform, scope), scope)
    problem = Problem(chain=chain, platform=platform, scope=scope)
    period = search(problem, 2000, seed, annealings=10).period()
    assert period is None or (least is not None and least <= period)


def test_the_same_seed_and_work_give_the_same_plan() -> None:
    layers = [replace(UNIT, forward_ns=number % 5 + 1) for number in range(14)]
    chain, platform = Chain(layers=tuple(layers)), Platform(3, 12, bandwidth=10**9)
    results = [
        solve(chain, platform, scope=GENERAL, solver="general", seed=3, workers=3, work_limit=9000)
        for _ in range(2)
    ]
    assert results[0].plan == results[1].plan
    assert results[0].plan is not None


def test_it_is_never_worse_than_the_contiguous_plan() -> None:
    layers = [replace(UNIT, forward_ns=number % 4 + 1) for number in range(9)]
    chain, platform = Chain(layers=tuple(layers)), Platform(4, 9, bandwidth=10**9)
    contiguous = solve(chain, platform, scope=Scope()).period
    anywhere = solve(chain, platform, scope=GENERAL, work_limit=20_000, time_limit=20).period
    assert contiguous is not None
    assert anywhere is not None
    assert anywhere <= contiguous


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_runs_when_there_is_memory_for_it(seed: int) -> None:
    # The head fills GPU 1, and its turn takes two periods. Only between the end of a backward and
    # the start of a forward GPU 0 holds two micro-batches, not three: then the loss fits.
    first = replace(UNIT, backward_ns=3, weight_bytes=0, saved_bytes=10)
    head = replace(UNIT, backward_ns=9, weight_bytes=0, saved_bytes=0)
    loss = Layer(
        forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0, workspace_bytes=10
    )
    problem = Problem(
        chain=Chain(layers=(first, head, loss)),
        platform=Platform(gpus=2, memory=30),
        scope=replace(GENERAL, memory="peak"),
    )
    assert search(problem, 20_000, seed).period() == 10


@pytest.mark.parametrize("name", ["gpt2-small", "vit-b16"])
def test_from_a_contiguous_plan_it_goes_the_way_that_it_goes_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At the least memory with which there is a contiguous plan; bounds beside would only end it.
    monkeypatch.setattr(general, "relaxed_allocations", lambda *_, **_options: iter(()))
    chain = Chain.load(Path(__file__).parents[2] / "instances" / f"{name}.json")
    platform = Platform(4, least_memory(chain, 4, 10**10), bandwidth=10**10)
    problem = Problem(chain=chain, platform=platform, scope=replace(GENERAL, memory="peak"))
    known = plan_of(solve(chain, platform, solver="contiguous"))
    for seed in range(3):
        alone = Run(problem, seed=seed, work_limit=10_000)
        after = Run(problem, seed=seed, work_limit=10_000 + DEFAULTS.shortest)
        after.report(known)
        for run in (alone, after):
            run.begin("general")
            general.solve(problem, run)
        period = alone.period()
        assert period is not None
        assert (after.period() or period) <= min(period, known.pattern.period)


def test_a_later_phase_goes_on_from_what_an_earlier_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(general, "relaxed_allocations", lambda *_, **_options: iter(()))
    chain = Chain(layers=tuple(replace(UNIT, forward_ns=number % 4 + 1) for number in range(12)))
    scope = replace(GENERAL, recompute=True, max_k=2)
    problem = Problem(chain=chain, platform=Platform(3, 14), scope=scope)
    known = plan_of(solve(chain, problem.platform, solver="contiguous"))
    run = Run(problem, work_limit=40_000)
    run.begin("general")
    run.report(known)
    general.solve(replace(problem, scope=replace(scope, max_k=1)), run)
    best, begun = run.best(), list[object]()
    assert best is not None
    assert not is_contiguous(best.stages)

    def from_stages(stages: Sequence[Stage], *others: Any) -> None:
        begun.append(stages)
        encode(stages, *others)

    def from_elite(state: State, elite: State, *others: Any) -> None:
        begun.append("elite")
        restart(state, elite, *others)

    monkeypatch.setattr(search_module, "is_compiled", lambda run: True)
    monkeypatch.setattr(search_module, "encode", from_stages)
    monkeypatch.setattr(search_module, "restart", from_elite)
    general.solve(problem, run)
    assert begun[0] == "elite"
    assert known.stages in begun


def test_tied_layers_share_a_gpu() -> None:
    layers = tuple(replace(UNIT, forward_ns=number + 1) for number in range(6))
    chain = Chain(layers=layers, same_gpu=((0, 5),))
    run = search(Problem(chain=chain, platform=Platform(3, 20), scope=GENERAL), 20_000)
    plan = run.best()
    assert plan is not None
    assert plan.stages[0].gpus == plan.stages[-1].gpus
    assert len({stage.gpus for stage in plan.stages}) > 1


@pytest.mark.parametrize("allocation", ["contiguous", "fixed"])
def test_it_chooses_the_allocation_itself(allocation: str) -> None:
    stages = [Stage(layers=(0, 0), gpus=(0,))] if allocation == "fixed" else []
    scope = None if stages else Scope()
    with pytest.raises(InputError, match="general"):
        solve(Chain(layers=(UNIT,)), Platform(1, 99), scope=scope, stages=stages, solver="general")


@pytest.mark.parametrize("percent", [90, 99, 100, 150])
def test_a_decision_is_answered_within_the_period_asked(percent: int) -> None:
    layers = tuple(replace(UNIT, forward_ns=number % 4 + 1) for number in range(12))
    chain, platform = Chain(layers=layers), Platform(3, 14, bandwidth=10**9)
    best = search(Problem(chain=chain, platform=platform, scope=GENERAL), 30_000).period()
    assert best is not None
    asked = int(best) * percent // 100
    scope = replace(GENERAL, period_ns=asked)
    found = search(Problem(chain=chain, platform=platform, scope=scope), 30_000).period()
    assert found is None or found <= asked
    assert found is not None or percent < 100


def test_nothing_handed_to_the_search_is_kept_by_it() -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 20), scope=GENERAL)
    tables = make_tables(problem)
    work, go = new_workspace(tables, 4), np.zeros(1, dtype=np.int64)
    draw = np.random.default_rng(0)
    arrays = [work.state.row, work.scratch.line, work.best.row, work.found]
    handed = [tables.time, *arrays, go, draw, draw.bit_generator]
    before = [getrefcount(one) for one in handed]
    for _ in range(3):
        encode([Stage(layers=(0, 3), gpus=(0,))], work.state, 10)
        anneal(tables, work, draw, Schedule(100, 1, 0.01, 0.03, 0.001), go)
    assert [getrefcount(one) for one in handed] == before


def test_compiling_is_not_waited_for_where_all_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 20), scope=GENERAL)
    plan, compiling = search(problem, 100).best(), threading.Event()
    assert plan is not None
    monkeypatch.setattr(search_module, "compile_search", compiling.wait)
    run = Run(problem)
    run.report(plan)
    run.report_bound(plan.pattern.period, GENERAL, "known")
    assert not search_module.is_compiled(run)
    compiling.set()
    assert search_module.is_compiled(Run(problem))


def test_bounds_rest_after_their_share_while_the_search_finds_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("schedopt.solving.clock.time.monotonic", lambda: now)
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 99), scope=GENERAL)
    timed, counted, endless = (
        general._Recent(problem, Run(problem, time_limit=seconds, work_limit=work))
        for seconds, work in ((40, None), (40, 9), (None, None))
    )
    now = 10.0
    timed.note()
    now = 16.0
    assert [timed.needs_all(proving_s) for proving_s in (3.9, 4.1)] == [False, True]
    # What was found after 10 s is long ago by then.
    now = 20.0
    assert not timed.needs_all(20.0)
    timed.note()
    assert timed.needs_all(20.0)
    for one in (counted, endless):
        one.note()
        assert not one.needs_all(20.0)
    assert [one.is_over() for one in (timed, counted, endless)] == [False, True, False]
    # Whole allocations come with plans, too.
    peak = replace(problem, scope=replace(GENERAL, memory="peak", max_k=1))
    finding = general._Recent(peak, Run(peak, time_limit=40))
    now = 30.0
    finding.note()
    assert not finding.needs_all(10.0)
    now = 19.9
    assert not counted.is_over()


def test_what_holds_for_short_patterns_is_proven_beside_what_holds_for_longer_ones() -> None:
    # No pattern of one micro-batch takes less than 14 ns, as a search over all of them says.
    layers = (
        Layer(forward_ns=4, backward_ns=4, weight_bytes=0, activation_bytes=0, saved_bytes=2),
        Layer(forward_ns=4, backward_ns=3, weight_bytes=0, activation_bytes=0, saved_bytes=0),
        Layer(forward_ns=3, backward_ns=4, weight_bytes=0, activation_bytes=0, saved_bytes=0),
    )
    scope = replace(GENERAL, max_k=2, memory="peak")
    problem = Problem(chain=Chain(layers=layers), platform=Platform(3, 4), scope=scope)
    alone = replace(problem, scope=replace(scope, max_k=1, grain="layer"))
    assert not has_plan(alone, Fraction(14), below=True)
    result = solve(problem.chain, problem.platform, scope=scope, solver="general", work_limit=200)
    proven = {bound.scope.max_k: bound.period for bound in result.bounds}
    assert proven[1] == 14 > (result.lower_bound or 0)
