"""The best contiguous k-periodic plan, proven by CP-SAT: allocation and pattern at once.

The order model of `schedopt.solving.models`, with the allocation as a part of it, decides whether a
period T is possible; T is bisected for one k after the other. What load and memory alone do not
allow is left out of the model, and often nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schedopt.errors import InputError
from schedopt.interrupts import never_stop
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.solving.models.contiguous_allocation import ContiguousAllocation
from schedopt.solving.models.domains import shows_peak, slots_show_peak
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pattern_search import LONGEST, AllocationSearch, require_search
from schedopt.solving.models.pipeline import covers_grain
from schedopt.solving.models.slots import SlotGraph, Slots
from schedopt.solving.requirements import refuse_unsupported
from schedopt.solving.run import Run

MOST_PLACES: Final = 4096
"""Layers times GPUs, of which the models take seconds to be made."""
PROOF: Final = Proof(ProofKind.CONTIGUOUS_ALLOCATIONS)


def solve(problem: Problem, run: Run) -> None:
    """Scan k and report the best plan with its proof.

    Raises
    ------
    InputError
        If the scope is not contiguous, a rule with updates or a finite step is asked for, or there
        are too many layers and GPUs.
    """
    refuse_unsupported(problem, "contiguous_cpsat")
    if problem.scope.allocation != "contiguous":
        raise InputError(
            "contiguous_cpsat looks for contiguous allocations",
            field="solver",
            way_out="Ask for a contiguous allocation, or use periodic",
        )
    require_search(problem, "contiguous_cpsat", MOST_PLACES, "contiguous and periodic")
    search = _search(problem)
    search.solve(run)
    if covers_grain(problem):
        search.report_bounds(run)


def _search(problem: Problem) -> AllocationSearch:
    scope = problem.scope
    # One kind of memory alone is the same in both readings.
    alike = not scope.split_backward and not scope.recompute and scope.grain == "stage"
    shows = slots_show_peak if scope.grain == "stage" else shows_peak
    proven = Scope(
        grain=scope.grain,
        max_k=scope.max_k or LONGEST,
        memory="peak" if alike or shows(problem) else "sum",
        split_backward=scope.split_backward,
        recompute=scope.recompute,
        gpu_order="any" if problem.platform.uniform else "given",
    )
    return AllocationSearch(Slots(problem), contiguous_model, proven, PROOF)


def contiguous_model(
    graph: SlotGraph, period_ns: int, stopped: Callable[[], bool] = never_stop
) -> OrderModel:
    """Return the model of contiguous allocations and their orders at a period."""
    return OrderModel(ContiguousAllocation(graph), graph.domains.k, period_ns, stopped=stopped)
