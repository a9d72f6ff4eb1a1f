"""Steps of a batch over the sizes of micro-batches of a profile."""

from __future__ import annotations

import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import Chain, InputError, Layer, Platform, Profile, Result, Variant, check, solve
from schedopt.problem import training_step, widest_step
from schedopt.solving import solve_problem
from schedopt.solving.sizes import say_left_out, steps_of_sizes
from schedopt.units import counted
from tests.refusals import assert_refused
from tests.solvers.asking import plan_of


def layer(samples: int, tensor: int, weight: int) -> Layer:
    """Return a layer that is faster for each sample in larger micro-batches, and smaller groups."""
    return Layer(
        forward_ns=(20 + 40 * samples * weight) // tensor + 2 * tensor - 2,
        backward_ns=(40 + 80 * samples * weight) // tensor + 2 * tensor - 2,
        weight_bytes=1200 // tensor,
        parameter_bytes=200 // tensor,
        gradient_bytes=200 // tensor,
        optimizer_bytes=800 // tensor,
        activation_bytes=10 * samples,
        saved_bytes=100 * samples // tensor,
        update_ns=4 // tensor,
    )


def chain(samples: int, tensor: int) -> Chain:
    return Chain(
        layers=tuple(layer(samples, tensor, weight) for weight in (1, 2, 1)),
        samples=samples,
        input_bytes=samples,
    )


PROFILE = Profile(
    variants=tuple(
        Variant(tensor=tensor, chain=chain(samples, tensor))
        for tensor in (1, 2)
        for samples in (1, 2, 4)
    )
)


def machine(memory: int = 100_000) -> Platform:
    return Platform(4, memory, bandwidth=10**9)


@pytest.mark.parametrize("number", range(len(PROFILE.variants)))
def test_what_is_missing_is_named_by_its_place_in_the_profile(number: int) -> None:
    variants = [*PROFILE.variants]
    layers = variants[number].chain.layers
    poorer = (layers[0], replace(layers[1], optimizer_bytes=None), layers[2])
    variants[number] = replace(
        variants[number], chain=replace(variants[number].chain, layers=poorer)
    )
    scope = widest_step(chain(1, 1), tensor=None)
    assert_refused(
        lambda: steps_of_sizes(Profile(variants=tuple(variants)), machine(), 8, scope),
        f"variants[{number}].chain.layers[1].optimizer_bytes",
        "absent",
    )


WORK = 300
"""More of it finds no shorter steps here. With a limit of time, too, compiling could end it."""


@pytest.fixture(scope="module")
def answer() -> Result:
    """Return the answer for a batch of eight samples."""
    return solve(PROFILE, machine(), batch=8, work_limit=WORK, time_limit=None)


def test_the_best_size_is_found(answer: Result) -> None:
    result = answer
    steps = {}
    for samples in PROFILE.sizes:
        alone, groups = PROFILE.of_size(samples)
        step = training_step(alone, machine(), 8, variants=groups)
        own = solve_problem(step, work_limit=WORK, time_limit=None)
        steps[samples] = plan_of(own).pattern.period_total_ns
    plan = plan_of(result)
    assert check(result) == ()
    # How short the step of a size becomes hangs on what others tell its search, and when: a few
    # parts in a hundred. Which size is the best does not.
    best = min(steps, key=lambda samples: steps[samples])
    found = plan.pattern.period_total_ns
    assert plan.chain.samples == best
    assert all(found < other for samples, other in steps.items() if samples != best)
    assert all(size.step_ns is None or size.step_ns >= found for size in result.sizes)
    assert plan.chain.samples * plan.pattern.k == 8
    assert [size.samples for size in result.sizes] == [1, 2, 4]
    for size in result.sizes:
        assert size.microbatches == 8 // size.samples
        assert size.bound <= steps[size.samples]


def test_no_answer_is_longer_than_the_plan_to_start_from(answer: Result) -> None:
    again = solve(PROFILE, machine(), batch=8, time_limit=1e-3, initial=answer)
    assert plan_of(again).pattern.period_total_ns <= plan_of(answer).pattern.period_total_ns


def test_a_plan_to_start_from_has_one_of_the_sizes(answer: Result) -> None:
    own = plan_of(answer).chain.samples
    others = [one for one in PROFILE.variants if one.chain.samples != own]
    sizes = " or ".join(counted(one, "sample") for one in PROFILE.sizes if one != own)
    assert_refused(
        lambda: solve(Profile(variants=tuple(others)), machine(), batch=8, initial=answer),
        "initial",
        f"the plan to start from has {counted(own, 'sample')} in a micro-batch, and the profile "
        f"{sizes}",
    )


def test_the_gap_is_that_to_the_best_of_all_sizes(answer: Result) -> None:
    result = answer
    step = plan_of(result).pattern.period_total_ns
    least = min([Fraction(step), *(size.bound for size in result.sizes)])
    assert result.gap_of_sizes == (step - least) / least
    if result.gap_of_sizes:
        assert result.status == "feasible"
        assert "with micro-batches of any size" in result.verdict


