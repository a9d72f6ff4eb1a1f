"""The scan of k for all allocations of a kind: the least period that a model allows.

For one k after the other T is bisected. What load and memory alone do not allow is left out of the
model, and often nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil

from schedopt.account.timeline import layer_ns
from schedopt.chain import Layer
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.solving.models.allocation_model import AllocationModel
from schedopt.solving.models.bisection import bisect_period, query_model
from schedopt.solving.models.pipeline import LONGEST
from schedopt.solving.models.slots import GpuSlots
from schedopt.solving.models.start_windows import StartWindows
from schedopt.solving.models.tasks import PatternSolution
from schedopt.solving.retiming import compress_shifts
from schedopt.solving.run import Run


def longest_k(problem: Problem) -> int:
    """Return the k to which is searched."""
    return problem.scope.max_k or LONGEST


class AllocationSearch:
    """The scan of k for all allocations of a kind, by a model that decides about a period.

    Of each k it keeps what T / k cannot be below.

    Parameters
    ----------
    problem : Problem
    slots : GpuSlots
        What a micro-batch does.
    model : type of AllocationModel
        Made of slots and windows.
    windows : type of StartWindows
    proven : Scope
        What the answers of the model speak of, for the longest k. Of any k: k > 1 gains nothing.
    proof : Proof
    """

    def __init__(
        self,
        problem: Problem,
        slots: GpuSlots,
        model: type[AllocationModel],
        windows: type[StartWindows],
        proven: Scope,
        proof: Proof,
    ) -> None:
        self.problem, self.slots = problem, slots
        self.model, self.windows = model, windows
        self.proven, self.proof = proven, proof
        self.longest = proven.max_k or 1
        self.bounds: dict[int, Fraction] = {}
        self.answers: dict[int, PatternSolution] = {}

    def scan(self, run: Run) -> Iterator[PatternSolution]:
        """Yield each answer that improves on the best, for one k after the other."""
        best = run.best()
        known = None if best is None else self.slots.answer(best)
        if known is not None:
            self.answers[known.k] = known
        for k in range(1, self.longest + 1):
            low = max(1, ceil(k * (run.bound(self.problem.scope) or 0)))
            self.bounds[k] = Fraction(low, k)
            for least, found in self._probe(k, low, run):
                self.bounds[k] = Fraction(least, k)
                if found is not None:
                    self.answers[k] = found
                    yield found
                    if run.settled(self.problem.scope):
                        return
            if run.stopped() or self.is_impossible(run):
                return

    def is_impossible(self, run: Run) -> bool:
        """Whether it is proven that memory does not even hold one micro-batch after the other.

        What is held at once with more in flight is never less.
        """
        return run.best() is None and self.bounds[1] > self._longest_way()

    def _probe(self, k: int, low: int, run: Run) -> Iterator[tuple[int, PatternSolution | None]]:
        """Look for shorter and shorter periods: see `bisection.bisect_period`."""
        best, asked = run.period(), self.problem.scope.period_ns
        high = max(low, k * self._longest_way()) if best is None else ceil(k * best)
        if asked is not None and (best is None or best > asked):
            high, best = k * asked, None

        def ask(period: int) -> PatternSolution | None:
            return self._ask(k, period, run)

        far = k == 1 and self.problem.scope.allocation == "general"
        return bisect_period(low, high, ask, run, known=best is not None, far=far)

    def _hint(self, k: int) -> PatternSolution | None:
        """Return the best answer for a divisor of k as one for k."""
        found = [one for one in self.answers.values() if k % one.k == 0]
        best = min(found, key=lambda one: Fraction(one.period_ns, one.k), default=None)
        return None if best is None else best.repeated(k // best.k)

    def _longest_way(self) -> int:
        """Return how long a micro-batch takes at most, ns."""
        platform, layers = self.problem.platform, self.problem.chain.layers
        slowest = min(platform.gpus, key=lambda gpu: gpu.speed)

        def time(layer: Layer, *kinds: Kind) -> int:
            return sum(slowest.duration_ns(layer_ns(layer, kind)) for kind in kinds)

        forwards = 2 if self.problem.scope.recompute else 1
        total = sum(
            forwards * time(layer, "F") + max(time(layer, "B"), time(layer, "I", "W"))
            for layer in layers
        )
        if platform.link is not None:
            total += 2 * sum(platform.link.transfer_ns(a.activation_bytes) for a in layers[:-1])
        return max(1, total)

    def _ask(self, k: int, period: int, run: Run) -> PatternSolution | None:
        windows = self.windows(self.problem, self.slots.count, k, period)
        if not all(windows.slots_of):
            return PatternSolution(k, period, ())
        known = self._hint(k)
        for one in windows.narrow_first():
            found = query_model(self.model(self.slots, one), known, run)
            if found is not None and (found.starts or one.holds_all):
                return found
        return None

    def report_bounds(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        asked = self.problem.scope.period_ns
        if self.is_impossible(run):
            proof = Proof(ProofKind.NO_MEMORY_FOR_ONE, basis=self.proof)
            proven = replace(self.proven, max_k=None)
            run.report_infeasible(Infeasibility(scope=proven, proof=proof))
            return
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

    def plan(self, answer: PatternSolution) -> Plan:
        """Return the plan of an answer."""
        plan = Plan(
            chain=self.problem.chain,
            platform=self.problem.platform,
            rule=self.problem.rule,
            scope=self.problem.scope,
            stages=answer.stages,
            pattern=self.slots.pattern(answer),
        )
        return compress_shifts(plan)
