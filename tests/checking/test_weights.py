from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schedopt.chain import Chain
from schedopt.checking import Violation, check
from schedopt.plan import Pattern, Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import BackwardReads, Rule
from tests.changes import (
    add_operation,
    add_transfer,
    change_gpu,
    change_operation,
    change_rule,
    change_transfer,
    drop_transfer,
)
from tests.checking.helpers import of_kind, places, words
from tests.examples import (
    cyclic,
    data_parallel,
    double_buffered,
    flushed,
    on_one_gpu,
    op,
    planned,
    send,
    split_backward,
    stages,
    timed,
    weighty,
)
from tests.shards import parameter_on_three

TWO = (op("F", 0, 0, 0), op("F", 0, 1, 1), op("B", 0, 0, 2), op("B", 0, 1, 3))


def needs(plan: Plan, gpu: int, count: int) -> bool:
    """Return whether a GPU needs exactly so many bytes."""
    exact = change_gpu(plan, gpu, memory_bytes=count)
    less = change_gpu(plan, gpu, memory_bytes=count - 1)
    return f"GPU {gpu}" not in places(exact, "memory") and f"GPU {gpu}" in places(less, "memory")


def test_two_buffers_are_too_few_for_updates_that_come_too_often() -> None:
    # m = 1: F0 of micro-batch 2 starts at 4 and reads version 1, which B0 of 0 makes at 6.
    often = change_rule(double_buffered(), update_every=1)
    assert of_kind(often, "version") == [
        Violation(
            "version",
            "stage 0, micro-batch 2, F",
            "starts at 4 ns and reads version 1, which comes to GPU 0 2 ns later",
        )
    ]


def test_reading_without_delay_needs_a_flush() -> None:
    assert "stage 0, micro-batch 2, F" in places(change_rule(double_buffered(), delay=0), "version")


@pytest.mark.parametrize("delay", [2, 20])
def test_a_longer_delay_holds_more_versions(delay: int) -> None:
    # Version v of stage 0 is made at 4v + 4 and read to 4 (v + delay) + 8.
    plan = change_rule(double_buffered(), delay=delay)
    assert needs(plan, 0, 30 + (1 + delay) * 20 + 300)


def test_stashing_holds_a_version_for_each_micro_batch_in_flight() -> None:
    # An update a micro-batch, live: F0 of i at 2i reads version i - 2, made at 2i, to 2i + 6.
    stashing = change_rule(double_buffered(), update_every=1, forward_reads="live", delay=0)
    assert needs(stashing, 0, 30 + 3 * 20 + 300)


def test_a_live_backward_needs_one_version() -> None:
    live = change_rule(
        double_buffered(), update_every=1, forward_reads="live", delay=0, backward_reads="live"
    )
    assert needs(live, 0, 30 + 1 * 20 + 300)


def test_the_version_at_entry_is_read_on_every_stage() -> None:
    # m = 1: F0 of i at 2i enters with version i - 2. Stage 2 makes version v at 2v + 2 and reads
    # it for micro-batch v + 2 until B2 ends at 2v + 8: 6 ns, 3 at once.
    entry = change_rule(double_buffered(), update_every=1, forward_reads="entry", delay=0)
    assert needs(entry, 2, 30 + 3 * 20 + 100)


def test_the_last_stage_reads_fresher_weights_live() -> None:
    # F2 of i at 2i + 2 reads version i, made there at 2i + 2, until 2i + 4: 1 at once.
    live = change_rule(double_buffered(), update_every=1, forward_reads="live", delay=0)
    assert needs(live, 2, 30 + 1 * 20 + 100)


def test_a_copy_of_weights_before_the_update_is_stale() -> None:
    # The update of stage 0 comes at 98, that is 38 of the next period.
    early = change_transfer(cyclic(), 14, start_ns=37)
    assert words(of_kind(early, "version")) == (
        "version: transfers[14]: weights of stage 0, micro-batch 2, replica +0 to +1 starts at 97 "
        "ns, when GPU 2 has version 0, not 1"
    )


def test_a_missing_copy_of_weights_leaves_a_replica_behind() -> None:
    lost = drop_transfer(cyclic(), 15)
    assert places(lost, "gradient") == ["stage 0, GPU 1, mini-batch 0"]


def test_a_copy_of_weights_that_comes_too_late_for_its_reader_is_found() -> None:
    # Replica 0 of stage 0 reads version 1 at 120; the copy lasts 5 and starts at 116.
    late = change_transfer(cyclic(), 14, start_ns=56)
    assert places(late, "version") == ["stage 0, micro-batch 6, F"]


def test_a_copy_of_weights_that_comes_just_in_time_is_sound() -> None:
    assert check(change_transfer(cyclic(), 14, start_ns=55)) == ()


