"""All ranks of a plan in one process, one operation after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from schedopt.actions import Action, Actions
from schedopt.running.crew import begin_step
from schedopt.running.exchange import Mailbox
from schedopt.running.rank import Rank
from schedopt.running.spans import Span


def step(ranks: Sequence[Rank] | Mapping[int, Rank], actions: Actions) -> list[Span]:
    """Run one step in the total order of its actions: each rank has tensors of its own."""
    for number in range(len(ranks)):
        begin_step(ranks[number], actions)
    spans = []
    mailboxes = [Mailbox[Tensor](ranks[n].exchange.uses) for n in range(len(ranks))]
    for number, action in actions.order:
        rank, mailbox = ranks[number], mailboxes[number]
        if action.is_send:
            for send in action.singles:
                peer = actions.peer(send)
                _carry(send, rank, mailbox, ranks[peer], mailboxes[peer])
        elif action.kind == "V":
            _deliver(rank, action, mailbox)
            rank.renew(action)
        elif not action.is_transfer and action.kind != "G":
            _deliver(rank, action, mailbox)
            spans.append(rank.perform(action))
    for number in range(len(ranks)):
        ranks[number].finish()
    return spans


def _carry(
    send: Action, rank: Rank, mailbox: Mailbox[Tensor], target: Rank, box: Mailbox[Tensor]
) -> None:
    """Give another rank its own copy of what is sent."""
    came = target.copied(rank.exchange.message(send, rank.take, mailbox.get))
    if came is None or send.part is None:
        target.put(send.other_end, came)
    else:
        box.put(send.other_end, came)


def _deliver(rank: Rank, action: Action, mailbox: Mailbox[Tensor]) -> None:
    """Give a rank what came from other replicas for an update or new weights."""
    for receive in rank.exchange.needs(action):
        rank.put(receive, mailbox.get(receive))
