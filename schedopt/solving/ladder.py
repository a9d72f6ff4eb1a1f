"""`solve`: the solvers of a scope, one after the other, with what each of them added."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from schedopt.bounds import lower_bounds, memory_proof
from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Result, Rung, Status, as_ratio
from schedopt.rule import Rule
from schedopt.solving.registry import default_solvers, load_solver
from schedopt.solving.run import Progress, Run
from schedopt.stage import Stage
from schedopt.version import __version__


def solve(
    chain: Chain,
    platform: Platform,
    *,
    rule: Rule | None = None,
    scope: Scope | None = None,
    stages: Sequence[Stage] = (),
    solver: str | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    initial: Plan | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the allocation and the periodic schedule with the least period.

    Prints nothing. Infeasible is a status; only bad input raises. The first Ctrl-C ends the
    search and returns the best so far with its bound, like the time limit.

    Parameters
    ----------
    chain : Chain
    platform : Platform
    rule : Rule, optional
        How training uses the weights. Default: `weight_bytes` is everything.
    scope : Scope, optional
        The plans that are allowed. Default: contiguous, 1-periodic.
    stages : sequence of Stage
        The allocation, for the scope *fixed*.
    solver : str, optional
        One solver by name, instead of those that the scope calls for.
    time_limit : float, optional
        Seconds.
    seed, workers : int
        For CP-SAT, in `periodic` and `step`; the other solvers use neither.
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
        scope=scope or Scope(allocation="fixed" if stages else "contiguous"),
        stages=tuple(stages),
    )
    run = Run(problem, time_limit=time_limit, seed=seed, workers=workers, on_progress=on_progress)
    with _interruptible(run):
        ladder = _climb(run, initial, (solver,) if solver else None)
    return _result(run, ladder)


def _climb(run: Run, initial: Plan | None, named: tuple[str, ...] | None) -> list[Rung]:
    problem = run.problem
    names = named or default_solvers(problem.scope)
    solvers = [(name, load_solver(name)) for name in names]
    run.solver = "closed form"
    for proven in lower_bounds(problem):
        run.add_bound(proven)
    if initial is not None:
        run.solver = "initial"
        run.report(_same_problem(initial, problem))
    if problem.scope.allocation == "general" and (impossible := memory_proof(problem)):
        run.report_infeasible(impossible)
    ladder: list[Rung] = []
    refusals: list[InputError] = []
    for name, solver in solvers:
        if run.stopped() or run.settled():
            break
        run.solver = name
        begin = run.seconds()
        try:
            solver(problem, run)
        except InputError as error:
            refusals.append(error)
            if len(refusals) == len(solvers):
                raise
            ladder.append(Rung(solver=name, note=f"left out: {error.rule}"))
            continue
        own, bound = run.period_of(name), run.bound()
        ladder.append(
            Rung(
                solver=name,
                period_exact=None if own is None else as_ratio(own),
                bound_exact=None if bound is None else as_ratio(bound),
                seconds=round(run.seconds() - begin, 6),
                note=_note(run),
            )
        )
    return ladder


def _note(run: Run) -> str:
    """Say what is known after a solver."""
    own, best = run.period_of(run.solver), run.period()
    if run.infeasibility() is not None:
        return "proven infeasible"
    if own is not None and own == run.bound():
        return "proven optimal"
    if best is None:
        said = f"no plan: {run.proofs[-1].proof}" if run.proofs else "no plan"
    else:
        said = "not proven optimal" if own == best else "no better plan"
    return f"stopped early: {said}" if run.stopped() else said


def _same_problem(initial: Plan, problem: Problem) -> Plan:
    if initial.chain.sha256 != problem.chain.sha256:
        raise InputError(
            "the plan to start from is for another chain",
            field="initial",
            way_out="Solve the chain that the plan was made for",
        )
    plan = replace(
        initial,
        chain=problem.chain,
        platform=problem.platform,
        rule=problem.rule,
        scope=problem.scope,
    )
    violations = check(plan)
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
        solver=run.solver_of_best or run.solver,
        seconds=round(run.seconds(), 6),
        seed=run.seed,
        version=__version__,
    )


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Let the first Ctrl-C stop the run and the second interrupt the program.

    A handler that the program has set itself hears of the first one too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        run.stop()
        signal.signal(signal.SIGINT, before)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
