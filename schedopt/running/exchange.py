"""What one rank gives to other replicas of its stages, and what it makes of what it takes.

What a rank sends of a gradient is the sum of what stands before the sending end in its list: what
its backwards added since something took the place of it, and what came. So the list alone says
what each message is the sum of, and a thread can add it up as soon as the last summand is there,
whatever the rank computes meanwhile.

What came lies there until an update takes it in, and a copy of what is to be sent until it is sent:
memory which the account does not count, at most another gradient and another version of a stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from schedopt.actions import Action

Place = tuple[int, str, int]
"""Stage, kind, and micro-batch or mini-batch of an action."""
MiniBatch = tuple[int, int]
"""Stage and mini-batch."""
Chunk = tuple[int, int]
"""Which of how many equal parts of a stage's weights."""
_Letter = TypeVar("_Letter")


@dataclass(frozen=True)
class Sum:
    """What a message, or the gradient of an update, consists of.

    Parameters
    ----------
    own : bool
        Whether the rank made a part of it itself.
    receives : tuple of Action
        Those whose results are added to that.
    """

    own: bool
    receives: tuple[Action, ...]

    def total(self, own: Tensor | None, received: Callable[[Action], Tensor]) -> Tensor | None:
        """Return the sum. None if there is nothing to add up."""
        found = own
        for receive in self.receives:
            one = received(receive)
            found = one if found is None else found.to(one.device) + one
        return found


@dataclass
class Exchange:
    """What one rank exchanges in a step.

    Attributes
    ----------
    sums : dict of Action to Sum
        Of each send of gradients or weights.
    behind : dict
        The sends whose own part is there as soon as an action has run, by that action.
    merges : dict
        What the gradient of an update is, where not the rank alone made it: chunks and sums.
    arrivals : dict
        The receives of the weights of a mini-batch.
    cleared : dict
        The chunks that a backward is the first to add to since something took their place.
    shares : dict
        How many actions of this rank need its own gradient of a mini-batch.
    uses : dict of Action to int
        How often the result of a receive is needed.
    """

    sums: dict[Action, Sum] = field(default_factory=dict)
    behind: dict[Place, list[Action]] = field(default_factory=lambda: defaultdict(list))
    merges: dict[MiniBatch, list[tuple[Chunk, Sum]]] = field(default_factory=dict)
    arrivals: dict[MiniBatch, list[Action]] = field(default_factory=lambda: defaultdict(list))
    cleared: dict[Place, list[Chunk]] = field(default_factory=lambda: defaultdict(list))
    shares: Counter[MiniBatch] = field(default_factory=Counter)
    uses: Counter[Action] = field(default_factory=Counter)

    def message(
        self,
        send: Action,
        made: Callable[[Action], Tensor | None],
        received: Callable[[Action], Tensor],
    ) -> Tensor | None:
        """Return what is sent.

        Parameters
        ----------
        send : Action
        made : callable
            From a send to what the rank itself made of it.
        received : callable
            From a receive to its result.
        """
        total = self.sums.get(send)
        if total is None:
            return made(send)
        return total.total(made(send) if total.own else None, received)

    def needs(self, action: Action) -> list[Action]:
        """Return the receives between replicas for which an update or new weights wait."""
        key = action.stage, action.first
        if action.kind == "V":
            return self.arrivals[key]
        if action.kind != "U":
            return []
        return [one for _, total in self.merges.get(key, ()) for one in total.receives]


class Mailbox(Generic[_Letter]):
    """What came from other ranks, until all that need it have it.

    Parameters
    ----------
    uses : mapping of Action to int
        How often the result of a receive between replicas is needed; of another one it is once.
    """

    def __init__(self, uses: Mapping[Action, int]) -> None:
        self._uses = uses
        self._left: dict[Action, int] = {}
        self._letters: dict[Action, _Letter] = {}

    def __contains__(self, receive: Action) -> bool:
        return receive in self._letters

    def put(self, receive: Action, letter: _Letter) -> None:
        """Keep what came, unless nothing needs it."""
        count = 1 if receive.part is None else self._uses.get(receive, 0)
        if count:
            self._left[receive], self._letters[receive] = count, letter

    def get(self, receive: Action) -> _Letter:
        """Return what came to one of those that need it."""
        self._left[receive] -= 1
        return self._letters[receive] if self._left[receive] else self._letters.pop(receive)


