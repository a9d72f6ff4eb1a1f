"""Patterns of contiguous stages that use a link together at several cuts.

1F1B* orders what shares a GPU or the link of one cut. Where the ways of two cuts have a hop in
common its transfers may meet there; its period is then a bound only. A placement that looks at
every hop takes its place: from the last stage to the first each backward at the earliest and each
forward at the latest time modulo T at which all that it occupies is free.
"""

from __future__ import annotations

from dataclasses import replace

from schedopt.plan import Plan
from schedopt.problem import Scope
from schedopt.solving.circular import Calendar
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.run import Run
from schedopt.solving.stage_chain import ItemStarts, StageChain


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
        shorter = plan_at(chain, middle)
        if shorter is None:
            low = middle
        else:
            best, high = shorter, middle
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
    starts = _place(chosen, period)
    if starts is not None and _is_valid(plan := chosen.plan_from(starts, period)):
        return plan
    return None


def _is_valid(plan: Plan) -> bool:
    """Whether a plan is valid in the widest scope."""
    memory = plan.scope.memory
    scope = Scope(allocation="general", max_k=None, memory=memory, recompute=True)
    return not check_sent_late(replace(plan, scope=scope, stages=plan.stages))[1]


def _place(chain: StageChain, period: int) -> list[ItemStarts] | None:
    """Return when each item starts, none while what it occupies is busy; None if it does not fit.

    The earliest forward may begin before 0.
    """
    calendar = Calendar(period)
    starts: list[ItemStarts] = []
    last = chain.items[-1]
    due, ready = last.forward_ns, last.forward_ns + last.recompute_ns
    for place in reversed(range(len(chain.items))):
        item = chain.items[place]
        there, back = chain.occupied(place)
        backward = calendar.take_earliest(back, ready, item.backward_ns)
        if backward is None:
            return None
        recompute = calendar.take_latest(back, backward, item.recompute_ns)
        if recompute is None:
            return None
        if item.recompute_ns:
            due = min(due, recompute)
        forward = calendar.take_latest(there, due, item.forward_ns)
        if forward is None:
            return None
        starts.append(ItemStarts(forward, backward, recompute))
        due, ready = forward, backward + item.backward_ns
    return starts[::-1]
