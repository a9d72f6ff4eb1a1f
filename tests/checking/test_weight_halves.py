"""W on other replicas, and what it needs there: what the check finds where something is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt.checking import Violation, check
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import Rule
from tests.changes import (
    add_operation,
    add_transfer,
    change_gpu,
    change_layer,
    change_operation,
    change_scope,
    change_stage,
    change_transfer,
    drop_operation,
    drop_transfer,
    with_pattern,
    with_platform,
)
from tests.checking.helpers import kinds, of_kind, places, words
from tests.examples import BYTE_A_NS, data_parallel, planned, send, stages, timed
from tests.exchanges import all_gather, foreign, halved, mixed_exchange, pass_on, ring


def test_what_w_needs_and_does_not_get_is_named() -> None:
    # Transfer 2 takes what W of micro-batch 1 needs to the next replica, 3 on from there.
    found = check(drop_transfer(ring(), 2))
    assert [(one.kind, one.place) for one in found] == [
        ("transfer", "weight half to replica +1 of stage 0, micro-batch 1"),
        ("transfer", "transfers[2]"),
    ]
    assert "though W runs there, for 1 of every 3 micro-batches" in found[0].message
    assert "from replica +1, to which it never comes" in found[1].message


def test_of_several_micro_batches_that_lack_it_the_first_is_named() -> None:
    assert words(check(drop_transfer(drop_transfer(all_gather(), 1), 0))) == (
        "transfer: weight half to replica +1 of stage 0, micro-batch 0: is missing, though W runs "
        "there, for 2 of every 2 micro-batches"
    )


def test_what_is_sent_for_no_w_is_found() -> None:
    assert check(drop_operation(all_gather(), 3)) == (
        Violation(
            "operations",
            "stage 0, micro-batch 0, W on replica +1",
            "is missing, though what it needs is sent there, for 1 of every 2 micro-batches",
        ),
    )


def test_of_one_micro_batch_a_period_each_lacks_what_w_needs() -> None:
    sizes = {"saved_weight_bytes": 3, "parameter_bytes": 2, "gradient_bytes": 2}
    plan = planned(
        [halved(1, 2, 2, 10, **sizes)],
        Platform(2, 99, bandwidth=BYTE_A_NS),
        timed(20, {"F0": 0, "I0": 1, "W0": 3}, also=[foreign(0, 0, 9, 1)]),
        rule=Rule(update_every=1, forward_reads="delay", delay=1),
        scope=Scope(allocation="general", split_backward=True),
        stages=stages((0, 0, [0, 1])),
    )
    assert words(check(plan)) == (
        "transfer: weight half to replica +1 of stage 0, micro-batch 0: is missing, though W runs "
        "there"
    )


def test_without_w_and_transfer_the_gradient_lacks_a_micro_batch() -> None:
    # Micro-batch 0 comes to GPU 1 no more.
    plan = drop_transfer(drop_operation(all_gather(), 3), 0)
    (violation,) = check(plan)
    assert (violation.kind, violation.place) == ("gradient", "stage 0, GPU 1, mini-batch 0")
    assert "mini-batch 0 lacks micro-batch 0" in violation.message


@pytest.mark.parametrize(("number", "replica"), [(2, 0), (3, 1)])
def test_a_doubled_w_is_found(number: int, replica: int) -> None:
    plan = all_gather()
    again = replace(plan.pattern.operations[number], shift=2)
    assert replica == again.replica
    assert places(add_operation(plan, again), "operations") == ["operations[8]"]


def test_a_replica_may_be_counted_around() -> None:
    # Of two replicas the one behind is the one before; two behind is the first again.
    assert check(change_operation(all_gather(), 3, replica=-1)) == ()
    assert check(change_transfer(all_gather(), 0, source=2, target=-1)) == ()
    own = change_operation(all_gather(), 3, replica=2)
    assert places(own, "operations") == [
        "operations[3]",
        "stage 0, micro-batch 0, W on replica +1",
    ]


def test_a_doubled_transfer_of_what_w_needs_is_found() -> None:
    again = add_transfer(ring(), pass_on(0, 3, 9, 0, 2))
    assert places(again, "transfer") == ["transfers[6]"]


def test_w_before_what_it_needs_has_come_is_found() -> None:
    # What W of micro-batch 0 needs comes to GPU 1 at 10.
    assert check(change_operation(all_gather(), 3, start_ns=9)) == (
        Violation(
            "order",
            "stage 0, micro-batch 0, W on replica +1",
            "starts at 9 ns, 1 ns before weight half to replica +1 of stage 0 ends",
        ),
    )


def test_what_w_needs_is_sent_when_it_is_there() -> None:
    # I of all micro-batches ends at 5.
    (violation,) = check(change_transfer(all_gather(), 1, start_ns=4))
    assert violation.place == "weight half to replica +1 of stage 0, micro-batch 1"
    assert violation.message == "starts at 4 ns, 1 ns before I of stage 0 ends"


def test_it_is_sent_on_when_it_has_come() -> None:
    # Over 5-8, while it comes over 3-6, the link is busy to 6, and GPU 2 holds its own to 6.
    early = change_transfer(ring(), 1, start_ns=5)
    assert places(early, "order") == ["weight half to replica +2 of stage 0, micro-batch 0"]
    assert "1 ns before weight half to replica +1 of stage 0" in words(of_kind(early, "order"))
    assert kinds(early) == {"order", "overlap", "memory"}


def test_what_comes_in_a_circle_comes_from_nowhere() -> None:
    # Of micro-batch 0 replica 2 sends to 1 and 1 to 2; without length no time is against it.
    free = with_platform(ring(), links=False)
    assert check(free) == ()
    circle = change_transfer(change_transfer(free, 0, source=2, start_ns=6), 1, start_ns=6)
    assert places(circle, "transfer") == ["transfers[0]", "transfers[1]"]


def test_w_is_also_sent_what_it_needs_where_links_are_free() -> None:
    free = with_platform(all_gather(), links=False)
    assert kinds(drop_transfer(free, 0)) == {"transfer"}


def test_what_w_needs_is_not_sent_back() -> None:
    back = add_transfer(ring(), pass_on(0, 0, 9, 2, 0))
    (violation,) = of_kind(back, "transfer")
    assert (violation.place, violation.message) == (
        "transfers[6]",
        "takes what W needs to where it was made",
    )


def test_what_w_needs_is_not_sent_from_a_gpu_to_itself() -> None:
    # Of three replicas on two GPUs the first and the third are the same GPU.
    plan = change_stage(ring(), 0, gpus=(0, 1, 0))
    assert "from GPU 0 to itself" in words(of_kind(plan, "transfer"))


def test_a_layer_that_does_not_say_what_w_needs_cannot_send_it() -> None:
    plan = change_layer(mixed_exchange(), 0, saved_weight_bytes=None)
    (violation,) = check(plan)
    assert (violation.kind, violation.place) == ("transfer", "transfers[4]")
    assert "layer 0 has no saved_weight_bytes" in violation.message
    # Stage 1 reduces its gradient, and needs none.
    assert check(change_layer(mixed_exchange(), 1, saved_weight_bytes=None)) == ()


def test_a_whole_backward_sends_nothing_for_w() -> None:
    plan = add_transfer(data_parallel(), send("weight_half", 0, 0, 4, source=0, target=1))
    plan = add_operation(change_scope(plan, split_backward=False), foreign(0, 0, 12, 1))
    halves = {"backward_input_ns": 1, "backward_weight_ns": 1, "saved_weight_bytes": 1}
    plan = change_layer(change_layer(plan, 0, **halves), 1, **halves)
    assert {one.place for one in check(plan)} == {"operations[8]", "transfers[8]"}
    assert "the backward of stage 0 is not split" in words(check(plan))


def test_under_a_given_rule_no_gradient_is_looked_at() -> None:
    found = check(replace(all_gather(), rule=Rule()))
    assert [one.place for one in found] == [
        "operations[3]",
        "operations[7]",
        "transfers[0]",
        "transfers[1]",
    ]
    assert "the rule is given" in found[0].message


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_micro_batch_that_was_reduced_before_counts_twice(chunks: int) -> None:
    # GPU 1 is sent the gradient of micro-batch 0, or a part, by 16, and runs its W at 16-20 too.
    late = change_operation(all_gather(20), 3, start_ns=16)
    assert check(late) == ()
    part = {"source": 0, "target": 1, "mode": "reduce", "chunks": chunks}
    both = add_transfer(late, send("weight_gradient", 0, 0, 10, **part))
    (violation,) = of_kind(both, "gradient")
    assert violation.place == "operations[3]"
    assert violation.message == (
        "counts micro-batch 0 at 20 ns, though the gradient on GPU 1 has it already"
    )


def test_w_occupies_the_replica_that_runs_it() -> None:
    # On GPU 1 W of micro-batch 1 runs over 3-5.
    early = change_operation(ring(), 3, start_ns=4)
    assert words(of_kind(early, "overlap")) == (
        "overlap: GPU 1: W of stage 0, micro-batch 0, on replica +1 (operations[3]) starts at 4 "
        "ns, 1 ns before W of stage 0, micro-batch 1 (operations[7]) ends"
    )


def test_w_counts_on_the_replica_that_runs_it() -> None:
    # GPU 1 is sent the gradient of micro-batch 0 over 5-7, and runs its W at 6-8 too.
    part = {"source": 0, "target": 1, "mode": "reduce"}
    both = add_transfer(ring(), send("weight_gradient", 0, 0, 5, **part))
    assert words(of_kind(both, "gradient")) == (
        "gradient: operations[3]: counts micro-batch 0 at 8 ns, though the gradient on GPU 1 has "
        "it already"
    )


def test_two_replicas_on_one_gpu_count_a_micro_batch_twice() -> None:
    # Of micro-batch 0 on GPU 0 the replicas 1 and 2 are both GPU 1.
    plan = change_stage(ring(), 0, gpus=(0, 1, 1))
    operations = [o for o in plan.pattern.operations if not o.replica or o.shift == 0]
    transfers = [replace(t, source=0) for t in plan.pattern.transfers if t.shift == 0]
    only = with_pattern(plan, operations=tuple(operations), transfers=tuple(transfers))
    assert "transfer" not in kinds(only)
    assert "counts micro-batch 0" in words(of_kind(only, "gradient"))


def test_a_circle_of_waiting_names_w_and_its_replica() -> None:
    # On GPU 1 W of micro-batch 0 comes before I of micro-batch 1, on GPU 0 the other way round.
    plan = all_gather()
    for number, start in ((3, 2), (5, 6), (6, 9), (7, 2), (1, 6), (2, 9)):
        plan = change_operation(plan, number, start_ns=start)
    (violation,) = of_kind(plan, "deadlock")
    assert "on replica +1" in violation.message
    assert "weight half of stage 0, micro-batch 0, replica +0 to +1" in violation.message


def test_a_w_that_covers_two_micro_batches_runs_on_one_gpu() -> None:
    # Micro-batches 0 and 1 belong to different GPUs, so on any replica.
    found = of_kind(change_operation(ring(), 3, covers=2), "placement")
    assert [(one.place, one.message.partition(": ")[2]) for one in found] == [
        ("operations[3]", "0 on GPU 1, 1 on GPU 2")
    ]


@pytest.mark.parametrize(("start", "need"), [(10, 130), (16, 130), (17, 130)])
def test_what_came_lies_there_to_the_end_of_its_w(start: int, need: int) -> None:
    plan = change_operation(all_gather(21), 3, start_ns=start)
    assert check(change_gpu(plan, 1, memory_bytes=need)) == ()
    assert places(change_gpu(plan, 1, memory_bytes=need - 1), "memory") == ["GPU 1"]


def test_what_was_made_lies_there_until_it_is_sent() -> None:
    # The transfer of micro-batch 0 runs over 12-17 and that of 1 over 5-10, T = 21. On GPU 0 5
    # bytes lie over [2, 17) and 5 over [5, 14); on GPU 1 over [2, 10) and [12, 21): 5 at once.
    plan = change_transfer(change_operation(all_gather(21), 3, start_ns=17), 0, start_ns=12)
    plan = change_gpu(plan, 1, memory_bytes=125)
    assert check(plan) == ()
    assert places(change_gpu(plan, 1, memory_bytes=124), "memory") == ["GPU 1"]
    assert places(change_gpu(plan, 0, memory_bytes=129), "memory") == ["GPU 0"]
