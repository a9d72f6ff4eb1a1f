"""The phases of the portfolio: first what is quick and exact, then one freedom more at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import MOST_OF_BATCH, Problem, Scope, training_step, widest_step
from schedopt.proofs import Suggestion
from schedopt.scope import Allocation
from schedopt.solving.registry import load_solver
from schedopt.solving.requirements import is_short, keeps_nothing
from schedopt.solving.run import Run

SOLVERS: Final[dict[Allocation, dict[str, tuple[str | tuple[str, ...], ...]]]] = {
    "contiguous": {
        "": ("even_split", "next_fit", "contiguous"),
        "recompute": ("contiguous",),
        "k": ("thinned", "periodic", "contiguous_cpsat"),
        "split": ("periodic", "contiguous_cpsat"),
        "apart": ("periodic", "contiguous_cpsat"),
    },
    "general": {
        "": ("even_split", "next_fit", "contiguous", ("general", "general_cpsat")),
        "recompute": ("contiguous", ("general", "general_cpsat")),
        "split": (("general", "general_cpsat"),),
        "k": ("thinned", ("general", "general_cpsat"), "periodic"),
        "apart": (("periodic", "general_cpsat"),),
    },
    "fixed": {
        "": ("one_f_one_b_star", "periodic"),
        "recompute": ("one_f_one_b_star", "periodic"),
        "k": ("thinned", "periodic"),
        "split": ("periodic",),
        "apart": ("periodic",),
    },
}
"""The solvers that answer each kind of allocation, by the freedom that was added last.

A tuple runs side by side: what searches first, then what proves.
"""
ORDER: Final[dict[Allocation, tuple[str, ...]]] = {
    "contiguous": ("recompute", "k", "split", "apart"),
    "general": ("recompute", "split", "k", "apart"),
    "fixed": ("recompute", "k", "split", "apart"),
}
"""In which order freedoms are added: of a general allocation the pattern is polished last."""
WEIGHTS: Final = {
    "general": 24.0,
    "general_cpsat": 8.0,
    "thinned": 0.5,
    "periodic": 1.0,
    "contiguous_cpsat": 1.0,
    "step": 4.0,
    "training_step": 4.0,
}
"""How those that search share the time that is left; the others are quick."""
WEIGHTS_OF_STARTS: Final = {"general": 2.0}
"""The weight of a search that a later phase repeats with one freedom more: it finds a start.

The later one needs it little, since it looks without the freedom half of the time itself.
"""
LEAST_S_OF_START: Final = 0.3
"""A search that only finds a start is left out if it has less: making its models takes that."""
LEAST_S_OF_LATER: Final = 0.1
"""No time is kept for a phase that would have less: the search before it has more use for it."""
PLACES_IN_A_SECOND: Final = 40
"""Of how many layers times GPUs all allocations and orders may be worth a search by the second.

