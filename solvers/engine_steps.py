"""Steps that engines with an order of their own can run, which no other step should be behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from schedopt.engine import Engine
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.engine_step import EngineSearch
from schedopt.solving.engine_descent import NEVER
from schedopt.solving.engine_seeds import best_of
from schedopt.solving.engine_shape import EngineShape
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from schedopt.systems.list_scheduler import TooManyTasks
from schedopt.transformer_blocks import find_blocks

SHARE: Final = 0.9
"""Of the time that is left, for all engines."""
SHARE_OF_SEEDS: Final = 0.25
"""Of that, for the first good cuts of each engine."""
SHARE_OF_BEST: Final = 0.75
"""Of what is left then, for the engine with the shortest step; the rest is for the other one."""
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

    Engines begin from the good cuts of each other, and the one with the shortest step goes on
    first. In so many seconds at most, if `most_s` says so.
    """
    if len(set(problem.platform.gpus)) > 1:
        return
    longest = max(LEAST_S, run.clock.seconds()) if run.remaining() is None else None
    all_engines = run.fork(run.workers, SHARE)
    left = all_engines.remaining()
    if left is not None and most_s is not None:
        all_engines.clock.shorten(max(0.0, left - most_s))
    searches: list[EngineSearch] = []
    for engine in _engines(problem):
        if run.stopped() or run.settled():
            return
        inner = _ask_engine(problem, engine)
        part = all_engines.subrun(inner, 1.0, longest)
        part.cutoff = lambda: _length_ns(problem, run)
        part.begin("engine_step")
        search = EngineSearch(inner, part)
        with suppress(TooManyTasks):
            search.seed(part.fork(part.workers, SHARE_OF_SEEDS), _best_of(searches))
        _report_best(search, run)
        searches.append(search)
    searches.sort(key=_shortest_ns)
    for number, search in enumerate(searches):
        if run.stopped() or run.settled():
            return
        others = _best_of(other for other in searches if other is not search)
        share = SHARE_OF_BEST if number < len(searches) - 1 else 1.0
        search.run.clock = all_engines.clock.fork(share, longest)
        with suppress(TooManyTasks):
            search.run_all(others)
        _report_best(search, run)


def _best_of(searches: Iterable[EngineSearch]) -> list[EngineShape]:
    """Return the few shapes of each search with the shortest steps known."""
    return [shape for search in searches for shape in best_of(search.shapes)]


def _shortest_ns(search: EngineSearch) -> int:
    return min((shape.known_ns for shape in best_of(search.shapes)), default=NEVER)


def _report_best(search: EngineSearch, run: Run) -> None:
    if (best := search.run.best()) is not None:
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
