"""How many transfers are under way at once, in plans worked out by hand."""

from __future__ import annotations

from schedopt.account import messages, simultaneous
from tests.changes import with_platform
from tests.examples import contiguous, data_parallel
from tests.shards import gradient_on_three, parameter_on_three


def test_the_most_messages_at_once() -> None:
    # GPU 1 receives two and sends one over 10-12.
    assert messages(parameter_on_three()) == {0: 2, 1: 3, 2: 2}
    assert simultaneous(parameter_on_three()) == 3
    # Round the ring each GPU sends one and receives one.
    assert messages(gradient_on_three()) == {0: 2, 1: 2, 2: 2}
    assert simultaneous(gradient_on_three()) == 3
    # Behind both backwards the all-reduce goes both ways.
    assert messages(data_parallel()) == {0: 2, 1: 2}
    assert simultaneous(data_parallel()) == 2


def test_messages_of_no_length_count_for_an_instant() -> None:
    # 2-3 and 15-16 (3-4 of the period) on the first link, 5-6 (1-2) and 10-11 (2-3) on the other.
    assert messages(contiguous()) == {0: 1, 1: 2, 2: 1}
    assert simultaneous(contiguous()) == 2
    # Without links: at 2, 1, 2 and 3 of the period.
    free = with_platform(contiguous(), links=False)
    assert messages(free) == {0: 1, 1: 2, 2: 1}
    assert simultaneous(free) == 2
