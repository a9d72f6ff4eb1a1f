"""The chains of Theorems 1 and 2: what they are, what is known of them, and reading them back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import pytest

from schedopt import Chain, InputError, Plan, Problem, check, solve
from schedopt.families import uniform_chain
from schedopt.families.partition import find_triples
from schedopt.families.reductions import Reduction, read_reduction, three_partition
from tests.layers import layer

NUMBERS = (3, 2, 2, 3, 3, 1)
"""Fit for the reductions, though not all lie between V / 4 and V / 2, as a file must have it."""
BETWEEN = (3, 3, 4, 4, 3, 3)


def test_the_chain_of_theorem_1() -> None:
    instance = Reduction(1, NUMBERS).instance()
    assert [one.forward_ns for one in instance.chain.layers] == [3, 2, 2, 3, 3, 1]
    assert {
        (one.backward_ns, one.weight_bytes, one.activation_bytes) for one in instance.chain.layers
    } == {(0, 0, 0)}
    assert len(instance.platform.gpus) == 2
    assert instance.chain.provenance["parameters"] == {"m": 2, "total": 7}


def test_the_chain_of_theorem_2() -> None:
    reduction = Reduction(2, NUMBERS)
    instance = reduction.instance()
    layers = instance.chain.layers
    assert [one.forward_ns for one in layers] == [7, 7, 3, 2, 2, 3, 3, 1, 7, 7, 7, 7]
    assert [one.activation_bytes for one in layers] == [0] * 8 + [1] * 4
    # Counted from 1: P2 has layers 1 to m, and 4 m + 1, 4 m + 3, ...
    assert [stage.gpus[0] for stage in reduction.stages] == [1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0]
    assert [gpu.memory_bytes for gpu in instance.platform.gpus] == [2, 2]
    assert (reduction.m, reduction.total, reduction.period_ns) == (2, 7, 28)


@pytest.mark.parametrize(
    ("theorem", "numbers", "rule"), [(3, NUMBERS, "theorem: 3"), (1, (1, 2), "numbers")]
)
def test_what_is_no_reduction_is_refused(theorem: Any, numbers: tuple[int, ...], rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        Reduction(theorem, numbers)


def test_a_hole_over_the_end_of_the_period_is_one() -> None:
    reduction = Reduction(2, NUMBERS)
    plan = answer(reduction.problem())
    assert plan is not None
    moved = tuple(
        replace(operation, start_ns=(operation.start_ns + 3) % 28)
        for operation in plan.pattern.operations
    )
    later = replace(plan, pattern=replace(plan.pattern, operations=moved))
    assert sorted(map(sorted, reduction.groups(later))) == sorted(
        map(sorted, reduction.groups(plan))
    )


def answer(problem: Problem) -> Plan | None:
    result = solve(
        problem.chain,
        problem.platform,
        scope=problem.scope,
        stages=problem.stages,
        solver="packing",
        workers=1,
    )
    assert result.status in ("optimal", "infeasible")
    assert check(result) == ()
    return result.plan


@pytest.mark.parametrize("theorem", [1, 2])
@pytest.mark.parametrize("solvable", [True, False])
@pytest.mark.parametrize(("m", "total"), [(2, 20), (3, 100), (8, 1000)])
def test_what_is_known_is_so(theorem: Literal[1, 2], solvable: bool, m: int, total: int) -> None:
    instance = three_partition(theorem, m, total, 4, solvable=solvable)
    (fact,) = instance.known
    reduction = read_reduction(instance.chain)
    period = total if theorem == 1 else 2 * m * total
    assert (reduction.theorem, reduction.m, reduction.total) == (theorem, m, total)
    assert reduction.period_ns == period
    assert (find_triples(reduction.numbers) is not None) == solvable
    found = answer(reduction.problem())
    assert (found is not None) == solvable
    if found is None:
        assert fact.status == "infeasible"
        assert fact.scope.period_ns == period
        assert fact.scope.covers(reduction.scope)
    else:
        assert fact.period == Fraction(period)
        assert fact.scope.max_k is None
        loads = [0] * len(instance.platform.gpus)
        for stage in fact.stages:
            layers = instance.chain.layers[stage.first : stage.last + 1]
            loads[stage.gpus[0]] += sum(one.forward_ns for one in layers)
        # No GPU idles, and so nothing is shorter.
        assert loads == [period] * len(loads)
    assert instance.chain.provenance["known"] == [fact.to_json()]
    assert instance.chain.provenance["parameters"] == {"m": m, "total": total, "seed": 4}


ONE = Reduction(1, BETWEEN).instance().chain
TWO = Reduction(2, BETWEEN).instance().chain


def with_layer(chain: Chain, number: int, **change: Any) -> Chain:
    layers = [*chain.layers]
    layers[number] = replace(layers[number], **change)
    return replace(chain, layers=tuple(layers))


def told(chain: Chain, **change: Any) -> Chain:
    return replace(chain, provenance={**chain.provenance, **change})


TAMPERED: dict[str, tuple[Chain, str]] = {
    "no provenance": (Chain(layers=ONE.layers), "provenance.family: absent"),
    "another family": (uniform_chain(6).chain, "provenance.family: 'uniform' is no family"),
    "another theorem": (told(ONE, family="theorem-4"), "provenance.family: 'theorem-4' is no"),
    # m = 1, with the numbers 3, 4, 4 behind a layer of V.
    "theorem 1 called 2": (told(ONE, family="theorem-2"), "layers[0].forward_ns: 3, and 11 in"),
    # 12 numbers that add up to 80.
    "theorem 2 called 1": (
        told(TWO, family="theorem-1"), "layers[0].forward_ns: 10 does not lie between V / 4 and",
    ),
    "one layer less": (
        replace(ONE, layers=ONE.layers[1:]), "layers: 5 layers, and Theorem 1 has 3 m",
    ),
    "one layer more": (
        replace(TWO, layers=(*TWO.layers, TWO.layers[-1])),
        "layers: 13 layers, and Theorem 2 has 6 m",
    ),
    "a number": (with_layer(ONE, 0, forward_ns=4), "layers: 6 numbers add up to 21, which is"),
    "two numbers": (
        with_layer(with_layer(ONE, 0, forward_ns=2), 1, forward_ns=4),
        "layers[0].forward_ns: 2 does not lie between V / 4 and V / 2, where V is 10",
    ),
    "no time": (
        with_layer(with_layer(ONE, 0, forward_ns=0), 1, forward_ns=6),
        "layers[0].forward_ns: 0 does not lie",
    ),
    "a backward": (
        with_layer(ONE, 3, backward_ns=5), "layers[3].backward_ns: 5, and 0 in Theorem 1",
    ),
    "a weight": (with_layer(ONE, 3, weight_bytes=5), "layers[3].weight_bytes: 5, and 0 in"),
    "what is saved": (with_layer(ONE, 3, saved_bytes=5), "layers[3].saved_bytes: 5, and nothing"),
    "V ahead": (with_layer(TWO, 0, forward_ns=9), "layers[0].forward_ns: 9, and 10 in Theorem 2"),
    "V behind": (with_layer(TWO, 9, forward_ns=11), "layers[9].forward_ns: 11, and 10 in"),
    "an activation": (
        with_layer(TWO, 11, activation_bytes=2), "layers[11].activation_bytes: 2, and 1 in",
    ),
    "the input": (replace(ONE, input_bytes=3), "input_bytes: 3, and nothing in Theorem 1"),
    "ties": (replace(ONE, same_gpu=((0, 1),)), "same_gpu: ((0, 1),), and nothing in Theorem 1"),
    "m": (
        told(ONE, parameters={"m": 3, "total": 10}), "provenance.parameters.m: is not 2, as the",
    ),
    "total": (told(ONE, parameters={"m": 2}), "provenance.parameters.total: is not 10, as the"),
    "no parameters": (told(ONE, parameters=[2, 10]), "provenance.parameters.m: is not 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", TAMPERED)
def test_a_chain_that_is_not_of_the_family_is_refused(case: str) -> None:
    chain, words = TAMPERED[case]
    with pytest.raises(InputError) as caught:
        read_reduction(chain)
    assert str(caught.value).startswith(words)
    assert caught.value.way_out


def test_names_say_nothing() -> None:
    named = replace(with_layer(ONE, 0, name="first"), name="another")
    assert read_reduction(named) == Reduction(1, BETWEEN)
    with pytest.raises(InputError, match="out of range"):
        read_reduction(replace(ONE, layers=(layer(2**31, 0),) * 3))
