"""Figures of the plans with shards, as their docstrings work them out."""

from __future__ import annotations

import pytest

from schedopt.account import memory, residencies, versions
from tests.changes import change_rule
from tests.shards import (
    SHARDED,
    gradient_behind_each,
    gradient_on_three,
    gradient_on_two,
    mixed_on_six,
    optimizer_on_three,
    optimizer_on_two,
    parameter_on_three,
    parameter_on_two,
)


def test_what_each_level_keeps() -> None:
    assert [need.by_kind for need in memory(optimizer_on_two())] == [
        {"weights": 9 + 5 + 7 + 4, "activation": 100},
        {"weights": 9 + 5 + 7 + 5, "activation": 100},
    ]
    assert [need.by_kind for need in memory(gradient_on_two())] == [
        {"weights": 9 + 5 + 4 + 3, "gradient": 4, "activation": 100},
        {"weights": 9 + 5 + 5 + 4, "gradient": 3, "activation": 100},
    ]
    assert [need.by_kind for need in memory(gradient_behind_each())] == [
        {"weights": 9 + 5 + 4 + 3, "gradient": 4, "activation": 100},
        {"weights": 9 + 5 + 5 + 4, "gradient": 3, "activation": 100},
    ]
    assert [need.by_kind for need in memory(optimizer_on_three())] == [
        {"weights": 17 + 6 + 7 + state, "activation": 100} for state in (3, 3, 4)
    ]
    assert [need.by_kind for need in memory(gradient_on_three())] == [
        {"weights": 17 + 6 + state + home, "gradient": away, "activation": 100}
        for state, home, away in ((3, 2, 5), (3, 2, 5), (4, 3, 4))
    ]
    assert [need.by_kind for need in memory(parameter_on_two())] == [
        {"weights": weights, "gathered": copies, "gradient": gradients, "activation": 150}
        for weights, copies, gradients in ((13 + 11, 3 + 2, 3 + 3), (15 + 11, 2 + 2, 2 + 3))
    ]
    assert [need.by_kind for need in memory(parameter_on_three())] == [
        {"weights": 12, "gathered": copies, "gradient": 4, "activation": 100}
        for copies in (12, 9, 9)
    ]
    assert [need.by_kind for need in memory(mixed_on_six())] == [
        *[{"weights": 30 - 3, "activation": 100}] * 2,
        {"weights": 20, "activation": 50},
        *[{"weights": 22, "gathered": 4, "gradient": 6, "activation": 200}] * 3,
    ]


@pytest.mark.parametrize("name", SHARDED)
def test_one_version_is_held_without_delay(name: str) -> None:
    assert set(versions(SHARDED[name]()).held.values()) == {1}


def test_two_versions_are_held_at_home_with_a_delay() -> None:
    found = versions(change_rule(parameter_on_three(), delay=1))
    assert found.held == {(0, 0): 2, (0, 1): 2, (0, 2): 2}
    assert set(found.forward_staleness.values()) == {1}


def test_when_copies_and_gradients_lie_away_from_home() -> None:
    found = residencies(parameter_on_three())
    lying = {
        kind: sorted(
            (one.gpu, one.start_ns % 25, one.end_ns - one.start_ns, one.count)
            for one in found
            if one.kind == kind and one.start_ns is not None and one.end_ns is not None
        )
        for kind in ("gathered", "gradient")
    }
    # GPU, start, length, bytes
    assert lying["gathered"] == [
        *((0, 0, 7, 3), (0, 0, 7, 3), (0, 4, 9, 3), (0, 6, 7, 3)),
        *((1, 3, 7, 3), (1, 3, 9, 3), (1, 10, 7, 3), (1, 10, 9, 3)),
        *((2, 6, 10, 3), (2, 9, 7, 3), (2, 12, 11, 3), (2, 16, 7, 3)),
    ]
    assert lying["gradient"] == [
        *((0, 9, 6, 2), (0, 9, 6, 2), (1, 13, 6, 2), (1, 13, 8, 2)),
        *((2, 19, 6, 2), (2, 19, 6, 2)),
    ]


def test_a_gradient_that_is_taken_home_lies_anew_behind_the_next_backward() -> None:
    lying = sorted(
        (one.gpu, one.start_ns, one.end_ns, one.count)
        for one in residencies(gradient_behind_each())
        if one.kind == "gradient"
    )
    assert lying == [(0, 2, 10, 4), (0, 10, 18, 4), (1, 2, 9, 3), (1, 10, 17, 3)]
