"""The least period that an order allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Difference = tuple[int, int, int, int]
"""x[second] + T turns >= x[first] + length: first, second, turns, length."""


def slowest_cycle(
    count: int,
    arcs: Iterable[Difference],
    least: int,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[int, list[int], list[Difference]] | None:
    """Return the least whole T, starts for it, and a cycle that allows no T below.

    A cycle that takes C and crosses h periods needs T >= C / h; T grows from cycle to cycle until
    there is none left (Bellman and Ford). A cycle among the arcs by which the starts came is one
    that T does not allow, and is looked for after each round.

    There are `count` starts, and below a T of `least` there is nothing to look for; where that
    decides, the cycle is empty. None if it is stopped, or if a cycle takes time and crosses no
    period.
    """
    behind = _behind(count, arcs)
    period, slowest = least, list[Difference]()
    while True:
        starts = [0] * count
        came: list[Difference | None] = [None] * count
        changed: Iterable[int] = range(count)
        cycle: list[Difference] = []
        while changed and not cycle:
            if stopped():
                return None
            changed = _relax(behind, period, starts, came, changed)
            cycle = _cycle(came)
        if not cycle:
            return period, starts, slowest
        slowest = cycle
        total = sum(length for *_, length in cycle)
        crossed = sum(turns for _, _, turns, _ in cycle)
        if crossed < 1:
            return None
        period = max(period + 1, -(-total // crossed))


def follow(
    starts: list[int], arcs: Iterable[Difference], period: int, changed: Iterable[int]
) -> None:
    """Move all that follows some changed starts behind them, at a period that allows it, ns."""
    behind = _behind(len(starts), arcs)
    came: list[Difference | None] = [None] * len(starts)
    while changed:
        changed = _relax(behind, period, starts, came, changed)


def _behind(count: int, arcs: Iterable[Difference]) -> list[list[Difference]]:
    """Return the arcs by their first, of those that say the same with fewer turns only one."""
    turns: dict[tuple[int, int, int], int] = {}
    for first, second, crossed, length in arcs:
        same = first, second, length
        turns[same] = min(crossed, turns.get(same, crossed))
    found: list[list[Difference]] = [[] for _ in range(count)]
    for (first, second, length), crossed in turns.items():
        found[first].append((first, second, crossed, length))
    return found


def _relax(
    behind: Sequence[Sequence[Difference]],
    period: int,
    starts: list[int],
    came: list[Difference | None],
    changed: Iterable[int],
) -> list[int]:
    """Move what follows the changed starts behind them; return what has moved."""
    moved: set[int] = set()
    for node in changed:
        for arc in behind[node]:
            first, second, turns, length = arc
            time = starts[first] + length - turns * period
            if time > starts[second]:
                starts[second], came[second] = time, arc
                moved.add(second)
    return sorted(moved)


def _cycle(came: Sequence[Difference | None]) -> list[Difference]:
    """Return the arcs of a cycle by which starts came, if there is one."""
    seen_from = [-1] * len(came)
    for begin in range(len(came)):
        node = begin
        while seen_from[node] < 0:
            seen_from[node] = begin
            arc = came[node]
            if arc is None:
                break
            node = arc[0]
        else:
            if seen_from[node] == begin:
                return _around(came, node)
    return []


def _around(came: Sequence[Difference | None], end: int) -> list[Difference]:
    found: list[Difference] = []
    node = end
    while not found or node != end:
        arc = came[node]
        assert arc is not None
        found.append(arc)
        node = arc[0]
    return found