With less time their prover would only take from what searches beside it.
"""
ENGINE_SOLVER: Final = "engine_step"
"""What answers the scope of an engine; no other one looks at what an engine can run."""
REPLICATED_SOLVER: Final = "replicated"
"""What deals the micro-batches of the steady state to replicas; no other one does."""
TRAINING_SOLVER: Final = "training_step"
"""What answers a step that ends with the update of its weights."""
WEIGHT_OF_WHAT_IF: Final = 1.0
"""The weight of a freedom that is not allowed, to say what it would give."""


@dataclass(frozen=True)
class Phase:
    """Solvers that run side by side, and what they may do.

    Parameters
    ----------
    solvers : tuple of str
    freedom : str
        What is allowed in addition to the phases before, in words. Empty for the first ones.
    problem : Problem
        What is asked, as far as it is allowed by now.
    tried : Suggestion, optional
        The freedom that is tried though it is not allowed: only to say what it would give.
    """

    solvers: tuple[str, ...]
    freedom: str
    problem: Problem
    tried: Suggestion | None = None

    @property
    def weight(self) -> float:
        """Its part of the time that is left; 0: it takes what it needs."""
        weight = max(WEIGHTS.get(solver, 0.0) for solver in self.solvers)
        return weight if self.tried is None else min(weight, WEIGHT_OF_WHAT_IF)

    @property
    def amount(self) -> str:
        """How much of the freedom that is tried was allowed, where it is a number, in words."""
        scope, chain = self.problem.scope, self.problem.chain
        if self.tried is Suggestion.TRAINING_STEP:
            return f"{chain.samples_of(scope.microbatches or 1)} samples"
        return f"up to {scope.replicas}" if self.tried is Suggestion.REPLICAS else ""

    def in_turn(self, share: float) -> Iterator[tuple[str, float]]:
        """Yield its solvers, where they do not run side by side, with the share that each has.

        What proves comes first: it may leave nothing to search.
        """
        for left in range(len(self.solvers), 0, -1):
            yield self.solvers[left - 1], share / left


def share_time(
    phases: Sequence[Phase], seconds: float | None = None
) -> Iterator[tuple[Phase, float]]:
    """Yield each phase with its share of the time that is left by then.

    No time is kept for a phase that would have less than `LEAST_S_OF_LATER` of these seconds.
    """
    weights = [
        WEIGHTS_OF_STARTS.get(phase.solvers[0], phase.weight)
        if is_start(phase, phases[number + 1 :])
        else phase.weight
        for number, phase in enumerate(phases)
    ]
    least = LEAST_S_OF_LATER / seconds * sum(weights) if seconds and seconds > 0 else 0.0
    for number, (phase, weight) in enumerate(zip(phases, weights, strict=True)):
        later = sum(other for other in weights[number + 1 :] if other >= least)
        yield phase, weight / (weight + later) if weight else 1.0


def has_time(phase: Phase, later: Sequence[Phase], seconds: float | None) -> bool:
    """Whether a phase is worth the seconds that it would have, where there is a plan."""
    return seconds is None or seconds >= LEAST_S_OF_START or not is_start(phase, later)


def side_by_side(phase: Phase, seconds: float | None) -> tuple[str, ...]:
    """Return the solvers of a phase that are of use in its seconds; the first one always is."""
    places = len(phase.problem.chain.layers) * len(phase.problem.platform.gpus)
    if seconds is None or places <= PLACES_IN_A_SECOND * seconds or keeps_nothing(phase.problem):
        return phase.solvers
    return phase.solvers[:1]


def is_start(phase: Phase, later: Sequence[Phase]) -> bool:
    """Whether a later phase searches as this one does, in a wider scope that is asked for."""
    return any(other.solvers[0] == phase.solvers[0] and other.tried is None for other in later)


def search_phases(problem: Problem, run: Run) -> list[Plan]:
    """Run all phases of a problem, and return the first plan and each better one."""
    plans: list[Plan] = []
    for phase, share in share_time([*plan_phases(problem)]):
        if run.clock.ended() or run.settled():
            break
        for solver, part in phase.in_turn(share):
            if run.settled():
                break
            run.begin(solver, part)
            with suppress(InputError):
                load_solver(solver)(phase.problem, run)
        best = run.best()
        if best is not None and best not in plans:
            plans.append(best)
    return plans


def plan_phases(problem: Problem) -> Iterator[Phase]:
    """Yield the phases for a problem, the last of which may do all that is asked.

    A step with layers anywhere has one alone, which begins with contiguous allocations: phases for
    these would begin alike, and leave it less time.
    """
    if problem.scope.engine is not None:
        yield Phase((ENGINE_SOLVER,), "", problem)
        return
    if problem.is_training_step:
        yield Phase((TRAINING_SOLVER,), "", problem)
        return
    if problem.scope.replicas != 1:
        # What is exact in little time comes before what searches with one GPU for each stage.
        alone = replace(problem.scope, replicas=1, shard="none")
        yield Phase((REPLICATED_SOLVER,), "replicas", problem)
        yield from plan_phases(replace(problem, scope=alone))
        return
    anywhere = problem.scope.allocation == "general"
    if anywhere and problem.scope.microbatches is not None:
        yield Phase(("step",), "", problem)
        return
    for freedom, words, scope in _freedoms(problem.scope):
        names = SOLVERS[scope.allocation][freedom]
        if scope.microbatches is not None:
            names = () if freedom == "apart" else ("step",)
        narrow = _narrow(problem, scope)
        for name in names:
            beside = (name,) if isinstance(name, str) else name
            if not is_short(problem):
                beside = tuple(solver for solver in beside if solver != "general_cpsat")
            yield Phase(beside, words, narrow)
    if anywhere and problem.scope.max_k == 1:
        yield Phase(("periodic",), "order", problem)


def what_if_phases(problem: Problem) -> Iterator[Phase]:
    """Yield a phase for each freedom that is not allowed, and could be."""
    scope = problem.scope
    if scope.allocation != "general" or scope.period_ns or not problem.rule.is_given:
        return
    if scope.microbatches is not None:
        few = scope.microbatches <= MOST_OF_BATCH
        if few and _may_have_replicas(problem) and problem.chain.knows_gradients:
            wide = _with_update(problem)
            yield Phase((TRAINING_SOLVER,), "update", wide, Suggestion.TRAINING_STEP)
        return
    if scope.replicas != 1:
        return
    if not scope.recompute:
        wide = replace(problem, scope=replace(scope, recompute=True, max_k=1))
        yield Phase(("general",), "recompute", wide, Suggestion.RECOMPUTE)
    if problem.chain.has_halves and not scope.split_backward:
        wide = replace(problem, scope=replace(scope, split_backward=True, max_k=1))
        yield Phase(("general",), "split backward", wide, Suggestion.SPLIT_BACKWARD)
    if _may_have_replicas(problem):
        wide = replace(problem, scope=replace(scope, replicas=len(problem.platform.gpus)))
        yield Phase((REPLICATED_SOLVER,), "replicas", wide, Suggestion.REPLICAS)


def _may_have_replicas(problem: Problem) -> bool:
    """Whether stages could have replicas that are not allowed."""
    platform = problem.platform
    return platform.uniform and len(platform.gpus) > 1 and problem.scope.engine is None


def _with_update(problem: Problem) -> Problem:
    """Return the question for the training step of as many micro-batches, on contiguous stages.

    These are searched in little time.
    """
    chain, count = problem.chain, problem.scope.microbatches or 1
    scope = replace(widest_step(chain), allocation="contiguous")
    return training_step(chain, problem.platform, chain.samples_of(count), scope)


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
    longest = "any k" if asked.max_k is None else f"k up to {asked.max_k}"
    wider: dict[str, tuple[bool, str, dict[str, Any]]] = {
        "recompute": (asked.recompute, "recompute", {"recompute": True}),
        "k": (asked.max_k != 1 and steady, longest, {"max_k": asked.max_k}),
        "split": (asked.split_backward, "split backward", {"split_backward": True}),
        "apart": (asked.grain == "layer", "layers apart", {"grain": "layer"}),
    }
    for freedom in ORDER[asked.allocation]:
        allowed, words, change = wider[freedom]
        if allowed:
            scope = replace(scope, **change)
            yield freedom, words, scope


def _narrow(problem: Problem, scope: Scope) -> Problem:
    """Return the problem with another scope; stages recompute only if it allows that."""
    stages = problem.stages
    if not scope.recompute and problem.scope.recompute:
        stages = tuple(replace(stage, recompute=()) for stage in stages)
    return replace(problem, scope=scope, stages=stages)