def test_a_fresher_table_than_the_weights_is_found() -> None:
    fresh = change_rule(cyclic(), table=((0, 1, 0), (1, 0, 0), (0, 0, 0)))
    assert places(fresh, "version") == ["stage 0, micro-batch 3, F"]


def test_a_gradient_that_is_added_twice_is_found() -> None:
    # The gather of chunk 0 brings {0, 1} to GPU 1, which has {1}.
    twice = change_transfer(data_parallel(), 2, mode="reduce")
    (violation,) = of_kind(twice, "gradient")
    assert violation.place == "transfers[2]"
    assert "counts micro-batch 1 twice" in violation.message


def test_a_gradient_that_is_overwritten_is_found() -> None:
    # B of micro-batch 1 ends at 78 on GPU 1; the copy of micro-batch 0 comes at 79.
    late = change_transfer(cyclic(), 12, shift=-3, start_ns=13)
    assert "overwrites micro-batch 1" in words(of_kind(late, "gradient"))


def test_a_gradient_that_is_not_there_yet_is_found() -> None:
    early = change_transfer(data_parallel(), 0, start_ns=7)
    assert words(of_kind(early, "gradient")).startswith(
        "gradient: transfers[0]: weight gradient of stage 1, micro-batch 0, chunk 0 of 2, replica "
        "+1 to +0 starts at 7 ns, when GPU 1 has nothing of mini-batch 0\n"
    )


def test_a_gradient_that_comes_after_its_update_is_found() -> None:
    # GPU 1 has version 1 of stage 1 from 12 on.
    late = add_transfer(
        data_parallel(),
        send("weight_gradient", 1, 0, 14, source=0, target=1, chunk=0, chunks=2),
    )
    assert "4 ns after version 1 came there" in words(of_kind(late, "gradient"))


def test_a_gradient_that_is_never_applied_names_what_is_missing() -> None:
    lost = drop_transfer(data_parallel(), 0)
    message = words(of_kind(lost, "gradient"))
    assert "chunk 0 of mini-batch 0 lacks micro-batch 1" in message


def test_an_update_before_the_last_gradient_is_found() -> None:
    early = change_operation(flushed(), 9, start_ns=7)
    assert words(of_kind(early, "gradient")) == (
        "gradient: operations[9]: U of stage 0, micro-batch 1 starts at 7 ns, but on GPU 0 "
        "mini-batch 0 lacks micro-batch 1"
    )


def test_an_update_that_is_applied_twice_is_found() -> None:
    twice = add_operation(flushed(), op("U", 1, 0, 8))
    assert words(of_kind(twice, "gradient")) == (
        "gradient: operations[10]: U of stage 1, micro-batch 0 applies mini-batch 0 to GPU 1 again"
    )


def test_an_update_that_takes_time_delays_its_version() -> None:
    # U of stage 0 ends at 10, F of the next mini-batch reads it from 10 on.
    late = change_operation(flushed(), 9, shift=-1, start_ns=0)
    assert places(late, "version")[0] == "stage 0, micro-batch 2, F"


@pytest.mark.parametrize("periods", [10**9, 6 * 10**5])
def test_a_plan_whose_weights_cannot_be_followed_is_refused(periods: int) -> None:
    far = change_operation(double_buffered(), 5, shift=-periods)
    assert places(far, "rule") == ["stage 0"]
    # One version is counted, and an activation of 2 ns and of each period between.
    assert needs(far, 0, 30 + 20 + 100 * (periods + 1))


@pytest.mark.parametrize(
    ("plan", "gpu", "count"),
    [
        # F reads what is not there yet.
        (change_rule(double_buffered(), update_every=1), 0, 30 + 20 + 300),
        # U of the second mini-batch comes before that of the first.
        (on_one_gpu(Rule(update_every=1), 6, *TWO, op("U", 0, 0, 5), op("U", 0, 1, 4)), 0, 30 + 20),
        # The versions of stage 0 decide what stage 1 reads.
        (drop_transfer(change_rule(data_parallel(), forward_reads="entry"), 4), 0, 20 + 150),
        # Of sharded weights the whole version is counted, without copies and gradients.
        (drop_transfer(parameter_on_three(), 0), 0, 3 + 9 + 2 + 4 + 100),
    ],
)
def test_one_version_is_counted_where_they_cannot_be_followed(
    plan: Plan, gpu: int, count: int
) -> None:
    assert needs(plan, gpu, count)


def with_updates(plan: Plan, **more: Any) -> Plan:
    """Return a plan with 1 byte of parameters a layer and an update every micro-batch."""
    layers = tuple(
        replace(layer, parameter_bytes=1, gradient_bytes=1) for layer in plan.chain.layers
    )
    known = replace(plan, chain=replace(plan.chain, layers=layers))
    return change_rule(known, update_every=1, forward_reads="delay", **more)


