"""What one point implies for others in its series, where only the memory differs.

A plan for less memory is a plan for more. So the least period does not grow with the memory, and
a bound for more memory, below every period there, lies below every period with less; where more
memory holds no plan, less holds none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from schedopt.errors import InvalidPlanError
from schedopt.result import Status
from schedopt.sweeping.points import Point, Series


def propagate_monotone(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points in order, each with the best plan and bound that its series knows for it.

    Raises
    ------
    InvalidPlanError
        If what two points claim cannot both be.
    """
    by_series: dict[Series, list[Point]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.key):
        by_series[point.series].append(point)
    return tuple(point for series in by_series.values() for point in _settle(series))


def best_below(memory_bytes: int, series: Iterable[Point]) -> Point | None:
    """Return the point with the shortest period among those with less memory, if one has a plan."""
    candidates = [
        (point.period, point.memory_bytes, point)
        for point in series
        if point.period is not None and point.memory_bytes < memory_bytes
    ]
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def _settle(series: Sequence[Point]) -> list[Point]:
    return [_with_status(point) for point in _bounds_down(_plans_up(_without_plans(series)))]


def _without_plans(series: Sequence[Point]) -> list[Point]:
    """Mark each point that holds no plan, with what is known of the least memory."""
    none = [point for point in series if point.status == "infeasible"]
    if not none:
        return list(series)
    most = none[-1]
    proven = max((point.proven_memory_bytes or 0 for point in none), default=0)
    known = [point.least_memory_bytes for point in none if point.least_memory_bytes is not None]
    known += [point.memory_bytes for point in series if point.pattern is not None]
    settled = []
    for point in series:
        if point.memory_bytes <= most.memory_bytes or point.memory_bytes < proven:
            if point.pattern is not None:
                raise InvalidPlanError(f"{point.cell}: a plan where none is said to exist")
            point = replace(
                point,
                status="infeasible",
                bound_exact=None,
                proof=point.proof if point.status == "infeasible" else most.proof,
                least_memory_bytes=min(known, default=None),
                proven_memory_bytes=proven or None,
            )
        settled.append(point)
    return settled


def _plans_up(series: Sequence[Point]) -> list[Point]:
    """Give each point the plan of one with less memory, where that is better."""
    settled: list[Point] = []
    best: Point | None = None
    for point in series:
        if best is not None and _is_shorter(best, point):
            point = replace(
                point,
                status="feasible",
                period_exact=best.period_exact,
                solver=best.solver,
                plan_memory_bytes=best.plan_memory_bytes or best.memory_bytes,
                stages=best.stages,
                pattern=best.pattern,
            )
        if point.period is not None:
            best = point
        settled.append(point)
    return settled


def _bounds_down(series: Sequence[Point]) -> list[Point]:
    """Give each point the bound of one with more memory, where that is better."""
    settled: list[Point] = []
    above: Point | None = None
    for point in reversed(series):
        if above is not None and point.status != "infeasible" and _is_higher(above, point):
            point = replace(
                point,
                bound_exact=above.bound_exact,
                proof=above.proof,
                bound_memory_bytes=above.bound_memory_bytes or above.memory_bytes,
            )
        if point.bound is not None:
            above = point
        settled.append(point)
    return settled[::-1]


def _is_shorter(one: Point, other: Point) -> bool:
    """Whether one has a period, and the other none or a longer one."""
    own, others = one.period, other.period
    return own is not None and (others is None or own < others)


def _is_higher(one: Point, other: Point) -> bool:
    """Whether one has a bound, and the other none or a lower one."""
    own, others = one.bound, other.bound
    return own is not None and (others is None or own > others)


def _with_status(point: Point) -> Point:
    """Say whether the plan is proven best by now."""
    period, bound = point.period, point.bound
    if period is None:
        return point
    if bound is not None and bound > period:
        raise InvalidPlanError(f"{point.cell}: bound {bound} ns above the period {period} ns")
    status: Status = "optimal" if period == bound else "feasible"
    return replace(point, status=status)
