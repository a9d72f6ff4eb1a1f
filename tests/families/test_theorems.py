from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from schedopt import (
    Chain,
    InputError,
    Operation,
    Pattern,
    Plan,
    Problem,
    Scope,
    Stage,
    check,
    solve,
)
from schedopt.bounds import load_bound
from schedopt.families import (
    Instance,
    lemma_2,
    random_chain,
    section_6_1,
    theorem_4,
    theorem_5,
    theorem_6,
    uniform_chain,
)
from tests.families.helpers import MS, facts, listed, totals

MB = 10**6

WITHOUT_ACTIVATIONS: dict[str, Callable[[], Instance]] = {
    "section 6.1": section_6_1,
    "lemma 2": lemma_2,
    **{f"theorem 5, k = {k}": partial(theorem_5, k) for k in (2, 3, 4)},
    **{f"theorem 6, k = {k}": partial(theorem_6, k) for k in (2, 3, 4, 5)},
    "theorem 6, k = 3, M = 7": lambda: theorem_6(3, 7),
}
EVERY: dict[str, Callable[[], Instance]] = {
    **WITHOUT_ACTIVATIONS,
    **{f"theorem 4, k = {k}": partial(theorem_4, k) for k in (1, 2, 3, 6)},
    "uniform": lambda: uniform_chain(7, gpus=3),
    "random": lambda: random_chain(5, 1, memory="9G"),
}


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


def memories(instance: Instance) -> list[int]:
    return [gpu.usable_bytes for gpu in instance.platform.gpus]


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


