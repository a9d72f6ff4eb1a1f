from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Plan, Problem, Scope, check, solve
from schedopt.bounds import load_bound
from schedopt.families import random_chain, uniform_chain
from tests.budgets import trials
from tests.families.helpers import facts, listed, totals
from tests.refusals import assert_refused
from tests.solvers.brute_force import least_period

small = st.integers(0, 5)


@st.composite
def uniform(draw: st.DrawFn) -> dict[str, Any]:
    forward = draw(small)
    return {
        "layers": draw(st.integers(1, 9)),
        "forward_ns": forward,
        "backward_ns": draw(st.integers(0 if forward else 1, 5)),
        "weight_bytes": draw(small),
        "activation_bytes": draw(small),
        "saved_bytes": draw(st.none() | small),
        "gpus": draw(st.integers(1, 4)),
    }


def ample(given: dict[str, Any]) -> int:
    """Return the memory of m layers with as many activations as there are stages of m layers."""
    share = -(-given["layers"] // given["gpus"])
    stages = -(-given["layers"] // share)
    saved = given["activation_bytes"] if given["saved_bytes"] is None else given["saved_bytes"]
    return int(share * (given["weight_bytes"] + stages * saved))


@trials(300)
@given(uniform())
def test_uniform_the_known_period_is_the_contiguous_optimum(given: dict[str, Any]) -> None:
    instance = uniform_chain(**given)
    chain, platform = instance.chain, instance.platform
    assert platform.gpus[0].memory_bytes == ample(given)
    cost = given["forward_ns"] + given["backward_ns"]
    period = Fraction(-(-given["layers"] // given["gpus"]) * cost)
    assert [(fact.scope, fact.period, fact.k) for fact in instance.known] == [
        (Scope(allocation="contiguous", max_k=None), period, 1),
        (Scope(allocation="general", max_k=None), period, 1),
    ]
    result = solve(chain, platform, scope=Scope())
    assert (result.status, result.period) == ("optimal", period)
    assert least_period(chain, platform) == period
    general = Problem(chain=chain, platform=platform, scope=Scope(allocation="general"))
    assert load_bound(general).period <= period
    for fact in instance.known:
        gpus = listed(fact.stages)
        assert gpus == sorted(gpus)
        assert max(totals([cost] * len(gpus), gpus, len(platform.gpus))) == period
        result = solve(chain, platform, stages=fact.stages)
        assert (result.status, result.period) == ("optimal", period)
        assert check(result) == ()


@trials(300)
@given(uniform(), st.integers(0, 200))
def test_uniform_what_is_said_to_be_known_is_true_with_any_memory(
    given: dict[str, Any], memory: int
) -> None:
    instance = uniform_chain(**given, memory=memory)
    assert bool(instance.known) is (memory >= ample(given))
    for fact in instance.known:
        if fact.scope.allocation == "contiguous":
            assert least_period(instance.chain, instance.platform) == fact.period


def test_uniform_by_hand() -> None:
    instance = uniform_chain(7, gpus=3, saved_bytes=3_000_000)
    assert len(instance.chain.layers) == 7
    (layer,) = set(instance.chain.layers)
    assert (layer.forward_ns, layer.backward_ns) == (10**6, 2 * 10**6)
    assert (layer.weight_bytes, layer.activation_bytes) == (10**7, 10**6)
    assert layer.saved == 3 * 10**6
    # 3 layers on one GPU: 9 ms; 3 stages: 3 (10 + 3 * 3) MB.
    assert facts(instance) == {("contiguous", None): (9, 1), ("general", None): (9, 1)}
    assert {gpu.memory_bytes for gpu in instance.platform.gpus} == {57 * 10**6}
    assert instance.platform.link is None
    assert instance.chain.provenance["parameters"] == {
        "layers": 7,
        "forward_ns": 10**6,
        "backward_ns": 2 * 10**6,
        "weight_bytes": 10**7,
        "activation_bytes": 10**6,
        "saved_bytes": 3 * 10**6,
    }


def test_uniform_stages_may_be_fewer_than_gpus() -> None:
    """5 layers on 4 GPUs: 2 layers a stage, 3 stages."""
    instance = uniform_chain(5)
    assert len(instance.platform.gpus) == 4
    assert [stage.layers for stage in instance.known[0].stages] == [(0, 1), (2, 3), (4, 4)]
    assert instance.platform.gpus[0].memory_bytes == 2 * (10 + 3) * 10**6


def test_uniform_one_byte_less_and_nothing_is_known() -> None:
    assert uniform_chain(8, memory=2 * 14 * 10**6).known
    assert not uniform_chain(8, memory=2 * 14 * 10**6 - 1).known
    assert uniform_chain(8, memory="28MB").known


def test_uniform_the_largest() -> None:
    instance = uniform_chain(4096, gpus=4096)
    assert instance.known[0].period == Fraction(3 * 10**6)
    assert instance.platform.gpus[0].memory_bytes == (10 + 4096) * 10**6


def test_random_is_the_same_for_ever() -> None:
    """These must never change: whoever writes down a seed can make the chain again."""
    chain = random_chain(40, 1).chain
    assert chain.sha256 == "8caf8ed497a414e5cc9a2b724e53c628669fe50a04afdc74705f1f82a45ce510"
    first = chain.layers[0]
    assert (first.forward_ns, first.backward_ns, first.weight_bytes) == (448448, 2720747, 130407296)
    assert (
        random_chain(1, 0).chain.sha256
        == "addb13d843596968b94e161d0528e346e46857b7e73c095538642aa278386871"
    )


@given(st.integers(1, 30), st.integers(0, 2**50))
def test_random_same_seed_same_chain_and_within_its_limits(layers: int, seed: int) -> None:
    chain = random_chain(layers, seed).chain
    assert chain.sha256 == random_chain(layers, seed, gpus=7, memory="1G").chain.sha256
    assert len(chain.layers) == layers
    assert random_chain(layers + 1, seed).chain.layers[:-1] == chain.layers
    for layer in chain.layers:
        for value, middle in (
            (layer.forward_ns, 500_000),
            (layer.backward_ns, 1_000_000),
            (layer.weight_bytes, 50_000_000),
            (layer.activation_bytes, 4_000_000),
            (layer.saved, 30_000_000),
        ):
            assert middle // 3 <= value <= 3 * middle
        assert 0 <= (layer.saved_input_bytes or 0) <= 10**6


def test_random_another_seed_another_chain() -> None:
    assert len({random_chain(3, seed).chain.sha256 for seed in range(50)}) == 50


@pytest.mark.parametrize(("layers", "gpus"), [(1, 1), (1, 8), (10, 1), (40, 4), (200, 8)])
def test_random_has_a_plan_with_the_default_memory(layers: int, gpus: int) -> None:
    instance = random_chain(layers, 5, gpus=gpus)
    assert instance.known == ()
    assert len(instance.platform.gpus) == gpus
    result = solve(instance.chain, instance.platform, scope=Scope())
    assert result.status == "optimal"
    assert isinstance(result.plan, Plan)
    assert check(result) == ()


def test_random_default_memory_is_just_what_one_gpu_needs() -> None:
    instance = random_chain(12, 3, gpus=1)
    need = instance.platform.gpus[0].memory_bytes
    assert solve(instance.chain, instance.platform, scope=Scope()).status == "optimal"
    less = random_chain(12, 3, gpus=1, memory=need - 1)
    assert solve(less.chain, less.platform, scope=Scope()).status == "infeasible"


def test_random_tells_how_to_draw_it_again() -> None:
    told = random_chain(6, 17).chain.provenance
    again = random_chain(**told["parameters"]).chain
    assert told["family"] == "random"
    assert told["known"] == []
    assert isinstance(again, Chain)
    assert again.sha256 == random_chain(6, 17).chain.sha256


BAD: dict[str, tuple[Callable[[], object], str, str]] = {
    "no layers": (lambda: uniform_chain(0), "layers", "0 is out of range"),
    "too many layers": (lambda: uniform_chain(4097), "layers", "4097 is out of range"),
    "layers True": (lambda: uniform_chain(True), "layers", "True is not a whole number"),
    "no gpus": (lambda: uniform_chain(3, gpus=0), "gpus", "0 is out of range"),
    "negative forward": (lambda: uniform_chain(3, forward_ns=-1), "forward_ns", "-1 is out"),
    "float backward": (lambda: uniform_chain(3, backward_ns=1.5), "backward_ns", "1.5 is not"),  # type: ignore[arg-type]
    "no time": (
        lambda: uniform_chain(3, forward_ns=0, backward_ns=0), "forward_ns", "take no time",
    ),
    "too long in all": (lambda: uniform_chain(4096, forward_ns=2**30), "layers", "ns in all"),
    "weight text": (lambda: uniform_chain(3, weight_bytes="1G"), "weight_bytes", "'1G' is not"),  # type: ignore[arg-type]
    "memory in words": (lambda: uniform_chain(3, memory="much"), "memory", "'much' is not"),
    "memory negative": (lambda: uniform_chain(3, memory=-1), "memory", "-1 is negative"),
    "memory of each": (lambda: uniform_chain(3, gpus=2, memory=[10**9, 0]), "memory", "is not"),  # type: ignore[arg-type]
    "random: no layers": (lambda: random_chain(0, 1), "layers", "0 is out of range"),
    "random: too many layers": (lambda: random_chain(4097, 1), "layers", "4097 is out"),
    "random: negative seed": (lambda: random_chain(3, -1), "seed", "-1 is out of range"),
    "random: seed text": (lambda: random_chain(3, "a"), "seed", "'a' is not a whole"),  # type: ignore[arg-type]
    "random: no gpus": (lambda: random_chain(3, 1, gpus=0), "gpus", "0 is out of range"),
    "random: memory of each": (lambda: random_chain(3, 1, memory=["1G"] * 4), "memory", "is not"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_named_with_rule_and_way_out(case: str) -> None:
    make, field, rule = BAD[case]
    assert_refused(make, field, rule)
