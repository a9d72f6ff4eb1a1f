"""One run of solvers: a clock, the incumbent, and the events that a listener hears of."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

from schedopt.account import fits
from schedopt.checking import Violation
from schedopt.errors import InvalidPlanError
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound, Infeasibility
from schedopt.solving.clock import Clock, StopHandle
from schedopt.solving.garbage_collection import pause_garbage_collection
from schedopt.solving.incumbent import Incumbent
from schedopt.solving.late_sending import check_sent_late
from schedopt.units import format_duration, format_gap
from schedopt.validation import as_ratio

NEAR: Final = 2
"""Gaps above the best: if the period is proven to be so near, k = 1 leaves little to find."""
LITTLE: Final = Fraction(2, 1000)
"""Above this no more than one gap is little: who allows a larger one wants it reached."""
OPEN: Final = Fraction(1, 100)
"""Gap of all patterns above which a turn that finds nothing goes on for longer, in proportion."""
MOST_TIMES: Final = 3.0
"""Times as long as below that, at most."""


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
    plan : Plan or None
        The best so far.
    """

    solver: str
    seconds: float
    period: Fraction | None
    bound: Fraction | None
    settled: bool
    plan: Plan | None = None

    def __str__(self) -> str:
        parts = [self.solver]
        for name, value in (("best", self.period), ("bound", self.bound)):
            parts.append(f"{name} {'none' if value is None else format_duration(value)}")
        if self.period is not None and self.bound:
            parts.append(f"gap {format_gap(self.period / self.bound - 1)}")
        return ", ".join(parts)


@dataclass
class Events:
    """What the solver at work has reported.

    Parameters
    ----------
    solver : str
    period : Fraction, optional
        The best normalized period of its own plans, ns.
    dropped : Fraction, optional
        The best normalized period of those of its plans, ns, that would fit if nothing came before
        it is read.
    proofs : list of Infeasibility
    left_out : str
        A question that it left open, in words.
    claimant : str
        The solver, if it is one of another package: what it proves is said to be its claim.
    """

    solver: str = ""
    period: Fraction | None = None
    dropped: Fraction | None = None
    proofs: list[Infeasibility] = field(default_factory=list)
    left_out: str = ""
    claimant: str = ""


def no_cutoff() -> None:
    """Say that steps of any length are of use."""


