"""Steps that engines with an order of their own can run, which no other step should be behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from schedopt.engine import Engine
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.engine_step import solve as solve_engine
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from schedopt.systems.list_scheduler import TooManyTasks
from schedopt.transformer_blocks import find_blocks

SHARE: Final = 0.9
"""Of the time that is left, for all engines."""
LEAST_S: Final = 10.0
"""Where there is no limit, they have as long as all before them, and so much at least."""
MOST_SHARED: Final = "optimizer"
"""An engine's pipeline shares no more."""


@contextmanager
def engine_steps_beside(problem: Problem, run: Run) -> Iterator[Run]:
    """Report the best steps of engines by a worker of its own, the whole time; give the rest."""
    own, rest = run.fork(1, 1.0), run.fork(run.workers - 1, 1.0)
    own.events = rest.events = run.events
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(report_engine_steps, problem, own)
        try:
            yield rest
        except BaseException:
            own.stop()
            raise
        if run.settled():
            own.stop()
    task.result()


def report_engine_steps(problem: Problem, run: Run, most_s: float | None = None) -> None:
    """Report the best steps that engines can run, as far as they are shorter than what is known.

    In so many seconds at most, if `most_s` says so.
    """
    if len(set(problem.platform.gpus)) > 1:
        return
    engines = _engines(problem)
    longest = max(LEAST_S, run.clock.seconds()) if run.remaining() is None else None
    all_engines = run.fork(run.workers, SHARE)
    left = all_engines.remaining()
    if left is not None and most_s is not None:
        all_engines.clock.shorten(max(0.0, left - most_s))
    for number, engine in enumerate(engines):
        if run.stopped() or run.settled():
            return
        inner = _ask_engine(problem, engine)
        part = all_engines.subrun(inner, 1 / (len(engines) - number), longest)
        part.cutoff = lambda: _length_ns(problem, run)
        part.begin("engine_step")
        with suppress(TooManyTasks):
            solve_engine(inner, part)
        if (best := part.best()) is not None:
            run.report_if_valid(best)


def _engines(problem: Problem) -> tuple[Engine, ...]:
    """Return one engine that cuts between all layers, after one that recomputes some of them."""
    try:
        find_blocks(problem.chain)
    except InputError:
        return ("torch",)
    return ("megatron", "torch")


def _ask_engine(problem: Problem, engine: Engine) -> Problem:
    scope = problem.scope
    shard = min(scope.shard, MOST_SHARED, key=SHARDS.index)
    return replace(problem, scope=replace(scope, engine=engine, shard=shard, split_backward=False))


def _length_ns(problem: Problem, run: Run) -> int | None:
    """Return the length of the best step so far, ns."""
    best = run.best()
    return None if best is None else best.pattern.period_total_ns
