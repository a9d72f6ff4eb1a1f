"""Files that version 0.1.0 wrote are read, are valid, and say what is found today.

``tests/data/0.1.0`` was written by its commands ``solve``, ``compare`` and ``sweep``, the plans
``sharded`` and ``zero`` by its library, and is never written again. A new format gets a folder of
its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, InputError, Platform, Result, check, compare, solve
from schedopt.account import memory
from schedopt.solving.late_sending import check_sent_late
from schedopt.sweeping.points import Sweep
from tests.changes import change_shard

OLD = Path(__file__).parents[1] / "data" / "0.1.0"

MEMORY = ("memory_sum_bytes", "memory_peak_bytes", "most_memory_bytes")

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
    assert result.plan is not None
    # What comes before it is read did not count: it is sent as late as it can be now.
    late, _ = check_sent_late(result.plan)
    assert check(replace(result, plan=late)) == ()
    result.save(tmp_path / "again.json")
    assert Result.load(tmp_path / "again.json") == result


@pytest.mark.parametrize(
    ("name", "levels", "period", "needs"),
    [
        # Stage 0 on one GPU, stage 1 on two.
        ("sharded", ["none", "gradient"], Fraction(89, 2), [42, 42, 45]),
        ("zero", ["parameter"] * 4, Fraction(38), [79, 77]),
    ],
)
def test_one_level_for_all_stages_is_that_of_each_stage_with_replicas(
    name: str, levels: list[str], period: Fraction, needs: list[int], tmp_path: Path
) -> None:
    text = (OLD / f"{name}.plan.json").read_text()
    assert json.loads(text)["rule"]["partition"] == levels[-1]
    result = Result.load(OLD / f"{name}.plan.json")
    plan = result.plan
    assert plan is not None
    assert [stage.shard for stage in plan.stages] == levels
    # What that version said.
    assert (result.period, [need.sum_bytes for need in memory(plan)]) == (period, needs)
    assert check(result) == ()
    result.save(tmp_path / "again.json")
    written = json.loads((tmp_path / "again.json").read_text())
    assert "partition" not in written["rule"]
    assert [stage.get("shard", "none") for stage in written["stages"]] == levels
    assert Result.load(tmp_path / "again.json") == result


def test_a_level_at_home_on_one_gpu_changes_nothing() -> None:
    plan = Result.load(OLD / "sharded.plan.json").plan
    assert plan is not None
    everywhere = change_shard(plan, "gradient")
    assert check(everywhere) == ()
    assert memory(everywhere) == memory(plan)


@pytest.mark.parametrize(
    ("rule", "stage", "field"),
    [
        ({"partition": "all"}, {}, "rule.partition: is not known"),
        ({"partition": "gradient"}, {"shard": "gradient"}, "rule.partition: is not known"),
        ({}, {"shard": "all"}, 'stages[0].shard: "all" is not known'),
    ],
)
def test_a_level_is_given_once(
    rule: dict[str, str], stage: dict[str, str], field: str, tmp_path: Path
) -> None:
    document = json.loads((OLD / "sharded.plan.json").read_text())
    del document["rule"]["partition"]
    document["rule"] |= rule
    document["stages"][0] |= stage
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=re.escape(field)):
        Result.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    "name",
    [
        *("contiguous", "fixed"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("megatron", "nodes")),
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
    rows = [row for row in old["rows"] if row["system"] in systems]
    assert [*map(_but_for_memory, new["rows"])] == [*map(_but_for_memory, rows)]
    for row, was in zip(new["rows"], rows, strict=True):
        # What comes before it is read counts by now.
        for name in MEMORY[:2]:
            assert all(count >= before for count, before in zip(row[name], was[name], strict=True))


def _but_for_memory(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a row said then; plans, samples and who shares them are there since."""
    since = ("plan", "samples", "context")
    return {name: value for name, value in row.items() if name not in (*MEMORY, *since)}