def test_a_split_backward_gives_its_gradient_at_the_end_of_the_weight_half() -> None:
    # Version v of stage 0 is made at 3v + 5, by W; I ends at 3v + 3. F of i starts at 3i.
    early = with_updates(split_backward(), delay=1)
    assert "stage 0, micro-batch 2, F" in places(early, "version")


def test_a_version_is_held_to_the_end_of_the_weight_half() -> None:
    # W of stage 0 at 10-11: version v is made at 3v + 8, read from 3v + 9 to 3v + 20: 4 at once.
    # 4 + 4 * 1 + 2 * 100 + 2 * 10 + 3
    late = with_updates(change_operation(split_backward(), 5, shift=-3), delay=3)
    assert needs(late, 0, 231)


@pytest.mark.parametrize("named", [0, 1])
def test_a_copy_that_comes_counts_where_the_gradient_is_whole_too(named: int) -> None:
    # Version 1 of stage 1 could be made at 12, but comes over 16-18 and 18-20 to the replica behind
    # that of the micro-batch which names it.
    plan = data_parallel()
    for chunk in (0, 1):
        late = send("weights", 1, named - 2, 2 * chunk, source=0, target=1, chunk=chunk, chunks=2)
        plan = add_transfer(plan, late)
    assert places(plan, "version") == [f"stage 1, micro-batch {3 - named}, F"]


def served() -> Plan:
    """Return two replicas of which the first collects gradients and sends weights, in 2 chunks.

    F 0-2, B 2-6, gradients 6-8 and 8-10, weights 10-12 and 12-14, T = 14.
    """
    plan = data_parallel()
    back = {"source": 1, "target": 0, "chunks": 2}
    forth = {"source": 0, "target": 1, "chunks": 2}
    return replace(
        plan,
        chain=Chain(layers=plan.chain.layers[:1]),
        stages=plan.stages[:1],
        pattern=Pattern(
            k=2,
            period_total_ns=14,
            operations=tuple(
                op(kind, 0, shift, start)
                for shift in (0, 1)
                for kind, start in (("F", 0), ("B", 2))
            ),
            transfers=(
                send("weight_gradient", 0, 0, 6, chunk=0, mode="reduce", **back),
                send("weight_gradient", 0, 0, 8, chunk=1, mode="reduce", **back),
                send("weights", 0, 0, 10, chunk=0, **forth),
                send("weights", 0, 0, 12, chunk=1, **forth),
            ),
        ),
    )


def test_a_version_is_held_until_it_is_sent() -> None:
    # GPU 0: F 0-2, B 2-6; GPU 1: F 8-10, B 10-14; gradients 14-18, T = 20. Version v is made at
    # 20v - 2, and sent over 20v + 24 to 20v + 28 to GPU 1, which reads it only then.
    starts = {0: 14, 1: 16, 2: 4, 3: 6}
    plan = replace(served(), pattern=replace(served().pattern, period_total_ns=20))
    for number, start in starts.items():
        plan = change_transfer(plan, number, start_ns=start, shift=-4 if number > 1 else 0)
    for number, start in ((2, 8), (3, 10)):
        plan = change_operation(plan, number, start_ns=start)
    plan = change_rule(plan, forward_reads="table", table=((0,), (1,)))
    assert check(plan) == ()
    # 10 bytes, a second version of 4, and 100 saved.
    assert needs(plan, 0, 114)


@pytest.mark.parametrize(("m", "named"), [(8, "1, 3, 5, 7"), (10, "1, 3, 5, 7 and 1 more")])
def test_few_micro_batches_that_are_missing_are_named(m: int, named: str) -> None:
    rows = [{"F0": i, "B0": m + i} for i in range(m)]
    plan = planned(
        [weighty(1, 1, 0)],
        Platform(2, 99),
        timed(2 * m, *rows),
        rule=Rule(update_every=m, forward_reads="delay"),
        stages=stages((0, 0, [0, 1])),
        scope=Scope(allocation="general", max_k=m),
    )
    found = of_kind(plan, "gradient")
    assert str(found[0]) == (
        "gradient: stage 0, GPU 0, mini-batch 0: never becomes version 1 there: mini-batch 0 lacks "
        f"micro-batches {named}"
    )
    assert len(found) == 2


def test_weights_may_come_in_chunks() -> None:
    assert check(served()) == ()