class Hopes:
    """How short steps may be that take long to be laid out, of searches side by side.

    Parameters
    ----------
    known : dict of Hashable to int
        Of each search, ns: shared by all.
    own : Hashable
        Which of them this one is.
    turn : context manager, optional
        A lock, held while a first answer is laid out: one may be enough for all. Shared by all.
    """

    def __init__(
        self,
        known: dict[Hashable, int] | None = None,
        own: Hashable = None,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._known, self._own = {} if known is None else known, own
        self.turn = turn or threading.Lock()

    def tell(self, step: int | None) -> None:
        """Say how short a step of this search may be, ns; None: nothing is known."""
        if step is None:
            self._known.pop(self._own, None)
        else:
            self._known[self._own] = step

    def beside(self) -> int | None:
        """Return how short a step of the others may be, ns; None: nothing is known."""
        every = [*self._known.items()]
        return min((step for key, step in every if key != self._own), default=None)


class Run:
    """What a solver is given with its problem, and where it reports.

    Parameters
    ----------
    problem : Problem
        What was asked. A solver may be given a narrower problem.
    time_limit : float, optional
        Seconds.
    seed, workers : int
        For solvers that draw random numbers or run in parallel.
    work_limit : int, optional
        Placements that a local search may look at. Unlike a limit of time it gives the same plan
        for the same seed and workers.
    gap : Fraction
        See `Incumbent`.
    stop : StopHandle, optional
        By which another thread may end it.
    on_progress : callable, optional
        Called with a `Progress` after each report.
    cutoff : callable, optional
        Says from which length on, ns, a step is of no use, since a shorter one is known of another
        problem; None: none is known.
    hopes : Hopes, optional
        Of searches beside this one.

    Attributes
    ----------
    scope : Scope
        The scope that was asked: what counts in the end.
    clock : Clock
    incumbent : Incumbent
    events : Events
        Of the solver at work.
    idle_share : float or None
        Once the best has k = 1, and little is left to find with that (`NEAR`), a turn ends when
        nothing better was found for this share of the limit, or up to `MOST_TIMES` as much where
        longer patterns leave more open; None: it does not.
    kept : dict of str to Any
        What solvers keep for a later turn of theirs, by their names: forks share it.
    must_answer : bool
        Whether a first plan is worth more than the limit: not where another question has one.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        time_limit: float | None = None,
        seed: int = 0,
        workers: int = 1,
        work_limit: int | None = None,
        gap: Fraction = Fraction(0),
        stop: StopHandle | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        cutoff: Callable[[], int | None] = no_cutoff,
        hopes: Hopes | None = None,
    ) -> None:
        self.scope, self.variants = problem.scope, problem.variants
        self.seed, self.workers, self.work_limit = seed, workers, work_limit
        self.clock = Clock(time_limit, handle=stop)
        self.incumbent = Incumbent(problem.scope, gap)
        self.events = Events()
        self.cutoff, self.hopes = cutoff, hopes or Hopes()
        self.idle_share: float | None = None
        self.kept: dict[str, Any] = {}
        self.must_answer = True
        self._on_progress, self._notifying = on_progress, threading.Lock()

    def begin(self, solver: str, share: float = 1.0) -> Events:
        """Begin with a solver, which has a share of the time that is left."""
        self.clock.begin_turn(share)
        self._go_on()
        self.events = Events(solver)
        return self.events

    def subrun(self, problem: Problem, share: float, longest: float | None = None) -> Run:
        """Return a run for another problem, in a share of the time that is left to this one.

        It has at most `longest` seconds, where that is given.
        """
        run = Run(
            problem,
            seed=self.seed,
            workers=self.workers,
            work_limit=self.work_limit,
            gap=self.incumbent.gap,
        )
        run.clock = self.clock.fork(share, longest)
        run.must_answer = self.must_answer and self.best() is None
        return run

    def stop_at_a_plan(self) -> None:
        """Ask the solver to stop as soon as there is a plan."""
        self._on_progress = lambda known: self.stop() if known.plan is not None else None

    def fork(self, workers: int, share: float) -> Run:
        """Return a view for a worker thread: incumbent and bounds are shared.

        It stops with this run, when it is asked to itself, or after a share of the time.
        """
        run = copy.copy(self)
        run.workers, run.clock = workers, self.clock.fork(share)
        run.events = replace(self.events, period=None, dropped=None, left_out="")
        return run

    def best(self) -> Plan | None:
        """Return the best plan so far."""
        return self.incumbent.plan

    def period(self) -> Fraction | None:
        """Return the best normalized period so far, ns."""
        return self.incumbent.period()

    def bound(self, scope: Scope | None = None) -> Fraction | None:
        """Return the best bound that holds in a scope, by default the one asked, ns."""
        return self.incumbent.bound(scope)

    def settled(self, scope: Scope | None = None) -> bool:
        """Whether nothing is left to find in a scope: see `Incumbent.settled`."""
        return self.incumbent.settled(scope)

    def remaining(self) -> float | None:
        """Return the seconds that are left to this solver; None without a limit."""
        return self.clock.remaining()

    def needs_plan(self) -> bool:
        """Whether a first plan is worth more than the limit, and none is known, here or beside."""
        return self.must_answer and self.best() is None and self.cutoff() is None

    def stop(self) -> None:
        """Ask the solver to stop soon and report the best that it has."""
        self.clock.stop()

    def stopped(self) -> bool:
        """Whether the solver should stop: its time is up, or somebody asked."""
        return self.clock.stopped()

    def report(self, plan: Plan, *, is_late: bool = False) -> None:
        """Report a plan. It is checked, and kept if it is better than the best so far.

        Activations and gradients are kept to be sent as late as they can be; `is_late`: they are. A
        plan that does not fit for the only reason that some come early all the same is dropped:
        solvers and bounds do not know of what waits to be read.

        Even if the solver looked in a narrower scope, it is a plan of the scope that was asked.

        Raises
        ------
        InvalidPlanError
            If the check refuses it, or a proven bound lies above its period.
        """
        plan, violations = self._check(plan, is_late=is_late)
        if not violations:
            self._offer(plan)
            return
        events, period = self.events, plan.pattern.period
        alone = all(violation.kind == "memory" for violation in violations)
        if alone and fits(plan, buffers=False):
            events.dropped = min(events.dropped or period, period)
            return
        raise InvalidPlanError(f"{events.solver}: {violations[0]} ({len(violations)} in all)")

    def report_if_valid(self, plan: Plan, *, is_late: bool = False) -> None:
        """Report a plan that somebody else made; one that is not valid is left out."""
        plan, violations = self._check(plan, is_late=is_late)
        if not violations:
            self._offer(plan)

    def _check(self, plan: Plan, *, is_late: bool) -> tuple[Plan, Sequence[Violation]]:
        """Return a plan as one of the scope that was asked, and what is wrong with it."""
        if plan.scope != self.scope or plan.variants != self.variants:
            plan = replace(plan, scope=self.scope, variants=self.variants)
        with pause_garbage_collection():
            return check_sent_late(plan, is_late=is_late)

    def _offer(self, plan: Plan) -> None:
        events, period = self.events, plan.pattern.period
        events.period = min(events.period or period, period)
        before = self._known()
        self.incumbent.offer(plan, events.solver)
        if self._known() != before:
            self._go_on()
        self._notify()

    def report_bound(self, value: Fraction | int, scope: Scope, proof: Proof | str) -> None:
        """Report a normalized period, ns, that no plan of a scope can beat."""
        self.add_bound(Bound(exact=as_ratio(value), scope=scope, proof=proof))

    def add_bound(self, bound: Bound) -> None:
        """Report a bound."""
        bound = replace(bound, proof=self._name_claimant(bound.proof))
        before = self._known()
        self.incumbent.add_bound(bound, self.events.solver)
        if self._known() != before:
            self._go_on()
        self._notify()

    def report_infeasible(self, proof: Infeasibility) -> None:
        """Report that a scope holds no plan."""
        proof = replace(proof, proof=self._name_claimant(proof.proof))
        self.events.proofs.append(proof)
        self.incumbent.add_proof(proof, self.events.solver)
        self._notify()

    def leave_out(self, why: str) -> None:
        """Note that the solver left a question open, of which nothing is known then."""
        self.events.left_out = why

    def _known(self) -> tuple[Fraction | None, ...]:
        """Return the best period, and what bounds it: that of all that is asked, and with k = 1."""
        return self.period(), self.bound(), self.bound(replace(self.scope, max_k=1))

    def _go_on(self) -> None:
        """Give the solver at work time to find something more, where that may be in vain."""
        best, bound = self.best(), self.bound(replace(self.scope, max_k=1))
        if self.idle_share is None or best is None or bound is None:
            return
        gap = self.incumbent.gap
        period, any_k = best.pattern.period, self.bound()
        near = period <= bound * (1 + max(gap, min(NEAR * gap, LITTLE)))
        if not near or best.pattern.k != 1 or any_k is None:
            self.clock.end_turn_in(None)
            return
        times = float((period / any_k - 1) / OPEN)
        self.clock.end_turn_in(self.idle_share * max(1.0, min(times, MOST_TIMES)))

    def _name_claimant(self, proof: Proof | str) -> Proof | str:
        claimant = self.events.claimant
        return Proof(ProofKind.CLAIMED, solver=claimant, basis=proof) if claimant else proof

    def _notify(self) -> None:
        if self._on_progress is not None:
            # Of solvers that run side by side one after the other.
            with self._notifying:
                known = (self.period(), self.bound(), self.settled(), self.best())
                self._on_progress(Progress(self.events.solver, self.clock.seconds(), *known))
