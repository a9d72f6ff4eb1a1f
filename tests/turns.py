"""Random orders in which the operations of a step may run."""

from __future__ import annotations

from hypothesis import strategies as st

from schedopt.plan import Kind
from schedopt.systems.flush_step import Turn


@st.composite
def orders(draw: st.DrawFn, stages: int, microbatches: int, *, split: bool) -> list[Turn]:
    """Draw turns in an order in which each comes behind what it needs."""
    backward: Kind = "I" if split else "B"
    waiting: list[list[Turn]] = []
    for i in range(microbatches):
        way: list[Turn] = [("F", stage, i) for stage in range(stages)]
        way += [(backward, stage, i) for stage in reversed(range(stages))]
        waiting.append(way)
    found: list[Turn] = []
    late: list[Turn] = []
    while waiting or late:
        count = len(waiting) + bool(late)
        number = draw(st.integers(0, count - 1))
        if number == len(waiting):
            found.append(late.pop(draw(st.integers(0, len(late) - 1))))
            continue
        turn = waiting[number].pop(0)
        found.append(turn)
        if turn[0] == "I":
            late.append(("W", *turn[1:]))
        if not waiting[number]:
            waiting.pop(number)
    return found
