"""`solve`, as a program calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from schedopt.chain import Chain
from schedopt.effort import GAP, TIME_LIMIT
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope, training_step
from schedopt.profile import Profile, of_one_size
from schedopt.result import Result
from schedopt.rule import Rule
from schedopt.solving.clock import StopHandle
from schedopt.solving.registry import default_scope
from schedopt.solving.restrictions import solve_restricted
from schedopt.solving.run import Progress
from schedopt.solving.sizes import solve_sizes, steps_of_sizes
from schedopt.stage import Stage


def solve(
    chain: Chain | Profile,
    platform: Platform,
    *,
    batch: int | None = None,
    rule: Rule | None = None,
    scope: Scope | None = None,
    stages: Sequence[Stage] = (),
    solver: str | None = None,
    time_limit: float | None = TIME_LIMIT,
    seed: int = 0,
    workers: int | None = None,
    work_limit: int | None = None,
    gap: float = GAP,
    initial: Plan | Result | None = None,
    restrictions: bool = False,
    stop: StopHandle | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Find the allocation and the periodic schedule with the least period.

    Prints nothing. Infeasible is a status; only bad input raises. The first Ctrl-C, or a request
    to end (SIGTERM), ends the search and returns the best so far with its bound, like the time
    limit.

    Parameters
    ----------
    chain : Chain or Profile
        A profile needs a batch: stages then may run in tensor groups, and the micro-batches of any
        size that divides the batch are looked at.
    platform : Platform
    batch : int, optional
        Find the shortest training step of this many samples instead: gradients are added up over
        replicas, and weights updated. A scope then says what is allowed; without one, all that
        `schedopt.problem.widest_step` says.
    rule : Rule, optional
        How training uses the weights. Default: `weight_bytes` is everything.
    scope : Scope, optional
        The plans that are allowed. Default: `Scope.usual`, any allocation with k up to 2; with
        stages that are given or one solver by name, what these are for, with k = 1. Memory is read
        as its true peak. To allow more: ``Scope.usual(recompute=True)``.
    stages : sequence of Stage
        The allocation, for the scope *fixed*. What they recompute is a hint: where the scope
        allows recompute, every choice is tried.
    solver : str, optional
        One solver by name, instead of those that the scope calls for.
    time_limit : float, optional
        Seconds; None: until it is proven, which may be never. Searches share what is left.
    seed : int
        Of random choices.
    workers : int, optional
        Threads. Default: one for each core that this process may use; at most 8 for each.
    work_limit : int, optional
        Placements that the local search of the solver `general` may look at. What ends by it, and
        not by time, comes out the same for the same seed and workers, however few the cores are.
    gap : float
        The search ends when its plan is proven to be longer than the best by at most this part of
        it; 0: when it is proven optimal. By default, where k is up to 2, it also ends when nothing
        more was found for 10 % of the time limit and a plan with k = 1 is proven within twice the
        gap of the best with that (at most 0.2 %, or the gap itself if that is more); not with 0.
    initial : Plan or Result, optional
        A plan to start from, for the same problem.
    restrictions : bool
        Of an engine (`Scope.engine`): also look for plans that it does not run, and say in rows of
        the ladder what each of its restrictions costs. They have 40 % of the time, and what the
        search for the engine leaves.
    stop : threading.Event, optional
        Set by another thread, it ends the search with the best so far.
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
    if batch is None:
        problem = Problem(
            chain=of_one_size(chain)[0],
            platform=platform,
            rule=rule or Rule(),
            scope=scope or default_scope(solver, fixed=bool(stages)),
            stages=cast("tuple[Stage, ...]", stages),  # a problem makes it one
        )
        problems = [problem]
    elif rule is not None or stages:
        raise InputError(
            "given with a rule, or with stages",
            field="batch",
            way_out="Leave these out: a step of a batch has a rule of its own, and is searched "
            "for on all stages",
        )
    elif isinstance(chain, Profile):
        problems = steps_of_sizes(chain, platform, batch, scope)
    else:
        problems = [training_step(chain, platform, batch, scope)]
    search = solve_restricted if restrictions else solve_sizes
    return search(
        problems,
        solver=solver,
        time_limit=time_limit,
        seed=seed,
        workers=workers,
        work_limit=work_limit,
        gap=gap,
        initial=initial,
        stop=stop,
        on_progress=on_progress,
    )
