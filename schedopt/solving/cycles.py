"""The least period that an order allows."""

from __future__ import annotations

from collections.abc import Sequence

Difference = tuple[int, int, int, int]
"""x[second] + T turns >= x[first] + length: first, second, turns, length."""


def least_cycle_time(count: int, arcs: Sequence[Difference], least: int) -> tuple[int, list[int]]:
    """Return the least whole T for which starts exist, and the starts.

    A cycle that takes C and crosses h periods needs T >= C / h; T grows from cycle to cycle until
    there is none left (Bellman and Ford).

    Parameters
    ----------
    count : int
        Of the starts.
    arcs : sequence of Difference
    least : int
        A T below which there is nothing to look for.
    """
    period = least
    while True:
        starts, came = [0] * count, [-1] * count
        changed = -1
        for _ in range(count + 1):
            changed = -1
            for number, (first, second, turns, length) in enumerate(arcs):
                time = starts[first] + length - turns * period
                if time > starts[second]:
                    starts[second], came[second], changed = time, number, second
            if changed < 0:
                return period, starts
        node = changed
        for _ in range(count):
            node = arcs[came[node]][0]
        total = crossed = 0
        end = node
        while True:
            first, _, turns, length = arcs[came[node]]
            total, crossed, node = total + length, crossed + turns, first
            if node == end:
                break
        period = max(period + 1, -(-total // crossed))
