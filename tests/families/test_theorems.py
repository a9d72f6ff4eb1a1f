from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from schedopt import Plan, Problem, Scope, check, solve
from schedopt.bounds import load_bound
from schedopt.families import Instance, lemma_2, section_6_1, theorem_4, theorem_5, theorem_6
from tests.families.helpers import MB, MS, facts, in_turn, listed, memories, totals, with_left_out


def costs_ms(instance: Instance) -> list[int]:
    """Return forward and backward of each layer together; they must be half of it each."""
    layers = instance.chain.layers
    assert all(layer.forward_ns == layer.backward_ns for layer in layers)
    assert all(2 * layer.forward_ns % MS == 0 for layer in layers)
    return [2 * layer.forward_ns // MS for layer in layers]


def weights_mb(instance: Instance) -> list[int]:
    assert all(layer.weight_bytes % MB == 0 for layer in instance.chain.layers)
    return [layer.weight_bytes // MB for layer in instance.chain.layers]


def assert_nothing_else(instance: Instance, *, activation: int = 0) -> None:
    """No size but weights and one activation for all layers; free transfers; equal GPUs."""
    for layer in instance.chain.layers:
        assert (layer.activation_bytes, layer.saved) == (activation, activation)
        assert layer.saved_input_bytes is layer.workspace_bytes is layer.update_ns is None
    assert instance.chain.input_bytes == 0
    assert instance.platform.link is None
    assert instance.platform.uniform


def least_contiguous(
    costs: Sequence[int], weights: Sequence[int], gpus: int, memory: int
) -> int | None:
    """Return the least period of contiguous stages where activations take no memory.

    Stages as long as possible are as few as possible, for a period and a memory.
    """

    def stages(period: int) -> int:
        count, load, held = 1, 0, 0
        for cost, weight in zip(costs, weights, strict=True):
            if cost > period or weight > memory:
                return gpus + 1
            if load + cost > period or held + weight > memory:
                count, load, held = count + 1, 0, 0
            load, held = load + cost, held + weight
        return count

    low, high = 0, sum(costs)
    if stages(high) > gpus:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stages(middle) <= gpus else (middle, high)
    return high


def normalized(plan: Plan) -> Fraction:
    return Fraction(plan.pattern.period_total_ns, plan.pattern.k * MS)


def bound_ms(instance: Instance) -> Fraction:
    problem = Problem(chain=instance.chain, platform=instance.platform)
    return load_bound(problem).period / MS


def assert_reached(instance: Instance, gpus: Sequence[int], period_ms: int) -> None:
    """Require that layers on these GPUs have a plan of a period, which is that of the bound."""
    plan = in_turn(instance, gpus)
    assert check(plan) == ()
    assert normalized(plan) == bound_ms(instance) == period_ms


def solved_ms(instance: Instance) -> tuple[str, Any]:
    result = solve(instance.chain, instance.platform, scope=Scope())
    assert check(result) == ()
    return result.status, None if result.period is None else result.period / MS


# Section 6.1 and Lemma 2


@pytest.mark.parametrize(
    ("instance", "costs", "weights", "room", "contiguous"),
    [
        (section_6_1(), [1, 2, 1], [0, 0, 0], MB, (3, 1)),
        (lemma_2(), [1, 1, 1], [1, 2, 1], 2 * MB, (None, None)),
    ],
)
def test_three_layers_are_the_chain_of_the_paper(
    instance: Instance, costs: list[int], weights: list[int], room: int, contiguous: object
) -> None:
    assert costs_ms(instance) == costs
    assert weights_mb(instance) == weights
    assert_nothing_else(instance)
    assert memories(instance) == [room] * 2
    assert facts(instance) == {("contiguous", None): contiguous, ("general", None): (2, 1)}


def test_section_6_1_contiguous_3_general_2() -> None:
    instance = section_6_1()
    assert solved_ms(instance) == ("optimal", 3)
    assert_reached(instance, [0, 1, 0], 2)


def test_lemma_2_only_a_general_allocation_fits() -> None:
    instance = lemma_2()
    result = solve(instance.chain, instance.platform, scope=Scope())
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.least_memory_bytes == 3 * MB
    plan = in_turn(instance, [0, 1, 0])
    assert check(plan) == ()
    assert normalized(plan) == 2
    fitting = [
        gpus
        for gpus in ([a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1))
        if max(totals([1, 2, 1], gpus, 2)) <= 2
    ]
    assert fitting == [[0, 1, 0], [1, 0, 1]]
    assert [violation.kind for violation in check(in_turn(instance, [0, 1, 1]))] == ["memory"]


# Theorem 4


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_theorem_4_is_the_chain_of_the_paper(k: int) -> None:
    instance = theorem_4(k)
    assert costs_ms(instance) == [2] * (k + 1)
    assert weights_mb(instance) == [1, *range(1, k + 1)]
    assert_nothing_else(instance, activation=MB)
    assert memories(instance) == [(k + 1) * MB] * (k + 1)


def test_theorem_4_facts() -> None:
    both = ("contiguous", None), ("general", None)
    assert facts(theorem_4(1)) == dict.fromkeys(both, (4, 1))
    assert facts(theorem_4(2)) == {("contiguous", 1): (4, 1)} | dict.fromkeys(both, (3, 2))
    assert facts(theorem_4(5)) == {
        ("contiguous", 1): (4, 1),
        ("contiguous", 4): (Fraction(5, 2), 4),
    } | dict.fromkeys(both, (Fraction(12, 5), 5))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 20])
