"""The partitions that people use as solvers, run by 1F1B* and by 1F1B."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Platform, Rule, Scope, Stage, solve
from schedopt.cuts import NoPartition
from schedopt.families import random_chain
from schedopt.problem import Problem, training_step
from schedopt.solvers import piper
from schedopt.solvers.even_split import even_split
from schedopt.solving.registry import PARTITIONED, PARTITIONERS, load_partitioner, solver_names
from tests.bench.test_hybrid import sized
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, plan_of
from tests.strategies import chains, platforms


def _is_parted_evenly(chain: Chain, platform: Platform) -> bool:
    """Whether equal numbers of layers for each GPU part layers that are tied."""
    starts = [stage.first for stage in even_split(len(chain.layers), len(platform.gpus))]
    return any(group[0] < start <= group[-1] for group in chain.same_gpu for start in starts)


@trials(80)
@given(chains(tied=True), platforms(unequal=True) | platforms())
def test_every_plan_is_valid_and_none_beats_the_exact_contiguous_one(
    chain: Chain, platform: Platform
) -> None:
    exact = solve(chain, platform, solver="contiguous")
    periods: dict[str, Fraction | None] = {}
    for name in PARTITIONED:
        if name.startswith("even_split") and _is_parted_evenly(chain, platform):
            with pytest.raises(InputError, match="parts the tied layers"):
                solve(chain, platform, solver=name)
            continue
        result = ask(chain, platform, solver=name)
        periods[name] = result.period
        if result.period is not None:
            assert exact.period is not None
            assert result.period >= exact.period
    for name in PARTITIONERS:
        star, eager = periods.get(name), periods.get(f"{name}_1f1b")
        if eager is not None:
            assert star is not None
            assert star <= eager


@trials(80)
@given(chains(tied=True), platforms())
def test_what_piper_finds_fits_under_1f1b(chain: Chain, platform: Platform) -> None:
    try:
        load_partitioner("piper")(Problem(chain=chain, platform=platform))
    except NoPartition:
        return
    assert solve(chain, platform, solver="piper_1f1b").plan is not None


LAYER = replace(layer(1, 2, 1, weight=4, sent=1), parameter_bytes=1, gradient_bytes=1)
CHAIN = Chain(layers=(LAYER,) * 4)


@pytest.mark.parametrize("name", PARTITIONED)
def test_what_they_do_not_do_is_refused(name: str) -> None:
    refused: dict[str, dict[str, Any]] = {
        "does not do a rule with updates": {"rule": Rule(update_every=1)},
        "does not do a finite step": {"scope": Scope(microbatches=4, max_k=None)},
        "chooses the allocation itself": {"stages": [Stage(layers=(0, 3), gpus=(0,))]},
    }
    for words, asked in refused.items():
        with pytest.raises(InputError, match=f"{name} {words}"):
            solve(CHAIN, Platform(2, 99), solver=name, **asked)


@pytest.mark.parametrize("name", PARTITIONED)
def test_a_period_asked_and_too_little_memory_are_no_errors(name: str) -> None:
    # Two layers on each GPU take 6 ns; of 9 bytes 8 are weights, and 2 are saved.
    for scope, memory, period in (
        (Scope(period_ns=6), 99, 6),
        (Scope(period_ns=5), 99, None),
        (Scope(), 9, None),
    ):
        assert ask(CHAIN, Platform(2, memory), scope=scope, solver=name).period == period


def test_why_there_is_no_plan_stands_in_the_ladder() -> None:
    (phase,) = solve(CHAIN, Platform(2, 9), solver="piper").ladder
    assert str(phase.note).startswith("no plan that fits; no partition fits when the s-th stage")
    # Stage 0 holds 8 bytes of weights and 2 micro-batches of 2 bytes.
    (phase,) = solve(CHAIN, Platform(2, 11), solver="time_balanced_1f1b").ladder
    assert str(phase.note) == "no plan that fits; 1F1B needs 1 B more for stage 0"


def test_each_partitioner_is_a_solver_by_two_names_and_says_where_it_comes_from() -> None:
    assert {*PARTITIONERS, *(f"{name}_1f1b" for name in PARTITIONERS)} <= set(solver_names())
    for entry in PARTITIONERS.values():
        assert entry.title
        assert re.search(r"\b(19|20)\d\d\b", entry.source)


@given(st.integers(1, 200), st.integers(1, 80))
def test_an_even_split_covers_all_layers_with_sizes_that_differ_by_one_at_most(
    layers: int, gpus: int
) -> None:
    stages = even_split(layers, gpus)
    covered = [layer for stage in stages for layer in range(stage.first, stage.last + 1)]
    assert covered == [*range(layers)]
    assert [stage.gpus for stage in stages] == [(gpu,) for gpu in range(min(layers, gpus))]
    sizes = {stage.last - stage.first + 1 for stage in stages}
    assert max(sizes) - min(sizes) <= 1


@trials(100)
@given(chains(), platforms())
def test_an_even_split_is_solved_as_its_stages_are(chain: Chain, platform: Platform) -> None:
    result = solve(chain, platform, solver="even_split")
    fixed = solve(chain, platform, stages=even_split(len(chain.layers), len(platform.gpus)))
    assert result.period == fixed.period
    assert (result.plan is None) == (fixed.status == "infeasible")


def test_an_even_split_by_hand() -> None:
    chain = Chain(layers=tuple(layer(time, time, 1, sent=1) for time in (1, 2, 3)))
    result = solve(chain, Platform(2, 9), solver="even_split")
    assert [stage.layers for stage in plan_of(result).stages] == [(0, 0), (1, 2)]
    assert result.period == 10


@pytest.mark.parametrize("recompute", [False, True])
def test_piper_finds_the_same_however_many_ends_it_looks_at_together(
    monkeypatch: pytest.MonkeyPatch, *, recompute: bool
) -> None:
    chain = sized(random_chain(40, 1).chain)
    scope = Scope.usual(recompute=recompute, replicas=None)
    problem = training_step(chain, Platform(16, 2 * 10**9, bandwidth=12 * 10**9), 16, scope)
    found = load_partitioner("piper")(problem)
    assert len({len(stage.gpus) for stage in found}) > 1
    assert any(stage.recompute for stage in found) is recompute
    monkeypatch.setattr(piper, "MOST_ENDS", 1)
    assert load_partitioner("piper")(problem) == found
