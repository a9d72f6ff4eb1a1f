"""What one rank gives to other replicas and copies, and what it makes of what it takes.

What a rank sends of a gradient is the sum of what stands before the sending end in its list: what
its backwards added since something took the place of it, and what came. So the list alone says
what each message is the sum of, and a thread can add it up as soon as the last summand is there,
whatever the rank computes meanwhile.

Of a copy of tied weights in another stage comes what one rank there has made alone, and it is added
to each chunk that has a part of it.

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
from schedopt.running.weight_row import Chunk

Place = tuple[int, str, int]
"""Stage, kind, and micro-batch or mini-batch of an action."""
StageMiniBatch = tuple[int, int]
"""Stage and mini-batch."""
_Letter = TypeVar("_Letter")


def chunk_of(action: Action) -> Chunk:
    """Return which chunk goes between replicas."""
    assert action.part is not None
    return action.part.chunk, action.part.chunks


@dataclass(frozen=True)
class Sum:
    """A message, or the gradient of an update: what the rank itself made of it, and what came."""

    own: bool
    receives: tuple[Action, ...]

    def add_up(self, own: Tensor | None, received: Callable[[Action], Tensor]) -> Tensor | None:
        """Return the sum. None if there is nothing to add up."""
        total = own
        for receive in self.receives:
            summand = received(receive)
            total = summand if total is None else total.to(summand.device) + summand
        return total


@dataclass
class Exchange:
    """What one rank exchanges in a step.

    Attributes
    ----------
    sums : dict of Action to Sum
        Of each send of gradients or weights.
    sends_after : dict
        The sends whose own part is there as soon as an action has run, by that action.
    merges : dict of Action to list
        What the gradient of an update is, where not the rank alone made it or only chunks are
        updated: chunks and sums.
    arrivals : dict
        The receives of the weights of a mini-batch.
    gathers : dict
        The receives of the weights that an operation reads, by its stage, kind and micro-batch.
    offered : list of Action
        The sends of weights that are there when the step begins, for single operations.
    versions : dict
        How often a version of a chunk at home is sent for single operations, by stage.
    cleared : dict
        The chunks that a backward is the first to add to since something took their place.
    backwards, updates : dict
        How many of each mini-batch are in the list.
    uses : dict of Action to int
        How often the result of a receive is needed.
    """

    sums: dict[Action, Sum] = field(default_factory=dict)
    sends_after: dict[Place, list[Action]] = field(default_factory=lambda: defaultdict(list))
    merges: dict[Action, list[tuple[Chunk, Sum]]] = field(default_factory=dict)
    arrivals: dict[StageMiniBatch, list[Action]] = field(default_factory=lambda: defaultdict(list))
    cleared: dict[Place, list[Chunk]] = field(default_factory=lambda: defaultdict(list))
    gathers: dict[Place, list[Action]] = field(default_factory=lambda: defaultdict(list))
    offered: list[Action] = field(default_factory=list)
    versions: dict[int, Counter[tuple[Chunk, int]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    backwards: Counter[StageMiniBatch] = field(default_factory=Counter)
    updates: Counter[StageMiniBatch] = field(default_factory=Counter)
    uses: Counter[Action] = field(default_factory=Counter)

    def message(
        self,
        send: Action,
        made: Callable[[Action], Tensor | None],
        received: Callable[[Action], Tensor],
    ) -> Tensor | None:
        """Return what is sent, from what the rank itself made of it and the results of receives."""
        total = self.sums.get(send)
        if total is None:
            return made(send)
        return total.add_up(made(send) if total.own else None, received)

    def needs(self, action: Action) -> list[Action]:
        """Return the receives between replicas for which an operation or a broadcast waits."""
        if action.kind == "BROADCAST_PARAM":
            return self.arrivals[action.stage, action.first]
        if action.kind == "U":
            return [
                receive for _, total in self.merges.get(action, ()) for receive in total.receives
            ]
        return self.gathers.get((action.stage, action.kind, action.first), [])


class Mailbox(Generic[_Letter]):
    """What came from other ranks, until all that need it have it.

    `uses` says how often a receive between replicas is needed; another one is needed once.
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

    The backwards that have `added` to it; how many of them had when something took the place of a
    chunk (`since`); and what was `received` for a chunk since then, that included.
    """

    added: list[Place] = field(default_factory=list)
    since: Counter[int] = field(default_factory=Counter)
    received: dict[int, tuple[Action, ...]] = field(default_factory=dict)
    chunks: int = 1

    def sum(self, chunk: int) -> Sum:
        return Sum(len(self.added) > self.since[chunk], self.received.get(chunk, ()))

    def add(self, place: Place) -> list[Chunk]:
        """Add what a backward makes; return the chunks that it is the first to add to."""
        count = len(self.added)
        cleared = [
            (chunk, self.chunks)
            for chunk in sorted(self.received)
            if count and self.since[chunk] == count
        ]
        self.added.append(place)
        return cleared

    def give(self, send: Action) -> None:
        """Keep nothing of what was sent."""
        chunk, self.chunks = chunk_of(send)
        self.received[chunk] = ()
        self.since[chunk] = len(self.added)

    def add_copy(self, addition: Action, chunks: int) -> None:
        """Add the gradient of a copy in another stage to all chunks."""
        self.chunks = chunks
        for chunk in range(chunks):
            self.received[chunk] = (*self.received.get(chunk, ()), addition.received)

    def take(self, reduction: Action) -> None:
        assert reduction.part is not None
        chunk, self.chunks = chunk_of(reduction)
        before = self.received.get(chunk, ()) if reduction.part.is_added else ()
        self.received[chunk] = (*before, reduction.received)
        if not reduction.part.is_added:
            self.since[chunk] = len(self.added)


def follow(actions: Sequence[Action], update_every: int) -> Exchange:
    """Return what a rank exchanges, from its actions and the micro-batches of one update."""
    exchange = Exchange()
    gradients: dict[StageMiniBatch, _Gradient] = defaultdict(_Gradient)
    copies: dict[tuple[int, Chunk, int | None], Action] = {}
    chunks = {
        action.stage: action.part.chunks
        for action in actions
        if action.part is not None and action.part.other_stage is None
    }
    for action in actions:
        stage = action.stage
        key = stage, action.first if action.is_of_mini_batch else action.first // update_every
        match action.kind:
            case "B" | "W":
                for i in action.micro_batches:
                    place, of = (stage, action.kind, i), (stage, i // update_every)
                    exchange.cleared[place] = gradients[of].add(place)
                    exchange.backwards[of] += 1
            case "REDUCE_GRAD":
                gradients[key].take(action)
            case "SEND_C":
                exchange.sends_after[gradients[key].added[-1]].append(action)
            case "ADD_COPY" if action.part is not None and action.part.other_stage is not None:
                gradients[key].add_copy(action, chunks.get(stage, 1))
                if action.part.is_local:
                    made = gradients[action.part.other_stage, key[1]].added[-1]
                    exchange.sends_after[made].append(action.received.other_end)
            case "SEND_G":
                total = exchange.sums[action] = gradients[key].sum(chunk_of(action)[0])
                exchange.uses.update(total.receives)
                if total.own:
                    exchange.sends_after[gradients[key].added[-1]].append(action)
                if action.part is not None and action.part.is_taken:
                    gradients[key].give(action)
            case "U":
                gradient = gradients[key]
                exchange.updates[key] += 1
                count, merged = gradient.chunks, tuple(sorted(gradient.received))
                if action.share is not None:
                    count, merged = action.share.of, action.share.chunks
                exchange.merges[action] = [((c, count), gradient.sum(c)) for c in merged]
                exchange.uses.update(exchange.needs(action))
            case "RECV_V":
                exchange.arrivals[key].append(action)
            case "BROADCAST_PARAM":
                exchange.uses.update(exchange.needs(action))
            case "SEND_V":
                # Weights are sent on as they came, or as an update of this rank has made them.
                chunk, arrivals = chunk_of(action), exchange.arrivals[key]
                came = [receive for receive in arrivals if chunk_of(receive) == chunk]
                exchange.sums[action] = Sum(not came, tuple(came[:1]))
                exchange.uses.update(came[:1])
                if not came:
                    exchange.sends_after[stage, "U", key[1]].append(action)
            case "RECV_P" if action.part is not None:
                exchange.gathers[stage, action.part.reader, action.first].append(action)
                exchange.uses[action] += 1
                copies[stage, chunk_of(action), action.version] = action
            case "SEND_P":
                # A copy is sent on; else the weights are at home here.
                copy = copies.get((stage, chunk_of(action), action.version))
                exchange.sums[action] = Sum(copy is None, () if copy is None else (copy,))
                if copy is not None:
                    exchange.uses[copy] += 1
                    continue
                version = action.version or 0
                exchange.versions[stage][chunk_of(action), version] += 1
                if version:
                    exchange.sends_after[stage, "U", version - 1].append(action)
                else:
                    exchange.offered.append(action)
            case _:
                pass
    return exchange
