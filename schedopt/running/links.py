"""Transfers between the ranks of torch.distributed, one process a rank.

Over gloo a send ends when it has been received, and must be waited for once. So each way to
another rank has a thread, which does its transfers one after the other in the order of the list,
while the rank computes. Over NCCL the device does that, so all is started in the order of the list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from schedopt.actions import Action
from schedopt.running.rank import Rank
from schedopt.running.records import Span
from schedopt.running.replica_exchange import Mailbox
from schedopt.running.synthetic import sleep_until

_ASKING: Final = 1
"""The tag of what asks for weights, so that it does not meet what goes the same way."""

Room: TypeAlias = Callable[[Action], Tensor]
"""Makes room for what a receive takes in, on the host or, over NCCL, on the device."""


class Links(Protocol):
    """The ways from a rank to the others, for one step."""

    def offer(self, send: Action, tensor: Tensor | None) -> None:
        """Give what a micro-batch made to be sent, as soon as it is there."""
        ...

    def announce(self, receive: Action) -> None:
        """Say that weights may come, for the operation behind the next one of the list."""
        ...

    def reach(self, action: Action) -> None:
        """Say that the list has come to an end of a transfer."""
        ...

    def wait(self, receive: Action) -> tuple[Tensor, int]:
        """Return what a receive took in, and since when it is there."""
        ...

    def finish(self) -> list[Span]:
        """Wait for all transfers, and return when those that this rank sent took place."""
        ...


class ThreadLinks:
    """Links over gloo, which carries tensors over the host.

    A message to a replica is added up as soon as the last summand is there. Weights for an
    operation come when the list has come to the operation before: the rank that is to have them
    says so to the one that sends. `one_way` says whether both ways to a rank share a link.
    """

    def __init__(self, rank: Rank, room: Room, one_way: bool = False) -> None:
        self._rank, self._room = rank, room
        self._changed = threading.Condition()
        self._offered: dict[Action, tuple[Tensor | None, int]] = {}
        self._taken = Mailbox[tuple[Tensor, int]](rank.exchange.uses)
        self._spans: list[Span] = []
        self._wanted: set[Action] = set()
        self._error: BaseException | None = None
        ways: dict[Any, list[tuple[int, Action]]] = {}
        for action in rank.actions:
            for end in action.singles if action.is_transfer else ():
                peer = rank.work.process(rank.work.actions.peer(end))
                way = peer if one_way else (peer, action.is_send)
                ways.setdefault(way, []).append((peer, end))
        self._running = len(ways)
        for transfers in ways.values():
            threading.Thread(target=self._carry, args=(transfers,), daemon=True).start()

    def offer(self, send: Action, tensor: Tensor | None) -> None:
        """Give what a micro-batch made to be sent, as soon as it is there."""
        with self._changed:
            if tensor is not None and send.part is not None and send.part.is_local:
                self._taken.put(send.other_end, (tensor, time.monotonic_ns()))
            else:
                self._offered[send] = tensor, time.monotonic_ns()
            self._changed.notify_all()

    def announce(self, receive: Action) -> None:
        """Let weights come for an operation."""
        with self._changed:
            self._wanted.add(receive)
            self._changed.notify_all()

    def reach(self, action: Action) -> None:
        """Let weights come for an operation; the threads do all else by themselves."""
        if action.is_gather and not action.is_send:
            self.announce(action)

    def wait(self, receive: Action) -> tuple[Tensor, int]:
        """Return what a receive took in, and since when it is there."""
        tensor, since = self._arrived(receive)
        return tensor.to(self._rank.work.device), since

    def finish(self) -> list[Span]:
        """Wait for all transfers, and return when those that this rank sent took place."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running or self._error)
            self._raise()
        return self._spans

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _carry(self, transfers: Sequence[tuple[int, Action]]) -> None:
        try:
            for peer, action in transfers:
                (self._send if action.is_send else self._receive)(peer, action)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _receive(self, peer: int, receive: Action) -> None:
        self._ask(peer, receive)
        room = self._room(receive)
        dist.recv(room, peer)
        self._take(receive, room, time.monotonic_ns())

    def _ask(self, peer: int, receive: Action) -> None:
        """Ask for weights that an operation reads, when the list has come so far."""
        if receive.is_gather:
            with self._changed:
                self._changed.wait_for(lambda: receive in self._wanted or self._error)
                self._raise()
            dist.send(torch.tensor([time.monotonic_ns()]), peer, tag=_ASKING)

    def _asked(self, peer: int, send: Action) -> int:
        """Wait until what is sent is asked for, and return since when that is."""
        since = torch.zeros(1, dtype=torch.int64)
        if send.is_gather:
            dist.recv(since, peer, tag=_ASKING)
        return int(since)

    def _send(self, peer: int, send: Action) -> None:
        self._asked(peer, send)
        tensor, _ = self._message(send)
        start = time.monotonic_ns()
        if tensor is None:
            tensor = torch.zeros_like(self._room(send.other_end))
        dist.send(tensor.cpu().contiguous(), peer)
        self._spans.append(Span(self._rank.process, send, start, time.monotonic_ns()))

    def _take(self, receive: Action, tensor: Tensor, since: int) -> None:
        if self._rank.work.device == tensor.device:
            self._rank.note(receive, tensor)
        with self._changed:
            self._taken.put(receive, (tensor, since))
            self._changed.notify_all()

    def _arrived(self, receive: Action) -> tuple[Tensor, int]:
        with self._changed:
            self._changed.wait_for(lambda: receive in self._taken or self._error)
            self._raise()
            return self._taken.get(receive)

    def _message(self, send: Action) -> tuple[Tensor | None, int]:
        """Return what is to be sent, and since when all of it is there."""
        ready = [0]

        def noting(dated: tuple[Tensor | None, int]) -> Any:
            ready.append(dated[1])
            return dated[0]

        tensor = self._rank.message(
            send,
            lambda send: noting(self._await(send)),
            lambda receive: noting(self._arrived(receive)),
        )
        return tensor, max(ready)

    def _await(self, send: Action) -> tuple[Tensor | None, int]:
        """Return what is to be sent, and since when it is there."""
        with self._changed:
            self._changed.wait_for(lambda: send in self._offered or self._error)
            self._raise()
            tensor, since = self._offered.pop(send)
        return (self._rank.copy_home(send) if send.is_gather else tensor), since


