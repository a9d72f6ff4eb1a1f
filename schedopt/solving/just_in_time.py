"""Starts at which less comes before it is read, in the order that a plan has.

What operations keep depends on their order on their own GPU alone, and does not change. With the
order on each GPU and each link given, starts are bound by differences: where a transfer is asked to
end when its reader starts, all that must be later for it is found as a longest path.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from schedopt.account.receiving import maker_of, reader_of
from schedopt.account.timeline import Interval, Timeline
from schedopt.network import Resource
from schedopt.plan import Operation, Plan, Transfer, count_from_first_backward, place_in_period

MOST_ITEMS: Final = 2048
"""More take too long."""

_Key = tuple[str, int, int]
"""Kind or tensor, stage and micro-batch, below k."""


def meet_readers(plan: Plan, gpus: Collection[int]) -> Plan:
    """Return the plan with as much as possible just in time that comes to some GPUs.

    One tensor after the other, the largest first. What comes to other GPUs may wait for longer.

    Parameters
    ----------
    plan : Plan
        Valid, but perhaps for its memory.
    gpus : collection of int

    Returns
    -------
    Plan
        As it is, if it has replicas, a fold, items for several micro-batches, or updates.
    """
    items = plan.pattern.items
    if (
        len(items) > MOST_ITEMS
        or not plan.rule.is_given
        or any(item.covers > 1 for item in items)
        or plan.pattern.is_short
        or any(len(stage.gpus) > 1 for stage in plan.stages)
    ):
        return plan
    starts = _Starts(plan)
    early = [sent for sent in starts.sent if starts.run[sent].gpu in gpus]
    for sent in sorted(early, key=lambda key: -starts.count[key]):
        starts.meet(sent)
    return starts.plan()


class _Starts:
    """Absolute starts of all items of a period, and by how much one is at least behind another."""

    def __init__(self, given: Plan) -> None:
        self.given = given
        timeline, k = Timeline(given), given.pattern.k
        self.period = given.pattern.period_total_ns
        self.item: dict[_Key, Operation | Transfer] = {}
        self.run: dict[_Key, Interval] = {}
        self.count: dict[_Key, int] = {}
        self.reader: dict[_Key, _Key] = {}
        self.behind: dict[_Key, list[tuple[_Key, int]]] = defaultdict(list)
        users: dict[Resource, list[_Key]] = defaultdict(list)
        for operation, i, run in timeline.operations():
            key: _Key = (operation.kind, operation.stage, i % k)
            self.item[key], self.run[key] = operation, run
            users["gpu", run.gpu, run.gpu].append(key)
        for transfer, i, source, count, run in timeline.transfers():
            key = (transfer.tensor, transfer.stage, i % k)
            self.item[key], self.run[key], self.count[key] = transfer, run, count
            self.reader[key] = (*reader_of(timeline, transfer), i % k)
            self._follow((*maker_of(timeline, transfer), i % k), key)
            self._follow(key, self.reader[key])
            again = ("R", transfer.stage, i % k)
            if transfer.tensor == "gradient" and given.scope.engine and again in self.run:
                # Engines recompute inside the backward.
                self._follow(key, again)
            for resource in timeline.route(transfer, source, run.gpu):
                users[resource].append(key)
        for micro_batch in range(k):
            path = [*self._path(micro_batch)]
            for before, after in path:
                self._follow(before, after)
        for keys in users.values():
            self._take_turns(keys)
        self.start = {key: run.start_ns for key, run in self.run.items()}

    @property
    def sent(self) -> list[_Key]:
        """What transfers carry."""
        return [*self.reader]

    def _follow(self, before: _Key, after: _Key, periods: int = 0) -> None:
        """Let something start behind the end of something, some periods earlier."""
        run = self.run[before]
        least = run.end_ns - run.start_ns + periods * self.period
        self.behind[before].append((after, least))

    def _path(self, i: int) -> Iterator[tuple[_Key, _Key]]:
        """Yield what needs the result of what, of a micro-batch; transfers left out."""
        stages = range(len(self.given.stages))
        for stage in stages:
            back = ("I" if ("I", stage, i) in self.run else "B", stage, i)
            yield ("F", stage, i), back
            if stage:
                yield ("F", stage - 1, i), ("F", stage, i)
                before = ("I" if ("I", stage - 1, i) in self.run else "B", stage - 1, i)
                yield back, before
            if ("R", stage, i) in self.run:
                yield ("F", stage, i), ("R", stage, i)
                yield ("R", stage, i), back
                if self.given.scope.engine and stage + 1 < len(stages):
                    yield ("B", stage + 1, i), ("R", stage, i)
            if back[0] == "I":
                yield back, ("W", stage, i)

    def _take_turns(self, keys: list[_Key]) -> None:
        """Let what uses one resource keep its order, around the period."""
        period = self.period

        def place(key: _Key) -> tuple[int, int]:
            run = self.run[key]
            return run.start_ns % period, run.end_ns - run.start_ns

        keys = sorted(keys, key=place)
        turn = {key: self.run[key].start_ns // period for key in keys}
        for before, after in pairwise(keys):
            self._follow(before, after, turn[after] - turn[before])
        self._follow(keys[-1], keys[0], turn[keys[0]] - turn[keys[-1]] - 1)

    def meet(self, sent: _Key) -> None:
        """Let something end when its reader starts, if it can: else all stays as it is."""
        run, reader = self.run[sent], self.reader[sent]
        later = self.start[reader] + run.start_ns - run.end_ns
        found, waiting = {sent: later}, deque([sent])
        while waiting:
            key = waiting.popleft()
            for after, least in self.behind[key]:
                begin = found[key] + least
                if begin > found.get(after, self.start[after]):
                    if after == reader:
                        # It would be later for ever: longer than the transfer lasts is the way
                        # from its start to its reader.
                        return
                    found[after] = begin
                    waiting.append(after)
        self.start |= found
        self.behind[reader].append((sent, run.start_ns - run.end_ns))

    def plan(self) -> Plan:
        """Return the plan with these starts."""
        k, operations, transfers = self.given.pattern.k, [], []
        for key, item in self.item.items():
            begin, shift = place_in_period(self.start[key], key[2], k, self.period)
            if isinstance(item, Operation):
                operations.append(replace(item, start_ns=begin, shift=shift))
            else:
                transfers.append(replace(item, start_ns=begin, shift=shift))
        pattern = count_from_first_backward(operations, transfers, k, self.period)
        return replace(self.given, pattern=pattern)
