"""Work in a pool: what waits, what runs, and what happens when a process is lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Final, Generic, TypeVar

from schedopt.errors import InputError
from schedopt.interrupts import broken_pipes_as_errors, interrupts
from schedopt.sweeping.pools import Pool

Item = TypeVar("Item", bound=Hashable)
Task = TypeVar("Task")
Answer = TypeVar("Answer")

LOOK_S: Final = 0.2
"""How often to check for a request to stop, seconds."""


class Queue(Generic[Item, Task, Answer]):
    """Items to do, those that run, and those that are suspected of ending their process.

    When a process ends without an answer, each item that ran then is suspected, and tried again
    while nothing else runs; so none is given up for the fault of another.

    `task` makes a task of an item when its turn comes, `work` an answer of it in another process,
    and `keep` is called with each answer. `on_item` hears how many are done, of how many, and which
    runs (its `str`); `done` were done before. Of `given_up` items each process ended before it had
    an answer.
    """

    def __init__(
        self,
        items: Iterable[Item],
        pool: Pool,
        work: Callable[[Task], Answer],
        *,
        task: Callable[[Item], Task],
        keep: Callable[[Answer], None],
        on_item: Callable[[int, int, str], None],
        done: int,
    ) -> None:
        self.pool, self.work, self.task = pool, work, task
        self.keep, self.on_item, self.done = keep, on_item, done
        self.to_do = deque(items)
        self.total = done + len(self.to_do)
        self.suspects: deque[Item] = deque()
        self.alone = False
        self.ends: Counter[Item] = Counter()
        self.given_up: list[Item] = []
        self.runs: dict[Future[Answer], Item] = {}

    def go(self) -> bool:
        """Do all items; False if Ctrl-C, or a request to end, left some undone.

        Raises
        ------
        InputError
            If an item cannot be asked, or a cluster is gone. What was done is kept.
        """
        if not self.to_do:
            return True
        with interrupts() as interrupted, broken_pipes_as_errors(), self.pool:
            while not interrupted() and self._has_more():
                self._fill()
                for future in wait(self.runs, LOOK_S, FIRST_COMPLETED).done:
                    if future in self.runs and not interrupted():
                        self._take(future)
            return not self._has_more()

    def _has_more(self) -> bool:
        return bool(self.to_do or self.suspects or self.runs)

    def _fill(self) -> None:
        if not self.runs:
            self.alone = bool(self.suspects)
            if self.alone:
                self._submit_first(self.suspects)
        while self.to_do and not self.alone and not self.suspects and self._has_room():
            if not self._submit_first(self.to_do):
                return

    def _has_room(self) -> bool:
        return len(self.runs) < self.pool.slots()

    def _submit_first(self, items: deque[Item]) -> bool:
        """Have the first item of a queue done; not if a process was lost meanwhile."""
        try:
            future = self.pool.submit(self.work, self.task(items[0]))
        except self.pool.lost:
            if not self.runs:
                self.pool.renew()
            return False
        item = self.runs[future] = items.popleft()
        self.on_item(self.done, self.total, str(item))
        return True

    def _take(self, future: Future[Answer]) -> None:
        try:
            answer = future.result()
        except self.pool.lost:
            item = self.runs.pop(future)
            self.ends[item] += self.alone
            again = self.ends[item] < self.pool.tries
            (self.suspects if again else self.given_up).append(item)
            return
        except CancelledError:
            raise InputError(
                "the connection to the cluster is lost",
                field="dask",
                way_out="What is done is kept: start again to go on",
            ) from None
        except InputError as error:
            item = self.runs[future]
            raise InputError(
                f"{error.rule} ({item})", field=error.field, way_out=error.way_out
            ) from None
        item = self.runs.pop(future)
        self.keep(answer)
        self.done += 1
        self.on_item(self.done, self.total, str(item))
