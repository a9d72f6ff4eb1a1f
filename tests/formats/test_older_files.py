"""Files that version 0.1.0 wrote are read, are valid, and say what is found today.

``tests/data/0.1.0`` was written by its commands ``solve``, ``compare`` and ``sweep`` and is never
written again. A new format gets a folder of its own.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import Chain, Platform, Result, check, compare, solve
from schedopt.sweeping.sweep import Sweep

OLD = Path(__file__).parents[1] / "data" / "0.1.0"

PLANS: dict[str, tuple[str, Fraction, str]] = {
    "contiguous": ("optimal", Fraction(22, 1), "periodic"),
    "fixed": ("optimal", Fraction(20, 1), "one_f_one_b_star"),
    "general": ("optimal", Fraction(21, 1), "general_cpsat"),
    "megatron": ("optimal", Fraction(10689496761, 4), "engine_step"),
    "nodes": ("optimal", Fraction(18, 1), "general"),
    "step": ("feasible", Fraction(91, 4), "step"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_what_it_was(name: str, tmp_path: Path) -> None:
    status, period, solver = PLANS[name]
    result = Result.load(OLD / f"{name}.plan.json")
    assert (result.status, result.period, result.solver) == (status, period, solver)
    assert check(result) == ()
    result.save(tmp_path / "again.json")
    assert Result.load(tmp_path / "again.json") == result


@pytest.mark.parametrize(
    "name",
    [
        *("contiguous", "fixed", "megatron"),
        pytest.param("nodes", marks=pytest.mark.nightly),
    ],
)
def test_solving_it_again_proves_the_same(name: str) -> None:
    plan = Result.load(OLD / f"{name}.plan.json").plan
    assert plan is not None
    stages = plan.stages if plan.scope.allocation == "fixed" else ()
    # A proof takes the work that it takes, on a busy machine many seconds.
    result = solve(
        plan.chain,
        plan.platform,
        rule=plan.rule,
        scope=plan.scope,
        stages=stages,
        time_limit=300,
    )
    assert (result.status, result.period) == PLANS[name][:2]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Chain, "chain"), (Chain, "tied.chain"), (Platform, "platform"), (Sweep, "sweep")],
)
def test_what_is_no_plan_is_written_as_it_was(
    kind: type[Chain | Platform | Sweep], name: str, tmp_path: Path
) -> None:
    kind.load(OLD / f"{name}.json").save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (OLD / f"{name}.json").read_text()


def test_systems_compare_as_they_did(tmp_path: Path) -> None:
    old = json.loads((OLD / "compare.json").read_text())
    systems = [row["system"] for row in old["rows"] if not row["system"].startswith("schedopt")]
    chain, platform = Chain.load(OLD / "chain.json"), Platform(2, 90, bandwidth="1GB/s")
    compare(chain, platform, systems=systems, memory="sum").save(tmp_path / "again.json")
    new = json.loads((tmp_path / "again.json").read_text())
    assert len(systems) > 10
    assert new["rows"] == [row for row in old["rows"] if row["system"] in systems]
