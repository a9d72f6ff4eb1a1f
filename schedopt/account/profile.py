"""How much of something lies there over time, where it comes and goes periodically."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int | None, int | None]
"""An amount with absolute start and end, ns; None where it is always there."""


@dataclass(frozen=True)
class Level:
    """What lies there from an instant on, and the most at that instant itself."""

    start_ns: int
    count: int
    most: int


def peak_of(spans: Iterable[Span], period: int) -> int:
    """Return the most of amounts that repeat with a period."""
    return max(level.most for level in profile_of(spans, period))


def profile_of(spans: Iterable[Span], period: int) -> list[Level]:
    """Return the level of amounts that repeat with a period, from 0 to its end.

    At one instant releases come before acquisitions, and an empty span counts once.
    """
    always = 0
    changes: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for amount, begin, finish in spans:
        if begin is None or finish is None:
            always += amount
            continue
        whole, rest = divmod(finish - begin, period)
        always += whole * amount
        start, end = begin % period, finish % period
        if rest:
            changes[end][0] += amount
            changes[start][1] += amount
            always += amount if end < start else 0
        elif not whole:
            changes[start][2] += amount
    now = always
    found = [Level(0, always, always)]
    for instant in sorted(changes):
        released, acquired, empty = changes[instant]
        now += acquired - released
        found.append(Level(instant, now, now + empty))
    return found