def in_turn(instance: Instance, gpus: Sequence[int]) -> Plan:
    """Return a plan by hand: each GPU runs its forwards, then its backwards, without a pause.

    T is the largest load. Each operation runs the first micro-batch whose input is there: with
    the end of the operation before it at e, it starts at the first t + q T from e on.
    """
    runs: list[tuple[int, int, int]] = []
    for gpu, group in groupby(enumerate(gpus), key=lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        runs.append((gpu, layers[0], layers[-1]))
    chain = instance.chain
    lasting: dict[tuple[Any, int], int] = {}
    for stage, (_, first, last) in enumerate(runs):
        own = chain.layers[first : last + 1]
        lasting["F", stage] = sum(layer.forward_ns for layer in own)
        lasting["B", stage] = sum(layer.backward_ns for layer in own)
    busy = [0] * len(instance.platform.gpus)
    starts: dict[tuple[Any, int], int] = {}
    for kind, stage in lasting:
        gpu = runs[stage][0]
        starts[kind, stage] = busy[gpu]
        busy[gpu] += lasting[kind, stage]
    period = max(busy)
    order: list[tuple[Any, int]] = [("F", stage) for stage in range(len(runs))]
    order += [("B", stage) for stage in reversed(range(len(runs)))]
    operations = []
    ended = 0
    for kind, stage in order:
        start = starts[kind, stage]
        waits = max(0, -(-(ended - start) // period))
        ended = start + waits * period + lasting[kind, stage]
        operations.append(Operation(kind=kind, stage=stage, shift=-waits, start_ns=start))
    return Plan(
        chain=chain,
        platform=instance.platform,
        scope=Scope(allocation="general"),
        stages=tuple(Stage(layers=(first, last), gpus=(gpu,)) for gpu, first, last in runs),
        pattern=Pattern(k=1, period_total_ns=period, operations=tuple(operations)),
    )


def with_left_out(instance: Instance, k: int) -> Plan:
    """Return 1F1B without idle time, every (k + 1)-th micro-batch left out, layer i on GPU i.

    Beaumont et al. 2021, proof of Theorem 4. With n layers, micro-batch j enters at 2 j ms, layer
    l runs F l ms after that and B 2 n - 1 - l ms after that.
    """
    count = len(instance.chain.layers)
    period = 2 * (k + 1)
    operations = []
    for j in range(k):
        for layer in range(count):
            for kind, after in (("F", layer), ("B", 2 * count - 1 - layer)):
                periods, start = divmod(2 * j + after, period)
                operations.append(
                    Operation(
                        kind="F" if kind == "F" else "B",
                        stage=layer,
                        shift=j - k * periods,
                        start_ns=start * MS,
                    )
                )
    return Plan(
        chain=instance.chain,
        platform=instance.platform,
        scope=Scope(max_k=k),
        stages=tuple(Stage(layers=(i, i), gpus=(i,)) for i in range(count)),
        pattern=Pattern(k=k, period_total_ns=period * MS, operations=tuple(operations)),
    )


def normalized(plan: Plan) -> Fraction:
    return Fraction(plan.pattern.period_total_ns, plan.pattern.k * MS)


def bound_ms(instance: Instance) -> Fraction:
    problem = Problem(chain=instance.chain, platform=instance.platform)
    return load_bound(problem).period / MS


def solved_ms(instance: Instance) -> tuple[str, Any]:
    result = solve(instance.chain, instance.platform, scope=Scope())
    assert check(result) == ()
    return result.status, None if result.period is None else result.period / MS


# Section 6.1 and Lemma 2


def test_section_6_1_is_the_chain_of_the_paper() -> None:
    instance = section_6_1()
    assert costs_ms(instance) == [1, 2, 1]
    assert weights_mb(instance) == [0, 0, 0]
    assert_nothing_else(instance)
    assert len(instance.platform.gpus) == 2
    assert facts(instance) == {("contiguous", None): (3, 1), ("general", None): (2, 1)}


def test_section_6_1_contiguous_3_general_2() -> None:
    instance = section_6_1()
    assert solved_ms(instance) == ("optimal", 3)
    plan = in_turn(instance, [0, 1, 0])
    assert check(plan) == ()
    assert normalized(plan) == bound_ms(instance) == 2


def test_lemma_2_is_the_chain_of_the_paper() -> None:
    instance = lemma_2()
    assert costs_ms(instance) == [1, 1, 1]
    assert weights_mb(instance) == [1, 2, 1]
    assert_nothing_else(instance)
    assert memories(instance) == [2 * MB] * 2
    assert facts(instance) == {("contiguous", None): (None, None), ("general", None): (2, 1)}


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
    costs = []
    for _ in range(k):
        costs += [k * one, 1, (k - 1) * one, 1]
    costs.append(k * one)
    costs += [1] * ((k - 2) * (2 * k + 1) + 1)
    costs.append(one)
    return costs


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
    plan = in_turn(instance, gpus)
    assert check(plan) == ()
    assert normalized(plan) == bound_ms(instance) == best
    assert Fraction(4 * k * k, best) == Fraction(4 * k, 2 * k + 1)
    # The ratio that the theorem's text names is missed by little.
    assert Fraction(4 * k, 2 * k + 1) > 2 - Fraction(1, k)


@pytest.mark.parametrize("k", range(2, 46))
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
    costs, weights = [], []
    for layer in range(1, 2 * k + 2):
        if layer <= k:
            costs.append(1)
            weights.append(memory - 1)
        elif layer == k + 1:
            costs.append(k)
            weights.append(memory)
        else:
            costs.append(k - 1)
            weights.append(1)
    return costs, weights


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
    gpus = [0] * (2 * k + 1)
    for i in range(1, k + 1):
        gpus[i - 1] = gpus[k + i] = i
    gpus[k] = k + 1
    costs, weights = chain_of_theorem_6(k, full)
    assert max(totals(costs, gpus, k + 2)) == k
    assert max(totals(weights, gpus, k + 2)) == full
    plan = in_turn(instance, gpus)
    assert check(plan) == ()
    assert normalized(plan) == bound_ms(instance) == k


@pytest.mark.parametrize(("k", "memory"), [(2, 2), (2, 9), (3, 3), (8, 8), (30, 99), (740, 740)])
def test_theorem_6_contiguous_without_the_solver(k: int, memory: int) -> None:
    costs, weights = chain_of_theorem_6(k, memory)
    assert least_contiguous(costs, weights, k + 2, memory) == k * (k - 1)


# All of them


@pytest.mark.parametrize("name", WITHOUT_ACTIVATIONS)
def test_stages_of_a_fact_reach_its_period(name: str) -> None:
    instance = WITHOUT_ACTIVATIONS[name]()
    (general,) = (fact for fact in instance.known if fact.scope.allocation == "general")
    plan = in_turn(instance, listed(general.stages))
    assert plan.stages == general.stages
    assert check(plan) == ()
    assert Fraction(plan.pattern.period_total_ns) == general.period


@pytest.mark.parametrize("k", [1, 2, 4])
def test_stages_and_k_of_theorem_4_s_facts_reach_their_periods(k: int) -> None:
    instance = theorem_4(k)
    for fact in instance.known:
        assert fact.k is not None
        plan = with_left_out(instance, fact.k)
        assert plan.stages == fact.stages
        assert check(plan) == ()
        assert Fraction(plan.pattern.period_total_ns, fact.k) == fact.period


@pytest.mark.parametrize("name", EVERY)
def test_provenance_tells_all_and_round_trips(name: str, tmp_path: Path) -> None:
    instance = EVERY[name]()
    path = tmp_path / "chain.json"
    instance.chain.save(path)
    loaded = Chain.load(path)
    assert loaded == instance.chain
    assert loaded.sha256 == instance.chain.sha256
    told = loaded.provenance
    assert told == instance.chain.provenance
    assert set(told) == {
        "family", "parameters", "unit_ns", "unit_bytes", "source", "platform", "known",
    }  # fmt: skip
    assert told["platform"] == {
        "gpus": len(instance.platform.gpus),
        "memory_bytes": memories(instance)[0],
        "bandwidth_bytes_per_s": None,
    }
    assert len(told["known"]) == len(instance.known)
    for entry, fact in zip(told["known"], instance.known, strict=True):
        period = None if entry["period_exact"] is None else Fraction(*entry["period_exact"])
        assert (Scope(**entry["scope"]), period) == (fact.scope, fact.period)
        assert (entry["k"], entry["source"]) == (fact.k, fact.source)


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"uniform", "random"}))
def test_the_paper_is_named(name: str) -> None:
    instance = EVERY[name]()
    place = name.split(",")[0]
    for source in (instance.chain.provenance["source"], *(fact.source for fact in instance.known)):
        assert source.lower().startswith(f"beaumont et al. 2021, {place}")


