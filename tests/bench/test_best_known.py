"""Best-known plans: what gives way to what, and that the files show what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Platform, Scope, check, solve
from schedopt.bench.best_known import BestBound, BestKnown, BestPlan, NoPlan, Origin
from schedopt.bench.best_known_file import BestKnownFile, load_best_known
from schedopt.bench.cases import SolverInstance, theorem_instances
from schedopt.bench.general import GENERAL
from schedopt.bench.records import load_records
from schedopt.bench.solvers import find_method, plan_runs
from schedopt.bench.solvers_tables import by_instance, is_refuted
from schedopt.bench.suite import Effort
from schedopt.errors import InvalidPlanError
from schedopt.problem import training_step
from schedopt.result import Bound, Infeasibility, Result
from tests.bench.suites import RESULTS, instance, run
from tests.examples import layer
from tests.refusals import put

STEP_LAYER = layer(1, 2, 40, 5, parameter_bytes=10, gradient_bytes=10, optimizer_bytes=20)
NOTHING = BestKnown(chain="c", chain_sha256="0" * 64, layers=3, gpus=2, memory_bytes=9)
OPTIMUM = 20


def by(solver: str) -> Origin:
    return Origin(solver=solver, date="2026-01-01", machine="m", schedopt="0.1.0")


def plan(period: Fraction | int, solver: str = "a") -> BestPlan:
    exact = Fraction(period).as_integer_ratio()
    return BestPlan(period_exact=exact, certificate="plans/c.plan.json", by=by(solver))


def bound(value: Fraction | int, solver: str = "a") -> BestBound:
    return BestBound(exact=Fraction(value).as_integer_ratio(), proof="p", by=by(solver))


small = st.fractions(min_value=0, max_value=OPTIMUM, max_denominator=3)
found = st.lists(st.tuples(st.booleans(), small, st.sampled_from("abc")), max_size=12)


@given(found)
# The first of equals stays.
@example([(True, Fraction(7, 2), "a"), (True, Fraction(7, 2), "b")])
@example([(False, Fraction(3), "a"), (False, Fraction(3), "b")])
@example([(True, Fraction(OPTIMUM), "a"), (False, Fraction(OPTIMUM), "b")])
def test_the_best_that_was_ever_found_is_known_and_who_found_it_first(
    steps: list[tuple[bool, Fraction, str]],
) -> None:
    known = NOTHING
    plans: list[BestPlan] = []
    bounds: list[BestBound] = []
    for is_plan, value, solver in steps:
        if is_plan:
            # Plans lie above the optimum, bounds below.
            plans.append(plan(2 * OPTIMUM - value, solver))
            known = known.learn(plan=plans[-1])
        else:
            bounds.append(bound(value, solver))
            known = known.learn(bound=bounds[-1])
    assert known.plan == min(plans, key=lambda one: one.period, default=None)
    assert known.bound == max(bounds, key=lambda one: one.period, default=None)
    equal = known.plan and known.bound and known.plan.period == known.bound.period
    assert known.status == ("unknown" if not plans else "optimal" if equal else "feasible")
    assert known.learn(known.plan, known.bound) == known


def test_what_contradicts_a_proof_is_a_fault() -> None:
    with pytest.raises(InvalidPlanError, match=r"contradicts what was proven \(b, a\)"):
        NOTHING.learn(bound=bound(5)).learn(plan(Fraction(49, 10), "b"))
    with pytest.raises(InvalidPlanError):
        NOTHING.learn(plan(5)).learn(bound=bound(6))
    none = NOTHING.learn(no_plan=NoPlan(proof="p", by=by("a")))
    assert none.status == "infeasible"
    assert none.learn(no_plan=NoPlan(proof="q", by=by("b"))) == none
    with pytest.raises(InvalidPlanError):
        none.learn(plan(5))


def keep(
    file: BestKnownFile, one: SolverInstance, result: Result, solver: str = "contiguous"
) -> BestKnown:
    """Write down a result as one of a solver, and return what is known then."""
    (asked,) = plan_runs([one], [find_method(solver)], Effort(1, 60))
    file.keep(asked.record, result)
    return next(known for known in file.instances if known.instance == asked.record.instance)


def test_contiguous_plans_count_and_their_bounds_do_not(tmp_path: Path) -> None:
    file, one = BestKnownFile(tmp_path / "bks.json"), instance(2, 30)
    result = solve(one.chain, one.platform, scope=find_method("contiguous").scope)
    assert result.status == "optimal"
    assert result.period == 12
    general = max(held.period for held in result.bounds if held.scope.covers(GENERAL))
    assert general < 12
    known = keep(file, one, result)
    assert known.status == "feasible"
    assert known.plan is not None
    assert known.bound is not None
    assert known.plan.period == 12
    assert known.bound.period == general
    stored = Result.load(tmp_path / known.plan.certificate)
    assert (stored.status, stored.problem.scope) == ("feasible", GENERAL)
    assert stored.period == 12
    assert stored.lower_bound == general
    assert check(stored) == ()
    # A better bound is written into the file of the plan too, which stays.
    twelve = Bound(exact=(12, 1), scope=GENERAL, proof="by hand")
    better = keep(
        file, one, replace(result, plan=None, status="unknown", bounds=(twelve,)), "relaxation"
    )
    assert (better.status, better.plan) == ("optimal", known.plan)
    assert better.bound is not None
    assert (better.bound.proof, better.bound.by.solver) == ("by hand", "relaxation")
    stored = Result.load(tmp_path / known.plan.certificate)
    assert (stored.status, stored.proof, check(stored)) == ("optimal", "by hand", ())
    assert load_best_known(tmp_path / "bks.json") == (better,)
    assert BestKnownFile(tmp_path / "bks.json").instances == (better,)


def test_lemma_2_has_no_contiguous_plan_and_one_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    lemma = [one for one in theorem_instances() if one.chain.name == "lemma-2"]
    run(lemma, path)
    (known,) = load_best_known(tmp_path / "bks.json")
    assert (known.status, known.plan, known.no_plan) == ("unknown", None, None)
    run(lemma, path, ("contiguous", "general_cpsat"))
    (known,) = load_best_known(tmp_path / "bks.json")
    assert known.status == "optimal"
    assert [record["status"] for record in load_records(path)] == ["infeasible", "optimal"]


def test_an_instance_without_any_plan(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run([instance(2, 9)], path, ("relaxation", "contiguous"))
    (known,) = load_best_known(tmp_path / "bks.json")
    assert known.status == "infeasible"
    assert known.no_plan is not None
    assert known.no_plan.by.solver == "relaxation"
    assert not (tmp_path / "plans").exists()


def test_a_proof_for_contiguous_plans_alone_says_nothing_of_others(tmp_path: Path) -> None:
    one = instance(2, 30)
    scope = find_method("contiguous").scope
    result = solve(one.chain, one.platform, scope=scope)
    none = Infeasibility(scope=scope, proof="by hand")
    narrow = replace(result, status="infeasible", plan=None, infeasibility=none)
    known = keep(BestKnownFile(tmp_path / "bks.json"), one, narrow)
    assert (known.status, known.no_plan) == ("unknown", None)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a list with one plan, not proven the best."""
    run([instance(2, 30)], tmp_path / "runs.jsonl")
    return tmp_path / "bks.json"


