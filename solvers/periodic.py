"""The best k-periodic pattern for a given allocation, proven by CP-SAT.

The order model of `schedopt.solving.models` decides whether a period T is possible. T is bisected;
after each order found the search drops to the least T that the order allows, and asks whether 1 ns
less is possible, which proves it if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil
from typing import Final

from schedopt.bounds.recomputation import runs_of
from schedopt.plan import Plan
from schedopt.problem import LARGEST_HORIZON_NS, Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Infeasibility
from schedopt.scope import MemoryReading
from schedopt.solvers.contiguous import best_stages
from schedopt.solving.models.bisection import bisect_period, query_model
from schedopt.solving.models.given_allocation import GivenAllocation
from schedopt.solving.models.order_model import OrderModel
from schedopt.solving.models.pattern_search import LONGEST, PatternScan
from schedopt.solving.models.pipeline import AllocatedPipeline, covers_grain
from schedopt.solving.models.slots import as_layers
from schedopt.solving.models.tasks import PatternSolution
from schedopt.solving.requirements import refuse_unsupported, require_stages
from schedopt.solving.run import Run
from schedopt.stage import Stage

MANY_STAGES: Final = 8
"""From here on a greedy placement is there long before the first answer of the order model."""
PROOF: Final = Proof(ProofKind.ORDERS)
LOAD: Final = Proof(ProofKind.WORK_OF_RESOURCE)
MOST_SUBSETS: Final = 256
"""Subsets of layers that may be recomputed, up to which each has a search of its own."""
SHARE_OF_SUM: Final = 0.5
"""Of the time that is left, for plans of the reading sum before those of the peak."""
EXTRA: Final = (Fraction(0), *(Fraction(percent, 100) for percent in (2, 5, 10, 20, 40, 80)))
"""Memory in addition, over that of the largest GPU, for which other allocations are looked for."""


def solve(problem: Problem, run: Run) -> None:
    """Scan k and report the best pattern with its proof.

    Where no allocation is given, that of the best plan so far is kept, and then those that would
    be the best contiguous ones with more memory; nothing is proven.

    Raises
    ------
    InputError
        If there is no allocation, or it has replicas, or a rule with updates or a finite step is
        asked for.
    """
    refuse_unsupported(problem, "periodic")
    if problem.scope.allocation == "fixed":
        _solve_given(problem, run)
        return
    best = run.best()
    if best is None:
        require_stages(problem, "periodic")
        return
    scope = replace(problem.scope, allocation="fixed")
    for stages in _allocations(problem, best.stages, run):
        if run.stopped() or run.settled():
            return
        given = replace(problem, scope=scope, stages=_as_asked(stages, problem))
        search = _Search(given, free=False)
        if search.pipeline.lacking()[1] > 0 and scope.memory == "sum":
            continue
        search.solve(run)


def _solve_given(problem: Problem, run: Run) -> None:
    require_stages(problem, "periodic")
    given = replace(problem, stages=_as_asked(problem.stages, problem))
    _report_placed(given, run)
    search = _search_of(given)
    if not isinstance(search, _EachSubset):
        _report_named(given, run)
        _report_in_sum(search, run)
    search.solve(run)
    if not covers_grain(problem):
        return
    if search.impossible:
        run.report_infeasible(search.explain())
    else:
        search.report_bounds(run)


def _search_of(problem: Problem) -> _Search:
    """Return the search of the stages that are given, with all that they may recompute."""
    if problem.scope.recompute and 2 ** len(problem.chain.layers) <= MOST_SUBSETS:
        return _EachSubset(problem)
    return _Search(problem, free=problem.scope.recompute)


def _report_named(problem: Problem, run: Run) -> None:
    """Report a first plan that recomputes what the stages name, if they name something."""
    if run.best() is not None or not _recomputed(problem):
        return
    search = _Search(problem, free=False)
    longest = max(1, search.pipeline.whole_ns)
    solution = search.query(1, run, min(longest, problem.scope.period_ns or longest))
    if solution is not None and solution.starts:
        run.report(search.plan(solution))


def _report_in_sum(search: _Search, run: Run) -> None:
    """Report plans of the reading sum where the peak takes longer to search: they fit it, too."""
    problem = search.problem
    if not search.pipeline.free or problem.scope.memory == "sum":
        return
    in_sum = _Search(replace(problem, scope=replace(problem.scope, memory="sum")), free=True)
    for solution in in_sum.solutions(run.fork(run.workers, SHARE_OF_SUM)):
        search.scan.solutions[solution.k] = solution
        run.report(search.plan(solution))


def _report_placed(problem: Problem, run: Run) -> None:
    """Report the greedy placement of stages that are too many for the first question."""
    used = {stage.gpus[0] for stage in problem.stages}
    if run.best() is not None or len(problem.stages) < max(MANY_STAGES, len(used) + 1):
        return
    from schedopt.solving.local_search.search import is_compiled, place_stages

    plan = place_stages(problem, run) if is_compiled(run) else None
    asked = problem.scope.period_ns
    if plan is not None and (asked is None or plan.pattern.period_total_ns <= asked):
        run.report(plan)


def _allocations(
    problem: Problem, best: tuple[Stage, ...], run: Run
) -> Iterator[tuple[Stage, ...]]:
    """Yield the best allocation, and what would be the best contiguous ones with more memory."""
    yield best
    seen = {best}
    largest = max(gpu.usable_bytes for gpu in problem.platform.gpus)
    for extra in EXTRA:
        more = problem.with_extra_memory(int(largest * extra))
        best_there = best_stages(more, LARGEST_HORIZON_NS, run)
        if best_there is not None and (stages := tuple(best_there[0])) not in seen:
            seen.add(stages)
            yield stages


def _as_asked(stages: Sequence[Stage], problem: Problem) -> tuple[Stage, ...]:
    """Return the stages, or each of their layers where these run apart."""
    return tuple(as_layers(stages) if problem.scope.grain == "layer" else stages)


def best_pattern(problem: Problem, stages: Sequence[Stage], run: Run) -> Plan | None:
    """Return the best plan of an allocation for k = 1 that is found while the run goes on."""
    scope = replace(problem.scope, allocation="fixed", max_k=1, microbatches=None, period_ns=None)
    given = replace(problem, scope=scope, stages=tuple(stages))
    search = _search_of(given)
    best = None
    for _, solution in search.bisect(1, run, max(1, search.pipeline.whole_ns)):
        best = solution or best
    return None if best is None else search.plan(best)


def prove_impossible(problem: Problem, run: Run) -> Infeasibility | None:
    """Return a proof that the memory does not hold the stages that are given, if there is one."""
    search = _search_of(problem)
    return search.explain() if search.is_impossible(run) else None


class _Search:
    """The scan of k for one allocation."""

    def __init__(self, problem: Problem, *, free: bool) -> None:
        self.problem = problem
        self.pipeline = AllocatedPipeline(problem, free=free)
        self.load = self.pipeline.load_ns
        self.impossible = False
        self.proven = Scope(
            allocation="fixed",
            max_k=None,
            gpu_order="any",
            grain=problem.scope.grain,
            memory=self._reading(),
            split_backward=problem.scope.split_backward,
            recompute=problem.scope.recompute,
        )
        longest = problem.scope.max_k or LONGEST
        self.scan = PatternScan(problem, replace(self.proven, max_k=longest), PROOF)

    def _reading(self) -> MemoryReading:
        """Return the reading of memory for which the search is exact."""
        return self.pipeline.proven_reading()

    def solve(self, run: Run) -> None:
        """Report each plan that improves on the best, for one k after the other."""
        for solution in self.solutions(run):
            run.report(self.plan(solution))

    def solutions(self, run: Run) -> Iterator[PatternSolution]:
        """Yield each pattern that improves on the best, for one k after the other."""
        if run.best() is None and self.is_impossible(run):
            self.impossible = True
            return
        for k in range(1, self.scan.longest + 1):
            known, best = self.scan.known(k), run.period()
            low = self._least(k, run)
            high = max(low, known.period_ns if known else k * self.pipeline.whole_ns)
            # What is not better than the best is of no use.
            useless = None if best is None else ceil(k * best)
            if useless is not None:
                high = min(high, useless)
            if self.problem.scope.period_ns is not None:
                high = min(high, k * self.problem.scope.period_ns)
            self.scan.bounds[k] = Fraction(low, k)
            is_known = known is not None or high == useless
            yield from self.scan.follow(k, self.bisect(k, run, high, known=is_known))
            if run.stopped() or run.period() == self.load:
                return

    def bisect(
        self, k: int, run: Run, high: int, *, known: bool = False
    ) -> Iterator[tuple[int, PatternSolution | None]]:
        """Look for shorter and shorter periods of k micro-batches: see `bisect_period`."""
        query = partial(self.query, k, run)
        return bisect_period(self._least(k, run), high, query, run, known=known)

    def _least(self, k: int, run: Run) -> int:
        """Return a T below which no pattern of k micro-batches is, by all that is known, ns."""
        bounds = [run.bound(), run.bound(replace(self.proven, max_k=k))]
        return max(1, k * self.load, *(ceil(k * bound) for bound in bounds if bound is not None))

    def is_impossible(self, run: Run) -> bool:
        """Whether it is proven that memory does not even hold one micro-batch after the other.

        What is held at once with more in flight is never less.
        """
        if self.problem.scope.memory == "sum" and not self.pipeline.free:
            return self.pipeline.lacking()[1] > 0
        solution = self.query(1, run, max(1, self.pipeline.whole_ns))
        return solution is not None and not solution.starts

    def query(self, k: int, run: Run, period: int) -> PatternSolution | None:
        """Return a pattern of k up to a period, or one without starts if there is none."""
        model = OrderModel(GivenAllocation(self.pipeline), k, period, stopped=run.stopped)
        return query_model(model, self.scan.known(k), run)

    def report_bounds(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        run.report_bound(self.load, self.proven, LOAD)
        self.scan.report_bounds(run)

    def explain(self) -> Infeasibility:
        """Say which GPU cannot hold its stages even with one micro-batch in flight."""
        gpu, short = self.pipeline.lacking()
        if self.pipeline.free or self.problem.scope.memory == "peak":
            proof = Proof(ProofKind.NO_MEMORY_FOR_ONE, basis=PROOF)
            return Infeasibility(scope=self.proven, proof=proof)
        enough = self.problem.platform.gpus[gpu].memory_bytes + short
        return Infeasibility(
            scope=self.proven,
            proof=Proof(ProofKind.GPU_LACKS_MEMORY, gpu=gpu, memory_bytes=short),
            least_memory_bytes=enough,
            proven_memory_bytes=enough,
            gpu=gpu,
        )

    def plan(self, solution: PatternSolution) -> Plan:
        """Return the plan of a solution."""
        stages = solution.stages or self.problem.stages
        return self.scan.plan(stages, self.pipeline.pattern(solution))


class _EachSubset(_Search):
    """The scan of k for one allocation, with each subset of its layers recomputed in turn.

    What the stages recompute as they are given comes first, then what is least work.
    """

    def __init__(self, problem: Problem) -> None:
        subsets = product((False, True), repeat=len(problem.chain.layers))
        self.searches = sorted(
            (_Search(_recomputing(problem, subset), free=False) for subset in subsets),
            key=lambda search: (
                _recomputed(search.problem) != _recomputed(problem),
                search.load,
            ),
        )
        super().__init__(problem, free=True)

    def _reading(self) -> MemoryReading:
        in_peak = all(search.proven.memory == "peak" for search in self.searches)
        return "peak" if in_peak else "sum"

    def bisect(
        self, k: int, run: Run, high: int, *, known: bool = False
    ) -> Iterator[tuple[int, PatternSolution | None]]:
        """Look for shorter and shorter periods, with one subset after the other."""
        least = self._least(k, run)
        lows = [max(least, k * search.load) for search in self.searches]
        for number, search in enumerate(self.searches):
            if known and lows[number] >= high:
                continue
            query = partial(search.query, k, run)
            for low, solution in bisect_period(lows[number], high, query, run, known=known):
                lows[number] = low
                if solution is not None:
                    search.scan.solutions[k] = solution
                    high, known = solution.period_ns, True
                    solution = replace(solution, stages=search.problem.stages)
                yield min(lows), solution
            if run.stopped():
                return

    def is_impossible(self, run: Run) -> bool:
        """Whether it is proven that memory holds no micro-batch, whatever is recomputed."""
        return all(search.is_impossible(run) for search in self.searches)

    def plan(self, solution: PatternSolution) -> Plan:
        """Return the plan of a solution."""
        pipeline = AllocatedPipeline(replace(self.problem, stages=solution.stages))
        return self.scan.plan(solution.stages, pipeline.pattern(solution))


def _recomputing(problem: Problem, subset: Sequence[bool]) -> Problem:
    """Return a problem whose stages recompute a subset of its layers."""
    stages = (
        replace(stage, recompute=runs_of(subset[stage.first : stage.last + 1], stage.first))
        for stage in problem.stages
    )
    return replace(problem, stages=tuple(stages))


def _recomputed(problem: Problem) -> set[int]:
    """Return the layers that the stages recompute as they are given."""
    return {layer for stage in problem.stages for layer in stage.recomputed_layers}
