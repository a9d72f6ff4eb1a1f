"""The time that a search has, and whether somebody asked it to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

SHORT_S: Final = 0.05
"""A thread that has worked less does not tell yet how long that takes."""


class StopHandle(Protocol):
    """What another thread may end a search by; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Whether the search should end."""


class Clock:
    """The clock of a search: its deadline, that of the solver at work, and requests to stop.

    Parameters
    ----------
    time_limit : float, optional
        Seconds. Default: no limit.
    parent : Clock, optional
        The clock of which this is a part. It stops with that one.
    handle : StopHandle, optional
        By which somebody else may ask to stop.
    now : callable, optional
        What tells the seconds, of a clock without a parent. Default: they pass by themselves.
    """

    def __init__(
        self,
        time_limit: float | None = None,
        parent: Clock | None = None,
        handle: StopHandle | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._now: Callable[[], float] = (now or _wall_s) if parent is None else parent._now
        begin = self._now()
        self._parent, self._handle = parent, handle
        self._started: float = begin if parent is None else parent._started
        self._deadline = None if time_limit is None else begin + time_limit
        self._whole = time_limit
        self._turn_ends: float | None = None
        self._share = 1.0
        self._latest: float | None = None
        self._idle_ends: float | None = None
        self._began = self._better = begin
        self._stop = threading.Event()

    def fork(self, share: float, longest: float | None = None) -> Clock:
        """Return a clock for a part of the work, with a share of the time that is left.

        At most `longest` seconds of it, where that is given.
        """
        remaining = self.remaining()
        part = None if remaining is None else max(0.0, share * remaining)
        limits = [limit for limit in (part, longest) if limit is not None]
        return Clock(min(limits, default=None), parent=self)

    def begin_turn(self, share: float = 1.0) -> None:
        """Give the solver that begins now a share of all the time that is left."""
        self._idle_ends = None
        if self._deadline is not None:
            now = self._now()
            self._turn_ends = now + (self._deadline - now) * share
            self._share = share

    def share_again(self, waited: float) -> float:
        """Give the solver at work its share of what is left now that it has `waited` seconds.

        The whole ends when it would have ended. Return by how much the turn ends later.
        """
        if self._parent is not None:
            later = self._parent.share_again(waited)
        else:
            later = 0.0 if self._turn_ends is None else waited * (1 - self._share)
            self._whole = None if self._whole is None else max(0.0, self._whole - waited)
        if self._parent is not None and self._deadline is not None:
            self._deadline += later
        if self._turn_ends is not None:
            self._turn_ends += later
        return later

    def extend(self, seconds: float) -> None:
        """Give the solver at work more time, also by the clocks of which this is a part.

        It comes out of that of later ones; the deadline moves as far as it must.
        """
        if self._deadline is not None and self._turn_ends is not None:
            self._turn_ends += seconds
            self._deadline = max(self._deadline, self._turn_ends)
        elif self._deadline is not None:
            self._deadline += seconds
        if self._parent is not None:
            self._parent.extend(seconds)

    def shorten(self, seconds: float) -> None:
        """End this part of the work earlier, so that what follows has more time."""
        if self._deadline is not None:
            self._deadline -= seconds
        if self._latest is not None:
            self._latest -= seconds

    def end_early(self, share: float) -> None:
        """End this part of the work after a share of its time, unless something better is found.

        Then it goes on as long again as it took to find that. Half of the share is left from now
        on at least, to find something.
        """
        if self._deadline is not None:
            self._latest, time_s = self._deadline, share * (self._deadline - self._began)
            again = max(self._began + time_s, self._now() + time_s / 2)
            self._deadline = min(self._latest, again)
            self._go_on()

    def end_turn_in(self, share: float | None) -> None:
        """End the turn of the solver at work in a share of the limit, unless this is called again.

        What was waited for does not count. None: when its time is up.
        """
        if self._parent is not None:
            self._parent.end_turn_in(share)
        elif share is None or self._whole is None:
            self._idle_ends = None
        else:
            self._idle_ends = self._now() + share * self._whole

    def take_back_turn(self) -> None:
        """Let the whole end earlier by what is left of a turn that was idle at its end."""
        if self.is_idle() and self._deadline is not None and self._turn_ends is not None:
            self._deadline -= max(0.0, self._turn_ends - self._now())

    def is_idle(self) -> bool:
        """Whether the turn of the solver at work is over because nothing was found for long."""
        if self._parent is not None:
            return self._parent.is_idle()
        return self._idle_ends is not None and self._now() >= self._idle_ends

    def note_better(self) -> None:
        """Note that something better was found just now."""
        self._better = self._now()
        self._go_on()
        if self._parent is not None:
            self._parent.note_better()

    def _go_on(self) -> None:
        if self._deadline is not None and self._latest is not None:
            again = self._better + (self._better - self._began)
            self._deadline = max(self._deadline, min(self._latest, again))

    def seconds(self) -> float:
        """Return the seconds since the whole search began."""
        return self._now() - self._started

    def remaining(self) -> float | None:
        """Return the seconds that the solver at work still has; None without a limit."""
        end = self._deadline if self._turn_ends is None else self._turn_ends
        return None if end is None else end - self._now()

    def stop(self) -> None:
        """Ask to stop soon."""
        self._stop.set()

    def stop_requested(self) -> bool:
        """Whether somebody asked to stop."""
        asked = self._stop.is_set() or (self._handle is not None and self._handle.is_set())
        return asked or (self._parent is not None and self._parent.stop_requested())

    def stopped(self) -> bool:
        """Whether the solver at work should stop: its time is up, it is idle, or somebody asked."""
        remaining = self.remaining()
        late = remaining is not None and remaining <= 0
        return late or self.is_idle() or self.stop_requested()

    def all_ended(self) -> bool:
        """Whether the search should stop of which this is a part."""
        return self.ended() if self._parent is None else self._parent.all_ended()

    def overtime(self) -> float:
        """Return for how many seconds the whole search goes on beyond its limit."""
        if self._parent is not None:
            return self._parent.overtime()
        return 0.0 if self._deadline is None else max(0.0, self._now() - self._deadline)

    def ended(self) -> bool:
        """Whether the whole search should stop."""
        late = self._deadline is not None and self._now() >= self._deadline
        return late or self.stop_requested()


class Pace:
    """How much longer the work of a thread takes than it would alone, since this was made there.

    Threads of this process take turns, and other processes want the same cores.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began, self._worked = clock, clock.seconds(), time.thread_time()

    def __call__(self) -> float:
        """Return the factor, 1 or more."""
        worked = time.thread_time() - self._worked
        return max(1.0, (self._clock.seconds() - self._began) / max(SHORT_S, worked))


def _wall_s() -> float:
    return time.monotonic()
