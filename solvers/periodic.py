"""The best k-periodic pattern for a given allocation, proven by CP-SAT.

The order model of `schedopt.solving.orders` decides whether a period T is possible. T is bisected;
after each order found the search drops to the least T that the order allows, and asks whether 1 ns
less is possible, which proves it if not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

from schedopt.plan import Plan, count_from_first_backward
from schedopt.problem import Problem, Scope
from schedopt.result import Infeasibility
from schedopt.solvers.one_f_one_b_star import refuse_unsupported
from schedopt.solving.choices import order_model
from schedopt.solving.course import Answer, Course, require_stages
from schedopt.solving.probing import decide, probe
from schedopt.solving.run import Run

PROOF: Final = "CP-SAT over all orders of k micro-batches"
LOAD: Final = "a GPU or link works so long for each micro-batch"
LONGEST: Final = 8
"""The k to which the search goes where any is allowed."""


def solve(problem: Problem, run: Run) -> None:
    """Scan k and report the best pattern with its proof.

    Where no allocation is given, that of the best plan so far is kept; then nothing is proven.

    Raises
    ------
    InputError
        If there is no allocation, or it has replicas, or a rule with updates or a finite step is
        asked for.
    """
    refuse_unsupported(problem, "periodic")
    best_so_far = run.best()
    given = problem
    if problem.scope.allocation != "fixed" and best_so_far is not None:
        scope = replace(problem.scope, allocation="fixed")
        given = replace(problem, scope=scope, stages=best_so_far.stages)
    require_stages(given, "periodic")
    search = _Search(given, free=given is problem and problem.scope.recompute)
    if search.course.lacking()[1] > 0:
        if given is problem:
            run.report_infeasible(search.explain())
        return
    for answer in search.scan(run):
        run.report(replace(search.plan(answer), scope=problem.scope))
    if given is problem and search.impossible:
        run.report_infeasible(search.explain())
    elif given is problem:
        search.report_bound(run)


class _Search:
    """The scan of k for one allocation."""

    def __init__(self, problem: Problem, *, free: bool) -> None:
        self.problem = problem
        self.course = Course(problem, free=free)
        self.load = self.course.load_ns
        self.longest = problem.scope.max_k or LONGEST
        self.asked = problem.scope.period_ns
        self.bounds: dict[int, Fraction] = {}
        self.impossible = False
        self.proven = Scope(
            allocation="fixed",
            max_k=None,
            gpu_order="any",
            memory=self.course.proven_reading(),
            split_backward=problem.scope.split_backward,
            recompute=problem.scope.recompute,
        )

    def scan(self, run: Run) -> Iterator[Answer]:
        """Yield each answer that improves on the best, for one k after the other."""
        answers: dict[int, Answer] = {}
        for k in range(1, self.longest + 1):
            known = _repeated(answers, k)
            low, best = max(1, k * self.load), run.period()
            high = max(low, known.period_ns if known else k * self.course.whole_ns)
            if best is not None:
                # What is not better than the best is of no use.
                high = min(high, -(-best.numerator * k // best.denominator))
            if self.asked is not None:
                high = min(high, k * self.asked)
            ask = partial(self._ask, k, answers, run)
            is_known = known is not None or best is not None
            if known is not None:
                answers[k] = known
            for least, found in probe(low, high, ask, run, known=is_known):
                if found is not None:
                    answers[k] = found
                    yield found
                self.bounds[k] = Fraction(least, k)
            self.bounds.setdefault(k, Fraction(self.load))
            # What fits at all fits with one micro-batch after the other.
            self.impossible = run.best() is None and self.bounds[k] > self.course.whole_ns
            if self.impossible or run.stopped() or run.period() == self.load:
                return

    def _ask(self, k: int, answers: Mapping[int, Answer], run: Run, period: int) -> Answer | None:
        return decide(order_model(self.course, k, period), answers.get(k), run)

    def report_bound(self, run: Run) -> None:
        """Report what holds for every k that was looked at."""
        run.report_bound(self.load, self.proven, LOAD)
        for last in range(1, self.longest + 1):
            if last not in self.bounds:
                break
            value = min(self.bounds[k] for k in range(1, last + 1))
            scope = replace(self.proven, max_k=last)
            if self.asked is None or value <= self.asked:
                run.report_bound(value, scope, PROOF)
            elif run.best() is None:
                run.report_infeasible(
                    Infeasibility(
                        scope=replace(scope, period_ns=self.asked),
                        proof=f"{PROOF}; the least period is above {self.asked} ns",
                        wider="a longer period, a longer pattern, or another allocation",
                    )
                )

    def explain(self) -> Infeasibility:
        """Say which GPU cannot hold its stages even with one micro-batch in flight."""
        gpu, short = self.course.lacking()
        enough = None
        if not self.course.free:
            enough = self.problem.platform.gpus[gpu].memory_bytes + short
        return Infeasibility(
            scope=self.proven,
            proof=f"GPU {gpu} lacks {short} bytes with one micro-batch in flight"
            if short > 0
            else f"{PROOF}, with one micro-batch in flight",
            least_memory_bytes=enough,
            proven_memory_bytes=enough,
            gpu=gpu,
            wider="another allocation",
        )

    def plan(self, answer: Answer) -> Plan:
        """Return the plan of an answer."""
        pattern = self.course.pattern(answer)
        return Plan(
            chain=self.problem.chain,
            platform=self.problem.platform,
            rule=self.problem.rule,
            scope=self.problem.scope,
            stages=answer.stages or self.problem.stages,
            pattern=count_from_first_backward(
                pattern.operations, pattern.transfers, answer.k, answer.period_ns
            ),
        )


def _repeated(answers: Mapping[int, Answer], k: int) -> Answer | None:
    """Return the best answer for a divisor of k as one for k."""
    found = [one for one in answers.values() if k % one.k == 0]
    if not found:
        return None
    best = min(found, key=lambda one: Fraction(one.period_ns, one.k))
    turns = k // best.k
    starts = tuple(
        tuple(begin + turn * best.period_ns for turn in range(turns) for begin in of_step)
        for of_step in best.starts
    )
    return Answer(k, best.period_ns * turns, starts)
