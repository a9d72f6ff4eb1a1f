"""The best plan of all allocations of a short chain, proven by CP-SAT.

Allocation and pattern at once: the order model of `schedopt.solving.models` decides whether a
period T is possible, with any layer on any GPU; T is bisected for one k after the other. Where a
chain keeps nothing for a micro-batch, orders do not matter, and longer chains are possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schedopt.bounds.load import longest_layer_ns
from schedopt.errors import InputError
from schedopt.interrupts import never_stop
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.solvers import contiguous
from schedopt.solving.models.any_allocation import AnyAllocation
from schedopt.solving.models.domains import shows_peak
from schedopt.solving.models.load_relaxation import LoadRelaxation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pattern_search import LONGEST, AllocationSearch, require_search
from schedopt.solving.models.slots import SlotGraph, Slots
from schedopt.solving.requirements import keeps_nothing, most_places, refuse_unsupported
from schedopt.solving.run import Run

PROOF: Final = Proof(ProofKind.ALLOCATIONS)
PROOF_WITHOUT_ORDERS: Final = Proof(ProofKind.ALLOCATIONS_WITHOUT_ORDERS)


def solve(problem: Problem, run: Run) -> None:
    """Scan k and report the best plan with its proof, from the best plan so far.

    Plans fit in the reading of memory that is asked; so does what is proven, but of *sum* where
    bytes may come and go at one instant, as operations take no time.

    Raises
    ------
    InputError
        If the allocation is not free, a rule with updates or a finite step is asked for, links
        differ, or there are too many layers and GPUs.
    """
    refuse_unsupported(problem, "general_cpsat")
    if problem.scope.allocation != "general":
        raise InputError(
            "general_cpsat looks for any allocation",
            field="solver",
            way_out='Ask for one (Scope(allocation="general")), or use contiguous_cpsat',
        )
    require_search(problem, "general_cpsat", most_places(problem), "general and periodic")
    if run.best() is None and problem.scope.period_ns is None:
        contiguous.solve(problem, run)
    search = _search(problem)
    search.solve(run)
    search.report_bounds(run)


def _search(problem: Problem) -> AllocationSearch:
    without_orders = keeps_nothing(problem)
    proven = Scope(
        allocation="general",
        max_k=_proven_k(problem, without_orders),
        grain="layer",
        memory="peak" if without_orders or shows_peak(problem) else "sum",
        split_backward=problem.scope.split_backward,
        recompute=problem.scope.recompute,
        gpu_order="any",
    )
    return AllocationSearch(
        Slots(problem, anywhere=True),
        _without_orders if without_orders else general_model,
        proven,
        PROOF_WITHOUT_ORDERS if without_orders else PROOF,
    )


def general_model(
    graph: SlotGraph, period_ns: int, stopped: Callable[[], bool] = never_stop
) -> OrderModel:
    """Return the model of all allocations and their orders at a period."""
    return OrderModel(AnyAllocation(graph), graph.domains.k, period_ns, stopped=stopped)


def _without_orders(
    graph: SlotGraph, period_ns: int, stopped: Callable[[], bool]
) -> LoadRelaxation:
    """Return the model without orders, which is built at once."""
    return LoadRelaxation(graph, period_ns)


def _proven_k(problem: Problem, without_orders: bool) -> int | None:
    """Return the longest pattern that is spoken of; None: any.

    What does its work without a break gains nothing by k > 1. If that takes no time, a pattern
    takes 1 ns all the same, and T / k is less for longer ones.
    """
    if not without_orders:
        return problem.scope.max_k or LONGEST
    return None if longest_layer_ns(problem) else 1
