"""Rows of GPUs that are alike."""

from __future__ import annotations

from schedopt.reporting.tables import Table, alike_together, name_numbers


def test_gpus_that_differ_in_nothing_else_have_a_row_together() -> None:
    rows = (("0", "3", "a"), ("0", "1", "a"), ("0", "2", "b"), ("1", "4", "a"))
    table = Table(title="", columns=("Stage", "GPU", "Name"), rows=rows)
    together = (("0", "1, 3", "a"), ("0", "2", "b"), ("1", "4", "a"))
    assert alike_together(table).rows == together


def test_numbers_are_named_as_ranges_and_of_many_the_first() -> None:
    assert name_numbers([7]) == "7"
    assert name_numbers([3, 1, 2, 8]) == "1-3, 8"
    assert name_numbers([0, 1, 3, 5, 6, 9]) == "0-1, 3, … (6)"