def test_theorem_4_contiguous_1_periodic_is_4(k: int) -> None:
    assert solved_ms(theorem_4(k)) == ("optimal", 4)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_theorem_4_each_j_up_to_k_reaches_its_period_and_no_longer_one_fits(k: int) -> None:
    instance = theorem_4(k)
    for j in range(1, k + 1):
        plan = with_left_out(instance, j)
        assert check(plan) == ()
        assert normalized(plan) == 2 * (1 + Fraction(1, j))
    too_much = check(with_left_out(instance, k + 1))
    assert {violation.kind for violation in too_much} == {"memory"}


@pytest.mark.parametrize("k", [1, 2, 5])
def test_theorem_4_little_s_law_gives_the_last_period(k: int) -> None:
    """Each activation of layer 0 is held for all forwards and backwards; so many fit at most."""
    instance = theorem_4(k)
    first = instance.chain.layers[0]
    fit = (memories(instance)[0] - first.weight_bytes) // first.saved
    least = Fraction(sum(costs_ms(instance)), fit)
    assert {period for (_, longest), (period, _) in facts(instance).items() if not longest} == {
        least
    }
    assert normalized(with_left_out(instance, k)) == least


# Theorem 5


def chain_of_theorem_5(k: int) -> list[int]:
    """Return the costs in ms, part by part from the paper; e = 1 / (2 k + 1) is 1 ms."""
    one = 2 * k + 1
    parts = [k * one, 1, (k - 1) * one, 1] * k
    return [*parts, k * one, *[1] * ((k - 2) * one + 1), one]


