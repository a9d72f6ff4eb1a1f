"""Proofs in nanoseconds and bytes of large models: what is true of small numbers is true there."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from schedopt import Chain, Gpu, Layer, Platform, Problem, Result, Scope, Stage, solve
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.propagation import propagate
from schedopt.solvers.relaxation import LARGEST
from schedopt.solving.cp_sat import LARGEST_SUM, solve_model
from schedopt.solving.relaxation import RelaxationModel
from schedopt.solving.run import Run
from tests.bounds.every_plan import Memory, tight_problems
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask

SECONDS = 1 << 32
GIGABYTES = 1 << 30


@st.composite
def problems(draw: st.DrawFn) -> tuple[Chain, Platform]:
    """Draw a chain with times of many digits on two or three GPUs that are seldom alike."""
    times = st.integers(20_000, 1_000_000)
    layers = [
        Layer(
            forward_ns=draw(times),
            backward_ns=2 * draw(times),
            weight_bytes=draw(st.sampled_from([0, 0, 40])),
            activation_bytes=draw(st.sampled_from([0, 4, 25])),
            saved_bytes=draw(st.sampled_from([None, 0, 30])),
        )
        for _ in range(draw(st.integers(3, 5)))
    ]
    ties = draw(st.sampled_from([(), ((0, 1),)]))
    memory = draw(st.integers(100, 160))
    speeds = st.sampled_from(["1", "0.7"])
    gpus = [
        Gpu(memory_bytes=memory, speed=draw(speeds))  # type: ignore[arg-type]
        for _ in range(draw(st.integers(2, 3)))
    ]
    return Chain(layers=tuple(layers), same_gpu=ties), Platform(gpus)


def larger(chain: Chain, platform: Platform) -> tuple[Chain, Platform, int]:
    """Return the same in larger numbers, and how many times as long everything is."""
    longer = SECONDS // 1_000_000
    layers = [
        replace(
            layer,
            forward_ns=layer.forward_ns * longer,
            backward_ns=layer.backward_ns * longer,
            weight_bytes=layer.weight_bytes * GIGABYTES,
            activation_bytes=layer.activation_bytes * GIGABYTES,
            saved_bytes=layer.saved * GIGABYTES,
        )
        for layer in chain.layers
    ]
    gpus = [replace(gpu, memory_bytes=gpu.memory_bytes * GIGABYTES) for gpu in platform.gpus]
    return replace(chain, layers=tuple(layers)), Platform(gpus), longer


@pytest.mark.parametrize("solver", ["general_cpsat", "contiguous_cpsat"])
@trials(25)
@given(given=problems(), k=st.integers(1, 2))
def test_a_proof_does_not_depend_on_the_unit(
    solver: str, given: tuple[Chain, Platform], k: int
) -> None:
    allocation = "general" if solver == "general_cpsat" else "contiguous"
    scope = Scope(allocation=allocation, max_k=k)  # type: ignore[arg-type]
    small = solve(*given, scope=scope, solver=solver, time_limit=20)
    chain, platform, longer = larger(*given)
    large = ask(chain, platform, scope=scope, solver=solver, time_limit=20)
    # Each plan of the small problem is one of the large one, and each time is rounded up less.
    if small.period is not None:
        assert large.status in ("optimal", "feasible")
        assert large.lower_bound is not None
        assert large.lower_bound <= small.period * longer


@pytest.mark.parametrize(
    "scope",
    [
        Scope(allocation="fixed", max_k=2),
        Scope(allocation="fixed", max_k=None, microbatches=4),
        Scope(allocation="fixed", max_k=2, recompute=True),
    ],
    ids=["periodic", "step", "recompute"],
)
@trials(25)
@given(given=problems())
def test_nor_does_one_for_stages_that_are_given(
    scope: Scope, given: tuple[Chain, Platform]
) -> None:
    found = solve(*given, scope=Scope(), solver="contiguous")
    if found.plan is None:
        return
    stages = found.plan.stages
    small = solve(*given, stages=stages, scope=scope, time_limit=20)
    chain, platform, longer = larger(*given)
    large = ask(chain, platform, stages=stages, scope=scope, time_limit=20)
    assert small.period is not None
    assert large.lower_bound is not None
    assert large.lower_bound <= small.period * longer


def test_large_coefficients_of_two_ways_refute_nothing() -> None:
    # Either x or y is as large as c, if at all; nothing is easier than that.
    most, large = 25_673_301_912, 14_288_452_160
    model = cp_model.CpModel()
    way, one = model.new_bool_var(""), model.new_bool_var("")
    x, y = (model.new_int_var(0, most, "") for _ in range(2))
    model.add(x >= large * one).only_enforce_if(~way)
    model.add(y >= large * one).only_enforce_if(way)
    run = Run(Problem(chain=Chain(layers=(layer(1, 1),)), platform=Platform(1, 0)))
    for linearize in (True, False):
        status, _ = solve_model(model, run, linearize=linearize)
        assert status == cp_model.OPTIMAL


ROWS = [
    (75154336, 176725577, 7161372446, 1753707865, 1814212281, 1073741824, 52733904, 36876548),
    (63504117, 139597889, 0, 0, 0, 536870912, 78670733, 66306139),
    (42039000, 10259303, 0, 0, 14288452160, 148811365, 72125047, 29321013),
    (80435106, 175744988, 0, 0, 0, None, 59101994, 21938838),
]


def test_recompute_of_gigabytes_is_not_refuted() -> None:
    def solved(unit: int) -> Result:
        """Solve with bytes rounded up to a unit, and the room rounded down."""

        def size(count: int | None) -> int:
            return -(-(count or 0) // unit)

        layers = [
            Layer(
                forward_ns=forward,
                backward_ns=backward,
                weight_bytes=size(weight),
                activation_bytes=size(sent),
                saved_bytes=size(saved),
                saved_input_bytes=size(also),
                backward_input_ns=half,
                backward_weight_ns=rest,
            )
            for forward, backward, weight, sent, saved, also, half, rest in ROWS
        ]
        stages = [
            Stage(layers=(a, b), gpus=(gpu,)) for a, b, gpu in ((0, 1, 0), (2, 2, 1), (3, 3, 0))
        ]
        return solve(
            Chain(layers=tuple(layers), input_bytes=size(839769174)),
            Platform(2, 25673301912 // unit),
            stages=stages,
            scope=Scope(allocation="fixed", split_backward=True, recompute=True),
            time_limit=30,
        )

    coarse, fine = solved(1 << 28), solved(1)
    assert coarse.period is not None
    assert fine.lower_bound is not None
    assert fine.lower_bound <= coarse.period
    assert fine.status != "infeasible"


TIED = [
    (1063679707, 532809539, 0, 30),
    (403483950, 1112506631, 0, 0),
    (1079414042, 390179474, 0, 0),
    (527302657, 62090801, 0, 30),
    (193628682, 478062864, 0, 30),
]
FREE = [
    (273010788, 110833142, 0, 30),
    (111369161, 504337326, 0, 4),
    (197094820, 376418439, 40, 0),
    (24037861, 150537513, 40, 0),
    (63629331, 236555368, 40, 4),
    (98413118, 95236146, 40, 0),
]


@pytest.mark.parametrize(
    ("rows", "ties", "memory", "speeds"),
    [(TIED, ((0, 1),), 128, ["1", "0.7"]), (FREE, (), 139, ["0.5", "0.7", "0.7"])],
    ids=["tied", "free"],
)
def test_what_is_possible_in_microseconds_is_not_refuted_in_nanoseconds(
    rows: list[tuple[int, int, int, int]],
    ties: tuple[tuple[int, int], ...],
    memory: int,
    speeds: list[str],
) -> None:
    # Sums of a few seconds, for which models that were simplified had no solution by mistake.
    def chain(unit: int) -> Chain:
        """Return the chain with times rounded up to a unit, ns."""
        layers = [
            layer(-(-forward // unit), -(-backward // unit), saved, weight=weight)
            for forward, backward, weight, saved in rows
        ]
        return Chain(layers=tuple(layers), same_gpu=ties)

    gpus = [Gpu(memory_bytes=memory, speed=speed) for speed in speeds]  # type: ignore[arg-type]
    scope = Scope(allocation="general")
    coarse, fine = (
        solve(chain(unit), Platform(gpus), scope=scope, solver="general_cpsat", time_limit=30)
        for unit in (1000, 1)
    )
    assert coarse.period is not None
    assert fine.lower_bound is not None
    assert fine.lower_bound <= 1000 * coarse.period


@pytest.mark.parametrize("memory", ["sum", "peak"])
@trials(40)
@given(data=st.data(), split=st.booleans(), recompute=st.booleans())
def test_models_that_are_simplified_have_small_sums(
    data: st.DataObject, memory: Memory, split: bool, recompute: bool
) -> None:
    problem: Problem = data.draw(
        tight_problems(split=split, recompute=recompute, memory=memory, k=2)
    )
    chain, platform, longer = larger(problem.chain, Platform(problem.platform.gpus))
    large = replace(problem, chain=chain, platform=platform)
    forced = propagate(Amounts(large, LARGEST), Fraction(30 * longer))
    if forced is None:
        return
    proto = RelaxationModel(forced).model.proto
    for constraint in proto.constraints:
        linear = constraint.linear
        ends = [max(map(abs, proto.variables[number].domain)) for number in linear.vars]
        assert sum(abs(c) * end for c, end in zip(linear.coeffs, ends, strict=True)) < LARGEST_SUM
