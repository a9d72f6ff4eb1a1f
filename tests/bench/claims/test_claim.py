"""Verdicts follow from cases."""

from __future__ import annotations

import pytest

from schedopt import InputError
from schedopt.bench.claims.claim import Claim, Finding, Part, Reading, against
from tests.bench.claims.findings import claim, finding, reading

BAD = {"case": 7}
AGREED = "zero counts"


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ([reading()], "holds"),
        ([reading(BAD)], "fails"),
        ([reading(BAD), reading(convention=AGREED)], "holds-under-convention"),
        ([reading(BAD), reading(BAD, convention=AGREED)], "fails"),
        ([reading(BAD), reading(BAD, convention="one"), reading(convention=AGREED)],
         "holds-under-convention"),
        ([reading(), reading(BAD, convention=AGREED)], "holds"),
        ([reading(convention=AGREED)], "holds-under-convention"),
    ],
)  # fmt: skip
def test_a_part_is_as_good_as_its_first_reading_that_holds(
    readings: list[Reading], verdict: str
) -> None:
    assert Part(says="so", readings=readings).verdict == verdict


def test_a_claim_is_as_good_as_its_worst_part() -> None:
    good, half = [reading()], [reading(BAD), reading(convention=AGREED)]
    bad = [reading(BAD, {"case": 8})]
    assert finding(good, good).verdict == "holds"
    assert finding(good, half).verdict == "holds-under-convention"
    assert finding(half, good).conventions == (AGREED,)
    assert finding(half, half).conventions == (AGREED,)
    assert finding(half, bad, good).verdict == "fails"


def test_counterexamples_are_those_against_what_is_printed() -> None:
    found = finding([reading(BAD), reading(convention=AGREED)], [reading(BAD, {"case": 8})])
    assert [(case["part"], case["case"]) for case in found.counterexamples] == [
        ("part 0", 7), ("part 1", 7), ("part 1", 8),
    ]  # fmt: skip


def test_against_keeps_the_cases_that_differ() -> None:
    cases = [{"n": 1, "a": 2, "b": 2, "c": 0}, {"n": 2, "a": 3, "b": 4, "c": 0}]
    assert against(cases, "n", "a", "b") == [{"n": 2, "a": 3, "b": 4}]


def test_what_says_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="says"):
        Claim(id="X1", says="", sources=["x"])
    with pytest.raises(InputError, match="sources"):
        Claim(id="X1", says="x", sources=[])
    with pytest.raises(InputError, match="tried"):
        Reading(tried="")
    with pytest.raises(InputError, match="readings"):
        Part(says="x", readings=[])
    with pytest.raises(InputError, match="parts"):
        Finding(claim=claim(), parts=[])


def test_what_json_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"figures\.most\.2"):
        finding(figures={"most": {2: 1}})
    with pytest.raises(InputError, match="counterexamples"):
        finding([reading({"ratio": float("nan")})])
