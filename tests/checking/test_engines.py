"""An engine runs its own order on each GPU, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Plan
from schedopt.checking import check
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