def test_parameters_are_in_name_and_provenance() -> None:
    for instance, name, parameters in (
        (section_6_1(), "section-6-1", {}),
        (lemma_2(), "lemma-2", {}),
        (theorem_4(3), "theorem-4-k-3", {"k": 3}),
        (theorem_5(2), "theorem-5-k-2", {"k": 2}),
        (theorem_6(3), "theorem-6-k-3-memory-3", {"k": 3, "memory": 3}),
        (theorem_6(3, 7), "theorem-6-k-3-memory-7", {"k": 3, "memory": 7}),
    ):
        assert instance.chain.name == name
        assert instance.chain.provenance["parameters"] == parameters


def test_names_differ() -> None:
    made = [make() for make in EVERY.values()]
    assert len({instance.chain.name for instance in made}) == len(made)
    assert len({instance.chain.sha256 for instance in made}) == len(made)


def test_the_largest_are_chains() -> None:
    assert len(theorem_4(4095).chain.layers) == 4096
    assert len(theorem_5(45).chain.layers) == 4096
    largest = 2**50 // MB
    assert theorem_6(740, largest).chain.layers[740].weight_bytes == largest * MB


BAD: dict[str, tuple[Callable[[], object], str, str, str]] = {
    "theorem 4, k = 0": (lambda: theorem_4(0), "k", "0 is out of range", "from 1 to 4095"),
    "theorem 4, k = -1": (lambda: theorem_4(-1), "k", "-1 is out of range", "from 1 to 4095"),
    "theorem 4, too large": (lambda: theorem_4(4096), "k", "4096 is out", "from 1 to 4095"),
    "theorem 4, True": (lambda: theorem_4(True), "k", "True is not a whole", "from 1"),
    "theorem 4, text": (lambda: theorem_4("3"), "k", "'3' is not a whole", "from 1"),  # type: ignore[arg-type]
    "theorem 4, float": (lambda: theorem_4(3.0), "k", "3.0 is not a whole", "from 1"),  # type: ignore[arg-type]
    "theorem 4, huge": (lambda: theorem_4(10**5000), "k", "5001 digits", "from 1 to 4095"),
    "theorem 5, k = 1": (lambda: theorem_5(1), "k", "1 is out of range", "from 2 to 45"),
    "theorem 5, too large": (lambda: theorem_5(46), "k", "46 is out", "from 2 to 45"),
    "theorem 5, None": (lambda: theorem_5(None), "k", "None is not a whole", "from 2"),  # type: ignore[arg-type]
    "theorem 6, k = 1": (lambda: theorem_6(1), "k", "1 is out of range", "from 2 to 740"),
    "theorem 6, too large": (lambda: theorem_6(741), "k", "741 is out", "from 2 to 740"),
    "theorem 6, True": (lambda: theorem_6(True), "k", "True is not a whole", "from 2"),
    "theorem 6, memory below k": (lambda: theorem_6(5, 4), "memory", "4 is out", "from 5 to"),
    "theorem 6, memory True": (lambda: theorem_6(2, True), "memory", "True is not", "from 2"),
    "theorem 6, memory text": (lambda: theorem_6(2, "2G"), "memory", "'2G' is not", "from 2"),  # type: ignore[arg-type]
    "theorem 6, memory too large": (
        lambda: theorem_6(2, 2**50 // MB + 1), "memory", "is out of range", "from 2 to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_named_with_rule_and_way_out(case: str) -> None:
    make, field, rule, way_out = BAD[case]
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert way_out in caught.value.way_out
    assert "\n" not in str(caught.value)