def edit(path: Path, *place: str | int, to: Any) -> None:
    document = json.loads(path.read_text())
    put(*place, value=to)(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("place", "to", "rule"),
    [
        (("instances", 0, "status"), "optimal", "status: is optimal, but plan and bound say"),
        (("instances", 0, "plan", "period_exact"), [11, 1], "period_total_ns: is 12, and 11"),
        (("instances", 0, "plan", "period_exact"), [1, 1], "plan: is refuted by what else"),
        (("instances", 0, "plan", "period_exact"), [1, 0], "[1, 0] is not a fraction"),
        (("instances", 0, "bound", "exact"), [7, 1], "bounds: is 6, and 7 in the list"),
        (("instances", 0, "plan", "certificate"), "../x.plan.json", "is not a file of plans/"),
        (("instances", 0, "plan", "certificate"), "plans/x.plan.json", "is gone, and bks.json"),
        (("instances", 0, "chain_sha256"), "1" * 64, "chain_sha256: is "),
        (("instances", 0, "memory_bytes"), 31, "platform: is 2 GPUs of 30 B"),
        (("instances", 0, "gpus"), 0, "gpus: 0 is out of range"),
        (("instances", 0, "speed"), 1, "instances[0].speed: is not known"),
        (("scope", "max_k"), 3, "scope: is any allocation, k up to 3"),
        (("format",), "schedopt.chain/1", "this is a chain, not a list of best-known plans"),
    ],
)  # fmt: skip
def test_a_list_that_was_edited_is_refused(
    place: tuple[str | int, ...], to: Any, rule: str, stored: Path
) -> None:
    (known,) = BestKnownFile(stored).instances
    assert known.bound is not None
    assert known.bound.period == 6
    edit(stored, *place, to=to)
    with pytest.raises(InputError) as caught:
        BestKnownFile(stored)
    assert rule in str(caught.value)
    assert caught.value.way_out


def test_an_instance_that_is_given_twice_is_refused(stored: Path) -> None:
    document = json.loads(stored.read_text())
    edit(stored, "instances", to=document["instances"] * 2)
    with pytest.raises(InputError, match=r"instances\[1\]: four on 2 GPUs.* is given twice"):
        BestKnownFile(stored)


