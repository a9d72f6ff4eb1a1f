"""``schedopt.sweep/1`` files: what is written comes back, and what must not go on is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schedopt import Chain, InputError, Layer, Profile, Scope, Variant
from schedopt.sweeping import Options, Sweep, run_sweep
from schedopt.sweeping.files import resume_sweep
from tests.sweeping.helpers import CHAIN, FAST, INFEASIBLE, SLOW, ThreadPool, cells, empty, point

SCOPE = Scope(max_k=3, memory="peak")


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    options = Options(scope=SCOPE, time_limit_s=5.0, reserved_bytes=1)
    asked = cells([2, 4], [INFEASIBLE, SLOW, FAST])
    return run_sweep(empty(options), CHAIN, asked, ThreadPool()).sweep


def test_what_is_written_comes_back(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    sweep.save(path)
    assert Sweep.load(path) == sweep
    document = json.loads(path.read_text())
    assert document["format"] == "schedopt.sweep/1"
    assert document["chain_sha256"] == CHAIN.sha256
    known = next(one for one in document["points"] if "pattern" in one)
    assert known["period_exact"] == [known["pattern"]["period_total_ns"], known["pattern"]["k"]]


def test_any_k_and_no_time_limit_come_back(tmp_path: Path) -> None:
    wanted = empty(Options(scope=Scope(max_k=None)))
    wanted.save(tmp_path / "sweep.json")
    assert Sweep.load(tmp_path / "sweep.json") == wanted


def test_a_file_of_before_gets_its_chain(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    replace(sweep, chain=None).save(path)
    assert "chain" not in json.loads(path.read_text())
    assert resume_sweep(path, CHAIN, sweep.options).chain == CHAIN


def test_a_sweep_of_a_profile_keeps_its_tensor_groups(tmp_path: Path) -> None:
    variants = tuple(Variant(tensor=tensor, chain=CHAIN) for tensor in (1, 2))
    profile = Profile(name="two", variants=variants)
    path = tmp_path / "sweep.json"
    Sweep.of(profile, Options()).save(path)
    assert Sweep.load(path).model == profile
    assert resume_sweep(path, profile, Options()).model == profile
    with pytest.raises(InputError, match=r"another chain \(two\)"):
        resume_sweep(path, CHAIN, Options())


def test_a_file_with_another_chain_is_refused(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    sweep.save(path)
    document = json.loads(path.read_text())
    document["chain"]["layers"][0]["forward_ns"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"sweep\.json: chain_sha256: does not belong"):
        Sweep.load(path)


def test_a_file_is_gone_on_with(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    assert resume_sweep(path, CHAIN, sweep.options).points == ()
    sweep.save(path)
    assert resume_sweep(path, CHAIN, sweep.options).points == sweep.points


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"time_limit_s": 6.0}, r"options\.time_limit_s: "),
        ({"seed": 1}, r"options\.seed: "),
        ({"reserved_bytes": 0}, r"options\.reserved_bytes: "),
        ({"latency_ns": 1}, r"options\.latency_ns: "),
        ({"duplex": "full"}, r"options\.duplex: "),
        ({"solver": "contiguous"}, r"options\.solver: "),
        (
            {"scope": replace(SCOPE, max_k=1)},
            r"options\.max_k: the sweep was made with 3, not 1\. ",
        ),
        (
            {"scope": replace(SCOPE, max_k=1, grain="layer")},
            r'options: .* made with max_k 3, not 1 and grain "stage", not "layer"\. ',
        ),
    ],
)
def test_other_options_are_refused_by_their_field(
    changes: dict[str, Any], error: str, sweep: Sweep, tmp_path: Path
) -> None:
    sweep.save(tmp_path / "sweep.json")
    with pytest.raises(InputError, match=rf"sweep\.json: {error}.*Write to another file"):
        resume_sweep(tmp_path / "sweep.json", CHAIN, replace(sweep.options, **changes))


def test_another_chain_is_refused(sweep: Sweep, tmp_path: Path) -> None:
    sweep.save(tmp_path / "sweep.json")
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=1, activation_bytes=1)
    with pytest.raises(InputError, match=r"the sweep is of another chain \(four\)"):
        resume_sweep(tmp_path / "sweep.json", Chain(layers=(layer,)), sweep.options)


def edited(sweep: Sweep, path: Path, **fields: Any) -> Path:
    """Write a sweep with other fields in its last point."""
    sweep.save(path)
    document = json.loads(path.read_text())
    document["points"][-1] |= fields
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("fields", "field", "rule"),
    [
        ({"period_exact": [1, 1]}, "points[5].period_exact", "not the period of the pattern"),
        ({"period_exact": [1, 0]}, "points[5].period_exact", "not a fraction"),
        ({"status": "unknown"}, "points[5].status", "unknown does not go with a plan"),
        ({"gpus": 0}, "points[5].gpus", "out of range"),
        ({"memory_bytes": "16G"}, "points[5].memory_bytes", "not a whole number"),
        ({"memory_bytes": SLOW}, "points[5]", "a second point for 4 GPUs of 10 B"),
        ({"speed": 1}, "points[5].speed", "is not known"),
    ],
)
def test_a_bad_point_is_one_clear_error(
    fields: dict[str, Any], field: str, rule: str, sweep: Sweep, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        Sweep.load(edited(sweep, tmp_path / "sweep.json", **fields))
    assert caught.value.field == field
    assert rule in caught.value.rule


def test_a_plan_that_was_edited_is_not_started_from(sweep: Sweep, tmp_path: Path) -> None:
    path = edited(sweep, tmp_path / "sweep.json", memory_bytes=4)
    with pytest.raises(InputError, match="the plan is not valid"):
        resume_sweep(path, CHAIN, sweep.options)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    CHAIN.save(tmp_path / "chain.json")
    with pytest.raises(InputError, match="this is a chain, not a sweep"):
        Sweep.load(tmp_path / "chain.json")
    empty().save(tmp_path / "sweep.json")
    with pytest.raises(InputError, match="this is a sweep, not a chain"):
        Chain.load(tmp_path / "sweep.json")


def test_a_point_makes_a_plan_file_with_its_bound(sweep: Sweep, tmp_path: Path) -> None:
    for one in sweep.points:
        result = one.result(CHAIN, sweep.options)
        assert (result.status, result.period) == (one.status, one.period)
        assert result.lower_bound == one.bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": Scope(allocation="fixed")}, "stages that are given"),
        ({"time_limit_s": 0.0}, "not a time limit"),
        ({"duplex": "both"}, "not known"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Options(**options)


def test_a_plan_needs_a_status_that_says_so() -> None:
    with pytest.raises(InputError, match="infeasible does not go with a plan"):
        point(1, 5, status="infeasible")
