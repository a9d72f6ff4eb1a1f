"""Weights that are gathered for each operation that reads them."""

from __future__ import annotations

import pytest

from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.rule import Rule
from schedopt.stage import Stage
from tests.changes import (
    change_gpu,
    change_layer,
    change_operation,
    change_rule,
    change_shard,
    change_transfer,
    drop_transfer,
)
from tests.checking.helpers import of_kind, places, words
from tests.examples import covering, layer, planned, send, timed
from tests.shards import (
    parameter_on_three,
    parameter_on_two,
)


def test_a_copy_that_is_sent_on_lies_there_to_the_end_of_that() -> None:
    # From home instead, GPU 1 holds 2 copies over 10-12, and so never more than 2.
    plan = change_transfer(parameter_on_three(), 5, source=-2)
    assert check(change_gpu(plan, 1, memory_bytes=122)) == ()
    assert check(change_gpu(parameter_on_three(), 1, memory_bytes=124)) != ()


@pytest.mark.parametrize(
    ("number", "start", "there"), [(5, 5, False), (5, 6, True), (11, 13, True), (11, 18, False)]
)
def test_a_copy_that_is_not_there_cannot_be_sent_on(number: int, start: int, there: bool) -> None:
    # Chunk 0 lies on GPU 1 over 3-10, complete from 6 on, and over 10-17, complete from 13 on.
    early = change_transfer(parameter_on_three(), number, start_ns=start)
    assert (f"transfers[{number}]" in places(early, "version")) is not there


def test_weights_that_are_not_made_yet_cannot_be_gathered() -> None:
    # Chunks 0 and 1 are made at 25, and chunk 2 at 23.
    for number, shift in ((0, 3), (2, 4)):
        early = change_transfer(parameter_on_three(), number, shift=shift, start_ns=24)
        # The copy of transfer 2 is sent on, which is not wrong again.
        assert places(early, "version") == [f"transfers[{number}]"]
    assert not of_kind(change_transfer(parameter_on_three(), 1, shift=3, start_ns=24), "version")


def test_weights_gathered_before_the_forward_are_not_those_of_the_backward() -> None:
    # Chunk 2 for B of micro-batch 0 comes over 4-7; over 0-3 it is for F, which has it twice.
    early = change_transfer(parameter_on_three(), 7, start_ns=0)
    found = words(of_kind(early, "version"))
    assert "again for stage 0, micro-batch" in found
    assert "where chunk 2 of 3 does not come" in found


def test_weights_that_come_after_their_reader_are_found() -> None:
    late = change_transfer(parameter_on_two(), 6, start_ns=9)
    assert "nothing reads it afterwards" in words(of_kind(late, "version"))


def test_weights_named_by_another_micro_batch_than_their_reader_are_found() -> None:
    other = change_transfer(parameter_on_three(), 0, shift=1, source=0, target=-1)
    assert "but the micro-batch runs on GPU 1" in words(of_kind(other, "version"))


def gathering(chunks: int, *times: int) -> Plan:
    """Return two replicas without links: F 0-1, R 2-3 and B 4-5, T = 6; weights come at times."""
    row = {"F0": 0, "R0": 2, "B0": 4}
    sizes = {"parameter_bytes": 0, "gradient_bytes": 0, "optimizer_bytes": 0}
    gathers = [
        send("weights", 0, i, time, source=1, target=0, chunk=chunk, chunks=chunks)
        for time in times
        for i in (0, 1)
        for chunk in range(1 - i, chunks, 2)
    ]
    gradients = [
        send(
            "weight_gradient", 0, 0, 5, mode="reduce", chunk=chunk, chunks=chunks,
            source=1 - chunk % 2, target=chunk % 2,
        )
        for chunk in range(chunks)
    ]  # fmt: skip
    return planned(
        [layer(1, 1, 0, **sizes)],
        Platform(2, 99),
        timed(6, row, row, also=[*gathers, *gradients]),
        rule=Rule(update_every=2, forward_reads="delay"),
        scope=Scope(allocation="general", max_k=2, recompute=True),
        stages=(Stage(layers=(0, 0), gpus=(0, 1), recompute=((0, 0),), shard="parameter"),),
    )


@pytest.mark.parametrize(("number", "kind"), [(0, "F"), (2, "R"), (4, "B")])
def test_each_operation_that_reads_weights_gathers_them(number: int, kind: str) -> None:
    plan = gathering(2, 0, 1, 3)
    assert check(plan) == ()
    (violation,) = check(drop_transfer(plan, number))
    assert violation.place.endswith(f", {kind}")
    assert violation.message.endswith("on GPU 0, where chunk 1 of 2 does not come")


@pytest.mark.parametrize(
    ("chunks", "named"), [(4, "1, 3"), (8, "1, 3, 5, 7"), (10, "1, 3, 5, 7, ...")]
)
def test_few_chunks_that_do_not_come_are_named(chunks: int, named: str) -> None:
    found = of_kind(gathering(chunks), "version")
    assert found[0].message.endswith(f"where chunks {named} of {chunks} do not come")


def test_what_is_missing_is_named_once_for_each_micro_batch_of_a_period() -> None:
    # Everything repeats only after two periods.
    plan = change_rule(parameter_on_three(), forward_reads="table", table=((0,), (0,)))
    assert check(plan) == ()
    (violation,) = of_kind(drop_transfer(plan, 0), "version")
    assert "where chunk 1 of 3 does not come" in violation.message


def test_weights_that_are_gathered_where_they_are_at_home_are_found() -> None:
    home = change_transfer(parameter_on_three(), 0, chunk=0)
    assert "comes to GPU 0, where that chunk is at home" in words(of_kind(home, "version"))


def test_an_operation_that_covers_two_versions_cannot_gather_them() -> None:
    # F of micro-batches 0 and 1, each a mini-batch of its own, reads what is two updates old.
    plan = change_layer(covering(), 0, optimizer_bytes=0)
    plan = change_shard(change_layer(plan, 1, optimizer_bytes=0), "parameter")
    rule = {"update_every": 1, "forward_reads": "delay", "delay": 6}
    both = change_rule(plan, backward_reads="forward", **rule)
    found = {place[:7] + place[-3:] for place in places(both, "version")}
    assert found == {"stage 0, B", "stage 1, B"}
    assert "but gathers one" in words(of_kind(both, "version"))
    assert not of_kind(change_rule(both, update_every=2), "version")
    # Version 1 comes between the forwards of micro-batches 6 and 7, whose B reads it for both.
    live = change_operation(plan, 5, start_ns=3)
    assert not of_kind(live, "version")
