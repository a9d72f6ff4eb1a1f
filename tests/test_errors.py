"""One error, one line: file, field, rule, way out."""

from __future__ import annotations

import pickle

import pytest

from schedopt import InputError, InvalidPlanError, SchedoptError
from schedopt.validation import show

FULL = InputError("is bad", field="a.b", way_out="Mend it", source="file.json")


def test_an_error_reads_file_field_rule_way_out() -> None:
    assert str(FULL) == "file.json: a.b: is bad. Mend it"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("is bad"), "is bad"),
        (InputError("is bad", field="a"), "a: is bad"),
        (InputError("is bad", way_out="Mend it"), "is bad. Mend it"),
        (InputError("is bad", source="f"), "f: is bad"),
    ],
)
def test_what_is_absent_leaves_no_trace(error: InputError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    ("prefix", "field", "path"),
    [
        ("layers[3]", "forward_ns", "layers[3].forward_ns"),
        ("table", "[2]", "table[2]"),
        ("", "a", "a"),
        ("a", "", "a"),
    ],
)
def test_a_field_is_seen_from_further_out(prefix: str, field: str, path: str) -> None:
    assert InputError("x", field=field).within(prefix).field == path


def test_seen_from_further_out_the_rest_stays() -> None:
    assert str(FULL.within("c")) == "file.json: c.a.b: is bad. Mend it"


def test_the_file_is_added_to_the_rest() -> None:
    assert str(FULL.in_file("other.json")) == "other.json: a.b: is bad. Mend it"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a" * 58, f"'{'a' * 58}'"),
        ("a" * 59, f"'{'a' * 55}...'"),
        ([10**9] * 9, "[1000000000, 1000000000, 1000000000, 1000000000, 1000000...]"),
        (10**30, "a number of 31 digits"),
    ],
)
def test_a_long_value_is_cut_inside_its_quotes(value: object, shown: str) -> None:
    assert show(value) == shown


def test_an_error_pickles_with_its_parts() -> None:
    again = pickle.loads(pickle.dumps(FULL))
    assert vars(again) == vars(FULL)
    assert str(again) == str(FULL)


def test_bad_input_is_a_value_error_and_ours() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(InputError, SchedoptError)


def test_a_fault_of_ours_is_no_value_error() -> None:
    assert issubclass(InvalidPlanError, SchedoptError)
    assert not issubclass(InvalidPlanError, ValueError)