class SyntheticLinks(ThreadLinks):
    """Links of synthetic layers: a transfer carries nothing and takes as long as the plan says.

    It carries the instant at which it ends, so that what carrying takes is a part of it.

    Parameters
    ----------
    rank, room, one_way
        As for `ThreadLinks`.
    lasts_ns : callable
        How long a transfer takes, by its sending end.
    one_clock : bool
        Whether all ranks are on one machine. Else a transfer ends that long after its message came.
    """

    def __init__(
        self,
        rank: Rank,
        room: Room,
        one_way: bool,
        lasts_ns: Callable[[Action], int],
        one_clock: bool,
    ) -> None:
        self._lasts_ns, self._one_way, self._one_clock = lasts_ns, one_way, one_clock
        self._free_ns: dict[Any, int] = {}
        super().__init__(rank, room, one_way)

    def _receive(self, peer: int, receive: Action) -> None:
        self._ask(peer, receive)
        message = torch.zeros(1, dtype=torch.int64)
        dist.recv(message, peer)
        due = int(message)
        if not self._one_clock:
            due = time.monotonic_ns() + self._lasts_ns(receive.other_end)
        sleep_until(due)
        if self._one_way:
            self._free_ns[peer] = due
        self._take(receive, self._room(receive), due)

    def _send(self, peer: int, send: Action) -> None:
        asked = self._asked(peer, send)
        _, offered = self._message(send)
        start = max(asked if self._one_clock else 0, offered, self._free_ns.get(peer, 0))
        due = self._free_ns[peer] = start + self._lasts_ns(send)
        dist.send(torch.tensor([due]), peer)
        sleep_until(due)
        self._spans.append(Span(self._rank.process, send, start, time.monotonic_ns()))


class StreamLinks:
    """Links over NCCL: both ends are started in the order of the lists.

    So a message to a replica is added up where the list comes to it, and what the rank computes
    then waits for what came, too.
    """

    def __init__(self, rank: Rank, room: Room) -> None:
        self._rank, self._room = rank, room
        self._offered: dict[Action, Tensor | None] = {}
        self._under_way: dict[Action, tuple[Any, Tensor]] = {}
        self._taken = Mailbox[Tensor](rank.exchange.uses)

    def announce(self, receive: Action) -> None:
        """Do nothing: all is started when the list comes to it."""

    def offer(self, send: Action, tensor: Tensor | None) -> None:
        """Keep what a micro-batch made until the list comes to its sending end."""
        if tensor is not None and send.part is not None and send.part.is_local:
            self._taken.put(send.other_end, tensor)
        else:
            self._offered[send] = tensor

    def reach(self, action: Action) -> None:
        """Start an end of a transfer."""
        for end in action.singles:
            work = self._rank.work
            peer = work.process(work.actions.peer(end))
            if end.is_send:
                tensor = self._rank.message(end, self._made, self._arrived)
                if tensor is None:
                    tensor = torch.zeros_like(self._room(end.other_end))
                tensor = tensor.contiguous()
                self._under_way[end] = dist.isend(tensor, peer), tensor
            else:
                room = self._room(end)
                self._under_way[end] = dist.irecv(room, peer), room
        self._free_sent()

    def wait(self, receive: Action) -> tuple[Tensor, int]:
        """Return what a receive took in, for the stream that computes."""
        return self._arrived(receive), time.monotonic_ns()

    def finish(self) -> list[Span]:
        """Wait for all transfers. When they took place is not known."""
        for work, _ in self._under_way.values():
            work.wait()
        self._under_way.clear()
        return []

    def _made(self, send: Action) -> Tensor | None:
        tensor = self._offered.pop(send)
        return self._rank.copy_home(send) if send.is_gather else tensor

    def _arrived(self, receive: Action) -> Tensor:
        if receive in self._under_way:
            work, room = self._under_way.pop(receive)
            work.wait()
            self._taken.put(receive, room)
        return self._taken.get(receive)

    def _free_sent(self) -> None:
        """Free what has been sent."""
        for action, (work, _) in list(self._under_way.items()):
            if action.is_send and work.is_completed():
                del self._under_way[action]
