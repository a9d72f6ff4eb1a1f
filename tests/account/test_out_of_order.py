"""Versions of weights where mini-batches end out of order, or in no time, worked out by hand."""

from __future__ import annotations

import pytest

from schedopt import Operation, Plan, Rule, check
from schedopt.account import memory, versions
from schedopt.rule import BackwardReads
from schedopt.simulation import Timing, simulate
from tests.changes import change_gpu
from tests.examples import on_one_gpu, op


def assert_needs(plan: Plan, held: int) -> None:
    """Hold the account and the check against 30 bytes and 20 for each version."""
    needed = 30 + held * 20
    assert versions(plan).held == {(0, 0): held}
    assert [need.peak_bytes for need in memory(plan)] == [needed]
    assert check(change_gpu(plan, 0, memory_bytes=needed)) == ()
    (violation,) = check(change_gpu(plan, 0, memory_bytes=needed - 1))
    assert violation.kind == "memory"


def two() -> tuple[Operation, ...]:
    """Of each two micro-batches the second is through first: F 0 and 1, B 3 and 2."""
    return op("F", 0, 0, 0), op("F", 0, 1, 1), op("B", 0, 1, 2), op("B", 0, 0, 3)


def test_a_version_waits_for_the_updates_before_it() -> None:
    # Versions 2q + 1 and 2q + 2 come at 4q + 4, when both are through, and replace version 2q,
    # which F of both read. Nobody sees version 2q + 1.
    plan = on_one_gpu(Rule(update_every=1), 4, *two())
    assert_needs(plan, 1)
    assert versions(plan).forward_staleness == {(0, 0): 0, (1, 0): 1}


def test_updates_that_take_time_come_one_after_the_other() -> None:
    # Version 2q + 1 lies there from 6q + 5 to 6q + 6, then version 2q + 2.
    plan = on_one_gpu(Rule(update_every=1), 6, *two(), op("U", 0, 0, 4), op("U", 0, 1, 5))
    assert_needs(plan, 1)
    assert versions(plan).forward_staleness == {(0, 0): 0, (1, 0): 1}


def test_a_version_waits_for_a_whole_mini_batch_before_it() -> None:
    # m = 2, k = 4: of 0 to 3 the last two are through first, at 6, the first two at 8.
    forwards = (op("F", 0, j, j) for j in range(4))
    backwards = (op("B", 0, j, start) for j, start in ((2, 4), (3, 5), (0, 6), (1, 7)))
    plan = on_one_gpu(Rule(update_every=2), 8, *forwards, *backwards)
    assert_needs(plan, 1)
    assert versions(plan).forward_staleness == {(0, 0): 0, (1, 0): 0, (2, 0): 1, (3, 0): 1}


def over_the_border() -> Plan:
    """T = 12, and the third of each three is through in the next period, after two of that.

    F of 3q, 3q + 1 and 3q + 2 starts at 12q - 2, 12q and 12q + 2, B at 12q + 9, 11 and 25.
    """
    forwards = (op("F", 0, 3, 10), op("F", 0, 1, 0), op("F", 0, 2, 2))
    backwards = (op("B", 0, 0, 9), op("B", 0, 1, 11), op("B", 0, -4, 1))
    return on_one_gpu(Rule(update_every=1), 12, *forwards, *backwards)


def test_a_version_waits_for_the_updates_of_the_period_before() -> None:
    # Versions 3q + 3, + 4 and + 5 come at 12q + 26. The last is read from then on for 3q + 8,
    # 3q + 6 and 3q + 7, until 12q + 50: two at once.
    plan = over_the_border()
    assert_needs(plan, 2)
    assert versions(plan).forward_staleness == {(0, 0): 4, (1, 0): 5, (2, 0): 3}


@pytest.mark.parametrize("timing", ["pattern", "asap"])
def test_nothing_before_a_step_holds_its_first_updates_up(timing: Timing) -> None:
    # At the times of the pattern versions 1 and 2 come at 10 and 12, where F of 3 and 4 start and
    # read them; B of 2 reads version 0 until 26: three at once, one more than later on.
    step = simulate(over_the_border(), 6, timing=timing)
    assert step.memory[0].peak_bytes == 30 + 3 * 20


@pytest.mark.parametrize("reads", ["forward", "live"])
def test_a_backward_in_no_time_does_not_read_what_it_makes(reads: BackwardReads) -> None:
    # F of i from i to i + 1, B at i + 1, which makes version i + 1; F of i + 1 reads it.
    rule = Rule(update_every=1, backward_reads=reads)
    plan = on_one_gpu(rule, 1, op("F", 0, 0, 0), op("B", 0, -1, 0), backward_ns=0)
    assert_needs(plan, 1)
    assert versions(plan).forward_staleness == {(0, 0): 0}
    assert versions(plan).backward_staleness == {(0, 0): 0}


def test_backwards_in_no_time_read_one_after_the_other() -> None:
    # B of 2q and of 2q + 1 at 2q + 2: the second reads version 2q + 1, which stays for no time and
    # counts at its instant, beside version 2q + 2.
    operations = op("F", 0, 0, 0), op("F", 0, 1, 1), op("B", 0, -2, 0), op("B", 0, -1, 0)
    rule = Rule(update_every=1, backward_reads="live")
    plan = on_one_gpu(rule, 2, *operations, backward_ns=0)
    assert_needs(plan, 2)
    assert versions(plan).backward_staleness == {(0, 0): 0, (1, 0): 0}
