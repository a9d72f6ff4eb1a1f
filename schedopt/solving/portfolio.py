"""`solve`: one solver after the other, with one freedom more at a time, and what each added."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Final

from schedopt.bounds import lower_bounds, memory_proof
from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.effort import TIME_LIMIT, usable_cores
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Bound, Infeasibility, Result, Rung, Status, as_ratio
from schedopt.rule import Rule
from schedopt.solving.defaults import usual_scope
from schedopt.solving.phases import ENGINE_SOLVER, Attempt, plan_attempts, sharing, what_if
from schedopt.solving.registry import load_solver
from schedopt.solving.run import Progress, Run
from schedopt.stage import Stage
from schedopt.version import __version__

WITHOUT_PLANS: Final = ("relaxation",)
"""Solvers that prove bounds alone."""
SHARE_OF_BOUNDS: Final = 0.25
"""Of the time that is left, for bounds without a search."""


def solve(
    chain: Chain,
    platform: Platform,
    *,
    rule: Rule | None = None,
    scope: Scope | None = None,
    stages: Sequence[Stage] = (),
    solver: str | None = None,
    time_limit: float | None = TIME_LIMIT,
    seed: int = 0,
    workers: int | None = None,
    work_limit: int | None = None,
    initial: Plan | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the allocation and the periodic schedule with the least period.

    Prints nothing. Infeasible is a status; only bad input raises. The first Ctrl-C, or a request
    to end (SIGTERM), ends the search and returns the best so far with its bound, like the time
    limit.

    Parameters
    ----------
    chain : Chain
    platform : Platform
    rule : Rule, optional
        How training uses the weights. Default: `weight_bytes` is everything.
    scope : Scope, optional
        The plans that are allowed. Default: any allocation, k up to 2; with stages that are given
        or one solver by name, what these are for, with k = 1.
    stages : sequence of Stage
        The allocation, for the scope *fixed*.
    solver : str, optional
        One solver by name, instead of those that the scope calls for.
    time_limit : float, optional
        Seconds; None: until it is proven, which may be never. Searches share what is left.
    seed : int
        Of random choices.
    workers : int, optional
        Threads. Default: one for each core that this process may use.
    work_limit : int, optional
        Placements that the local search of the solver `general` may look at. What ends by it, and
        not by time, comes out the same for the same seed and workers.
    initial : Plan, optional
        A plan to start from, for the same problem.
    on_progress : callable, optional
        Called with a `schedopt.solving.Progress` after each report of a solver.

    Returns
    -------
    Result

    Raises
    ------
    InputError
        For bad input, or something that the named solver cannot do.

    Examples
    --------
    >>> from schedopt import Chain, Layer, Platform, solve
    >>> layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=4, activation_bytes=1)
    >>> result = solve(Chain(layers=[layer] * 4), Platform(gpus=2, memory=20))
    >>> result.status, result.period
    ('optimal', Fraction(6, 1))
    """
    if time_limit is not None and not time_limit > 0:
        raise InputError(
            f"{time_limit} is no time to solve in", field="time_limit", way_out="Give seconds > 0"
        )
    problem = Problem(
        chain=chain,
        platform=platform,
        rule=rule or Rule(),
        scope=scope or usual_scope(solver, fixed=bool(stages)),
        stages=tuple(stages),
    )
    if problem.scope.engine is not None and solver not in (None, ENGINE_SOLVER):
        raise InputError(
            f"{solver} does not look at what an engine can run",
            field="solver",
            way_out=f"Leave it out, or leave the engine out; {ENGINE_SOLVER} does",
        )
    if work_limit is not None and work_limit < 1:
        raise InputError(
            f"{work_limit} is no work", field="work_limit", way_out="Give at least 1 placement"
        )
    run = Run(
        problem,
        time_limit=time_limit,
        seed=seed,
        workers=workers or usable_cores(),
        work_limit=work_limit,
        on_progress=on_progress,
    )
    with _interruptible(run):
        ladder = _climb(run, initial, solver)
    return _result(run, ladder)


def _climb(run: Run, initial: Plan | None, named: str | None) -> list[Rung]:
    problem = run.problem
    attempts = [Attempt(named, "", problem)] if named else [*plan_attempts(problem)]
    others = [] if named else [*what_if(problem)]
    solvers = {attempt.solver: load_solver(attempt.solver) for attempt in attempts}
    proofs = lower_bounds(problem, run.stopped)
    run.begin("closed form")
    run.add_bound(next(proofs))
    if initial is not None:
        run.begin("initial")
        run.report(as_answer(initial, problem))
    if problem.scope.allocation == "general" and (too_much := memory_proof(problem)):
        run.report_infeasible(too_much)
    ladder: list[Rung] = []
    refusals: list[InputError] = []
    for attempt, share in sharing([*attempts, *others]):
        if attempt.option:
            if (rung := _ask_what_if(run, attempt, share)) is not None:
                ladder.append(rung)
            continue
        impossible = run.infeasibility()
        if impossible is None and (named or attempt.freedom or attempt.weight):
            # Those before are quick, and leave a plan if somebody asks to stop.
            _prove(run, proofs)
            impossible = run.infeasibility()
        if impossible is not None:
            # What is quick may still say which memory would do.
            if run.ended() or attempt.weight or impossible.least_memory_bytes is not None:
                continue
        elif run.ended() or run.settled() or run.settled(attempt.problem.scope):
            continue
        run.begin(attempt.solver, share)
        begin, known = run.seconds(), len(run.proofs)
        try:
            solvers[attempt.solver](attempt.problem, run)
        except InputError as error:
            refusals.append(error)
            note = f"left out: {error.rule}"
            ladder.append(Rung(solver=attempt.solver, freedom=attempt.freedom, note=note))
            continue
        bound = run.bound(attempt.problem.scope)
        ladder.append(
            Rung(
                solver=attempt.solver,
                freedom=attempt.freedom,
                period_exact=None if run.own is None else as_ratio(run.own),
                bound_exact=None if bound is None else as_ratio(bound),
                seconds=round(run.seconds() - begin, 6),
                note=_note(run, attempt, run.proofs[known:]),
            )
        )
    if not run.ended() and not run.settled():
        _prove(run, proofs)
    if refusals and len(refusals) == len(ladder):
        raise refusals[-1]
    return ladder


