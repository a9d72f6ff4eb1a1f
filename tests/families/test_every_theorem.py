"""What holds for the instances of every theorem."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from schedopt import Chain, Scope, check
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
from tests.families.helpers import MB, in_turn, listed, memories, with_left_out
from tests.refusals import assert_refused

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


@pytest.mark.parametrize(
    ("instance", "name", "parameters"),
    [
        (section_6_1(), "section-6-1", {}),
        (lemma_2(), "lemma-2", {}),
        (theorem_4(3), "theorem-4-k-3", {"k": 3}),
        (theorem_5(2), "theorem-5-k-2", {"k": 2}),
        (theorem_6(3), "theorem-6-k-3-memory-3", {"k": 3, "memory": 3}),
        (theorem_6(3, 7), "theorem-6-k-3-memory-7", {"k": 3, "memory": 7}),
    ],
)
def test_parameters_are_in_name_and_provenance(
    instance: Instance, name: str, parameters: dict[str, int]
) -> None:
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
    "theorem 4, too large": (lambda: theorem_4(4096), "k", "4096 is out", "from 1 to 4095"),
    "theorem 4, True": (lambda: theorem_4(True), "k", "True is not a whole", "from 1"),
    "theorem 4, huge": (lambda: theorem_4(10**5000), "k", "5001 digits", "from 1 to 4095"),
    "theorem 5, k = 1": (lambda: theorem_5(1), "k", "1 is out of range", "from 2 to 45"),
    "theorem 5, too large": (lambda: theorem_5(46), "k", "46 is out", "from 2 to 45"),
    "theorem 5, None": (lambda: theorem_5(None), "k", "None is not a whole", "from 2"),  # type: ignore[arg-type]
    "theorem 6, k = 1": (lambda: theorem_6(1), "k", "1 is out of range", "from 2 to 740"),
    "theorem 6, too large": (lambda: theorem_6(741), "k", "741 is out", "from 2 to 740"),
    "theorem 6, memory below k": (lambda: theorem_6(5, 4), "memory", "4 is out", "from 5 to"),
    "theorem 6, memory text": (lambda: theorem_6(2, "2G"), "memory", "'2G' is not", "from 2"),  # type: ignore[arg-type]
    "theorem 6, memory too large": (
        lambda: theorem_6(2, 2**50 // MB + 1), "memory", "is out of range", "from 2 to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_named_with_rule_and_way_out(case: str) -> None:
    make, field, rule, way_out = BAD[case]
    assert_refused(make, field, rule, way_out)