@pytest.mark.parametrize(
    ("number", "lost"),
    [
        (0, ["stage 0, GPU 0, mini-batch 0", "stage 0, GPU 1, mini-batch 0"]),
        (1, ["stage 0, GPU 0, mini-batch 0", "stage 0, GPU 1, mini-batch 0"]),
        (2, ["stage 0, GPU 1, mini-batch 0"]),
        (3, ["stage 0, GPU 1, mini-batch 0"]),
    ],
)
def test_every_chunk_must_come(number: int, lost: list[str]) -> None:
    assert places(drop_transfer(served(), number), "gradient") == lost


def test_weights_are_there_only_with_their_last_chunk() -> None:
    late = change_transfer(served(), 3, shift=-2, start_ns=0)
    assert places(late, "version") == ["stage 0, micro-batch 3, F"]


@pytest.mark.parametrize(("reads", "versions"), [("forward", 3), ("recomputed", 2), ("live", 1)])
def test_what_the_backward_reads_decides_how_many_versions_are_held(
    reads: BackwardReads, versions: int
) -> None:
    # Micro-batch i, T = 3: F at 3i reads i - 2, R at 3i + 4 reads i - 1 (or what F read), B at
    # 3i + 8 finds i. Version v is made at 3v + 6; its last B ends at 3v + 15, 3v + 12 or 3v + 9.
    rule = Rule(update_every=1, backward_reads=reads)
    operations = (op("F", 0, 0, 0), op("R", 0, -1, 1), op("B", 0, -2, 2))
    assert needs(on_one_gpu(rule, 3, *operations, again=True), 0, 30 + versions * 20)


def test_a_long_period_is_followed() -> None:
    forwards = (op("F", 0, i, i) for i in range(100))
    backwards = (op("B", 0, i, 100 + i) for i in range(100))
    plan = on_one_gpu(Rule(update_every=100), 200, *forwards, *backwards)
    assert check(plan) == ()


def test_updates_in_order_are_sound() -> None:
    updates = (op("U", 0, 0, 4), op("U", 0, 1, 5))
    assert check(on_one_gpu(Rule(update_every=1), 6, *TWO, *updates)) == ()


def test_a_version_waits_for_its_own_update() -> None:
    # U of micro-batch 1 ends at 8, where F of micro-batch 3 reads version 2 from 7 on.
    rule = Rule(update_every=1, forward_reads="delay", delay=1)
    late = on_one_gpu(rule, 6, *TWO, op("U", 0, 0, 4), op("U", 0, -1, 1))
    assert places(late, "version") == ["stage 0, micro-batch 3, F"]


def test_an_update_waits_for_the_version_that_is_copied() -> None:
    # Two replicas, m = 2, k = 4, T = 8: F 0-1 and 1-2, B 2-3 and 3-4. Of micro-batches 0 and 1 the
    # gradient comes together on GPU 0 only, and version 1 is copied to GPU 1. There the gradient of
    # 2 and 3 is whole at 5, but version 2 is made only from version 1.
    row, second = {"F0": 0, "B0": 2}, {"F0": 1, "B0": 3}
    back, forth = {"source": 1, "target": 0}, {"source": 0, "target": 1}
    moved = [
        send("weight_gradient", 0, 0, 3, mode="reduce", **back),
        send("weights", 0, 0, 6, **forth),
        send("weight_gradient", 0, 2, 4, mode="reduce", **back),
        send("weight_gradient", 0, 2, 5, **forth),
    ]
    plan = planned(
        [weighty(1, 1, 0)],
        Platform(2, 99),
        timed(8, row, row, second, second, also=moved),
        rule=Rule(update_every=2, forward_reads="delay", delay=1),
        stages=stages((0, 0, [0, 1])),
        scope=Scope(allocation="general", max_k=4),
    )
    assert check(plan) == ()
    # Micro-batches 4 and 5 could not wait longer for version 1, and 6 and 7 not for version 2.
    late = change_transfer(plan, 1, shift=-4, start_ns=1)
    assert places(late, "version") == ["stage 0, micro-batch 5, F"]
    both = change_transfer(plan, 1, shift=-4, start_ns=2)
    assert places(both, "version") == ["stage 0, micro-batch 5, F", "stage 0, micro-batch 7, F"]
    lost = words(of_kind(drop_transfer(plan, 3), "gradient"))
    assert "version 2 there: mini-batch 1 lacks micro-batch 2, and its weights do not come" in lost


def test_updates_out_of_order_are_found() -> None:
    # Version 2 comes at 5, where version 0 is the newest, and version 1 at 6.
    updates = (op("U", 0, 0, 5), op("U", 0, 1, 4))
    assert words(check(on_one_gpu(Rule(update_every=1), 6, *TWO, *updates))) == (
        "version: operations[5]: version 2 of stage 0 comes to GPU 0 at 5 ns, where the newest is "
        "version 0\n"
        "version: operations[4]: version 1 of stage 0 comes to GPU 0 at 6 ns, where the newest is "
        "version 2"
    )
