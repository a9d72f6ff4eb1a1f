"""The answer to one chain of a theorem, with its proof."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

from schedopt.bench.effort import Effort
from schedopt.bench.hardness import PACKING
from schedopt.errors import InvalidPlanError
from schedopt.families.partition import find_triples, wrong_groups
from schedopt.families.reductions import Reduction
from schedopt.interrupts import Stopped, interrupts

BUILT: Final = "a plan of the period, checked, whose groups are a 3-partition"
SEARCHED: Final = {
    "agrees": "; trying all groups agrees",
    "not ended": "; trying all groups did not end in time",
}
KINDS: Final = {"yes": "plan", "no": "infeasible", "unknown": None}
"""Of proofs."""


@dataclass(frozen=True)
class Answer:
    """Whether a chain has a plan of the period of its theorem.

    Parameters
    ----------
    reduction : Reduction
    answer : {"yes", "no", "unknown"}
    proof : str
    search : {"agrees", "not ended"} or None
        What an independent search through all groups says where there is no plan.
    groups : list of list of int
        Places of the numbers that lie together, for a yes.
    seconds : float
        Of the answer, without that search.
    """

    reduction: Reduction
    answer: Literal["yes", "no", "unknown"]
    proof: str
    search: Literal["agrees", "not ended"] | None
    groups: list[list[int]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        numbers = self.reduction.numbers
        return {
            "answer": self.answer,
            "proof_kind": KINDS[self.answer],
            "proof": self.proof,
            "exhaustive_search": self.search,
            "theorem": self.reduction.theorem,
            "m": self.reduction.m,
            "V": self.reduction.total,
            "numbers": [*numbers],
            "groups": [[numbers[place] for place in group] for group in self.groups],
            "period_ns": self.reduction.period_ns,
            "seconds": self.seconds,
        }


def answer(reduction: Reduction, effort: Effort) -> Answer:
    """Return the answer of the special method, compared with a search where it is no.

    The search may take as long as the method.

    Raises
    ------
    InvalidPlanError
        If a plan holds no 3-partition, or the search finds one where there is no plan.
    """
    begin = time.monotonic()
    problem = reduction.problem()
    with interrupts() as asked:
        result = effort.solve(
            problem.chain,
            problem.platform,
            scope=problem.scope,
            stages=problem.stages,
            solver=PACKING,
        )
        seconds = round(time.monotonic() - begin, 3)
        if result.plan is not None:
            groups = reduction.groups(result.plan)
            if wrong := wrong_groups(groups, reduction.numbers):
                raise InvalidPlanError(f"{PACKING}: {wrong}")
            return Answer(reduction, "yes", BUILT, None, groups, seconds)
        if result.infeasibility is None:
            return Answer(reduction, "unknown", "none was found before the end", None, [], seconds)
        until = time.monotonic() + effort.time_limit
        search: Literal["agrees", "not ended"] = "agrees"
        try:
            if find_triples(reduction.numbers, lambda: asked() or time.monotonic() > until):
                raise InvalidPlanError(f"{PACKING}: no plan, and there is a 3-partition")
        except Stopped:
            search = "not ended"
    proof = f"{result.infeasibility.proof} finds none{SEARCHED[search]}"
    return Answer(reduction, "no", proof, search, [], seconds)
