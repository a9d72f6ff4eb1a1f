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

BAD_STAGES: dict[str, tuple[dict[str, Any], str]] = {
    "one layer number": ({"layers": (0,)}, "layers"),
    "three layer numbers": ({"layers": (0, 1, 2)}, "layers"),
    "a number for layers": ({"layers": 3}, "layers"),
    "half a layer": ({"layers": (0.5, 1)}, "layers[0]"),
    "no gpus": ({"gpus": ()}, "gpus"),
    "a gpu by name": ({"gpus": ["a"]}, "gpus[0]"),
    "a boolean gpu": ({"gpus": [0, True]}, "gpus[1]"),
    "a run that is a number": ({"recompute": [0]}, "recompute[0]"),
    "a short run": ({"recompute": [(0, 1), (0,)]}, "recompute[1]"),
    "a long run": ({"recompute": [(0, 1, 2)]}, "recompute[0]"),
    "text in a run": ({"recompute": [(0, "1")]}, "recompute[0][1]"),
}


@pytest.mark.parametrize("case", BAD_STAGES)
def test_a_bad_stage_is_refused_by_field(case: str) -> None:
    arguments, field = BAD_STAGES[case]
    with pytest.raises(InputError) as caught:
        Stage(**{"layers": (0, 1), "gpus": (0,), **arguments})
    assert caught.value.field == field


def test_replicas_take_turns() -> None:
    stage = Stage(layers=(0, 0), gpus=(4, 7))
    assert [stage.gpu(i) for i in (-1, 0, 1, 2)] == [7, 4, 7, 4]


BAD_OPERATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": ({"kind": "X"}, "kind"),
    "kind that is a list": ({"kind": ["F"]}, "kind"),
    "negative stage": ({"stage": -1}, "stage"),
    "half a shift": ({"shift": 0.5}, "shift"),
    "negative start": ({"start_ns": -1}, "start_ns"),
    "covers nothing": ({"covers": 0}, "covers"),
    "a forward on another replica": ({"replica": 1}, "replica"),
    "an input half on another replica": ({"kind": "I", "replica": -1}, "replica"),
    "half a replica": ({"kind": "W", "replica": 0.5}, "replica"),
}


@pytest.mark.parametrize("case", BAD_OPERATIONS)
def test_a_bad_operation_is_refused_by_field(case: str) -> None:
    arguments, field = BAD_OPERATIONS[case]
    with pytest.raises(InputError) as caught:
        Operation(**{"kind": "F", "stage": 0, "shift": 0, "start_ns": 0, **arguments})
    assert caught.value.field == field


def test_w_may_run_on_another_replica() -> None:
    half = Operation(kind="W", stage=2, shift=-1, start_ns=0, replica=1)
    assert str(half) == "W of stage 2, shift -1, replica +1"


BAD_TRANSFERS: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({"source": None}, "source"),
    "no target": ({"target": None}, "target"),
    "in parts": ({"chunks": 2}, "mode"),
    "added": ({"mode": "reduce"}, "mode"),
    "of two micro-batches": ({"covers": 2}, "covers"),
}


@pytest.mark.parametrize("case", BAD_TRANSFERS)
def test_what_w_needs_is_sent_whole_from_replica_to_replica(case: str) -> None:
    arguments, field = BAD_TRANSFERS[case]
    given: dict[str, Any] = {"tensor": "weight_half", "stage": 0, "shift": 0, "start_ns": 0}
    given |= {"source": 0, "target": 1}
    assert str(Transfer(**given)) == "weight half of stage 0, shift 0, replica +0 to +1"
    with pytest.raises(InputError) as caught:
        Transfer(**given | arguments)
    assert caught.value.field == field


BAD_PATTERNS: dict[str, tuple[dict[str, Any], str]] = {
    "no micro-batches": ({"k": 0}, "k"),
    "no period": ({"period_total_ns": 0}, "period_total_ns"),
    "a start at the end of the period": ({"period_total_ns": 1}, "operations[1].start_ns"),
    "an operation of another kind": ({"operations": [FORWARD, 1]}, "operations[1]"),
    "a transfer that is an operation": ({"transfers": [FORWARD]}, "transfers[0]"),
}


@pytest.mark.parametrize("case", BAD_PATTERNS)
def test_a_bad_pattern_is_refused_by_field(case: str) -> None:
    arguments, field = BAD_PATTERNS[case]
    with pytest.raises(InputError) as caught:
        Pattern(**{"k": 1, "period_total_ns": 3, "operations": (FORWARD, BACKWARD), **arguments})
    assert caught.value.field == field


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
