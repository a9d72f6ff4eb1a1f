"""Valid plans with one fault each, and all that the check says of it."""

from __future__ import annotations

import pytest

from schedopt.checking import check
from schedopt.plan import Plan
from tests.changes import (
    add_operation,
    add_transfer,
    change_operation,
    change_rule,
    change_transfer,
    drop_operation,
    drop_transfer,
)
from tests.checking.helpers import words
from tests.examples import (
    contiguous,
    covering,
    cyclic,
    data_parallel,
    double_buffered,
    flushed,
    op,
    recomputed,
    send,
    split_backward,
    two_periodic,
)

FAULTS = {
    "a doubled operation": (
        add_operation(contiguous(), op("F", 1, 6, 0)),
        "operations: operations[6]: runs F of stage 1, micro-batch 6, again, after operations[1]",
    ),
    "a missing operation": (
        drop_operation(contiguous(), 1),
        "operations: stage 1, micro-batch 0, F: is missing",
    ),
    "a missing operation of a micro-batch": (
        drop_operation(two_periodic(), 7),
        "operations: stage 1, micro-batch 1, F: is missing for 1 of every 2 micro-batches",
    ),
    "a whole and a split backward": (
        add_operation(split_backward(), op("B", 0, -1, 2)),
        "operations: operations[4]: I as well as B in stage 0: "
        "a stage splits all its backwards or none",
    ),
    "half a backward": (
        drop_operation(split_backward(), 3),
        "operations: stage 1, micro-batch 0, W: is missing",
    ),
    "a recompute of nothing": (
        add_operation(recomputed(), op("R", 1, 0, 0)),
        "operations: operations[5]: R, but nothing of stage 1 is recomputed",
    ),
    "an update under a given rule": (
        add_operation(contiguous(), op("U", 0, 0, 0)),
        "operations: operations[6]: U, but the rule is given, and no version is looked at",
    ),
    "an update in a period that is no multiple": (
        add_operation(double_buffered(), op("U", 0, 0, 0)),
        "operations: operations[6]: U in a period of 1 micro-batches, which is no multiple of the "
        "2 of an update",
    ),
    "two updates of one micro-batch": (
        add_operation(flushed(), op("U", 0, 1, 8)),
        "operations: operations[10]: U of stage 0, micro-batch 1, again, after operations[9]",
    ),
    "an update that covers several, beside the right one": (
        add_operation(flushed(), op("U", 0, 0, 8, covers=2)),
        "operations: operations[10]: U covers 2; it always applies a mini-batch",
    ),
    "an update that covers several": (
        change_operation(flushed(), 9, shift=0, covers=2),
        "operations: operations[9]: U covers 2; it always applies a mini-batch",
    ),
    "a missing update that takes time": (
        drop_operation(flushed(), 9),
        "operations: stage 0, U: is missing, though an update takes 2 ns at speed 1",
    ),
    "a missing activation": (
        drop_transfer(contiguous(), 1),
        "transfer: activation of stage 1, micro-batch 0: from GPU 1 to GPU 2 is missing",
    ),
    "a missing gradient": (
        drop_transfer(contiguous(), 3),
        "transfer: gradient of stage 0, micro-batch 0: from GPU 1 to GPU 0 is missing",
    ),
    "a doubled transfer": (
        add_transfer(contiguous(), send("activation", 0, 5, 0)),
        "transfer: transfers[4]: activation of stage 0, micro-batch 5, again, after transfers[0]",
    ),
    "a gradient behind the last stage": (
        add_transfer(contiguous(), send("gradient", 2, 0, 0)),
        "transfer: transfers[4]: gradient of stage 2, which is the last",
    ),
    "an activation behind the last stage, of two micro-batches": (
        add_transfer(covering(), send("activation", 1, 0, 0, covers=2)),
        "transfer: transfers[3]: activation of stage 1, which is the last",
    ),
    "weights that move under a given rule": (
        add_transfer(contiguous(), send("weights", 0, 0, 0, source=0, target=1)),
        "transfer: transfers[4]: weights move, but the rule is given, and none is looked at",
    ),
    "weights that go from a GPU to itself": (
        change_transfer(cyclic(), 14, target=3),
        "transfer: transfers[14]: from GPU 2 to itself, micro-batch -1",
    ),
    "different chunks in one stage": (
        change_transfer(data_parallel(), 1, chunks=3),
        "transfer: transfers[1]: 3 chunks, but 2 in transfers[0], of one stage",
    ),
    "a table of another width": (
        change_rule(cyclic(), table=((1, 1),)),
        "rule: rule.table: its rows have 2 entries for 3 stages",
    ),
}


@pytest.mark.parametrize(("plan", "found"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_found_and_no_other(plan: Plan, found: str) -> None:
    assert words(check(plan)) == found
