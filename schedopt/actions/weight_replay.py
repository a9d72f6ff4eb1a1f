"""Whether gradients and weights that ranks send each other add up.

Each update must have its mini-batch whole and once, that of copies in other stages too, what is
sent must be there, and what comes must be taken in. Where weights are gathered for an operation, it
must have all chunks of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from schedopt.actions.action import Action, ActionKind, Part
from schedopt.errors import InputError

Order = Sequence[tuple[int, Action]]
"""Rank and action."""

_MOST_NAMED: Final = 4
_MEND: Final = "Take the lists as they were printed, or mend them"
_MAKERS: Final[tuple[ActionKind, ...]] = ("U", "BROADCAST_PARAM")


def broken(rank: int, action: Action, what: str) -> InputError:
    """Return what refuses lists because of one action."""
    return InputError(f"{action} {what}", field=f"rank {rank}", way_out=_MEND)


def check_weights(order: Order, update_every: int) -> None:
    """Replay what each rank has of gradients and weights, in a total order.

    Names the first action that lacks a micro-batch, counts one twice or loses one, and the first
    that lacks weights.
    """
    chunks: dict[int, int] = {}
    homes: dict[int, set[tuple[int, int]]] = {}
    gathering = {action.stage for _, action in order if action.is_gather}
    for rank, action in order:
        found = action.share.of if action.share else None
        if action.part and action.part.other_stage is None:
            found = action.part.chunks
        count = chunks.setdefault(action.stage, found) if found else None
        if count != found:
            what = f"has {found} chunks, and another of the stage has {count}"
            raise broken(rank, action, what)
    for rank, action in order:
        if action.kind == "U" and action.stage in gathering:
            mine = action.share.chunks if action.share else range(chunks[action.stage])
            homes.setdefault(action.stage, set()).update((rank, chunk) for chunk in mine)
    replay = _Replay(
        update_every,
        chunks,
        {stage: homes.get(stage, set()) for stage in gathering},
        _find_partners(action for _, action in order),
    )
    for rank, action in order:
        replay.do(rank, action)
    for rank, receive in (*replay.received, *replay.gathered.values()):
        raise broken(rank, receive, "is received, and nothing on the rank takes it in")


def _find_partners(actions: Iterable[Action]) -> dict[int, list[int]]:
    """Return the other stages that have copies of the weights of a stage."""
    pairs = {
        (action.stage, action.part.other_stage)
        for action in actions
        if action.part is not None and action.part.other_stage is not None
    }
    found: dict[int, list[int]] = {}
    for stage, other in sorted(pairs | {(other, stage) for stage, other in pairs}):
        found.setdefault(stage, []).append(other)
    return found


@dataclass
class _Replay:
    """The gradients of all ranks, as sets of micro-batches: the bits of an integer; and weights.

    Attributes
    ----------
    chunks : dict
        Into how many the weights of a stage are cut.
    homes : dict
        Of the stages whose weights are gathered, each rank with the chunks that lie there.
    partners : dict
        The other stages that have copies of the weights of a stage: behind the bits of its own
        micro-batches come as many for each of them.
    buffers : dict
        Of each chunk, by rank, stage and mini-batch.
    alone : dict
        The micro-batches that the rank itself made of a gradient, by rank, stage and mini-batch;
        those of `gone` are lost with the next of them, since something took their place.
    received : dict
        What no action has taken in yet.
    made : set
        Rank, stage, mini-batch and chunk of weights that were updated there, or came.
    gathered : dict
        Rank and receive of weights that wait for their operation: by rank, action with its first
        micro-batch and version, and chunk.
    copies : set
        Rank, stage, chunk and version of weights that were gathered.
    """

    update_every: int
    chunks: dict[int, int]
    homes: dict[int, set[tuple[int, int]]]
    partners: dict[int, list[int]]
    buffers: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    alone: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    gone: set[tuple[int, int, int]] = field(default_factory=set)
    sent: dict[Action, int] = field(default_factory=dict)
    received: dict[tuple[int, Action], None] = field(default_factory=dict)
    made: set[tuple[int, int, int, int]] = field(default_factory=set)
    gathered: dict[tuple[int, Action, int], tuple[int, Action]] = field(default_factory=dict)
    copies: set[tuple[int, int, int, int | None]] = field(default_factory=set)

    def do(self, rank: int, action: Action) -> None:
        stage, part = action.stage, action.part
        mini_batch = action.first if action.is_of_mini_batch else action.first // self.update_every
        if action.reads_weights and stage in self.homes:
            self._read(rank, action)
        match action.kind:
            case "B" | "W":
                for i in action.micro_batches:
                    key = rank, stage, i // self.update_every
                    buffer = self._buffer(*key)
                    buffer[:] = [bits | 1 << i % self.update_every for bits in buffer]
                    if key in self.gone:
                        self.gone.remove(key)
                        del self.alone[key]
                    self.alone[key] |= 1 << i % self.update_every
            case "SEND_G" if part is not None:
                bits = self._buffer(rank, stage, mini_batch)[part.chunk]
                if not bits:
                    raise broken(rank, action, f"has nothing of mini-batch {mini_batch} to send")
                self.sent[action.other_end] = bits
                if part.is_taken:
                    self._buffer(rank, stage, mini_batch)[part.chunk] = 0
                    self.gone.add((rank, stage, mini_batch))
            case "RECV_G" | "RECV_C":
                self.received[rank, action] = None
            case "SEND_C":
                self.sent[action.other_end] = self._made(rank, action, mini_batch, action.other_end)
            case "RECV_V" if part is not None:
                self.received[rank, action] = None
                self.made.add((rank, stage, mini_batch, part.chunk))
            case "RECV_P" if part is not None:
                self._gather(rank, action, part)
            case "SEND_V" if part is not None:
                if (rank, stage, mini_batch, part.chunk) not in self.made:
                    names = " or ".join(str(Action(stage, k, mini_batch)) for k in _MAKERS)
                    raise broken(rank, action, f"comes before {names}")
            case "SEND_P" if part is not None:
                self._send_copy(rank, action, part.chunk)
            case "REDUCE_GRAD":
                self._reduce(rank, action, mini_batch)
            case "ADD_COPY":
                self._add_copy(rank, action, mini_batch)
            case "U":
                self._update(rank, action)
            case "BROADCAST_PARAM":
                self._take_weights(rank, action)
            case _:
                pass

    def _buffer(self, rank: int, stage: int, mini_batch: int) -> list[int]:
        return self.buffers.setdefault((rank, stage, mini_batch), [0] * self.chunks.get(stage, 1))

    def _reduce(self, rank: int, action: Action, mini_batch: int) -> None:
        """Take in what came of a gradient."""
        assert action.part is not None
        if (rank, action.received) not in self.received:
            raise broken(rank, action, f"comes before {action.received}")
        del self.received[rank, action.received]
        buffer = self._buffer(rank, action.stage, mini_batch)
        came, own = self.sent[action.received], buffer[action.part.chunk]
        if action.part.is_added and came & own:
            told = self._named(came & own, mini_batch, action.stage)
            raise broken(rank, action, f"counts {told} twice")
        if not action.part.is_added and own & ~came:
            told = self._named(own & ~came, mini_batch, action.stage)
            raise broken(rank, action, f"loses {told}")
        if not action.part.is_added:
            self.gone.add((rank, action.stage, mini_batch))
        buffer[action.part.chunk] = came | own

    def _made(self, rank: int, action: Action, mini_batch: int, target: Action) -> int:
        """Return what a rank made of the gradient of a copy, as bits of the stage that adds it."""
        assert target.part is not None
        source = target.part.other_stage
        assert source is not None
        bits = self.alone[rank, source, mini_batch]
        if not bits:
            raise broken(rank, action, f"has nothing of mini-batch {mini_batch} to send")
        return bits << self.update_every * (1 + self.partners[target.stage].index(source))

    def _add_copy(self, rank: int, action: Action, mini_batch: int) -> None:
        """Add what was made of the gradient of a copy to all chunks."""
        assert action.part is not None
        if action.part.is_local:
            came = self._made(rank, action, mini_batch, action)
        elif (rank, action.received) in self.received:
            del self.received[rank, action.received]
            came = self.sent[action.received]
        else:
            raise broken(rank, action, f"comes before {action.received}")
        buffer = self._buffer(rank, action.stage, mini_batch)
        for chunk, own in enumerate(buffer):
            if came & own:
                told = self._named(came & own, mini_batch, action.stage)
                raise broken(rank, action, f"counts {told} twice")
            buffer[chunk] |= came

    def _update(self, rank: int, action: Action) -> None:
        """Apply the whole gradient of a mini-batch to some chunks."""
        stage, mini_batch = action.stage, action.first
        buffer = self._buffer(rank, stage, mini_batch)
        for chunk in action.share.chunks if action.share else range(len(buffer)):
            if action.share and (rank, stage, mini_batch, chunk) in self.made:
                raise broken(rank, action, f"updates chunk {chunk} again")
            if mini_batch and (rank, stage, mini_batch - 1, chunk) not in self.made:
                raise broken(rank, action, f"comes before chunk {chunk} of the weights")
            copies = 1 + len(self.partners.get(stage, ()))
            missing = ((1 << self.update_every * copies) - 1) & ~buffer[chunk]
            where = f" in chunk {chunk}" if len(buffer) > 1 else ""
            if missing:
                told = self._named(missing, mini_batch, stage)
                raise broken(rank, action, f"lacks {told}{where}")
            self.made.add((rank, stage, mini_batch, chunk))

    def _take_weights(self, rank: int, action: Action) -> None:
        """Take in the weights that came: with those updated here all chunks of them.

        Of weights that are gathered only those at home.
        """
        stage = action.stage
        came = [
            receive
            for at, receive in self.received
            if (at, receive.stage, receive.kind) == (rank, stage, "RECV_V")
            and receive.first // self.update_every == action.first
        ]
        for receive in came:
            del self.received[rank, receive]
        for chunk in range(self.chunks.get(stage, 1)):
            lies_here = stage not in self.homes or (rank, chunk) in self.homes[stage]
            if lies_here and (rank, stage, action.first, chunk) not in self.made:
                raise broken(rank, action, f"comes before chunk {chunk} of the weights")
            self.made.add((rank, stage, action.first, chunk))

    def _gather(self, rank: int, receive: Action, part: Part) -> None:
        """Let a copy of weights wait for the operation that it is for."""
        reader = replace(receive, kind=cast(ActionKind, part.reader), part=None)
        if self.gathered.setdefault((rank, reader, part.chunk), (rank, receive))[1] != receive:
            raise broken(rank, receive, f"brings chunk {part.chunk} of the weights again")
        self.copies.add((rank, receive.stage, part.chunk, receive.version))

    def _read(self, rank: int, action: Action) -> None:
        """Take in the weights that were gathered for an operation."""
        for chunk in range(self.chunks.get(action.stage, 1)):
            if (rank, chunk) in self.homes[action.stage]:
                continue
            if self.gathered.pop((rank, replace(action, count=1), chunk), None) is None:
                raise broken(rank, action, f"comes before chunk {chunk} of the weights")

    def _send_copy(self, rank: int, action: Action, chunk: int) -> None:
        """Send weights from home, or a copy of them on."""
        stage, version = action.stage, action.version or 0
        at_home = (rank, chunk) in self.homes[stage] and (
            not version or (rank, stage, version - 1, chunk) in self.made
        )
        if not at_home and (rank, stage, chunk, action.version) not in self.copies:
            what = f"comes before version {version} of chunk {chunk} of the weights"
            raise broken(rank, action, what)

    def _named(self, bits: int, mini_batch: int, stage: int) -> str:
        """Return the names of micro-batches, of one copy where there are several."""
        every, of = self.update_every, ""
        for copy in self.partners.get(stage, ()):
            if bits & (1 << every) - 1:
                break
            bits, of = bits >> every, f" of the copy in stage {copy}"
        numbers = [n + mini_batch * every for n in range(every) if bits >> n & 1]
        more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        return f"micro-batch{'es' if len(numbers) > 1 else ''} {named}{more}{of}"
