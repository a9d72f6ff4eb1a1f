"""An engine runs its own order on each GPU, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Pattern, Plan, Platform, Rule, Stage
from schedopt.checking import check
from schedopt.checking.engine import find_inexpressible
from schedopt.engine import ENGINES, Engine
from tests.budgets import trials
from tests.changes import change_operation
from tests.checking.helpers import kinds, of_kind
from tests.exporting.engines import engine_plans


def exchanged(plan: Plan, gpu: int, place: int) -> Plan:
    """Return a plan in which two neighbours on a GPU have changed their starts."""
    numbers = sorted(
        (
            number
            for number, operation in enumerate(plan.pattern.operations)
            if plan.stages[operation.stage].gpus == (gpu,)
        ),
        key=lambda number: plan.pattern.operations[number].start_ns,
    )
    operations = list(plan.pattern.operations)
    one, other = numbers[place], numbers[place + 1]
    operations[one] = replace(operations[one], start_ns=plan.pattern.operations[other].start_ns)
    operations[other] = replace(operations[other], start_ns=plan.pattern.operations[one].start_ns)
    return replace(plan, pattern=replace(plan.pattern, operations=tuple(operations)))


@pytest.mark.parametrize("engine", ENGINES)
@trials(100, by_day=10)
@given(data=st.data())
def test_any_two_neighbours_that_change_places_are_found(
    engine: Engine, data: st.DataObject
) -> None:
    plan = data.draw(engine_plans(engine))
    assert check(plan) == ()
    gpu = data.draw(st.sampled_from(sorted({stage.gpus[0] for stage in plan.stages})))
    count = sum(
        plan.stages[operation.stage].gpus == (gpu,) for operation in plan.pattern.operations
    )
    place = data.draw(st.integers(0, count - 2))
    other = exchanged(plan, gpu, place)
    assume(other != plan)
    assert "scope" in kinds(other)


@given(plan=engine_plans("megatron"))
def test_an_operation_of_several_micro_batches_is_found(plan: Plan) -> None:
    assume(plan.pattern.k > 1)
    (violation,) = of_kind(change_operation(plan, 0, covers=2), "scope")
    assert violation.place == "operations[0]"
    kind = plan.pattern.operations[0].kind
    assert violation.message == f"Megatron-LM runs no {kind} of 2 micro-batches"


@pytest.mark.parametrize(
    ("gpus", "count", "place", "message"),
    [
        ([(0,), (0, 1)], 2, "stages", "cannot run them: stage 1 has 2 replicas, and stage 0 has 1"),
        ([(0,), (1,)] * 2, 3, "pattern.k", "3 micro-batches are no multiple of the 2 GPUs"),
        (
            [(0, 1), (2, 3)] * 2,
            6,
            "pattern.k",
            "3 micro-batches for each replica are no multiple of the 2 GPUs",
        ),
    ],
)
def test_stages_and_counts_that_an_engine_does_not_run(
    gpus: list[tuple[int, ...]], count: int, place: str, message: str
) -> None:
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=0)
    plan = Plan(
        chain=Chain(layers=(layer,) * len(gpus)),
        platform=Platform(4, 1),
        rule=Rule(),
        stages=tuple(Stage(layers=(n, n), gpus=row) for n, row in enumerate(gpus)),
        pattern=Pattern(k=count, period_total_ns=1, operations=()),
    )
    (violation,) = find_inexpressible(plan, "torch")
    assert (violation.kind, violation.place) == ("scope", place)
    assert message in violation.message
