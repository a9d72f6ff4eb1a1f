"""One solver after the other, with one freedom more at a time, and what each added."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from fractions import Fraction
from typing import Final

from schedopt.bounds import lower_bounds, memory_proof
from schedopt.effort import GAP, TIME_LIMIT
from schedopt.errors import InputError
from schedopt.interrupts import stopping_first
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.proofs import Note, Outcome
from schedopt.result import Infeasibility, PhaseResult, Result, Status
from schedopt.solving.clock import StopHandle
from schedopt.solving.incumbent import find_infeasibility
from schedopt.solving.local_search.compilation import COMPILATIONS, NOT_READY
from schedopt.solving.options import as_warm_start, check_kind, make_run, refuse_solver
from schedopt.solving.phases import (
    Phase,
    has_time,
    is_start,
    plan_phases,
    share_time,
    side_by_side,
    what_if_phases,
)
from schedopt.solving.registry import load_solver
from schedopt.solving.run import Hopes, Progress, Run, no_cutoff
from schedopt.validation import as_ratio
from schedopt.version import __version__

COMPILED: Final = {
    "general": "local_search",
    "training_step": "replicas",
    "engine_step": "engines",
    "replicated": "replicas",
}
"""The rooms whose compiled code solvers need first.

Without it they are not asked what a freedom would give, which is brief.
"""
WITHOUT_PLANS: Final = ("relaxation",)
"""Solvers that prove bounds alone."""
IDLE: Final = "nothing more was found for long"
"""Why a search for longer patterns ended before its time."""
POLL_S: Final = 0.05
"""How often it is seen whether solvers that run side by side should stop."""
BRIEFLY_S: Final = 4.0
"""The most that is spent on what a freedom would give where all that was asked is settled.