def test_sizes_that_do_not_divide_the_batch_are_left_out() -> None:
    result = solve(PROFILE, machine(), batch=6, time_limit=30)
    assert [size.samples for size in result.sizes] == [1, 2]


def test_sizes_of_too_many_micro_batches_are_left_out() -> None:
    # 65,536 micro-batches are the most.
    batch = 2 * 65_536
    problems = steps_of_sizes(PROFILE, machine(), batch)
    assert [one.scope.microbatches for one in problems] == [65_536, 32_768]
    assert say_left_out(PROFILE, batch) == "micro-batches of 1 sample: a step has at most 65536"
    assert say_left_out(PROFILE, batch // 2) == ""
    assert_refused(
        lambda: steps_of_sizes(PROFILE, machine(), 8 * batch),
        "batch",
        "1048576 micro-batches are more than 65536, the most of a training step",
    )


def test_a_batch_that_no_size_divides() -> None:
    even = Profile(variants=tuple(one for one in PROFILE.variants if one.chain.samples > 1))
    with pytest.raises(InputError, match="7 samples are no whole number of micro-batches of 2 or"):
        solve(even, machine(), batch=7)


def test_a_size_without_room_is_told_from_one_with_it() -> None:
    # Each sample keeps 50 bytes a layer in a pair, beside its weights.
    result = solve(PROFILE, machine(900), batch=8, time_limit=30)
    fits = {size.samples: not size.infeasible for size in result.sizes}
    for samples, possible in fits.items():
        alone, groups = PROFILE.of_size(samples)
        own = solve_problem(training_step(alone, machine(900), 8, variants=groups), time_limit=20)
        assert (own.status != "infeasible") == possible


def test_no_size_has_room() -> None:
    result = solve(PROFILE, machine(100), batch=8, time_limit=30)
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    assert all(size.infeasible for size in result.sizes)


def test_a_search_that_is_stopped_ends_for_all_sizes() -> None:
    stop = threading.Event()
    stop.set()
    result = solve(PROFILE, machine(), batch=8, time_limit=60, stop=stop)
    assert result.seconds < 10
    assert len(result.sizes) == 3
    assert result.plan is not None


def test_a_profile_of_several_sizes_needs_a_batch() -> None:
    with pytest.raises(InputError, match="has micro-batches of 1 and 2 and 4 samples"):
        solve(PROFILE, machine())


def test_the_sizes_are_in_the_file(tmp_path: Path, answer: Result) -> None:
    answer.save(tmp_path / "plan.json")
    assert Result.load(tmp_path / "plan.json") == answer


def again(own: Variant) -> Variant:
    """Return layers that compute a module again: they keep a fifth, and take longer."""
    layers = tuple(
        replace(one, saved_bytes=one.saved // 5, backward_ns=one.backward_ns + 5)
        for one in own.chain.layers
    )
    return replace(own, chain=replace(own.chain, layers=layers, recomputed_modules=("mlp",)))


NAMED = Profile(
    variants=tuple(
        replace(
            one,
            chain=replace(
                one.chain,
                layers=tuple(
                    replace(each, name=name)
                    for each, name in zip(
                        one.chain.layers, ("embed", "layers.0", "head"), strict=True
                    )
                ),
            ),
        )
        for one in PROFILE.variants
        if one.chain.samples < 4
    )
)
BOTH = Profile(variants=(*NAMED.variants, *map(again, NAMED.variants)))


@pytest.mark.parametrize("memory", [100_000, 1_400])
def test_modules_are_computed_again_where_that_pays(memory: int) -> None:
    scope = widest_step(BOTH.variants[0].chain, tensor=None)
    scope = replace(scope, engine="megatron", recompute=False)
    result = solve(BOTH, machine(memory), batch=8, scope=scope, gap=0, workers=1)
    plan = plan_of(result)
    assert check(result) == ()
    steps = []
    for own in BOTH.measured:
        chain, groups = BOTH.of_size(*own)
        one = solve_problem(
            training_step(chain, machine(memory), 8, scope, groups), gap=0, workers=1
        )
        if one.plan is not None:
            steps.append(one.plan.pattern.period_total_ns)
    assert plan.pattern.period_total_ns == min(steps)
    assert [(one.samples, one.recomputed_modules) for one in result.sizes] == [*BOTH.measured]
    assert bool(plan.chain.recomputed_modules) == (memory < 10_000)


def test_engines_that_cannot_compute_modules_again_are_asked_without() -> None:
    scope = replace(widest_step(BOTH.variants[0].chain, tensor=None), engine="torchtitan")
    asked = [problem.chain.measured for problem in steps_of_sizes(BOTH, machine(), 8, scope)]
    assert asked == [(1, ()), (2, ())]
    alone = Profile(variants=tuple(map(again, NAMED.variants)))
    assert_refused(
        lambda: steps_of_sizes(alone, machine(), 8, scope),
        "scope.engine",
        "layers that compute mlp again, of which torchtitan knows no such names",
    )
