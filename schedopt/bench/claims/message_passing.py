"""Processes that send to each other and wait for what they receive."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Where: TypeAlias = tuple[int, int]
"""The name of a process."""


@dataclass(frozen=True)
class Send:
    """Put a message into the channel to a process; never waits."""

    target: Where
    what: str
    content: Any


@dataclass(frozen=True)
class Receive:
    """Wait for the first message of a kind from a process."""

    source: Where
    what: str


Process: TypeAlias = Generator[Send | Receive, Any, None]
"""Yields what it does; a `Receive` yields the content of the message."""

Channel: TypeAlias = tuple[Where, Where, str]
"""Source, target, and kind of message: first in, first out, of any length."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Parameters
    ----------
    waiting : mapping
        For each process that did not come to its end, what it waits for.
    unmatched : tuple of Channel
        Messages that were sent and never received.
    endless : bool
        Whether the run was cut off after so many actions that it would not have ended.
    """

    waiting: Mapping[Where, Receive]
    unmatched: tuple[Channel, ...]
    endless: bool

    @property
    def completes(self) -> bool:
        """Whether every process came to its end."""
        return not self.waiting and not self.endless

    @property
    def circle(self) -> tuple[Where, ...]:
        """Processes of which each waits for the next, and the last for the first."""
        for first in self.waiting:
            path: list[Where] = []
            now = first
            while now in self.waiting and now not in path:
                path.append(now)
                now = self.waiting[now].source
            if now in path:
                return tuple(path[path.index(now) :])
        return ()


def run(processes: Mapping[Where, Process], most_actions: int) -> Outcome:
    """Run processes until all have ended, all that are left wait, or it takes too long."""
    channels: dict[Channel, deque[Any]] = defaultdict(deque)
    waiting: dict[Where, Receive] = {}
    ready: deque[tuple[Where, Any]] = deque((where, None) for where in processes)
    actions = 0
    while ready and actions < most_actions:
        where, content = ready.popleft()
        process = processes[where]
        while actions < most_actions:
            actions += 1
            try:
                action = process.send(content)
            except StopIteration:
                break
            content = None
            if isinstance(action, Send):
                channels[where, action.target, action.what].append(action.content)
                wanted = Receive(where, action.what)
                if waiting.get(action.target) == wanted:
                    del waiting[action.target]
                    queue = channels[where, action.target, action.what]
                    ready.append((action.target, queue.popleft()))
                continue
            queue = channels[action.source, where, action.what]
            if not queue:
                waiting[where] = action
                break
            content = queue.popleft()
    left = (channel for channel, queue in channels.items() for _ in queue)
    return Outcome(waiting, tuple(left), actions >= most_actions)
