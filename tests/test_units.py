from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import InputError
from schedopt.units import (
    format_bytes,
    format_duration,
    format_gap,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_speed,
    readable,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16G", 16 * 10**9),
        ("16GB", 16 * 10**9),
        ("16Gi", 16 * 2**30),
        ("16GiB", 16 * 2**30),
        ("1.5K", 1500),
        ("0.0015K", 1),
        ("12 MB", 12 * 10**6),
        ("2T", 2 * 10**12),
        ("7", 7),
        ("7B", 7),
        (7, 7),
        (0, 0),
    ],
)
def test_sizes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["16Gb and more", "16gb", "16Gb", "-1", -1, "", "1e9", "G", "1,5G", "٣", "nan", "16GG", True],
)
def test_what_is_no_size_is_refused_with_the_way_out(text: str | int) -> None:
    with pytest.raises(InputError, match="Write 16G or 16GB"):
        parse_bytes(text)


def test_rates_and_times() -> None:
    assert parse_bandwidth("12GB/s") == 12 * 10**9
    assert parse_bandwidth("1.5GiB/s") == 3 * 2**29
    assert parse_bandwidth(5) == 5
    assert parse_duration("5us") == 5_000
    assert parse_duration("1.5ms") == 1_500_000
    assert parse_duration("2s") == 2 * 10**9
    assert parse_duration("12") == 12


@pytest.mark.parametrize("text", ["0", "100Gbit/s", "12GB/min", "fast"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="divide a rate in bits by 8"):
        parse_bandwidth(text)


@pytest.mark.parametrize("value", [0.5, "1e-3", "-1", "", None, True, "0.1234567", "٣"])
def test_speeds_are_exact_decimals(value: object) -> None:
    with pytest.raises(InputError):
        parse_speed(value)  # type: ignore[arg-type]
    assert parse_speed("0.5") == Decimal("0.5")


def test_what_people_read() -> None:
    assert format_bytes(606_000_000) == "606.00 MB"
    assert format_bytes(999) == "999 B"
    assert format_duration(1_603_000_000) == "1.603 s"
    assert format_duration(Fraction(5, 2)) == "2.5 ns"


@pytest.mark.parametrize("text", ["1.5", "0.5B", "2.25 B", "0.0001K"])
def test_parts_of_a_byte_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"size in bytes that is not whole\. Write 16G"):
        parse_bytes(text)
    with pytest.raises(InputError, match="not whole"):
        parse_bandwidth(text.replace("B", "B/s"))


def test_parts_of_a_nanosecond_are_refused_and_zero_is_not() -> None:
    for text in ("0.5", "1.5ns", "0.0001us"):
        with pytest.raises(InputError, match="a time that is not whole"):
            parse_duration(text)
    assert parse_duration("0.0") == parse_bytes("0.0B") == 0
    assert parse_bytes("2.0") == 2
    assert parse_bytes("1.3GiB") == 13 * 2**30 // 10


@pytest.mark.parametrize("text", ["1.5G", "1.5GB"])
def test_decimals_of_a_size_are_exact(text: str) -> None:
    assert parse_bytes(text) == 1_500_000_000


@pytest.mark.parametrize("value", [None, 1.5, [1], b"1G"])
def test_what_is_neither_text_nor_a_whole_number_is_no_size(value: object) -> None:
    with pytest.raises(InputError, match="is not a size in bytes"):
        parse_bytes(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["99999999999999999999G", "9" * 5000, "9" * 5000 + ".5GiB"])
def test_a_size_beyond_all_measure_is_out_of_range(text: str) -> None:
    with pytest.raises(InputError, match="is a size in bytes out of range"):
        parse_bytes(text)


def test_a_negative_number_beyond_all_measure_is_counted_not_shown() -> None:
    with pytest.raises(InputError, match="a number of 5001 digits is negative"):
        parse_bytes(-(10**5000))


def test_a_speed_beyond_all_measure_is_counted_not_shown() -> None:
    with pytest.raises(InputError, match="a number of 5001 digits is not a speed factor"):
        parse_speed(10**5000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("period at most 2000000000 ns", "period at most 2.000 s"),
        (
            "above 8000000/3 ns; layer 3 needs 1543404648 bytes",
            "above 2.667 ms; layer 3 needs 1.54 GB",
        ),
        ("5 ns and 7 bytes, k up to 1000", "5 ns and 7 B, k up to 1000"),
        ("4 layers, x12 ns", "4 layers, x12 ns"),
    ],
)
def test_sentences_with_exact_numbers_are_written_for_people(text: str, words: str) -> None:
    assert readable(text) == words


@given(st.fractions(0, 10))
def test_no_gap_is_written_smaller_than_it_is(gap: Fraction) -> None:
    written = Fraction(format_gap(gap).removesuffix("%")) / 100
    assert gap <= written < gap + Fraction(1, 10_000)
