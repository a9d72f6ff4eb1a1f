"""What more memory buys, and the points that no other beats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from schedopt.sweeping.points import Point


@dataclass(frozen=True, kw_only=True)
class Row:
    """A point compared with the others.

    Parameters
    ----------
    point : Point
    step_bytes : int or None
        How much more memory a GPU has than at the point before in its series. None for the first.
    gain : Fraction or None
        The share of the period there that this memory saves. None where either has no plan.
    pareto : bool
        Whether it has a plan, and no other point of its bandwidth has one that is nowhere worse
        and somewhere better: in memory of all GPUs, number of GPUs, period.
    """

    point: Point
    step_bytes: int | None
    gain: Fraction | None
    pareto: bool


def compare_points(points: Iterable[Point]) -> list[Row]:
    """Return the points in order, each compared with the others; quadratic in their number."""
    ordered = sorted(points, key=lambda point: point.key)
    rows = []
    before: Point | None = None
    for point in ordered:
        if before is not None and before.series != point.series:
            before = None
        rows.append(
            Row(
                point=point,
                step_bytes=None if before is None else point.memory_bytes - before.memory_bytes,
                gain=None if before is None else _gain(before, point),
                pareto=_is_pareto(point, ordered),
            )
        )
        before = point
    return rows


def _gain(before: Point, point: Point) -> Fraction | None:
    if before.period is None or point.period is None:
        return None
    return 1 - point.period / before.period


def _is_pareto(point: Point, points: Sequence[Point]) -> bool:
    own = _figures(point)
    return own is not None and not any(
        _beats(figures, own)
        for other in points
        if other.bandwidth_bytes_per_s == point.bandwidth_bytes_per_s
        and (figures := _figures(other)) is not None
    )


def _beats(one: tuple[int, int, Fraction], other: tuple[int, int, Fraction]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2]


def _figures(point: Point) -> tuple[int, int, Fraction] | None:
    return None if point.period is None else (point.total_bytes, point.gpus, point.period)
