"""Rules: which combinations say something, and what a table must look like."""

from __future__ import annotations

from typing import Any

import pytest

from schedopt import Rule


def test_the_default_is_that_the_weights_are_given() -> None:
    assert Rule().is_given
    assert not Rule(update_every=1).is_given


@pytest.mark.parametrize("backward", ["forward", "live", "recomputed"])
@pytest.mark.parametrize(
    "forward",
    [
        {"forward_reads": "live"},
        {"forward_reads": "entry"},
        {"forward_reads": "delay", "delay": 0},
        {"forward_reads": "delay", "delay": 3},
        {"forward_reads": "table", "table": ((0, 1), (1, 0))},
    ],
)
def test_with_updates_every_combination_is_a_rule(forward: dict[str, Any], backward: Any) -> None:
    rule = Rule(update_every=2, backward_reads=backward, **forward)
    assert rule.backward_reads == backward


def test_a_table_goes_round_with_the_micro_batches() -> None:
    rule = Rule(update_every=2, forward_reads="table", table=((0, 1), (2, 3)))
    assert [rule.forward_delay(i, 1) for i in range(4)] == [1, 3, 1, 3]


def test_a_delay_is_the_same_for_all() -> None:
    rule = Rule(update_every=2, forward_reads="delay", delay=1)
    assert rule.forward_delay(5, 3) == 1


def test_what_is_live_has_no_fixed_delay() -> None:
    assert Rule(update_every=2).forward_delay(0, 0) is None
