"""The rungs of the ladder: first what is quick and exact, then one freedom more at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schedopt.problem import Allocation, Problem, Scope

SOLVERS: Final[dict[Allocation, dict[str, tuple[str, ...]]]] = {
    "contiguous": {
        "": ("even_split", "next_fit", "contiguous"),
        "recompute": ("contiguous",),
        "k": ("thinned", "periodic", "contiguous_cpsat"),
        "split": ("periodic", "contiguous_cpsat"),
        "apart": ("periodic",),
    },
    "general": {
        "": ("even_split", "next_fit", "contiguous"),
        "recompute": ("contiguous",),
        "k": ("thinned", "periodic"),
        "split": ("periodic",),
        "apart": ("periodic",),
    },
    "fixed": {
        "": ("one_f_one_b_star", "periodic"),
        "recompute": ("one_f_one_b_star", "periodic"),
        "k": ("thinned", "periodic"),
        "split": ("periodic",),
        "apart": ("periodic",),
    },
}
"""The solvers that answer each kind of allocation, by the freedom that was added last."""
SEARCHES: Final = frozenset({"periodic", "contiguous_cpsat", "step"})
"""Those that share what is left of the time; the others are quick for what they prove."""


@dataclass(frozen=True)
class Attempt:
    """A solver and what it may do.

    Parameters
    ----------
    solver : str
    freedom : str
        What is allowed in addition to the attempts before, in words. Empty for the first ones.
    problem : Problem
        What is asked, as far as it is allowed by now.
    """

    solver: str
    freedom: str
    problem: Problem

    @property
    def is_search(self) -> bool:
        """Whether it shares what is left of the time with the searches behind it."""
        return self.solver in SEARCHES


def sharing(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, int]]:
    """Yield each attempt with the number of attempts that share the time that is left by then."""
    for number, attempt in enumerate(attempts):
        yield attempt, sum(one.is_search for one in attempts[number:]) if attempt.is_search else 1


def plan_attempts(problem: Problem) -> Iterator[Attempt]:
    """Yield the attempts for a problem, the last of which may do all that is asked."""
    for freedom, words, scope in _freedoms(problem.scope):
        names = SOLVERS[scope.allocation][freedom]
        if problem.platform.may_share_links and "periodic" not in names:
            names = (*names, "periodic")
        if scope.microbatches is not None:
            names = () if freedom == "apart" else ("step",)
        narrow = _narrow(problem, scope)
        for name in names:
            yield Attempt(name, words, narrow)


def _freedoms(asked: Scope) -> Iterator[tuple[str, str, Scope]]:
    """Yield each freedom with its words and the scope that it widens."""
    steady = asked.microbatches is None
    scope = replace(
        asked,
        recompute=False,
        max_k=1 if steady else asked.max_k,
        split_backward=False,
        grain="stage",
    )
    yield "", "", scope
    if asked.recompute:
        scope = replace(scope, recompute=True)
        yield "recompute", "recompute", scope
    if asked.max_k != 1 and steady:
        scope = replace(scope, max_k=asked.max_k)
        yield "k", "any k" if asked.max_k is None else f"k up to {asked.max_k}", scope
    if asked.split_backward:
        scope = replace(scope, split_backward=True)
        yield "split", "split backward", scope
    if asked.grain == "layer":
        yield "apart", "layers apart", replace(scope, grain="layer")


def _narrow(problem: Problem, scope: Scope) -> Problem:
    """Return the problem with another scope; stages recompute only if it allows that."""
    stages = problem.stages
    if not scope.recompute and problem.scope.recompute:
        stages = tuple(replace(stage, recompute=()) for stage in stages)
    return replace(problem, scope=scope, stages=stages)