def _ask_what_if(run: Run, attempt: Attempt, share: float) -> Rung | None:
    """Return what a freedom would give that is not allowed; None if it can give nothing.

    Where the answer is settled, only what is quick is asked.
    """
    best = run.best()
    if run.ended() or best is None:
        return None
    problem = attempt.problem
    least = max(bound.period for bound in lower_bounds(problem, run.stopped))
    if run.period() == least:
        return None
    begin = run.seconds()
    part = run.part(problem, share)
    part.begin("best")
    if best.pattern.k == 1:
        part.report(best)
    names = ["contiguous"] if problem.scope.recompute else []
    names.append("periodic" if run.settled() else attempt.solver)
    if names[0] == "periodic" and part.best() is None:
        # It improves a plan, and there is no 1-periodic one.
        return None
    for name in names[: 1 if run.settled() else None]:
        part.begin(name)
        load_solver(name)(problem, part)
    period = part.period()
    better = period is not None and period < (run.period() or 0)
    if not better and (part.left_out or part.stopped()):
        return None
    return Rung(
        solver=part.solver_of_best if better else part.solver,
        freedom=attempt.freedom,
        period_exact=as_ratio(period) if better and period is not None else None,
        seconds=round(run.seconds() - begin, 6),
        note=f"not allowed: {attempt.option}" if better else f"{attempt.option} found no better",
    )


def _prove(run: Run, proofs: Iterator[Bound]) -> None:
    """Report bounds until all are proven, or a share of the time is up."""
    run.begin("closed form", SHARE_OF_BOUNDS)
    for proven in proofs:
        run.add_bound(proven)


def _note(run: Run, attempt: Attempt, proofs: Sequence[Infeasibility]) -> str:
    """Say what is known after an attempt, which proved so much to be impossible."""
    own, best, scope = run.own, run.period(), attempt.problem.scope
    if run.infeasibility() is not None:
        return "proven infeasible"
    if best is not None and best == run.bound():
        return "proven optimal" if own == best else "proves that the best is optimal"
    proven = best is not None and best == run.bound(scope)
    if attempt.solver in WITHOUT_PLANS:
        said = "a bound, no plans"
    elif best is None:
        none = "no plan" if run.stopped() else "no plan that fits"
        said = f"no plan: {_why(proofs[-1], run.problem.platform)}" if proofs else none
    elif own == best:
        said = "best of its kind, proven" if proven else "not proven optimal"
    else:
        said = "no better plan exists" if proven else "no better plan"
    if run.left_out:
        said = f"{said}; {run.left_out}"
    return f"stopped early: {said}" if run.stopped() and not proven else said


def _why(proof: Infeasibility, platform: Platform) -> str:
    """Return a proof with the memory that would do."""
    least = proof.least_memory_bytes
    return proof.proof if least is None else f"{proof.proof}; {proof.say(least, platform)} would do"


def as_answer(initial: Plan, problem: Problem) -> Plan:
    """Return a plan as one for a problem.

    Raises
    ------
    InputError
        If it does not answer the problem.
    """
    if initial.chain.sha256 != problem.chain.sha256:
        raise InputError(
            "the plan to start from is for another chain",
            field="initial",
            way_out="Solve the chain that the plan was made for",
        )
    if any(len(stage.gpus) > 1 for stage in initial.stages) or any(
        item.covers > 1 for item in initial.pattern.items
    ):
        raise InputError(
            "the plan to start from has replicas, or an item for several micro-batches at once",
            field="initial",
            way_out="Start from a plan with one GPU for each stage; bounds speak of no other",
        )
    plan = replace(
        initial,
        chain=problem.chain,
        platform=problem.platform,
        rule=problem.rule,
        scope=problem.scope,
    )
    violations = check(Result(problem=problem, status="feasible", plan=plan))
    if violations:
        raise InputError(
            f"the plan to start from does not answer this problem: {violations[0]}",
            field="initial",
            way_out="Start from a plan for the same platform, rule and scope",
        )
    return plan


def _result(run: Run, ladder: list[Rung]) -> Result:
    plan = run.best()
    status: Status = "unknown"
    if plan is not None:
        status = "optimal" if run.period() == run.bound() else "feasible"
    elif run.infeasibility() is not None:
        status = "infeasible"
    return Result(
        problem=run.problem,
        status=status,
        plan=plan,
        bounds=tuple(run.bounds),
        infeasibility=run.infeasibility(),
        ladder=tuple(ladder),
        solver=run.solver_of_best or (ladder[-1].solver if ladder else run.solver),
        seconds=round(run.seconds(), 6),
        seed=run.seed,
        version=__version__,
    )


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Let the first Ctrl-C or request to end stop the run and the second do as it always does.

    A handler that the program has set itself hears of the first one too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: a handler that was not set from Python, and cannot be set again from it.
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if (handler := signal.getsignal(number)) is not None
    }

    def stop(number: int, frame: FrameType | None) -> None:
        run.stop()
        signal.signal(number, before[signal.Signals(number)])
        known = before[signal.Signals(number)]
        if callable(known) and known is not signal.default_int_handler:
            known(number, frame)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
