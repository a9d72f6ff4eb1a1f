from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from schedopt.checking import check
from schedopt.plan import Plan
from tests.changes import (
    change_gpu,
    change_operation,
    change_transfer,
    drop_operation,
    drop_transfer,
)
from tests.checking.helpers import kinds, places
from tests.examples import EXAMPLES as WITHOUT_EXCHANGE
from tests.exchanges import EXCHANGES

EXAMPLES = {**WITHOUT_EXCHANGE, **EXCHANGES}

EVERY_OPERATION = [
    (name, number)
    for name, make in EXAMPLES.items()
    for number in range(len(make().pattern.operations))
]
EVERY_TRANSFER = [
    (name, number)
    for name, make in EXAMPLES.items()
    for number in range(len(make().pattern.transfers))
]
EVERY_GPU = [
    (name, gpu) for name, make in EXAMPLES.items() for gpu in range(len(make().platform.gpus))
]
DEPENDENT_OPERATION = [
    (name, number)
    for name, number in EVERY_OPERATION
    for operation in [EXAMPLES[name]().pattern.operations[number]]
    if operation.kind != "U" and (operation.kind, operation.stage) != ("F", 0)
]
TRANSFER_OF_A_MICRO_BATCH = [
    (name, number)
    for name, number in EVERY_TRANSFER
    if not EXAMPLES[name]().pattern.transfers[number].moves_weights
]


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_a_sound_plan_has_no_violation(make: Callable[[], Plan]) -> None:
    assert check(make()) == ()


@pytest.mark.parametrize(("name", "number"), EVERY_OPERATION)
def test_leaving_out_any_operation_is_found(name: str, number: int) -> None:
    assert kinds(drop_operation(EXAMPLES[name](), number)) == {"operations"}


@pytest.mark.parametrize(("name", "number"), EVERY_TRANSFER)
def test_leaving_out_any_transfer_is_found(name: str, number: int) -> None:
    plan = EXAMPLES[name]()
    kind = "gradient" if plan.pattern.transfers[number].moves_weights else "transfer"
    assert kind in kinds(drop_transfer(plan, number))


@pytest.mark.parametrize(("name", "number"), DEPENDENT_OPERATION)
def test_an_operation_before_what_it_needs_is_found(name: str, number: int) -> None:
    plan = EXAMPLES[name]()
    operation = plan.pattern.operations[number]
    early = change_operation(plan, number, shift=operation.shift + 30 * plan.pattern.k)
    replica = operation.replica % len(plan.stages[operation.stage].gpus)
    ending = f", {operation.kind}" + (f" on replica +{replica}" if replica else "")
    start = f"stage {operation.stage}, "
    assert any(
        place.startswith(start) and place.endswith(ending) for place in places(early, "order")
    )


@pytest.mark.parametrize(("name", "number"), TRANSFER_OF_A_MICRO_BATCH)
def test_a_transfer_before_what_it_carries_is_found(name: str, number: int) -> None:
    plan = EXAMPLES[name]()
    transfer = plan.pattern.transfers[number]
    early = change_transfer(plan, number, shift=transfer.shift + 30 * plan.pattern.k)
    what = transfer.tensor.replace("_", " ")
    if transfer.target is not None:
        what += f" to replica +{transfer.target % len(plan.stages[transfer.stage].gpus)}"
    start = f"{what} of stage {transfer.stage}, "
    assert any(place.startswith(start) for place in places(early, "order"))


@pytest.mark.parametrize(("name", "gpu"), EVERY_GPU)
def test_one_byte_less_does_not_fit(name: str, gpu: int) -> None:
    plan = EXAMPLES[name]()
    smaller = change_gpu(plan, gpu, memory_bytes=plan.platform.gpus[gpu].memory_bytes - 1)
    assert f"GPU {gpu}" in places(smaller, "memory")


@pytest.mark.parametrize(
    ("name", "micro_batches"), [*product(["contiguous", "unequal", "general"], [1, -7, 1000])]
)
def test_renaming_all_micro_batches_changes_nothing(name: str, micro_batches: int) -> None:
    plan = EXAMPLES[name]()
    for number, operation in enumerate(plan.pattern.operations):
        plan = change_operation(plan, number, shift=operation.shift + micro_batches)
    for number, transfer in enumerate(plan.pattern.transfers):
        plan = change_transfer(plan, number, shift=transfer.shift + micro_batches)
    assert check(plan) == ()
