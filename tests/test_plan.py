"""Stages, operations and patterns: refused by field where they say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt import (
    Chain,
    InputError,
    Layer,
    Operation,
    Pattern,
    Plan,
    Platform,
    Scope,
    Stage,
    Transfer,
)
from schedopt.plan import count_from_first_backward

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=0)
FORWARD = Operation(kind="F", stage=0, shift=0, start_ns=0)
BACKWARD = Operation(kind="B", stage=0, shift=-3, start_ns=1)
STAGE = Stage(layers=(0, 0), gpus=(0,))


def test_replicas_take_turns() -> None:
    stage = Stage(layers=(0, 0), gpus=(4, 7))
    assert [stage.gpu(i) for i in (-1, 0, 1, 2)] == [7, 4, 7, 4]


def test_w_may_run_on_another_replica() -> None:
    half = Operation(kind="W", stage=2, shift=-1, start_ns=0, replica=1)
    assert str(half) == "W of stage 2, shift -1, replica +1"


def test_what_w_needs_is_sent_from_replica_to_replica() -> None:
    sent = Transfer(tensor="weight_half", stage=0, shift=0, start_ns=0, source=0, target=1)
    assert str(sent) == "weight half of stage 0, shift 0, replica +0 to +1"


def test_a_plan_without_stages_is_refused() -> None:
    with pytest.raises(InputError, match="stages: a plan has at least one stage"):
        make_plan(stages=())


def test_only_a_fixed_problem_keeps_the_stages() -> None:
    assert make_plan().problem.stages == ()
    assert make_plan(scope=Scope(allocation="fixed")).problem.stages == (STAGE,)


def make_plan(**changes: Any) -> Plan:
    pattern = Pattern(k=1, period_total_ns=3, operations=(FORWARD, BACKWARD))
    given: dict[str, Any] = {
        "chain": Chain(layers=(LAYER,)),
        "platform": Platform(1, 1),
        "stages": (STAGE,),
        "pattern": pattern,
    }
    return Plan(**given | changes)


def test_counting_from_the_first_backward_renames_micro_batches() -> None:
    pattern = count_from_first_backward([FORWARD, BACKWARD], [], 1, 3)
    assert [operation.shift for operation in pattern.operations] == [3, 0]


def test_what_is_moved_is_as_if_made_so() -> None:
    operation = Operation(kind="W", stage=1, shift=2, start_ns=3, covers=2, replica=1)
    moved = Operation(kind="W", stage=1, shift=-5, start_ns=7, covers=2, replica=1)
    assert operation.at(-5, 7) == moved
    transfer = Transfer(tensor="activation", stage=1, shift=2, start_ns=3, covers=2)
    assert transfer.at(4, 0) == Transfer(
        tensor="activation", stage=1, shift=4, start_ns=0, covers=2
    )
    for item in (operation, transfer):
        with pytest.raises(InputError, match="start_ns"):
            item.at(0, -1)
