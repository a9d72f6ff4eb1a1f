"""All ranks of a plan in one process, one operation after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schedopt.running.actions import Actions
from schedopt.running.crew import begin_step
from schedopt.running.rank import Rank
from schedopt.running.spans import Span


def step(ranks: Sequence[Rank] | Mapping[int, Rank], actions: Actions) -> list[Span]:
    """Run one step in the total order of its actions: each rank has tensors of its own."""
    for number in range(len(ranks)):
        begin_step(ranks[number], actions)
    spans = []
    for number, action in actions.order:
        if not action.is_transfer:
            spans.append(ranks[number].perform(action))
        elif action.is_send:
            for send in action.singles:
                receive = send.other_end
                tensor = ranks[number].take(send)
                target = ranks[actions.rank_of[receive.stage]]
                target.put(receive, target.copied(tensor))
    for number in range(len(ranks)):
        ranks[number].finish()
    return spans