@dataclass
class _Gradient:
    """The gradient of a mini-batch on a rank while its list goes on.

    Parameters
    ----------
    added : list of Place
        The backwards that have added to it.
    since : dict of int to int
        How many of them had when something took the place of a chunk.
    received : dict of int to tuple of Action
        What came for a chunk since then, that included.
    chunks : int
    """

    added: list[Place] = field(default_factory=list)
    since: Counter[int] = field(default_factory=Counter)
    received: dict[int, tuple[Action, ...]] = field(default_factory=dict)
    chunks: int = 1

    def sum(self, chunk: int) -> Sum:
        return Sum(len(self.added) > self.since[chunk], self.received.get(chunk, ()))

    def take(self, action: Action) -> None:
        assert action.part is not None
        chunk, self.chunks = action.part.chunk, action.part.chunks
        before = self.received.get(chunk, ()) if action.part.is_added else ()
        self.received[chunk] = (*before, action.received)
        if not action.part.is_added:
            self.since[chunk] = len(self.added)


def follow(actions: Sequence[Action], every: int) -> Exchange:
    """Return what a rank exchanges.

    Parameters
    ----------
    actions : sequence of Action
        Of the rank.
    every : int
        The micro-batches of one update.
    """
    found = Exchange()
    gradients: dict[MiniBatch, _Gradient] = defaultdict(_Gradient)
    for action in actions:
        stage = action.stage
        key = stage, action.first if action.makes_version else action.first // every
        match action.kind:
            case "B" | "W":
                for i in action.micro_batches:
                    place = stage, action.kind, i
                    _add(found, gradients[stage, i // every], place)
                    found.shares[stage, i // every] += 1
            case "G":
                gradients[key].take(action)
            case "SEND_G":
                _send(found, action, gradients[key])
            case "U":
                found.shares[key] += 1
                found.merges[key] = _merged(gradients[key])
                found.uses.update(found.needs(action))
            case "RECV_V":
                found.arrivals[key].append(action)
            case "V":
                found.uses.update(found.needs(action))
            case "SEND_V":
                _send_weights(found, action, key)
            case _:
                pass
    return found


def _add(found: Exchange, gradient: _Gradient, place: Place) -> None:
    count = len(gradient.added)
    found.cleared[place] = [
        (chunk, gradient.chunks)
        for chunk in sorted(gradient.received)
        if count and gradient.since[chunk] == count
    ]
    gradient.added.append(place)


def _send(found: Exchange, send: Action, gradient: _Gradient) -> None:
    assert send.part is not None
    found.sums[send] = total = gradient.sum(send.part.chunk)
    found.uses.update(total.receives)
    if total.own:
        found.behind[gradient.added[-1]].append(send)


def _merged(gradient: _Gradient) -> list[tuple[Chunk, Sum]]:
    return [((c, gradient.chunks), gradient.sum(c)) for c in sorted(gradient.received)]


def _send_weights(found: Exchange, send: Action, key: MiniBatch) -> None:
    """Send weights on as they came, or those that an update of this rank has made."""
    stage, mini_batch = key
    came = [one for one in found.arrivals[key] if _chunk(one) == _chunk(send)]
    found.sums[send] = Sum(not came, tuple(came[:1]))
    found.uses.update(came[:1])
    if not came:
        found.behind[stage, "U", mini_batch].append(send)


def _chunk(action: Action) -> int:
    return action.part.chunk if action.part is not None else 0
