"""The best contiguous k-periodic plan, proven by CP-SAT: allocation and pattern at once.

The model of `schedopt.solving.allocations` decides whether a period T is possible; T is bisected
for one k after the other. What load and memory alone do not allow is left out of the model, and
often nothing is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

from schedopt.account.timeline import layer_ns
from schedopt.chain import Layer
from schedopt.errors import InputError
from schedopt.plan import Kind, Plan
from schedopt.problem import Problem, Scope
from schedopt.result import Infeasibility
from schedopt.solvers.one_f_one_b_star import refuse_unsupported
from schedopt.solving.allocations import AllocationModel
from schedopt.solving.course import LONGEST, covers_grain
from schedopt.solving.lags import without_lags
from schedopt.solving.pieces import Pieces, PiecesModel
from schedopt.solving.probing import decide, probe
from schedopt.solving.run import Run
from schedopt.solving.slots import Slots
from schedopt.solving.steps import Answer
from schedopt.solving.windows import Windows

MOST_PLACES: Final = 4096
"""Layers times GPUs, of which the models take seconds to be made."""
PROOF: Final = "CP-SAT over all contiguous allocations and all orders of k micro-batches"


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
    places = len(problem.chain.layers) * len(problem.platform.gpus)
    if places > MOST_PLACES:
        raise InputError(
            f"{len(problem.chain.layers)} layers on {len(problem.platform.gpus)} GPUs are too many "
            f"for a search over all allocations at once",
            field="solver",
            way_out=f"Use contiguous and periodic, or merge layers: at most {MOST_PLACES} places "
            f"(layers times GPUs) are searched",
        )
    if problem.platform.network is not None:
        raise InputError(
            "contiguous_cpsat does not know links that differ",
            field="solver",
            way_out="Use contiguous and periodic, or GPUs with equal links (--bandwidth)",
        )
    search = _Search(problem)
    for answer in search.scan(run):
        run.report(search.plan(answer))
    if covers_grain(problem):
        search.report_bounds(run)


class _Search:
    """The scan of k for all contiguous allocations.

    Of each k it keeps what T / k cannot be below.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, scope = problem, problem.scope
        self.slots = Pieces(problem) if scope.grain == "layer" else Slots(problem)
        self.longest = scope.max_k or LONGEST
        self.bounds: dict[int, Fraction] = {}
        self.answers: dict[int, Answer] = {}
        # One kind of memory alone is the same in both readings.
        alike = not scope.split_backward and not scope.recompute and scope.grain == "stage"
        self.proven = Scope(
            grain=scope.grain,
            max_k=self.longest,
            memory="peak" if alike else "sum",
            split_backward=scope.split_backward,
            recompute=scope.recompute,
            gpu_order="any" if problem.platform.uniform else "given",
        )

    def scan(self, run: Run) -> Iterator[Answer]:
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

    def _probe(self, k: int, low: int, run: Run) -> Iterator[tuple[int, Answer | None]]:
        """Look for shorter and shorter periods: see `probing.probe`."""
        best, asked = run.period(), self.problem.scope.period_ns
        high = max(low, k * self._longest_way()) if best is None else ceil(k * best)
        if asked is not None and (best is None or best > asked):
            high, best = k * asked, None

        def ask(period: int) -> Answer | None:
            return self._ask(k, period, run)

        return probe(low, high, ask, run, known=best is not None)

    def _hint(self, k: int) -> Answer | None:
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

    def _ask(self, k: int, period: int, run: Run) -> Answer | None:
        windows = Windows(self.problem, self.slots.count, k, period)
        if not all(windows.slots_of):
            return Answer(k, period, ())
        kind = PiecesModel if self.problem.scope.grain == "layer" else AllocationModel
        return decide(kind(self.slots, windows), self._hint(k), run)

    def report_bounds(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        asked = self.problem.scope.period_ns
        if self.is_impossible(run):
            proof = f"{PROOF}: memory does not hold one micro-batch after the other"
            proven = replace(self.proven, max_k=None)
            run.report_infeasible(Infeasibility(scope=proven, proof=proof))
            return
        for last in self.bounds:
            value = min(self.bounds[k] for k in range(1, last + 1))
            scope = replace(self.proven, max_k=last)
            if asked is None or value <= asked:
                run.report_bound(value, scope, PROOF)
            elif run.best() is None:
                run.report_infeasible(
                    Infeasibility(
                        scope=replace(scope, period_ns=asked),
                        proof=f"{PROOF}; the least period is above {asked} ns",
                    )
                )

    def plan(self, answer: Answer) -> Plan:
        """Return the plan of an answer."""
        plan = Plan(
            chain=self.problem.chain,
            platform=self.problem.platform,
            rule=self.problem.rule,
            scope=self.problem.scope,
            stages=answer.stages,
            pattern=self.slots.pattern(answer),
        )
        return without_lags(plan)
