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
        self.some_pause = any(task.round_ns for task in tasks)
        self.at_once = 0
        """How many tasks are ready that take no time."""
        self.ready_ns = [task.earliest_ns for task in tasks]
        self.events: list[tuple[int, int]] = []
        self.queues: dict[tuple[Hashable, ...], list[tuple[int, int, int]]] = defaultdict(list)
        self.busy: dict[Hashable, int] = {}
        """What has each resource that is not free."""
        self.ends_ns: dict[int, int] = {}
        """When what runs ends, or pauses."""
        self.paused_ns: dict[int, int] = {}
        """Since when what is not over pauses."""
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
                if self.at_once:
                    # What takes no time is over before anything else is chosen.
                    self._start(now, touched, lasting=False)
            self._start(now, touched, lasting=True)
            if self.some_pause:
                self._make_room(now, touched)
        if self.ended < len(self.tasks):
            stuck = next(t.item for t in self.tasks if t.start_ns < 0)
            raise ValueError(f"{stuck} waits in a circle")

    def _happen(self, number: int, now: int, touched: set[tuple[Hashable, ...]]) -> None:
        """Let a task end, or pause, or get ready."""
        task = self.tasks[number]
        if task.start_ns >= 0:
            if self.ends_ns.get(number) == now:
                self._end(number, now, touched)
            return
        for resource in task.resources:
            self.users[resource].add(task.resources)
        heapq.heappush(self.queues[task.resources], (task.priority, now, number))
        self.at_once += not task.length_ns
        touched.add(task.resources)

    def _end(self, number: int, now: int, touched: set[tuple[Hashable, ...]]) -> None:
        task = self.tasks[number]
        del self.ends_ns[number]
        for resource in task.resources:
            self.busy.pop(resource, None)
            touched |= self.users[resource]
        if now < task.end_ns:
            self.paused_ns[number] = now
            # It goes on before others like it begin.
            heapq.heappush(self.queues[task.resources], (task.priority, -1, number))
            return
        self.ended += 1
        for follower in task.followers:
            self.waiting_for[follower] -= 1
            self.ready_ns[follower] = max(self.ready_ns[follower], now)
            if not self.waiting_for[follower]:
                heapq.heappush(self.events, (self.ready_ns[follower], follower))

    def _start(self, now: int, touched: set[tuple[Hashable, ...]], *, lasting: bool) -> None:
        """Start what can start, the first of those that wait for the same things first."""
        able = self._find_able(touched, lasting=lasting)
        while able:
            (_, _, number), key = min(able, key=lambda pair: pair[0])
            heapq.heappop(self.queues[key])
            task = self.tasks[number]
            self.at_once -= not task.length_ns
            if number not in self.paused_ns:
                task.start_ns, task.turn = now, self.started
                self.started += 1
            elif pause := now - (since := self.paused_ns.pop(number)):
                rounds = self._rounds(task, since)
                if task.pauses and task.pauses[-1][0] == rounds:
                    pause += task.pauses.pop()[1]
                task.pauses.append((rounds, pause))
            self.busy.update(dict.fromkeys(key, number))
            self._end_at(number, task.end_ns)
            if self.some_pause or not key:
                able = self._find_able(touched, lasting=lasting)
            else:
                able = [pair for pair in able if self.busy.keys().isdisjoint(pair[1])]

    def _find_able(
        self, touched: set[tuple[Hashable, ...]], *, lasting: bool
    ) -> list[tuple[tuple[int, int, int], tuple[Hashable, ...]]]:
        """Return the first of those that wait for the same things, each with these, if free."""
        return [
            (queue[0], key)
            for key in touched
            if (queue := self.queues[key])
            and self.busy.keys().isdisjoint(key)
            and (lasting or not self.tasks[queue[0][2]].length_ns)
            and not (self.some_pause and self._stays_paused(key))
        ]

    def _end_at(self, number: int, end: int) -> None:
        self.ends_ns[number] = end
        heapq.heappush(self.events, (end, number))

    def _rounds(self, task: Task, now: int) -> int:
        """Return how many rounds of a task have begun before now, at least one."""
        worked = now - task.start_ns - sum(pause for _, pause in task.pauses)
        return max(1, -(-worked // task.round_ns))

    def _make_room(self, now: int, touched: set[tuple[Hashable, ...]]) -> None:
        """Let tasks pause behind their round for more urgent ones that wait for nothing else."""
        for key in touched:
            for number in self._giving_way(key):
                task = self.tasks[number]
                pauses = sum(pause for _, pause in task.pauses)
                end = task.start_ns + pauses + self._rounds(task, now) * task.round_ns
                if end < self.ends_ns[number]:
                    self._end_at(number, end)

    def _giving_way(self, key: tuple[Hashable, ...]) -> set[int]:
        """Return what has the resources that a task waits for, if all of it gives way to that."""
        if not self.queues[key]:
            return set()
        holders = {self.busy[resource] for resource in key if resource in self.busy}
        for task in map(self.tasks.__getitem__, holders):
            if not task.round_ns or task.priority <= self.queues[key][0][0]:
                return set()
        return holders

    def _stays_paused(self, key: tuple[Hashable, ...]) -> bool:
        """Whether a task has paused for another one, for which others have to pause as well."""
        return self.queues[key][0][2] in self.paused_ns and any(
            self._giving_way(other) for resource in key for other in self.users[resource]
        )