def test_a_plan_that_was_edited_is_refused(stored: Path) -> None:
    (certificate,) = (stored.parent / "plans").glob("*")
    document = json.loads(certificate.read_text())
    document["pattern"]["operations"][0]["start_ns"] += 1
    certificate.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"four.*plan\.json: the plan is not valid"):
        BestKnownFile(stored)


def test_a_training_step_is_known_by_its_batch_and_bettered(tmp_path: Path) -> None:
    path, chain = tmp_path / "runs.jsonl", Chain(layers=(STEP_LAYER,) * 4, name="four", samples=2)
    # What goes on for ever is another instance, and so is another batch.
    several = [
        SolverInstance(chain, Platform(2, 10**4, bandwidth="1GB/s"), "own", batch)
        for batch in (None, 4, 8)
    ]
    run(several, path, ("schedopt",))
    without, four, eight = load_best_known(tmp_path / "bks.json")
    assert [known.batch for known in (without, four, eight)] == [None, 4, 8]
    assert [known.microbatches for known in (without, four, eight)] == [None, 2, 4]
    for known in (four, eight):
        assert known.plan is not None
        assert known.bound is not None
        stored = Result.load(tmp_path / known.plan.certificate)
        # 3 ns a layer and micro-batch on two GPUs, whatever the cut.
        assert known.bound.period >= 4 * Fraction(3, 2)
        assert stored.plan is not None
        step = stored.plan.pattern.period_total_ns
        assert known.plan.period * (known.microbatches or 0) == step
        assert stored.problem.scope == training_step(chain, known.platform, known.batch or 0).scope
        assert check(stored) == ()
    assert str(eight).endswith("a step of 8 samples")
    file, (asked,) = BestKnownFile(tmp_path / "bks.json"), load_records(path)[1:2]
    assert file.holds(asked)
    # A longer step changes nothing, a larger bound is kept, and a smaller one is not.
    result = solve(chain, several[1].platform, batch=4, scope=Scope(max_k=None))
    file.keep(asked, result)
    assert file.instances == (without, four, eight)
    assert four.plan is not None
    optimal = Bound(exact=four.plan.period_exact, scope=asked["scope"], proof="by hand")
    file.keep(asked, replace(result, plan=None, status="unknown", bounds=(optimal,)))
    assert [known.status for known in load_best_known(tmp_path / "bks.json")][1] == "optimal"
    edit(tmp_path / "bks.json", "instances", 1, "batch", to=6)
    with pytest.raises(InputError, match="a step of 3 micro-batches"):
        BestKnownFile(tmp_path / "bks.json")


SAMPLE = slice(None, None, 19)


@pytest.mark.parametrize(
    "chosen", [SAMPLE, pytest.param(slice(None), marks=pytest.mark.nightly)], ids=["sample", "all"]
)
def test_stored_plans_are_valid_and_show_what_the_list_says(chosen: slice) -> None:
    """Loading a list checks each plan; here each is also compared by hand."""
    instances = load_best_known(RESULTS / "bks.json")
    certificates = {known.plan.certificate for known in instances if known.plan is not None}
    assert certificates == {f"plans/{path.name}" for path in (RESULTS / "plans").iterdir()}
    for known in instances[chosen]:
        if known.plan is None:
            continue
        stored = Result.load(RESULTS / known.plan.certificate)
        assert check(stored) == ()
        assert stored.plan is not None
        assert stored.plan.chain.sha256 == known.chain_sha256
        assert stored.plan.platform == Platform(
            known.gpus, known.memory_bytes, bandwidth=known.bandwidth_bytes_per_s
        )
        assert stored.problem.scope == GENERAL
        assert stored.period == known.plan.period
        assert known.bound is None or known.bound.period <= known.plan.period


@pytest.mark.nightly
def test_the_stored_list_is_one_that_a_suite_can_go_on_with() -> None:
    assert len(BestKnownFile(RESULTS / "bks.json").instances) == 185


def test_no_stored_run_contradicts_another_or_the_best_known() -> None:
    instances = load_best_known(RESULTS / "bks.json")
    periods = {known.instance: known.plan.period for known in instances if known.plan is not None}
    runs = by_instance(load_records(RESULTS / "solvers.jsonl"))
    assert runs.keys() <= {known.instance for known in instances}
    for key, same in runs.items():
        for one in same:
            if one.period is not None:
                assert periods[key] <= one.period
            if one.bound is not None and one["scope"].covers(GENERAL) and key in periods:
                assert one.bound <= periods[key]
        assert not [(one, other) for one in same for other in same if is_refuted(one, other)]
