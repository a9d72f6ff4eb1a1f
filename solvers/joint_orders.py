"""Allocations whose GPUs have orders that agree, and plans of these: a question of `relaxation`."""

from __future__ import annotations

from math import ceil, comb, floor
from typing import TYPE_CHECKING, Final

from schedopt.bounds.instants import have_instants
from schedopt.problem import Problem
from schedopt.solvers.periodic import plan_within
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from schedopt.bounds.propagation import ForcedWork

MOST_SETS: Final = 1 << 16
"""Of as many layers as a GPU has on average; where there are more, none are looked at."""


def rooms_of_orders(problem: Problem) -> tuple[str, ...]:
    """Return the rooms of `schedopt.solving` that speak of a problem, of those about orders.

    All need whole backwards without recompute; what looks at all GPUs also k = 1, and few layers on
    each.
    """
    scope, layers = problem.scope, len(problem.chain.layers)
    if not have_instants(scope) or scope.recompute or scope.split_backward:
        return ()
    few = comb(layers, ceil(layers / len(problem.platform.gpus))) <= MOST_SETS
    return ("one_gpu", "all_gpus") if few and scope.max_k == 1 else ("one_gpu",)


def find_joint(
    forced: ForcedWork, run: Run, most_work: float, *, with_plan: bool
) -> tuple[Stage, ...] | None:
    """Return an allocation whose GPUs have orders that agree; `with_plan` reports a plan of it.

    It is empty if there is none, so that the period is refuted; None if that is not known.

    Raises
    ------
    Stopped
        When the run is stopped.
    """
    from schedopt.solving.all_gpus.allocations import Allocations, as_stages
    from schedopt.solving.one_gpu.columns import GpuOrders
    from schedopt.solving.packing_columns import UNITS, GpuLimits

    limits = GpuLimits.of(forced)
    if forced.instants is None or not limits.are_few():
        return None
    orders = GpuOrders(forced, limits.sizes, UNITS, limits.apart, run.stopped)
    holds = Allocations(forced, orders, run.stopped).find(most_work)
    if holds is None or not len(holds):
        return None if holds is None else ()
    stages = as_stages(holds)
    if with_plan:
        period = floor(forced.scaled.period)
        plan = plan_within(forced.scaled.problem, stages, period, run)
        if plan is not None:
            run.report_if_valid(plan)
    return stages