def without_idle_time(k: int) -> list[int]:
    """Return the GPU of each layer, from the paper's words.

    k + 1 GPUs have a layer of cost k, one has a layer of cost k - 1 and that of cost 1, and k - 1
    have a layer of cost k - 1 and 2 k + 1 short ones.
    """
    long, short, middle = 0, 0, 0
    gpus = []
    costs = chain_of_theorem_5(k)
    for position, cost in enumerate(costs):
        if position == len(costs) - 1:
            gpus.append(k + 1)
        elif cost == 1:
            gpus.append(k + 2 + short // (2 * k + 1))
            short += 1
        elif cost == k * (2 * k + 1):
            gpus.append(long)
            long += 1
        else:
            gpus.append(k + 1 + middle)
            middle += 1
    assert (long, middle, short) == (k + 1, k, (k - 1) * (2 * k + 1))
    return gpus


@pytest.mark.parametrize("k", [2, 3, 4, 45])
def test_theorem_5_is_the_chain_of_the_paper(k: int) -> None:
    instance = theorem_5(k)
    assert costs_ms(instance) == chain_of_theorem_5(k)
    assert set(weights_mb(instance)) == {0}
    assert_nothing_else(instance)
    assert len(instance.platform.gpus) == 2 * k + 1
    assert instance.chain.provenance["unit_ns"] == (2 * k + 1) * MS
    assert facts(instance) == {
        ("contiguous", None): (4 * k * k, 1),
        ("general", None): (k * (2 * k + 1), 1),
    }


@pytest.mark.parametrize("k", [2, 3, 4])
def test_theorem_5_contiguous_and_general(k: int) -> None:
    instance = theorem_5(k)
    assert solved_ms(instance) == ("optimal", 4 * k * k)
    gpus = without_idle_time(k)
    best = k * (2 * k + 1)
    assert totals(costs_ms(instance), gpus, 2 * k + 1) == [best] * (2 * k + 1)
    assert_reached(instance, gpus, best)
    assert Fraction(4 * k * k, best) == Fraction(4 * k, 2 * k + 1)
    # The ratio that the theorem's text names is missed by little.
    assert Fraction(4 * k, 2 * k + 1) > 2 - Fraction(1, k)


@pytest.mark.parametrize(
    "k",
    [k if k in (2, 3, 7, 20) else pytest.param(k, marks=pytest.mark.nightly) for k in range(2, 46)],
)
def test_theorem_5_for_every_k(k: int) -> None:
    costs = chain_of_theorem_5(k)
    gpus = 2 * k + 1
    assert len(costs) == 2 * k * k + k + 1 <= 4096
    assert least_contiguous(costs, [0] * len(costs), gpus, 0) == 4 * k * k
    placed = listed(theorem_5(k).known[1].stages)
    assert totals(costs, placed, gpus) == [k * gpus] * gpus


# Theorem 6


def chain_of_theorem_6(k: int, memory: int) -> tuple[list[int], list[int]]:
    """Return costs and weights, from Figure 8."""
    costs = [1] * k + [k] + [k - 1] * k
    return costs, [memory - 1] * k + [memory] + [1] * k


@pytest.mark.parametrize(("k", "memory"), [(2, None), (3, None), (4, None), (5, None), (3, 7)])
def test_theorem_6_is_the_chain_of_the_paper(k: int, memory: int | None) -> None:
    instance = theorem_6(k, memory)
    full = memory or k
    assert (costs_ms(instance), weights_mb(instance)) == chain_of_theorem_6(k, full)
    assert_nothing_else(instance)
    assert memories(instance) == [full * MB] * (k + 2)
    assert facts(instance) == {
        ("contiguous", None): (k * (k - 1), 1),
        ("general", None): (k, 1),
    }


@pytest.mark.parametrize(("k", "memory"), [(2, None), (3, None), (4, None), (5, None), (3, 7)])
def test_theorem_6_contiguous_and_general(k: int, memory: int | None) -> None:
    instance = theorem_6(k, memory)
    full = memory or k
    assert solved_ms(instance) == ("optimal", k * (k - 1))
    # Layers i and k + 1 + i, counted from 1, on GPU i; layer k + 1 alone; one GPU idle.
    gpus = [*range(1, k + 2), *range(1, k + 1)]
    costs, weights = chain_of_theorem_6(k, full)
    assert max(totals(costs, gpus, k + 2)) == k
    assert max(totals(weights, gpus, k + 2)) == full
    assert_reached(instance, gpus, k)


@pytest.mark.parametrize(("k", "memory"), [(2, 2), (2, 9), (3, 3), (8, 8), (30, 99), (740, 740)])
def test_theorem_6_contiguous_without_the_solver(k: int, memory: int) -> None:
    costs, weights = chain_of_theorem_6(k, memory)
    assert least_contiguous(costs, weights, k + 2, memory) == k * (k - 1)
