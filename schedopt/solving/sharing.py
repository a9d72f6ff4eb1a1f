"""Patterns of contiguous stages that use a link together at several cuts.

1F1B* orders what shares a GPU or the link of one cut. Where the ways of two cuts have a hop in
common its transfers may meet there; its period is then a bound only. A placement that looks at
every hop takes its place: from the last stage to the first each backward at the earliest and each
forward at the latest time modulo T at which all that it occupies is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from schedopt.checking import check
from schedopt.network import Resource
from schedopt.plan import Plan
from schedopt.problem import Scope
from schedopt.solving.run import Run
from schedopt.solving.stage_chain import Begins, StageChain


def best_plan(chain: StageChain, period: int, run: Run) -> Plan | None:
    """Return a plan of stages that fit a period, at that period wherever no link is shared.

    Else at the shortest period found, by bisection, up to the one that is asked for. None if
    there is none.
    """
    low = period
    best = plan_at(chain, period)
    if best is not None:
        return best
    high = chain.problem.scope.period_ns or chain.longest_period()
    if high > low:
        best = plan_at(chain, high)
    while best is not None and low < high - 1 and not run.stopped():
        middle = (low + high) // 2
        found = plan_at(chain, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def plan_at(chain: StageChain, period: int) -> Plan | None:
    """Return a plan of stages that fit a period, or None if none was found."""
    if not chain.shares_links:
        return chain.plan(period)
    chosen = chain.choose(period) if chain.free else chain
    if chosen is None:
        return None
    if _is_valid(plan := chosen.plan(period)):
        return plan
    begins = _place(chosen, period)
    if begins is not None and _is_valid(plan := chosen.plan_of(begins, period)):
        return plan
    return None


def _is_valid(plan: Plan) -> bool:
    """Whether a plan is valid, whatever was asked for."""
    memory = plan.scope.memory
    scope = Scope(allocation="general", max_k=None, memory=memory, recompute=True)
    return not check(replace(plan, scope=scope, stages=plan.stages))


def _place(chain: StageChain, period: int) -> list[Begins] | None:
    """Return when each item begins, none while what it occupies is busy; None if it does not fit.

    The earliest forward may begin before 0.
    """
    table = _Timetable(period)
    found: list[Begins] = []
    last = chain.items[-1]
    due, ready = last.forward_ns, last.forward_ns + last.again_ns
    for place in reversed(range(len(chain.items))):
        item = chain.items[place]
        there, back = chain.occupied(place)
        backward = table.earliest(back, ready, item.backward_ns)
        again = None if backward is None else table.latest(back, backward, item.again_ns)
        if backward is None or again is None:
            return None
        if item.again_ns:
            due = min(due, again)
        forward = table.latest(there, due, item.forward_ns)
        if forward is None:
            return None
        found.append(Begins(forward, backward, again))
        due, ready = forward, backward + item.backward_ns
    return found[::-1]


class _Timetable:
    """What occupies GPUs and links, modulo a period."""

    def __init__(self, period: int) -> None:
        self.period = period
        self.taken: dict[Resource, list[tuple[int, int]]] = defaultdict(list)

    def earliest(self, resources: Sequence[Resource], ready: int, length: int) -> int | None:
        """Take the first time from one on, and return its start; None if there is none."""
        ends = {(begin + lasts) for one in resources for begin, lasts in self.taken[one]}
        starts = {ready, *(ready + (end - ready) % self.period for end in ends)}
        return self._take(resources, sorted(starts), length)

    def latest(self, resources: Sequence[Resource], due: int, length: int) -> int | None:
        """Take the last time that ends by one, and return its start; None if there is none."""
        begins = {begin for one in resources for begin, _ in self.taken[one]}
        ends = {due, *(due - (due - begin) % self.period for begin in begins)}
        starts = sorted((end - length for end in ends), reverse=True)
        return self._take(resources, starts, length)

    def _take(
        self, resources: Sequence[Resource], starts: Sequence[int], length: int
    ) -> int | None:
        for start in starts:
            if all(self._is_free(resource, start, length) for resource in resources):
                for resource in resources:
                    self.taken[resource].append((start, length))
                return start
        return None

    def _is_free(self, resource: Resource, start: int, length: int) -> bool:
        if length > self.period:
            return False
        for begin, lasts in self.taken[resource]:
            apart = (start - begin) % self.period
            meet = apart < lasts or apart + length > self.period
            if meet and not (apart == 0 and 0 in (length, lasts)):
                return False
        return True
