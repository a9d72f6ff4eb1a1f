"""The scan of k: the least period that a model allows, for one k after the other.

For each k T is bisected. What load and memory alone do not allow is left out of the model, and
often nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

from schedopt.bounds.cuts import longest_period
from schedopt.errors import InputError
from schedopt.interrupts import Stopped
from schedopt.plan import Pattern, Plan
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solving.models.bisection import FeasibilityModel, bisect_period, query_model
from schedopt.solving.models.domains import AllocationDomains
from schedopt.solving.models.slots import SlotGraph, Slots
from schedopt.solving.models.tasks import PatternSolution
from schedopt.solving.retiming import compress_shifts
from schedopt.solving.run import Run
from schedopt.stage import Stage

LONGEST: Final = 8
"""The k to which a search goes where any is allowed."""


def require_search(problem: Problem, solver: str, most_places: int, instead: str) -> None:
    """Raise `InputError` for links that differ, and for more than one model can hold.

    `most_places` are layers times GPUs; `instead` names solvers for what this one does not do.
    """
    layers, gpus = len(problem.chain.layers), len(problem.platform.gpus)
    if layers * gpus > most_places:
        raise InputError(
            f"{layers} layers on {gpus} GPUs are too many for a search over all allocations",
            field="solver",
            way_out=f"Use {instead}, or merge layers: at most {most_places} places (layers times "
            "GPUs) are searched",
        )
    if problem.platform.network is not None:
        raise InputError(
            f"{solver} does not know links that differ",
            field="solver",
            way_out=f"Use {instead}, or GPUs with equal links (Platform.bandwidth)",
        )


class PatternScan:
    """What a scan of k has found, and what it has proven.

    The models speak of a scope, whose `max_k` is that of the scan; None: k > 1 gains nothing.

    Attributes
    ----------
    longest : int
        The k to which is searched.
    bounds : dict of int to Fraction
        What T / k cannot be below, of each k that was looked at, ns.
    solutions : dict of int to PatternSolution
        The best of each k.
    """

    def __init__(self, problem: Problem, proven: Scope, proof: Proof) -> None:
        self.problem, self.proven, self.proof = problem, proven, proof
        self.longest = proven.max_k or 1
        self.bounds: dict[int, Fraction] = {}
        self.solutions: dict[int, PatternSolution] = {}

    def known(self, k: int) -> PatternSolution | None:
        """Return the best solution for a divisor of k as one for k."""
        known = [solution for solution in self.solutions.values() if k % solution.k == 0]
        if not known:
            return None
        best = min(known, key=lambda solution: Fraction(solution.period_ns, solution.k))
        return best.repeated(k // best.k)

    def follow(
        self, k: int, steps: Iterator[tuple[int, PatternSolution | None]]
    ) -> Iterator[PatternSolution]:
        """Yield each solution of a bisection, and keep what it proves."""
        for least, solution in steps:
            self.bounds[k] = Fraction(least, k)
            if solution is not None:
                self.solutions[k] = solution
                yield solution

    def report_bounds(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        asked = self.problem.scope.period_ns
        for last in self.bounds:
            value = min(self.bounds[k] for k in range(1, last + 1))
            scope = self.proven if self.proven.max_k is None else replace(self.proven, max_k=last)
            if asked is None or value <= asked:
                run.report_bound(value, scope, self.proof)
            elif run.best() is None:
                run.report_infeasible(
                    Infeasibility(
                        scope=replace(scope, period_ns=asked),
                        proof=Proof(ProofKind.PERIOD_ABOVE, time_ns=asked, basis=self.proof),
                    )
                )

    def report_impossible(self, run: Run) -> None:
        """Report that memory does not even hold one micro-batch after the other, for any k."""
        proof = Proof(ProofKind.NO_MEMORY_FOR_ONE, basis=self.proof)
        run.report_infeasible(Infeasibility(scope=replace(self.proven, max_k=None), proof=proof))

    def plan(self, stages: tuple[Stage, ...], pattern: Pattern) -> Plan:
        """Return a plan of the problem, without periods in which micro-batches only wait."""
        return compress_shifts(Plan.answering(self.problem, stages, pattern))


class AllocationSearch:
    """The scan of k for all allocations of a kind, by a model that decides about a period.

    The model is made of a graph at a period, unless it is stopped before. `proven` and `proof` are
    those of `PatternScan`.
    """

    def __init__(
        self,
        slots: Slots,
        model: Callable[[SlotGraph, int, Callable[[], bool]], FeasibilityModel],
        proven: Scope,
        proof: Proof,
    ) -> None:
        self.problem, self.slots, self.model = slots.problem, slots, model
        self.scan = PatternScan(slots.problem, proven, proof)

    def solve(self, run: Run) -> None:
        """Report each plan that improves on the best, for one k after the other."""
        for solution in self._solutions(run):
            run.report(self.scan.plan(solution.stages, self.slots.pattern(solution)))

    def _solutions(self, run: Run) -> Iterator[PatternSolution]:
        best = run.best()
        known = None if best is None else self.slots.solution(best)
        if known is not None:
            self.scan.solutions[known.k] = known
        for k in range(1, self.scan.longest + 1):
            low = max(1, ceil(k * (run.bound(self.problem.scope) or 0)))
            self.scan.bounds[k] = Fraction(low, k)
            for solution in self.scan.follow(k, self._bisect(k, low, run)):
                yield solution
                if run.settled(self.problem.scope):
                    return
            if run.stopped() or self._is_impossible(run):
                return

    def _is_impossible(self, run: Run) -> bool:
        """Whether it is proven that memory does not even hold one micro-batch after the other.

        What is held at once with more in flight is never less.
        """
        return run.best() is None and self.scan.bounds[1] > longest_period(self.problem)

    def _bisect(self, k: int, low: int, run: Run) -> Iterator[tuple[int, PatternSolution | None]]:
        best, asked = run.period(), self.problem.scope.period_ns
        high = max(low, k * longest_period(self.problem)) if best is None else ceil(k * best)
        if asked is not None and (best is None or best > asked):
            high, best = k * asked, None

        def query(period: int) -> PatternSolution | None:
            return self._query(k, period, run)

        far = k == 1 and self.problem.scope.allocation == "general"
        return bisect_period(low, high, query, run, known=best is not None, far=far)

    def _query(self, k: int, period: int, run: Run) -> PatternSolution | None:
        anywhere = self.slots.anywhere
        try:
            domains = AllocationDomains(
                self.problem, self.slots.count, k, period, anywhere=anywhere, stopped=run.stopped
            )
        except Stopped:
            return None
        if not all(domains.slots_of):
            return PatternSolution(k, period, ())
        known = self.scan.known(k)
        for part in domains.narrow_first():
            begin = run.clock.seconds()
            model = self.model(SlotGraph(self.slots, part), period, run.stopped)
            left = run.remaining()
            if left is not None and left < run.clock.seconds() - begin:
                # CP-SAT takes about as long to read the model, and does not stop before.
                return None
            solution = query_model(model, known, run)
            if solution is not None and (solution.starts or part.holds_all):
                return solution
        return None

    def report_bounds(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        if self._is_impossible(run):
            self.scan.report_impossible(run)
        else:
            self.scan.report_bounds(run)
