"""List scheduling: what is ready starts as soon as its resources are free."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Hashable

from schedopt.systems.steady_state import Task


class Dispatcher:
    """The clock of a run: ready tasks wait for their resources.

    Parameters
    ----------
    tasks : list of Task
        They are given their starts.
    waiting_for : list of int
        How many others each of them waits for.
    """

    def __init__(self, tasks: list[Task], waiting_for: list[int]) -> None:
        self.tasks = tasks
        self.waiting_for = waiting_for
        self.ready_ns = [task.earliest_ns for task in tasks]
        self.events: list[tuple[int, int]] = []
        self.queues: dict[tuple[Hashable, ...], list[tuple[int, int, int]]] = defaultdict(list)
        self.busy: set[Hashable] = set()
        self.users: dict[Hashable, set[tuple[Hashable, ...]]] = defaultdict(set)
        self.started = self.ended = 0

    def run(self) -> None:
        """Start everything as soon as it can.

        Raises
        ------
        ValueError
            If things wait for each other in a circle.
        """
        for number, count in enumerate(self.waiting_for):
            if not count:
                heapq.heappush(self.events, (self.ready_ns[number], number))
        while self.events:
            now = self.events[0][0]
            touched: set[tuple[Hashable, ...]] = set()
            while self.events and self.events[0][0] == now:
                while self.events and self.events[0][0] == now:
                    _, number = heapq.heappop(self.events)
                    self._happen(number, now, touched)
                # What takes no time is over before anything else is chosen.
                self._start(now, touched, lasting=False)
            self._start(now, touched, lasting=True)
        if self.ended < len(self.tasks):
            stuck = next(t.item for t in self.tasks if t.start_ns < 0)
            raise ValueError(f"{stuck} waits in a circle")

    def _happen(self, number: int, now: int, touched: set[tuple[Hashable, ...]]) -> None:
        """Let a task end, or get ready."""
        task = self.tasks[number]
        if task.start_ns >= 0:
            self._end(number, now, touched)
            return
        for resource in task.resources:
            self.users[resource].add(task.resources)
        heapq.heappush(self.queues[task.resources], (task.priority, now, number))
        touched.add(task.resources)

    def _end(self, number: int, now: int, touched: set[tuple[Hashable, ...]]) -> None:
        task = self.tasks[number]
        self.ended += 1
        for resource in task.resources:
            self.busy.discard(resource)
            touched |= self.users[resource]
        for follower in task.followers:
            self.waiting_for[follower] -= 1
            self.ready_ns[follower] = max(self.ready_ns[follower], now)
            if not self.waiting_for[follower]:
                heapq.heappush(self.events, (self.ready_ns[follower], follower))

    def _start(self, now: int, touched: set[tuple[Hashable, ...]], *, lasting: bool) -> None:
        """Start what can start, the first of those that wait for the same things first."""
        while True:
            able = [
                (self.queues[key][0], key)
                for key in touched
                if self.queues[key] and not self.busy.intersection(key)
            ]
            if not lasting:
                able = [pair for pair in able if not self.tasks[pair[0][2]].length_ns]
            if not able:
                return
            (_, _, number), key = min(able, key=lambda pair: pair[0])
            heapq.heappop(self.queues[key])
            task = self.tasks[number]
            task.start_ns, task.turn = now, self.started
            self.started += 1
            self.busy.update(key)
            heapq.heappush(self.events, (task.end_ns, number))
