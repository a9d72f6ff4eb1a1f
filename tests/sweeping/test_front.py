from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from schedopt.sweeping import Point, compare_points
from tests.sweeping.helpers import point


def test_what_a_step_buys_by_hand() -> None:
    rows = compare_points([point(16, 6), point(8, 8), point(4, status="infeasible"), point(24, 6)])
    assert [row.step_bytes for row in rows] == [None, 4, 8, 8]
    assert [row.gain for row in rows] == [None, None, Fraction(1, 4), 0]
    assert [row.pareto for row in rows] == [False, True, True, False]


def test_a_series_starts_afresh() -> None:
    made = [point(8, 8), point(16, 6), point(16, 5, gpus=4), point(16, 4, bandwidth_bytes_per_s=1)]
    rows = {row.point: row for row in compare_points(made)}
    assert [rows[one].step_bytes for one in made] == [None, 8, None, None]


def test_fewer_gpus_with_as_much_memory_in_all_are_on_the_front() -> None:
    rows = compare_points([point(16, 8), point(8, 8, gpus=4)])
    assert [row.pareto for row in rows] == [True, False]
    slower = compare_points([point(16, 8), point(8, 7, gpus=4)])
    assert [row.pareto for row in slower] == [True, True]


def test_other_links_do_not_count() -> None:
    rows = compare_points([point(8, 8), point(8, 7, bandwidth_bytes_per_s=10)])
    assert [row.pareto for row in rows] == [True, True]


@given(
    st.lists(
        st.builds(
            lambda gpus, memory, period: point(memory, period, gpus=gpus),
            st.integers(1, 4),
            st.integers(1, 6),
            st.none() | st.integers(1, 6),
        ),
        max_size=12,
        unique_by=lambda build: build.key,
    )
)
def test_the_front_covers_all_and_holds_nothing_that_is_beaten(points: list[Point]) -> None:
    def figures(one: Point) -> tuple[int, int, Fraction]:
        assert one.period is not None
        return one.gpus * one.memory_bytes, one.gpus, one.period

    def is_at_most(one: Point, other: Point) -> bool:
        own, others = figures(one), figures(other)
        return own[0] <= others[0] and own[1] <= others[1] and own[2] <= others[2]

    rows = compare_points(points)
    front = [row.point for row in rows if row.pareto]
    planned = [one for one in points if one.period is not None]
    assert all(any(is_at_most(best, one) for best in front) for one in planned)
    assert not any(
        is_at_most(one, best) and figures(one) != figures(best) for best in front for one in planned
    )
