"""What the restrictions of an engine cost: its question again, with one after the other lifted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from schedopt.errors import InputError
from schedopt.interrupts import stopping_first
from schedopt.plan import Plan
from schedopt.problem import Problem, Scope
from schedopt.proofs import Note, Outcome, Suggestion
from schedopt.result import Bound, PhaseResult, Result, best_bound
from schedopt.solving.clock import Clock, StopHandle
from schedopt.solving.options import as_time_limit, still_valid
from schedopt.solving.phases import plan_phases
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.sizes import solve_sizes
from schedopt.validation import as_ratio

SHARE_OF_ENGINE: Final = 0.6
"""Of the time, the most for steps of the engine; what is left is shared by the kinds beyond."""
ENDED: Final = "the whole search had ended"


@dataclass(frozen=True)
class _Kind:
    """Plans that the engine does not run: what they may do, and the suggestion that asks for them.

    They need not contain those of the engine; what is said is of both together.
    """

    freedom: str
    suggestion: Suggestion
    scope: Scope


def solve_restricted(
    problems: Sequence[Problem],
    *,
    time_limit: float | None,
    solver: str | None = None,
    initial: Plan | Result | None = None,
    stop: StopHandle | None = None,
    **options: Any,
) -> Result:
    """Return the answer of `solve_sizes` for an engine, and what each restriction costs.

    The ladder then has a row more for each kind of plans that the engine does not run: the least
    period known of all plans up to that row, ns, and a bound of these. None is longer than the row
    before. All have micro-batches of the size of the answer.

    Parameters
    ----------
    problems, solver, initial, stop, options
        As of `solve_sizes`; the solver is that of the engine.
    time_limit : float, optional
        Seconds: at most `SHARE_OF_ENGINE` of it for the engine.

    Raises
    ------
    InputError
        If no engine is asked for, or only for a plan that is short enough.
    """
    scope = problems[0].scope
    if scope.engine is None:
        raise InputError(
            "asked of no engine",
            field="restrictions",
            way_out="Name one (Scope.engine), or leave it out",
        )
    if scope.period_ns is not None:
        raise InputError(
            "asked where any plan of a given period would do",
            field="restrictions",
            way_out="Leave it out, or the period (Scope.period_ns)",
        )
    limit = as_time_limit(time_limit)
    clock = Clock(limit, handle=stop)
    with stopping_first(clock.stop):
        result = solve_sizes(
            problems,
            time_limit=None if limit is None else SHARE_OF_ENGINE * limit,
            solver=solver,
            initial=initial,
            stop=stop,
            **options,
        )
        rows = raise_bounds([*_lift(result, clock, {"stop": stop, **options})])
    return replace(result, ladder=(*result.ladder, *rows))


def _kinds(problem: Problem, tensor: int) -> Iterator[_Kind]:
    """Yield kinds of plans beyond those of an engine, first those that are nearest to it.

    `tensor` is the degree of tensor parallelism that the engine's plan has.
    """
    scope = problem.scope
    alone = [*_kinds_by_stage(problem, tensor)]
    words = "several stages a GPU" if scope.engine == "deepspeed" else "cuts anywhere"
    plain = _Kind(words, Suggestion.PLAIN_TORCH, replace(scope, engine="torch", hybrid=False))
    if scope.engine == "torch":
        yield from alone
    else:
        # DeepSpeed's GPUs have one stage each.
        yield from (*alone, plain) if scope.engine == "deepspeed" else (plain, *alone)
    if scope.allocation == "general":
        yield _Kind("stages anywhere", Suggestion.ANOTHER_ORDER, replace(scope, engine=None))


def _kinds_by_stage(problem: Problem, tensor: int) -> Iterator[_Kind]:
    """Yield steps of one stage for each GPU, with one thing more that a stage has of its own.

    What a row does not lift yet its plans do without: recompute, and tensor groups that are larger
    than those of the engine's plan. No search has groups of one size above 1.
    """
    free = replace(problem.scope, engine=None, allocation="contiguous")
    if not problem.is_training_step:
        yield _Kind("any order", Suggestion.NO_GRID, free)
        return
    largest = problem.degrees[-1]
    scope = replace(free, recompute=False, tensor=tensor)
    groups = "" if tensor == 1 else f", tensor groups of up to {tensor} GPUs"
    yield _Kind(f"replicas by stage{groups}", Suggestion.NO_GRID, scope)
    if free.recompute:
        scope = replace(scope, recompute=True)
        yield _Kind("recompute by stage", Suggestion.NO_GRID, scope)
    if tensor < largest:
        yield _Kind("tensor degree by stage", Suggestion.NO_GRID, free)


def _lift(result: Result, clock: Clock, options: dict[str, Any]) -> Iterator[PhaseResult]:
    """Solve the problem of an answer for one kind after the other, each in its share of the time.

    Each begins with the best plan so far, if that is of its kind.
    """
    problem, best, bounds = result.problem, result.plan, [*result.bounds]
    kinds = [*_kinds(problem, 1 if best is None else best.stages[0].tensor)]
    # Of kinds that may have plans.
    scopes = [problem.scope] if result.infeasibility is None else []
    for number, kind in enumerate(kinds):
        wide = replace(problem, scope=kind.scope)
        *_, last = plan_phases(wide)
        row = PhaseResult(solver=last.solvers[-1], freedom=kind.freedom)
        left_s = clock.remaining()
        if clock.stop_requested() or (left_s is not None and left_s <= 0):
            yield replace(row, note=Note(Outcome.REFUSED, detail=ENDED))
            continue
        begin, is_last = clock.seconds(), number == len(kinds) - 1
        # The last, which holds all others, has twice as much.
        share = 1.0 if is_last else 1 / (len(kinds) - number + 1)
        try:
            found = solve_problem(
                wide,
                time_limit=None if left_s is None else share * left_s,
                initial=None if best is None else still_valid(best, wide),
                **options,
            )
        except InputError as error:
            yield replace(row, note=Note(Outcome.REFUSED, detail=error.rule))
            continue
        before = None if best is None else best.pattern.period
        if found.period is not None and (before is None or found.period < before):
            best = found.plan
        bounds += found.bounds
        if found.infeasibility is None:
            scopes.append(kind.scope)
        bound = _bound_of_all(bounds, scopes)
        yield replace(
            row,
            period_exact=None if best is None else as_ratio(best.pattern.period),
            bound_exact=None if bound is None else as_ratio(bound),
            seconds=round(clock.seconds() - begin, 6),
            note=_note(found, before, kind.suggestion),
        )


def raise_bounds(rows: Sequence[PhaseResult]) -> tuple[PhaseResult, ...]:
    """Raise the bound of each row to that of any later one, which is of more plans."""
    found, most = list[PhaseResult](), Fraction(0)
    for row in reversed(rows):
        if row.bound_exact is None:
            found.append(row)
            continue
        most = max(most, Fraction(*row.bound_exact))
        found.append(replace(row, bound_exact=as_ratio(most)))
    return tuple(reversed(found))


def _bound_of_all(bounds: Sequence[Bound], scopes: Sequence[Scope]) -> Fraction | None:
    """Return what no plan of any of several scopes is shorter than, ns."""
    found = [best_bound(bounds, scope) for scope in scopes]
    known = [bound for bound in found if bound is not None]
    return min(known, default=None) if len(known) == len(found) else None


def _note(found: Result, before: Fraction | None, suggestion: Suggestion) -> Note:
    """Say what was found of a kind; the least period known before is in ns."""
    stopped = any(isinstance(row.note, Note) and row.note.stopped for row in found.ladder)
    if found.period is not None and (before is None or found.period < before):
        return Note(Outcome.WOULD_HELP, stopped=stopped, suggestion=suggestion)
    why, bound = found.infeasibility, found.lower_bound
    if before is None:
        if why is None:
            return Note(Outcome.NO_PLAN, stopped=stopped)
        return Note(Outcome.NO_PLAN_EXISTS, proof=why.proof)
    if why is not None or (bound is not None and bound >= before):
        return Note(Outcome.NO_BETTER_EXISTS)
    return Note(Outcome.NO_BETTER, stopped=stopped)