And on replicas always: it is twice what loading their code may take.
"""
SHARE_OF_IDLE: Final = 0.1
"""Of the time limit, after which a search for longer patterns ends that has found nothing more."""
SHARE_OF_BOUNDS: Final = 0.1
"""Of the time that is left, for bounds without a search."""
SHARE_ALONE: Final = 0.02
"""Of the time that is left, in which nothing is searched beside them: they may settle all."""


def solve_problem(
    problem: Problem,
    *,
    solver: str | None = None,
    time_limit: float | None = TIME_LIMIT,
    seed: int = 0,
    workers: int | None = None,
    work_limit: int | None = None,
    gap: float = GAP,
    initial: Plan | Result | None = None,
    stop: StopHandle | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cutoff: Callable[[], int | None] = no_cutoff,
    hopes: Hopes | None = None,
) -> Result:
    """Solve a problem: see `solve` for parameters and errors, `Run` for `cutoff` and `hopes`."""
    refuse_solver(problem, solver)
    plan = initial.plan if isinstance(initial, Result) else initial
    check_kind(solver, str, "solver", "Give the name of a solver")
    check_kind(plan, Plan, "initial", "Give a schedopt.Plan, or a schedopt.Result that has one")
    run = make_run(
        problem,
        time_limit=time_limit,
        seed=seed,
        workers=workers,
        work_limit=work_limit,
        gap=gap,
        stop=stop,
        on_progress=on_progress,
        cutoff=cutoff,
        hopes=hopes,
    )
    if solver is None and _may_be_idle(run):
        run.idle_share = SHARE_OF_IDLE
    with stopping_first(run.stop), ThreadPoolExecutor(1) as pool:
        portfolio = _Portfolio(problem, run, solver, pool)
        try:
            return portfolio.solve(plan)
        finally:
            portfolio.prover.stop()


def _may_be_idle(run: Run) -> bool:
    """Whether a search may end when it finds nothing more, though not all is proven.

    By default longer patterns are looked for where they hardly ever help. Who asks for those of a
    length of their own, or for all that can be proven, has the whole time; and ends by a limit of
    work are the same each time.
    """
    scope = run.scope
    usual = scope.allocation == "general" and scope.max_k == Scope.usual().max_k
    return usual and run.incumbent.gap > 0 and run.work_limit is None


class _Portfolio:
    """The phases of one problem, in their order."""

    def __init__(self, problem: Problem, run: Run, named: str | None, pool: Executor) -> None:
        self.problem, self.run, self.named, self.pool = problem, run, named, pool
        self.phases = [Phase((named,), "", problem)] if named else [*plan_phases(problem)]
        self.others = [] if named else [*what_if_phases(problem)]
        names = [name for phase in self.phases for name in phase.solvers]
        # What is compiled next to those that need nothing begins before they are loaded.
        for name in names:
            if name in COMPILED:
                COMPILATIONS[COMPILED[name]].start()
        self.solvers = {name: load_solver(name) for name in names}
        self.prover = run.fork(run.workers, 1.0)
        self.proofs = lower_bounds(problem, self.prover.stopped)
        self.proving: Future[None] | None = None
        self.results: list[PhaseResult] = []
        self.refusals: list[InputError] = []

    def solve(self, initial: Plan | None) -> Result:
        """Run the phases one after the other, as long as something is open."""
        run, problem = self.run, self.problem
        run.begin("closed form")
        run.add_bound(next(self.proofs))
        if initial is not None:
            run.begin("initial")
            run.report(as_warm_start(initial, problem), is_late=True)
        if problem.scope.allocation == "general" and (too_much := memory_proof(problem)):
            run.report_infeasible(too_much)
        # With a limit of work all have their turn, however long that takes.
        seconds = run.remaining() if run.work_limit is None else None
        for phase, share in share_time([*self.phases, *self.others], seconds):
            if phase.tried is not None:
                self._run_what_if(phase, share)
            elif self._is_open(phase) and self._has_time(phase, share):
                self._run(phase, share)
                run.clock.take_back_turn()
        if run.clock.ended() or run.settled():
            self.prover.stop()
        else:
            self._begin_to_prove()
        if self.proving is not None:
            self.proving.result()
        if run.best() is None and self.refusals and len(self.refusals) == len(self.results):
            raise self.refusals[-1]
        return self._result()

    def _is_open(self, phase: Phase) -> bool:
        """Whether a phase may still answer something."""
        run = self.run
        impossible = self._infeasibility()
        if impossible is None and (self.named or phase.freedom or phase.weight):
            # Those before are quick, and leave a plan if somebody asks to stop.
            self._begin_to_prove()
            impossible = self._infeasibility()
        if run.clock.ended() and (self.named or not run.needs_plan()):
            return False
        if impossible is not None:
            # What is quick may still say which memory would do. So does the search for an engine.
            may_say = not phase.weight or self.problem.scope.engine is not None
            return may_say and impossible.least_memory_bytes is None
        settled = run.settled() or run.settled(phase.problem.scope)
        return not settled or self._may_need_fewer(phase)

    def _may_need_fewer(self, phase: Phase) -> bool:
        """Whether a phase may find a plan as fast as the best in little time, of fewer stages."""
        best, layers = self.run.best(), self.problem.chain.layers
        if phase.solvers != ("contiguous",) or phase.problem.scope.period_ns is not None:
            return False
        if best is None or best.pattern.k > 1:
            return False
        work = min(
            sum(gpu.duration_ns(layer.forward_ns + layer.backward_ns) for layer in layers)
            for gpu in set(self.problem.platform.gpus)
        )
        return work <= (len(best.stages) - 1) * best.pattern.period

    def _has_time(self, phase: Phase, share: float) -> bool:
        """Whether a phase has time enough, or may take what it needs."""
        run = self.run
        if not phase.weight or run.work_limit is not None or run.best() is None:
            return True
        later = self.phases[self.phases.index(phase) + 1 :]
        room = COMPILED.get(phase.solvers[0])
        if room is not None and COMPILATIONS[room].is_under_way() and is_start(phase, later):
            # It would have no more than the wait.
            return False
        run.begin(phase.solvers[0], share)
        return has_time(phase, later, run.remaining())

    def _run(self, phase: Phase, share: float) -> None:
        """Run the solvers of a phase side by side, until nothing is left to find in its scope."""
        run = self.run
        if len(phase.solvers) == 1 or run.work_limit is not None:
            # What is told when it comes would make runs with a limit of work differ.
            for name, part in phase.in_turn(share):
                if name == phase.solvers[-1] or self._is_open(phase):
                    run.begin(name, part)
                    self.results.append(self._attempt(name, phase, run))
            return
        run.begin(phase.solvers[0], share)
        solvers = side_by_side(phase, run.remaining())
        workers = max(1, run.workers // len(solvers))
        forks = {name: run.fork(workers, 1.0) for name in solvers}
        with ThreadPoolExecutor(len(solvers)) as pool:
            tasks = []
            for name, fork in forks.items():
                fork.begin(name)
                tasks.append(pool.submit(self._attempt, name, phase, fork))
            left = set(tasks)
            while left:
                done, left = wait(left, timeout=POLL_S, return_when=FIRST_COMPLETED)
                failed = any(task.exception() is not None for task in done)
                if failed or run.settled() or run.settled(phase.problem.scope):
                    for fork in forks.values():
                        fork.stop()
        self.results += [task.result() for task in tasks]

    def _attempt(self, name: str, phase: Phase, run: Run) -> PhaseResult:
        """Run a solver, and say what it did."""
        events, begin = run.events, run.clock.seconds()
        try:
            self.solvers[name](phase.problem, run)
        except InputError as error:
            self.refusals.append(error)
            note = Note(Outcome.REFUSED, detail=error.rule)
            return PhaseResult(solver=name, freedom=phase.freedom, note=note)
        return PhaseResult(
            solver=name,
            freedom=phase.freedom,
            period_exact=_ratio(events.period),
            bound_exact=_ratio(run.bound(phase.problem.scope)),
            seconds=round(run.clock.seconds() - begin, 6),
            note=self._note(name, phase, run),
        )

    def _run_what_if(self, phase: Phase, share: float) -> None:
        """Note what a freedom would give that is not allowed, if it can give something.

        Where the answer is settled, one solver is asked, briefly; and so are replicas always.
        """
        run, problem, best = self.run, phase.problem, self.run.best()
        if run.clock.ended() or best is None:
            return
        if run.period() == max(bound.period for bound in lower_bounds(problem, run.stopped)):
            return
        room = COMPILED.get(phase.solvers[0])
        if room is not None and run.work_limit is None:
            COMPILATIONS[room].start()
            if COMPILATIONS[room].is_under_way():
                note = Note(Outcome.REFUSED, detail=NOT_READY)
                missing = PhaseResult(solver=phase.solvers[0], freedom=phase.freedom, note=note)
                self.results.append(missing)
                return
        begin = run.clock.seconds()
        run.clock.begin_turn()
        if problem.scope.replicas != 1:
            part = run.subrun(problem, share, BRIEFLY_S)
            names = [*phase.solvers]
        else:
            is_brief = run.settled() and run.work_limit is None
            part = run.subrun(problem, share, BRIEFLY_S if is_brief else None)
            part.begin("best")
            if best.pattern.k == 1:
                part.report(best)
            names = ["contiguous"] if problem.scope.recompute else []
            names.append("periodic" if run.settled() else phase.solvers[0])
            if names[0] == "periodic" and part.best() is None:
                # It improves a plan, and there is no 1-periodic one.
                return
            names = names[: 1 if run.settled() else None]
        for name in names:
            part.begin(name)
            load_solver(name)(problem, part)
        period = part.period()
        better = period is not None and period < (run.period() or 0)
        if not better and (part.events.left_out or part.stopped()):
            return
        outcome = Outcome.WOULD_HELP if better else Outcome.WOULD_NOT_HELP
        self.results.append(
            PhaseResult(
                solver=part.incumbent.solver if better else part.events.solver,
                freedom=phase.freedom,
                period_exact=_ratio(period) if better else None,
                seconds=round(run.clock.seconds() - begin, 6),
                note=Note(outcome, suggestion=phase.tried, detail=phase.amount),
            )
        )

    def _begin_to_prove(self) -> None:
        """Let bounds be proven, until there are no more or a share of the time is up.

        What takes long goes on beside the search, if that has a plan to improve. Else it is waited
        for: there may be none. With a limit of work, too: what is told when it comes would make
        runs differ.
        """
        if self.proving is not None:
            return
        run, seconds = self.run, self.prover.remaining()
        self.proving = self.pool.submit(self._prove)
        improves = run.best() is not None and self.problem.scope.period_ns is None
        if seconds is not None and improves and run.work_limit is None:
            wait([self.proving], timeout=SHARE_ALONE * max(0.0, seconds))
        else:
            self.proving.result()

    def _prove(self) -> None:
        self.prover.begin("closed form", SHARE_OF_BOUNDS)
        for proven in self.proofs:
            self.prover.add_bound(proven)

    def _infeasibility(self) -> Infeasibility | None:
        return find_infeasibility(self.problem, self.run.incumbent)

    def _note(self, name: str, phase: Phase, run: Run) -> Note:
        """Say what is known after a solver of a phase."""
        events, scope = run.events, phase.problem.scope
        own, best = events.period, run.period()
        if self._infeasibility() is not None:
            return Note(Outcome.INFEASIBLE)
        if best is not None and best == run.bound() and not events.claimant:
            return Note(Outcome.OPTIMAL if own == best else Outcome.PROVES_BEST)
        proven = best is not None and best == run.bound(scope) and not events.claimant
        why = events.proofs[-1] if best is None and events.proofs else None
        if name in WITHOUT_PLANS:
            outcome, why = Outcome.BOUND_ONLY, None
        elif why is not None:
            in_sum = why.scope.memory == "sum" != self.problem.scope.memory
            outcome = Outcome.NO_PLAN_IN_SUM if in_sum else Outcome.NO_PLAN_EXISTS
        elif best is None:
            outcome = Outcome.NO_PLAN if run.stopped() else Outcome.NONE_FITS
        elif own == best:
            outcome = Outcome.BEST_OF_KIND if proven else Outcome.NOT_PROVEN
        else:
            outcome = Outcome.NO_BETTER_EXISTS if proven else Outcome.NO_BETTER
        dropped = events.dropped
        if dropped is not None and best is not None and dropped >= best:
            dropped = None
        least, is_increase = None if why is None else why.least_memory_bytes, False
        if why is not None and least is not None:
            least, is_increase = why.amount(least, self.problem.platform)
        return Note(
            outcome,
            stopped=run.stopped() and not run.settled(scope),
            detail=events.left_out or (IDLE if run.clock.is_idle() else ""),
            proof=None if why is None else why.proof,
            least_memory_bytes=least,
            is_increase=is_increase,
            dropped_exact=_ratio(dropped),
        )

    def _result(self) -> Result:
        run, known, why = self.run, self.run.incumbent, self._infeasibility()
        status: Status = "unknown" if why is None else "infeasible"
        if known.plan is not None:
            status = "optimal" if known.period() == known.bound() else "feasible"
        last = self.results[-1].solver if self.results else run.events.solver
        return Result(
            problem=self.problem,
            status=status,
            plan=known.plan,
            bounds=tuple(known.bounds),
            infeasibility=why,
            ladder=tuple(self.results),
            solver=known.solver or last,
            seconds=round(run.clock.seconds(), 6),
            seed=run.seed,
            version=__version__,
        )


def _ratio(value: Fraction | None) -> tuple[int, int] | None:
    return None if value is None else as_ratio(value)
