"""The answer to one chain of a theorem, with its proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from schedopt.bench.hardness import PACKING
from schedopt.bench.suite import Effort
from schedopt.errors import InvalidPlanError
from schedopt.families.partition import find_triples, wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.interrupts import Stopped, interrupts
from schedopt.solving import solve

BUILT: Final = "a plan of the period, checked, whose groups are a 3-partition"
SEARCHED: Final = {
    "agrees": "; trying all groups agrees",
    "not ended": "; trying all groups did not end in time",
}
PROOF_KINDS: Final = {"yes": "plan", "no": "infeasible", "unknown": None}


@dataclass(frozen=True)
class PartitionAnswer:
    """Whether a chain has a plan of the period of its theorem.

    Parameters
    ----------
    reduction : Reduction
    answer : {"yes", "no", "unknown"}
    proof : str
    seconds : float
        Of the answer, without the search.
    groups : tuple of tuple of int
        Positions of the numbers that lie together, for a yes.
    search : {"agrees", "not ended"} or None
        What an independent search through all groups says where there is no plan.
    """

    reduction: Reduction
    answer: Literal["yes", "no", "unknown"]
    proof: str
    seconds: float
    groups: tuple[tuple[int, ...], ...] = ()
    search: Literal["agrees", "not ended"] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        numbers = self.reduction.numbers
        return {
            "answer": self.answer,
            "proof_kind": PROOF_KINDS[self.answer],
            "proof": self.proof,
            "exhaustive_search": self.search,
            "theorem": self.reduction.theorem,
            "m": self.reduction.m,
            "V": self.reduction.total,
            "numbers": [*numbers],
            "groups": [[numbers[position] for position in group] for group in self.groups],
            "period_ns": self.reduction.period_ns,
            "seconds": self.seconds,
        }


def answer(reduction: Reduction, effort: Effort) -> PartitionAnswer:
    """Return the answer of the special method, compared with a search where it is no.

    The search may take as long as the method.

    Raises
    ------
    InvalidPlanError
        If a plan holds no 3-partition, or the search finds one where there is no plan.
    """
    begin = time.monotonic()
    problem = reduction.problem()
    with interrupts() as interrupted:
        result = solve(
            problem.chain,
            problem.platform,
            scope=problem.scope,
            stages=problem.stages,
            solver=PACKING,
            **effort.options,
        )
        seconds = round(time.monotonic() - begin, 3)
        if result.plan is not None:
            groups = tuple(map(tuple, reduction.groups(result.plan)))
            if wrong := wrong_groups(groups, reduction.numbers):
                raise InvalidPlanError(f"{PACKING}: {wrong}")
            return PartitionAnswer(reduction, "yes", BUILT, seconds, groups)
        if result.infeasibility is None:
            none = "none was found before the end"
            return PartitionAnswer(reduction, "unknown", none, seconds)
        until = time.monotonic() + effort.time_limit
        search: Literal["agrees", "not ended"] = "agrees"
        try:
            if find_triples(reduction.numbers, lambda: interrupted() or time.monotonic() > until):
                raise InvalidPlanError(f"{PACKING}: no plan, and there is a 3-partition")
        except Stopped:
            search = "not ended"
    proof = f"{result.infeasibility.proof} finds none{SEARCHED[search]}"
    return PartitionAnswer(reduction, "no", proof, seconds, search=search)
