"""Whether what replicas send each other adds up: each update has its mini-batch, whole and once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedopt.actions.action import Action
from schedopt.errors import InputError

_MOST_NAMED = 4


def check_sums(order: Sequence[tuple[int, Action]], every: int) -> None:
    """Replay what each rank has of the gradient of each mini-batch, and of new weights.

    Parameters
    ----------
    order : sequence of (int, Action)
        Rank and action, in a total order.
    every : int
        The micro-batches of one update.

    Raises
    ------
    InputError
        Naming the first action that lacks a micro-batch, counts one twice or loses one.
    """
    replay = _Replay(every, _count_chunks(order))
    for rank, action in order:
        replay.do(rank, action)
    replay.check_taken()


def _count_chunks(order: Iterable[tuple[int, Action]]) -> dict[int, int]:
    """Return into how many chunks the weights of each stage are cut."""
    found: dict[int, int] = {}
    for rank, action in order:
        if action.part is not None:
            count = found.setdefault(action.stage, action.part.chunks)
            if count != action.part.chunks:
                raise _wrong(
                    rank,
                    action,
                    f"has {action.part.chunks} chunks, and another of the stage has {count}",
                )
    return found


class _Replay:
    """The buffers of all ranks: sets of micro-batches, kept as the bits of an integer."""

    def __init__(self, every: int, chunks: dict[int, int]) -> None:
        self.every, self.chunks = every, chunks
        self.held: dict[tuple[int, int, int], list[int]] = {}
        self.under_way: dict[Action, int] = {}
        self.waiting: dict[tuple[int, Action], None] = {}

    def do(self, rank: int, action: Action) -> None:
        match action.kind:
            case "B" | "W":
                for i in action.micro_batches:
                    self._add(rank, action.stage, i)
            case "SEND_G":
                self._send(rank, action)
            case "RECV_G" | "RECV_V":
                self.waiting[rank, action] = None
            case "G":
                self._take(rank, action)
            case "U":
                self._update(rank, action)
            case "V":
                self._renew(rank, action)
            case _:
                pass

    def buffer(self, rank: int, stage: int, mini_batch: int) -> list[int]:
        return self.held.setdefault((rank, stage, mini_batch), [0] * self.chunks.get(stage, 1))

    def _add(self, rank: int, stage: int, i: int) -> None:
        buffer = self.buffer(rank, stage, i // self.every)
        buffer[:] = [one | 1 << i % self.every for one in buffer]

    def _send(self, rank: int, send: Action) -> None:
        assert send.part is not None
        has = self.buffer(rank, send.stage, send.first // self.every)[send.part.chunk]
        if not has:
            raise _wrong(
                rank, send, f"has nothing of mini-batch {send.first // self.every} to send"
            )
        self.under_way[send.other_end] = has

    def _take(self, rank: int, action: Action) -> None:
        assert action.part is not None
        mini_batch, chunk = action.first // self.every, action.part.chunk
        buffer = self.buffer(rank, action.stage, mini_batch)
        if (rank, action.received) not in self.waiting:
            raise _wrong(rank, action, f"comes before {action.received}")
        del self.waiting[rank, action.received]
        came, has = self.under_way[action.received], buffer[chunk]
        if action.part.is_added and came & has:
            raise _wrong(rank, action, f"counts {self._named(came & has, mini_batch)} twice")
        if not action.part.is_added and has & ~came:
            raise _wrong(rank, action, f"loses {self._named(has & ~came, mini_batch)}")
        buffer[chunk] = came | has

    def _update(self, rank: int, update: Action) -> None:
        for chunk, has in enumerate(self.buffer(rank, update.stage, update.first)):
            missing = ((1 << self.every) - 1) & ~has
            if missing:
                of = f" in chunk {chunk}" if self.chunks.get(update.stage, 1) > 1 else ""
                raise _wrong(rank, update, f"lacks {self._named(missing, update.first)}{of}")

    def _renew(self, rank: int, action: Action) -> None:
        """Take in the weights that came: all chunks of them."""
        came = [
            receive
            for at, receive in self.waiting
            if at == rank
            and (receive.stage, receive.kind) == (action.stage, "RECV_V")
            and receive.first // self.every == action.first
        ]
        for receive in came:
            del self.waiting[rank, receive]
        there = {receive.part.chunk for receive in came if receive.part is not None}
        for chunk in range(self.chunks.get(action.stage, 1)):
            if chunk not in there:
                raise _wrong(rank, action, f"comes before chunk {chunk} of the weights")

    def check_taken(self) -> None:
        """Refuse what is received and never taken in."""
        for rank, receive in self.waiting:
            raise _wrong(rank, receive, "is received, and nothing on the rank takes it in")

    def _named(self, bits: int, mini_batch: int) -> str:
        numbers = [n + mini_batch * self.every for n in range(self.every) if bits >> n & 1]
        more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
        named = ", ".join(map(str, numbers[:_MOST_NAMED]))
        return f"micro-batch{'es' if len(numbers) > 1 else ''} {named}{more}"


def _wrong(rank: int, action: Action, what: str) -> InputError:
    return InputError(
        f"{action} {what}",
        field=f"rank {rank}",
        way_out="Take the lists as they were printed, or mend them",
    )
