"""One run of a solver: its clock, the best plan so far, the bound, and when to stop."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from threading import RLock

from schedopt.checking import check
from schedopt.errors import InvalidPlanError
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.result import Bound, Infeasibility, as_ratio, best_bound
from schedopt.solving.suggestions import ways_out
from schedopt.units import format_duration


@dataclass(frozen=True)
class Progress:
    """What a run knows at one moment.

    Parameters
    ----------
    solver : str
    seconds : float
        Since the start.
    period, bound : Fraction or None
        The best so far, ns.
    settled : bool
        Whether nothing is left to find: see `Run.settled`.
    """

    solver: str
    seconds: float
    period: Fraction | None
    bound: Fraction | None
    settled: bool


@dataclass
class _Known:
    """What is known, to all that work on a problem at the same time."""

    best: Plan | None = None
    solver_of_best: str = ""
    bounds: list[Bound] = field(default_factory=list)
    proofs: list[Infeasibility] = field(default_factory=list)
    lock: RLock = field(default_factory=RLock)


class Run:
    """What a solver is given beside the problem, and where it reports.

    Parameters
    ----------
    problem : Problem
    time_limit : float, optional
        Seconds.
    seed, workers : int
        For solvers that draw random numbers or run in parallel.
    work_limit : int, optional
        Placements that a local search may look at. Unlike a limit of time it gives the same plan
        for the same seed and workers.
    on_progress : callable, optional
        Called with a `Progress` after each report.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        time_limit: float | None = None,
        seed: int = 0,
        workers: int = 1,
        work_limit: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.problem = problem
        self.seed = seed
        self.workers = workers
        self.work_limit = work_limit
        self.solver = ""
        self.own: Fraction | None = None
        self.left_out = ""
        self._started = time.monotonic()
        self._deadline = None if time_limit is None else self._started + time_limit
        self._stops = [threading.Event()]
        self._on_progress = on_progress
        self._known = _Known()
        self._until: float | None = None

    def begin(self, solver: str, share: float = 1.0) -> None:
        """Begin with a solver, which has a share of the time that is left."""
        self.solver, self.own, self.left_out = solver, None, ""
        if self._deadline is not None:
            now = time.monotonic()
            self._until = now + (self._deadline - now) * share

    def extend(self, seconds: float) -> None:
        """Give the run so much more time."""
        if self._deadline is not None:
            self._deadline += seconds
        if self._until is not None:
            self._until += seconds

    def part(self, problem: Problem, share: float) -> Run:
        """Return a run for a part of the problem, with a share of the time that is left.

        It stops when this one is stopped.
        """
        remaining = self.remaining()
        limit = None if remaining is None else max(0.0, share * remaining)
        run = Run(
            problem,
            time_limit=limit,
            seed=self.seed,
            workers=self.workers,
            work_limit=self.work_limit,
        )
        run._stops = [threading.Event(), *self._stops]
        return run

    def beside(self, workers: int, share: float) -> Run:
        """Return this run for a thread that works beside, with what is known in common.

        It stops with this one, when it is asked to itself, or after a share of the time.
        """
        run = copy.copy(self)
        run.workers = workers
        remaining = self.remaining()
        if remaining is not None:
            run._until = time.monotonic() + share * remaining
        run._stops = [threading.Event(), *self._stops]
        return run

    @property
    def bounds(self) -> list[Bound]:
        """What was proven."""
        return self._known.bounds

    @property
    def proofs(self) -> list[Infeasibility]:
        """Proofs that a scope holds no plan."""
        return self._known.proofs

    @property
    def solver_of_best(self) -> str:
        """Which solver found the best plan."""
        return self._known.solver_of_best

    def best(self) -> Plan | None:
        """Return the best plan so far."""
        return self._known.best

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started

    def remaining(self) -> float | None:
        """Return the seconds that are left to this attempt; None without a limit."""
        until = self._until if self._until is not None else self._deadline
        return None if until is None else until - time.monotonic()

    def stop(self) -> None:
        """Ask the solver to stop soon and report the best that it has."""
        self._stops[0].set()

    def stopped(self) -> bool:
        """Whether the solver should stop: its time is up, or somebody asked."""
        remaining = self.remaining()
        return any(stop.is_set() for stop in self._stops) or (
            remaining is not None and remaining <= 0
        )

    def asked_to_stop(self) -> bool:
        """Whether somebody asked to stop, whatever the time is."""
        return any(stop.is_set() for stop in self._stops)

    def ended(self) -> bool:
        """Whether the whole run should stop."""
        return self.asked_to_stop() or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )

    def period(self) -> Fraction | None:
        """Return the best normalized period so far, ns."""
        best = self.best()
        return None if best is None else _period(best)

    def settled(self, scope: Scope | None = None) -> bool:
        """Whether nothing is left to find in a scope, by default the one asked.

        Proven optimal, a plan within the period asked, or proven to hold none.
        """
        scope = scope or self.problem.scope
        period, asked = self.period(), scope.period_ns
        if period is None:
            return any(proof.scope.covers(scope) for proof in self.proofs)
        return period == self.bound(scope) or (asked is not None and period <= asked)

    def bound(self, scope: Scope | None = None) -> Fraction | None:
        """Return the best bound that holds in a scope, by default the one asked, ns."""
        return best_bound(self.bounds, scope or self.problem.scope)

    def report(self, plan: Plan) -> None:
        """Report a plan. It is checked, and kept if it is better than the best so far.

        Whatever it was looked for in, it is a plan of the scope that was asked.

        Raises
        ------
        InvalidPlanError
            If the check refuses it, or a proven bound lies above its period.
        """
        if plan.scope != self.problem.scope:
            plan = replace(plan, scope=self.problem.scope)
        violations = check(plan)
        if violations:
            raise InvalidPlanError(f"{self.solver}: {violations[0]} ({len(violations)} in all)")
        self.own = _period(plan) if self.own is None else min(self.own, _period(plan))
        with self._known.lock:
            best = self.period()
            if best is None or _period(plan) < best:
                self._known.best = plan
                self._known.solver_of_best = self.solver
            self._compare()
        self._tell()

    def report_bound(self, value: Fraction | int, scope: Scope, proof: str) -> None:
        """Report a normalized period, ns, that no plan of a scope can beat."""
        self.add_bound(Bound(exact=as_ratio(value), scope=scope, proof=proof))

    def add_bound(self, bound: Bound) -> None:
        """Keep a bound, in place of a weaker one that speaks of the same scope."""
        with self._known.lock:
            same = [old for old in self.bounds if old.scope == bound.scope]
            if all(old.period < bound.period for old in same):
                others = [old for old in self.bounds if old.scope != bound.scope]
                self._known.bounds = [*others, bound]
            self._compare()
        self._tell()

    def leave_out(self, why: str) -> None:
        """Note that this attempt left a question out, of which nothing is known then."""
        self.left_out = why

    def report_infeasible(self, proof: Infeasibility) -> None:
        """Report that a scope holds no plan."""
        with self._known.lock:
            self.proofs.append(proof)
            self._compare()
        self._tell()

    def infeasibility(self) -> Infeasibility | None:
        """Return the proof that the scope asked holds no plan, with the least memory known.

        A bound above the period that was asked is one. Proofs may speak of different GPUs: what
        every GPU has more is compared, and said of the GPU of the last proof.
        """
        scope = self.problem.scope
        valid = [proof for proof in self.proofs if proof.scope.covers(scope)]
        if not valid:
            return self._beyond()
        last = replace(valid[-1], wider=valid[-1].wider or ways_out(self.problem))
        sizes = [gpu.memory_bytes for gpu in self.problem.platform.gpus]
        more = [
            (proof.least_memory_bytes - sizes[proof.gpu or 0], proof.gpu)
            for proof in self.proofs
            if proof.least_memory_bytes is not None
        ]
        if not more:
            return last
        least, gpu = min(more, key=lambda one: one[0])
        if last.gpu is None and len(set(sizes)) > 1:
            last = replace(last, gpu=gpu)
        return replace(last, least_memory_bytes=sizes[last.gpu or 0] + least)

    def _beyond(self) -> Infeasibility | None:
        """Return that a bound lies above the period that was asked, if one does."""
        scope = self.problem.scope
        best = max(
            (bound for bound in self.bounds if bound.scope.covers(scope)),
            key=lambda bound: bound.period,
            default=None,
        )
        if scope.period_ns is None or best is None or best.period <= scope.period_ns:
            return None
        return Infeasibility(
            scope=scope,
            proof=f"no period is below {format_duration(best.period)}: {best.proof}",
            wider=ways_out(self.problem),
        )

    def _compare(self) -> None:
        period, bound = self.period(), self.bound()
        if period is None:
            return
        if bound is not None and bound > period:
            raise InvalidPlanError(f"{self.solver}: bound {bound} ns above the period {period} ns")
        if self.infeasibility() is not None:
            raise InvalidPlanError(f"{self.solver}: a plan where none is said to exist")

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                Progress(self.solver, self.seconds(), self.period(), self.bound(), self.settled())
            )


def _period(plan: Plan) -> Fraction:
    return plan.pattern.period
