"""Allocations whose GPUs have orders that agree, and plans of these: questions of `relaxation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil, comb, floor
from typing import TYPE_CHECKING, Final

from schedopt.bounds.instants import have_instants
from schedopt.bounds.load import load_bound
from schedopt.bounds.propagation import propagate
from schedopt.problem import Problem
from schedopt.solving.all_gpus import MOST_LAYERS
from schedopt.solving.run import Run
from schedopt.stage import Stage

if TYPE_CHECKING:
    from numpy.random import Generator

    from schedopt.bounds.amounts import Amounts
    from schedopt.bounds.propagation import ForcedWork
    from schedopt.solving.all_gpus.allocations import Allocations
    from schedopt.solving.all_gpus.nearby import Nearby
    from schedopt.solving.packing_columns import Flags

MOST_SETS: Final = 1 << 31
"""Of as many layers as a GPU has on average, times 2 for each of these, as more take longer.

Where there are more, only what GPUs hold in parts is looked at.
"""
QUICK_SETS: Final = 1 << 24
"""Where there are more, allocations near the best plan are looked at first."""
LIGHTEST: Final = 0.95
"""Where there are more than `QUICK_SETS`, what those of an allocation weigh at least, of the most.

Too many are lighter than that.
"""
LISTED_SETS: Final = 1 << 17
"""Where there are more, those are listed alone that weigh enough."""
AROUND: Final = Fraction(1, 100)
"""By how much longer than that of the best plan the period of allocations near it may be."""
FEW_LAYERS: Final = 24
"""Up to so many of a chain, one that changes GPUs changes the period by much."""
AROUND_FEW: Final = Fraction(8, 100)
"""As `AROUND`, where layers are few."""
BUSY: Final = Fraction(3, 4)
"""Of the period of the best plan, that GPUs work at least, on average, where layers are many, so
that allocations near it are looked at in place of all."""
FIRST_STEP: Final = Fraction(1, 100)
"""By how much shorter a period is that is looked for first."""
LEAST_WORK: Final = 1.0
"""On each of these periods, in the unit of `solve_model`."""
MOST_FAILURES: Final = 2
"""Periods for which nothing is found, after which a round ends."""


def rooms_of_orders(problem: Problem) -> tuple[str, ...]:
    """Return the rooms of `schedopt.solving` that speak of a problem, of those about orders.

    All need whole backwards without recompute. What looks at all GPUs finds plans for k = 1 alone;
    for k = 2 it looks at whole allocations where they are few.
    """
    scope = problem.scope
    if not have_instants(scope) or scope.recompute or scope.split_backward:
        return ()
    few = len(problem.chain.layers) <= MOST_LAYERS
    joint = few and (scope.max_k == 1 or are_few_sets(problem))
    return ("one_gpu", "all_gpus") if joint else ("one_gpu",)


def are_few_sets(problem: Problem, most: int = MOST_SETS) -> bool:
    """Whether there are at most so many sets of layers for a GPU: see `MOST_SETS`."""
    layers, gpus = len(problem.chain.layers), len(problem.platform.gpus)
    held = ceil(layers / gpus)
    return comb(layers, held) << held <= most


def looks_at_allocations(problem: Problem) -> bool:
    """Whether whole allocations are looked at, which come with plans for k = 1."""
    return "all_gpus" in rooms_of_orders(problem) and are_few_sets(problem)


def is_busy(problem: Problem, run: Run) -> bool:
    """Whether GPUs work for nearly all of the best period, so that orders rule out little."""
    best = run.period()
    return best is not None and load_bound(problem).period >= BUSY * best


def find_joint(
    problem: Problem,
    forced: ForcedWork,
    run: Run,
    most_work: float,
    known: list[Flags],
    *,
    with_plan: bool,
) -> tuple[Stage, ...] | None:
    """Return an allocation whose GPUs have orders that agree, for k up to 2.

    It is empty if there is none, so that the period is refuted; None if that is not known.
    `with_plan` reports a plan of it, for k = 1. What is known of columns is left in `known`, for
    another period.

    Raises
    ------
    Stopped
        When the run is stopped.
    """
    from schedopt.solving.all_gpus.allocations import Allocations, as_stages
    from schedopt.solving.one_gpu.columns import GpuOrders
    from schedopt.solving.packing_columns import UNITS, GpuLimits, PackingColumns

    limits = GpuLimits.of(forced)
    if forced.instants is None or not limits.are_few():
        return None
    orders = GpuOrders(forced, limits.sizes, UNITS, limits.apart, run.stopped)
    columns = None
    if not are_few_sets(problem, LISTED_SETS):
        columns = PackingColumns(limits, len(problem.platform.gpus), run, known, orders)
    allocations = Allocations(forced, orders, run.stopped, columns)
    lightest = LIGHTEST if are_few_sets(problem) else 1.0
    holds = allocations.find(most_work, 0.0 if are_few_sets(problem, QUICK_SETS) else lightest)
    if columns is not None:
        known[:] = columns.columns
    if holds is None or not len(holds):
        return None if holds is None else ()
    if with_plan and problem.scope.max_k == 1:
        _report_plan(problem, allocations, run)
    return as_stages(holds)


def shorten(
    problem: Problem, amounts: Amounts, run: Run, most_work: float, draw: Generator
) -> Iterator[tuple[Fraction, Callable[[ForcedWork], bool]]]:
    """Yield periods below that of the best plan, with what looks for allocations near it.

    It reports plans of these, and refutes nothing. Steps are doubled after a plan, else halved.
    Where many layers leave GPUs idle for long, as with tight memory, little was found, and bounds
    need the time.
    """
    few = len(problem.chain.layers) <= FEW_LAYERS
    around, step, left = AROUND_FEW if few else AROUND, FIRST_STEP, MOST_FAILURES
    while left and (before := run.period()) is not None and (few or is_busy(problem, run)):
        period = Fraction(floor(before * (1 - step)))
        bound = run.bound(problem.scope)
        if period < max(1, bound or 1):
            return

        def look(forced: ForcedWork, longest: Fraction = before * (1 + around)) -> bool:
            _look_nearby(problem, propagate(amounts, longest), forced, run, most_work, draw)
            return False

        yield period, look
        is_shorter = run.period() != before
        step *= 2 if is_shorter else Fraction(1, 2)
        left -= not is_shorter


def _look_nearby(
    problem: Problem,
    around: ForcedWork | None,
    forced: ForcedWork,
    run: Run,
    most_work: float,
    draw: Generator,
) -> None:
    """Report a plan for a period if one is found of an allocation near that of the best plan."""
    from schedopt.solving.all_gpus.nearby import Nearby
    from schedopt.solving.packing_columns import GpuLimits

    best = run.best()
    if best is None or around is None or around.instants is None or forced.instants is None:
        return
    if GpuLimits.of(around).are_few():
        nearby = Nearby(around, forced, best.stages, draw, run.stopped)
        if nearby.find(max(LEAST_WORK, most_work)) is not None:
            _report_plan(problem, nearby, run)


def _report_plan(problem: Problem, found: Allocations | Nearby, run: Run) -> None:
    """Report the plan of what was found last, if it fits: orders are rounded.

    Where layers can be joined, the plan with fewer stages is reported too: it may need more memory.
    """
    from schedopt.solving.all_gpus.layout import join_stages, lay_out, read_order

    order = read_order(found.data, found.scratch)
    joined = join_stages(order)
    for each in (order, joined) if joined != order else (order,):
        plan = lay_out(problem, each)
        if plan is not None:
            run.report_if_valid(plan)
