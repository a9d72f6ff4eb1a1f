"""What a plan must work and hold at least: bounds by loads, and proofs that nothing fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Pattern, Plan, Platform, Problem, Scope, Stage, check, solve
from schedopt.account import memory
from schedopt.bounds import load_bound, memory_proof, stage_load_bound
from schedopt.stage import SHARDS
from tests.bounds.every_plan import Memory, has_plan, tight_problems
from tests.budgets import trials
from tests.examples import op, stages
from tests.layers import layer
from tests.random_plans import valid_plans
from tests.sharded_plans import sharded_plans

instants = st.sampled_from([0, 0, 1])


@trials(300)
@given(valid_plans())
def test_no_valid_plan_of_any_kind_beats_the_load_bound(plan: Plan) -> None:
    bound = load_bound(plan.problem)
    assert bound.scope.covers(plan.scope)
    assert plan.pattern.period >= bound.period


@trials(300)
@given(valid_plans(), st.booleans())
def test_no_plan_beats_the_work_of_its_own_stages(plan: Plan, apart: bool) -> None:
    scope = replace(plan.scope, allocation="fixed", grain="layer" if apart else "stage")
    given = tuple(replace(stage, recompute=()) for stage in plan.stages)
    bound = stage_load_bound(replace(plan.problem, scope=scope, stages=given))
    if any(len(stage.gpus) > 1 for stage in given):
        assert bound is None
        return
    assert bound is not None
    assert bound.scope.covers(scope)
    assert not bound.scope.covers(plan.scope)
    assert plan.pattern.period >= bound.period
    work = [0] * len(plan.platform.gpus)
    for stage in given:
        gpu = plan.platform.gpus[stage.gpus[0]]
        for one in plan.chain.layers[stage.first : stage.last + 1]:
            work[stage.gpus[0]] += gpu.duration_ns(one.forward_ns)
            work[stage.gpus[0]] += gpu.duration_ns(one.backward_ns)
    assert bound.period == max(work) or scope.split_backward


def test_the_work_of_stages_counts_where_layers_apart_do_not_cover_them() -> None:
    # What a stage saves of its input is of no use within it, so that no search proves anything.
    chain = Chain(layers=(replace(layer(4, 8, weight=1, sent=1), saved_input_bytes=1),) * 3)
    given = stages((0, 1, [0]), (2, 2, [1]))
    scope = Scope(allocation="fixed", grain="layer")
    result = solve(chain, Platform(2, 99), scope=scope, stages=given)
    assert result.status == "optimal"
    assert result.period == result.lower_bound == 24


def test_the_shorter_way_back_of_a_stage_counts() -> None:
    layers = [replace(layer(1, back), backward_input_ns=1, backward_weight_ns=1) for back in (1, 4)]
    problem = Problem(
        chain=Chain(layers=tuple(layers)),
        platform=Platform(2, 0, speed=["1", "0.5"]),
        scope=Scope(allocation="fixed", split_backward=True),
        stages=(Stage(layers=(0, 1), gpus=(1,)),),
    )
    periods = {}
    for grain in ("stage", "layer"):
        scope = replace(problem.scope, grain=grain)
        bound = stage_load_bound(replace(problem, scope=scope))
        assert bound is not None
        periods[grain] = bound.period
    # At half the speed: forwards 4; whole 10 or halves 8 together, 2 and 4 each on its own.
    assert periods == {"stage": 12, "layer": 10}


@trials(300)
@given(valid_plans() | sharded_plans(), st.data())
def test_no_plan_fits_where_the_memory_proof_says_none_does(
    plan: Plan, data: st.DataObject
) -> None:
    gpus = [
        Gpu(memory_bytes=data.draw(st.integers(0, 40)), speed=gpu.speed)
        for gpu in plan.platform.gpus
    ]
    reading = data.draw(st.sampled_from(["sum", "peak"]))
    scope = replace(plan.scope, memory=reading)  # type: ignore[arg-type]
    if any(len(stage.gpus) > 1 for stage in plan.stages):
        shared = max((stage.shard for stage in plan.stages), key=SHARDS.index)
        every = plan.rule.update_every
        scope = replace(scope, max_k=None, microbatches=every, replicas=None, shard=shared)
    platform = plan.platform.with_gpus(gpus)
    problem = Problem(chain=plan.chain, platform=platform, rule=plan.rule, scope=scope)
    proof = memory_proof(problem)
    if proof is not None:
        assert proof.scope.covers(replace(scope, grain="stage"))
        needs = [need.reading(reading) for need in memory(plan)]
        assert any(need > gpu.usable_bytes for need, gpu in zip(needs, gpus, strict=True))


def free_after(times: Sequence[tuple[int, int]]) -> Chain:
    """Return layers with these forwards and backwards that save a byte each."""
    return Chain(layers=tuple(layer(ahead, back, 1) for ahead, back in times))


def test_layers_without_length_need_not_lie_there_at_once() -> None:
    # The second layer begins and ends when the first one is through.
    scope = Scope(allocation="general", memory="peak")
    operations = (op("F", 0, 0, 0), op("F", 1, 0, 1), op("B", 1, 0, 1), op("B", 0, 0, 1))
    plan = Plan(
        chain=free_after([(1, 0), (0, 0)]),
        platform=Platform(1, 1),
        scope=scope,
        stages=stages((0, 0, [0]), (1, 1, [0])),
        pattern=Pattern(k=1, period_total_ns=2, operations=operations),
    )
    assert check(plan) == ()
    assert memory_proof(plan.problem) is None
    in_sum = replace(plan.problem, scope=replace(scope, memory="sum"))
    assert memory_proof(in_sum) is not None


@pytest.mark.parametrize("times", [[(0, 0), (1, 0)], [(0, 0), (0, 1)], [(0, 1), (0, 1)]])
def test_layers_before_one_that_takes_time_lie_there_at_once(times: list[tuple[int, int]]) -> None:
    scope = Scope(allocation="general", memory="peak")
    problem = Problem(chain=free_after(times), platform=Platform(1, 1), scope=scope)
    proof = memory_proof(problem)
    assert proof is not None
    assert proof.scope.memory == "peak"


@trials(150)
@given(data=st.data(), split=st.booleans(), memory=st.sampled_from(["sum", "peak"]))
def test_no_order_fits_where_the_memory_proof_says_none_does(
    data: st.DataObject, split: bool, memory: Memory
) -> None:
    problem = data.draw(tight_problems(split=split, recompute=False, memory=memory, k=1))
    sizes = [gpu.memory_bytes for gpu in problem.platform.gpus]
    room = data.draw(st.integers(0, max(sizes)))
    layers = tuple(
        replace(one, forward_ns=data.draw(instants), backward_ns=data.draw(instants))
        for one in problem.chain.layers
    )
    problem = replace(
        problem,
        chain=replace(problem.chain, layers=layers),
        platform=problem.platform.with_gpus([Gpu(memory_bytes=room)] * len(sizes)),
    )
    if memory_proof(problem) is not None:
        assert not has_plan(problem, Fraction(40))


@pytest.mark.parametrize("speed", [["1", "1"], ["1", "2"]])
def test_section_6_1_and_two_speeds_by_hand(speed: list[str]) -> None:
    # Two of the three share a GPU; each half takes 1 ns at least, on the faster one too.
    chain, platform = (
        Chain(layers=(layer(1, 0), layer(2, 0), layer(1, 0))),
        Platform(2, 0, speed=speed),
    )
    assert load_bound(Problem(chain=chain, platform=platform)).period == 2


def test_a_layer_that_fits_nowhere_is_proven_for_any_allocation() -> None:
    chain = Chain(layers=(layer(1, 0, 2, weight=5),))
    result = solve(chain, Platform(2, 6), scope=Scope(allocation="general"))
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert result.infeasibility.proven_memory_bytes == 7
    assert result.infeasibility.least_memory_bytes == 7


def test_contiguous_infeasible_does_not_prove_general_infeasible() -> None:
    chain = Chain(layers=tuple(layer(1, 0, weight=weight) for weight in (1, 2, 1)))
    result = solve(chain, Platform(2, 2), scope=Scope(allocation="general"))
    assert (result.status, result.period) == ("optimal", Fraction(2))
    notes = [str(phase.note) for phase in result.ladder if phase.solver == "contiguous"]
    assert "needs 3 bytes" in notes[0]


@pytest.mark.parametrize(("count", "least"), [(3, 11), (6, 17)])
def test_layers_that_must_share_a_gpu_bound_the_period(count: int, least: int) -> None:
    # Of four layers that take 6 ns and 5 ns, two share a GPU; of seven, three do.
    chain = Chain(layers=(*(layer(2, 4),) * count, layer(2, 3)))
    assert load_bound(Problem(chain=chain, platform=Platform(3, 0))).period == least
