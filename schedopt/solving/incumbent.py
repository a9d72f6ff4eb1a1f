"""The best plan so far, and what is proven, in the scope that was asked."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from threading import RLock

from schedopt.errors import InvalidPlanError
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound, Infeasibility, best_bound
from schedopt.solving.suggestions import suggest


class Incumbent:
    """What all that work on one question at the same time know of it.

    Parameters
    ----------
    scope : Scope
        The scope that was asked.
    gap : Fraction
        How much longer than a bound a period may be, relatively, that nobody needs to shorten.

    Attributes
    ----------
    plan : Plan or None
        The best so far.
    solver : str
        Which solver found it.
    bounds : list of Bound
        Of each scope the best.
    proofs : list of Infeasibility
        Scopes that hold no plan.
    """

    def __init__(self, scope: Scope, gap: Fraction = Fraction(0)) -> None:
        self.scope, self.gap = scope, gap
        self.plan: Plan | None = None
        self.solver = ""
        self.bounds: list[Bound] = []
        self.proofs: list[Infeasibility] = []
        self._lock = RLock()

    def period(self) -> Fraction | None:
        """Return the best normalized period so far, ns."""
        return None if self.plan is None else self.plan.pattern.period

    def bound(self, scope: Scope | None = None) -> Fraction | None:
        """Return the best bound that holds in a scope, by default the one asked, ns."""
        return best_bound(self.bounds, scope or self.scope)

    def settled(self, scope: Scope | None = None) -> bool:
        """Whether nothing is left to find in a scope, by default the one asked.

        Proven to be within the gap of the best, a plan within the period asked, or proven to hold
        none.
        """
        scope = scope or self.scope
        period, asked = self.period(), scope.period_ns
        if period is None:
            return any(proof.scope.covers(scope) for proof in self.proofs)
        bound = self.bound(scope)
        near = bound is not None and period <= bound * (1 + self.gap)
        return near or (asked is not None and period <= asked)

    def offer(self, plan: Plan, solver: str) -> None:
        """Keep a valid plan if it is better than the best so far.

        Of equal periods, that of fewer stages is better, and then that which sends fewer bytes.

        Raises
        ------
        InvalidPlanError
            If it contradicts what is proven. So do the methods below.
        """
        with self._lock:
            if self.plan is None or _rank(plan) < _rank(self.plan):
                self.plan, self.solver = plan, solver
            self._refuse_contradiction(solver)

    def add_bound(self, bound: Bound, solver: str) -> None:
        """Keep a bound, in place of a weaker one that speaks of the same scope."""
        with self._lock:
            same = [old for old in self.bounds if old.scope == bound.scope]
            if all(old.period < bound.period for old in same):
                others = [old for old in self.bounds if old.scope != bound.scope]
                self.bounds = [*others, bound]
            self._refuse_contradiction(solver)

    def add_proof(self, proof: Infeasibility, solver: str) -> None:
        """Keep a proof that a scope holds no plan."""
        with self._lock:
            self.proofs.append(proof)
            self._refuse_contradiction(solver)

    def _refuse_contradiction(self, solver: str) -> None:
        period, bound = self.period(), self.bound()
        if period is None:
            return
        if bound is not None and bound > period:
            raise InvalidPlanError(f"{solver}: bound {bound} ns above the period {period} ns")
        if any(proof.scope.covers(self.scope) for proof in self.proofs):
            raise InvalidPlanError(f"{solver}: a plan where none is said to exist")


def _rank(plan: Plan) -> tuple[Fraction, int, int]:
    """Return the period of a plan, its stages, and the bytes that its stages send each other."""
    layers = plan.chain.layers
    sent = sum(
        layers[stage.last].activation_bytes
        for stage, behind in pairwise(plan.stages)
        if stage.gpus != behind.gpus
    )
    return plan.pattern.period, len(plan.stages), sent


def find_infeasibility(problem: Problem, known: Incumbent) -> Infeasibility | None:
    """Return the proof that a problem has no plan, with the least memory known, if there is one.

    A bound above the period that was asked is one. Proofs may speak of different GPUs: what
    every GPU has more is compared, and said of the GPU of the last proof.
    """
    scope = problem.scope
    valid = [proof for proof in known.proofs if proof.scope.covers(scope)]
    if not valid:
        return _find_bound_beyond(problem, known)
    last = replace(valid[-1], wider=valid[-1].wider or suggest(problem))
    sizes = [gpu.memory_bytes for gpu in problem.platform.gpus]
    more = [
        (proof.least_memory_bytes - sizes[proof.gpu or 0], proof.gpu)
        for proof in known.proofs
        if proof.least_memory_bytes is not None
    ]
    if not more:
        return last
    least, gpu = min(more, key=lambda pair: pair[0])
    if last.gpu is None and len(set(sizes)) > 1:
        last = replace(last, gpu=gpu)
    return replace(last, least_memory_bytes=sizes[last.gpu or 0] + least)


def _find_bound_beyond(problem: Problem, known: Incumbent) -> Infeasibility | None:
    """Return that a bound lies above the period that was asked, if one does."""
    scope = problem.scope
    holding = (bound for bound in known.bounds if bound.scope.covers(scope))
    best = max(holding, key=lambda bound: bound.period, default=None)
    if scope.period_ns is None or best is None or best.period <= scope.period_ns:
        return None
    return Infeasibility(
        scope=scope,
        proof=Proof(ProofKind.BOUND_ABOVE, period_exact=best.exact, basis=best.proof),
        wider=suggest(problem),
    )
