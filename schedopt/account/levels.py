"""The most of something that comes and goes periodically."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

Span = tuple[int, int | None, int | None]
"""An amount with absolute start and end, ns; None for what is always there."""


def highest(spans: Iterable[Span], period: int) -> int:
    """Return the highest level of amounts that repeat with a period.

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
    level = most = always
    for instant in sorted(changes):
        released, acquired, empty = changes[instant]
        level += acquired - released
        most = max(most, level + empty)
    return most
