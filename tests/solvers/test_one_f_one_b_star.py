from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Platform, Scope, Stage, check, solve
from schedopt.account import concurrent_activations
from schedopt.problem import Problem
from schedopt.solving.stage_chain import StageChain
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import on, plan_of, prove, why
from tests.strategies import chains, platforms

UNIT = layer(1, 1, 1, sent=1)
FOUR = Chain(layers=(layer(1, 2, 1, sent=1),) * 4)


def least_activations(times: list[tuple[int, int]], period: int) -> list[int] | None:
    """Try every 1-periodic pattern on starts modulo the period; the least NCA of each stage."""
    best: list[int] | None = None
    for starts in product(range(period), repeat=2 * len(times)):
        forwards, backwards = starts[: len(times)], starts[len(times) :]
        if not all(
            _disjoint(f, times[s][0], b, times[s][1], period)
            for s, (f, b) in enumerate(zip(forwards, backwards, strict=True))
        ):
            continue
        clock, begun, done = 0, [], [0] * len(times)
        for stage, residue in enumerate(forwards):
            clock += (residue - clock) % period
            begun.append(clock)
            clock += times[stage][0]
        for stage in reversed(range(len(times))):
            clock += (backwards[stage] - clock) % period
            clock += times[stage][1]
            done[stage] = clock
        counts = [max(1, -(-(e - b) // period)) for b, e in zip(begun, done, strict=True)]
        best = counts if best is None else [min(pair) for pair in zip(best, counts, strict=True)]
    return best


def _disjoint(first: int, first_ns: int, second: int, second_ns: int, period: int) -> bool:
    gap = (second - first) % period
    if gap == 0:
        return first_ns == 0 or second_ns == 0
    return gap >= first_ns and gap + second_ns <= period


@trials(60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=3),
    st.integers(2, 5),
)
def test_no_1_periodic_pattern_keeps_fewer_activations(
    times: list[tuple[int, int]], period: int
) -> None:
    least = least_activations(times, period)
    if max(f + b for f, b in times) > period:
        assert least is None
        return
    stages = tuple(on(*range(len(times))))
    problem = Problem(
        chain=Chain(layers=tuple(layer(*pair, 1, sent=1) for pair in times)),
        platform=Platform(len(times), 100),
        scope=Scope(allocation="fixed"),
        stages=stages,
    )
    plan = StageChain(problem, stages).plan(period)
    assert check(plan) == ()
    found = concurrent_activations(plan)
    assert [found[index, index] for index in range(len(times))] == least


def test_groups_of_four_equal_stages() -> None:
    result = prove(FOUR, Platform(4, 4), stages=on(*range(4)))
    assert result.period == 3
    counts = concurrent_activations(plan_of(result))
    assert counts == {(0, 0): 4, (1, 1): 3, (2, 2): 2, (3, 3): 1}


def test_less_memory_makes_larger_groups() -> None:
    assert prove(FOUR, Platform(4, 2), stages=on(*range(4))).period == 6


def test_infeasible_names_the_gpu_and_the_least_memory() -> None:
    chain = Chain(layers=tuple(layer(1, 1, 2, weight=weight, sent=2) for weight in (1, 9)))
    proof = why(solve(chain, Platform(2, 10), stages=on(0, 1)))
    assert (proof.gpu, proof.least_memory_bytes) == (1, 11)


def test_refuses_two_stages_on_one_gpu() -> None:
    chain = Chain(layers=(UNIT,) * 2)
    with pytest.raises(InputError, match="contiguous allocation"):
        solve(chain, Platform(2, 4), stages=on(0, 0), solver="one_f_one_b_star")


@trials(200)
@given(chains(longest=4), platforms(most=4, roomy=True))
def test_the_allocation_of_the_best_plan_has_the_same_period_when_fixed(
    chain: Chain, platform: Platform
) -> None:
    best = solve(chain, platform, scope=Scope())
    fixed = prove(chain, platform, stages=plan_of(best).stages)
    assert fixed.period == best.period


def test_without_an_allocation_it_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="one_f_one_b_star needs stages"):
        solve(Chain(layers=(UNIT,)), Platform(1, 9), solver="one_f_one_b_star")


@pytest.mark.parametrize(
    ("stages", "rule"),
    [
        (
            ((0, 0, 0), (1, 1, 2)),
            "stage 1 lies on GPU 2, and there are 2, from 0 to 1. Give at least 3 GPUs",
        ),
        (
            ((0, 0, -1), (1, 1, 0)),
            "stage 0 lies on GPU -1, and there are 2, from 0 to 1. Number GPUs from 0",
        ),
        (((0, 0, 0),), "each of 2 layers once"),
        (((0, 1, 0), (1, 1, 1)), "each of 2 layers once"),
        (((1, 1, 0), (0, 0, 1)), "each of 2 layers once"),
    ],
)
def test_stages_that_fit_neither_chain_nor_platform_are_refused(
    stages: tuple[tuple[int, int, int], ...], rule: str
) -> None:
    given = [Stage(layers=(first, last), gpus=(gpu,)) for first, last, gpu in stages]
    with pytest.raises(InputError, match=rule):
        solve(Chain(layers=(UNIT,) * 2), Platform(2, 9), stages=given)


@pytest.mark.parametrize(
    "scope",
    [
        Scope(allocation="fixed"),
        Scope(allocation="fixed", max_k=2),
        Scope(allocation="fixed", max_k=None, microbatches=3),
        Scope(allocation="fixed", grain="layer"),
        Scope(allocation="fixed", recompute=True),
    ],
)
@pytest.mark.parametrize("memory", [0, 9])
def test_stages_that_part_tied_layers_are_refused(scope: Scope, memory: int) -> None:
    chain = Chain(layers=(UNIT,) * 3, same_gpu=((0, 2),))
    with pytest.raises(InputError, match=r"layers 0 and 2 are tied .* on GPU 0 and GPU 2") as info:
        solve(chain, Platform(3, memory), scope=scope, stages=on(0, 1, 2))
    assert info.value.field == "stages"
    assert "without Problem.stages" in info.value.way_out
