"""Retiming: index shifts without whole periods in which micro-batches wait for nothing.

A search may leave periods between an operation and the next of its micro-batch, where memory does
not care. They make the warm-up long and gain nothing. As in the retiming of circuits (Leiserson and
Saxe 1991) everything keeps its place in the period; only how many periods lie between changes.
"""

from __future__ import annotations

from dataclasses import replace

from schedopt.account.timeline import Timeline
from schedopt.plan import Operation, Plan, Transfer, count_from_first_backward


def compress_shifts(plan: Plan) -> Plan:
    """Return the plan with everything where it is in the period, and fewer periods between.

    From the forward of the last stage outwards, backwards, W and gradients take the earliest run
    that comes in time, forwards and activations the latest, and a recompute the latest before its
    backward. So nothing is kept for longer. Takes time linear in the operations and transfers.

    Parameters
    ----------
    plan : Plan
        With one GPU for each stage, one micro-batch for each operation and transfer, and no
        updates.
    """
    k, period = plan.pattern.k, plan.pattern.period_total_ns
    moved: dict[Operation | Transfer, int] = {}
    timeline = Timeline(plan)
    for micro_batch in range(k):
        _MicroBatch(timeline, micro_batch).move(moved)
    operations = [replace(o, shift=o.shift - k * moved[o]) for o in plan.pattern.operations]
    transfers = [replace(t, shift=t.shift - k * moved[t]) for t in plan.pattern.transfers]
    return replace(plan, pattern=count_from_first_backward(operations, transfers, k, period))


class _MicroBatch:
    """The items of one micro-batch, whose starts move by whole periods."""

    def __init__(self, timeline: Timeline, micro_batch: int) -> None:
        self.plan = plan = timeline.plan
        self.period = plan.pattern.period_total_ns
        self.items: dict[tuple[str, int], Operation | Transfer] = {}
        self.begin: dict[tuple[str, int], int] = {}
        self.length: dict[tuple[str, int], int] = {}
        for operation in plan.pattern.operations:
            if (operation.shift - micro_batch) % plan.pattern.k == 0:
                key: tuple[str, int] = (operation.kind, operation.stage)
                gpu = plan.stages[operation.stage].gpus[0]
                self.items[key] = operation
                self.begin[key] = timeline.start_ns(operation, micro_batch)
                self.length[key] = timeline.stage_ns(operation.kind, operation.stage, gpu)
        for transfer in plan.pattern.transfers:
            if (transfer.shift - micro_batch) % plan.pattern.k == 0:
                key = (transfer.tensor, transfer.stage)
                self.items[key] = transfer
                self.begin[key] = timeline.start_ns(transfer, micro_batch)
                self.length[key] = timeline.transfer_ns(transfer, micro_batch)

    def move(self, moved: dict[Operation | Transfer, int]) -> None:
        """Say by how many periods each item starts later than before."""
        before = dict(self.begin)
        last = len(self.plan.stages) - 1
        arrives = self._end("F", last)
        for stage in reversed(range(last + 1)):
            begins = self._backward(stage, arrives, is_last=stage == last)
            if stage < last:
                begins = min(begins, self._latest("activation", stage, self.begin["F", stage + 1]))
                self._latest("F", stage, begins)
            arrives = self._earliest("gradient", stage - 1, self._back(stage))
        for key, item in self.items.items():
            moved[item] = (self.begin[key] - before[key]) // self.period

    def _backward(self, stage: int, arrives: int, *, is_last: bool) -> int:
        """Move what is behind the forward, and return what the forward must come before."""
        if is_last:
            arrives = self._earliest("R", stage, arrives)
        back = "I" if ("I", stage) in self.items else "B"
        self._earliest(back, stage, arrives)
        self._earliest("W", stage, self._back(stage))
        return self._latest("R", stage, self.begin[back, stage])

    def _back(self, stage: int) -> int:
        """Return when the backward of a stage has its gradient."""
        return self._end("I" if ("I", stage) in self.items else "B", stage)

    def _end(self, what: str, stage: int) -> int:
        return self.begin[what, stage] + self.length[what, stage]

    def _earliest(self, what: str, stage: int, time: int) -> int:
        """Let something start from a time on, in the earliest period; return when it ends."""
        key = (what, stage)
        if key not in self.items:
            return time
        self.begin[key] = time + (self.begin[key] - time) % self.period
        return self._end(what, stage)

    def _latest(self, what: str, stage: int, time: int) -> int:
        """Let something end by a time, in the latest period; return when it starts."""
        key = (what, stage)
        if key not in self.items:
            return time
        latest = time - self.length[key]
        self.begin[key] = latest - (latest - self.begin[key]) % self.period
        return self.begin[key]
