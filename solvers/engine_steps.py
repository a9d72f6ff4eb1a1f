"""Steps that engines with an order of their own can run, which no other step should be behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from schedopt.engine import Engine, may_copy_shards
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.engine_step import EngineSearch
from schedopt.solving.clock import Clock
from schedopt.solving.engines.descent import NEVER
from schedopt.solving.engines.layout import lay_out_without_empty
from schedopt.solving.engines.seeds import best_of
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.run import Run, no_cutoff
from schedopt.stage import SHARDS
from schedopt.systems.list_scheduler import TooManyTasks
from schedopt.transformer_blocks import find_blocks

SHARE: Final = 0.9
"""Of the time that is left, for all engines."""
SHARE_OF_SEEDS: Final = 0.25
"""Of that, for the first good cuts of all of them."""
SHARE_OF_BEST: Final = 0.75
"""Of what is left then, for the engine with the shortest step; the rest is for the other one."""
LEAST_S: Final = 10.0
"""Where there is no limit, they have as long as all before them, and at least this."""
MOST_SHARED: Final = "optimizer"
"""An engine's pipeline shares no more."""


def may_run_others(problem: Problem) -> bool:
    """Whether engines may run steps that the search for contiguous stages does not simulate.

    On links that are alike each grid of theirs is among its stages with equal replicas, and it
    changes those just as well; but groups of replicas with copies of shards are theirs alone.
    """
    from schedopt.solving.replicas.stages import find_fold

    scope = problem.scope
    if scope.allocation == "general" or problem.degrees != (1,) or scope.hybrid:
        return True
    return not problem.platform.uniform or find_fold(problem) > 1


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


def report_engine_steps(problem: Problem, run: Run) -> None:
    """Report the best steps that engines can run, as far as they are shorter than what is known."""
    steps = EngineSteps(problem, run)
    steps.seed()
    steps.improve()


class EngineSteps:
    """The best steps that engines can run, as far as they are shorter than what is known.

    Parameters
    ----------
    problem : Problem
    run : Run
    cutoff : callable, optional
        See `Run`: what is known beside the best plan of the run.
    """

    def __init__(
        self, problem: Problem, run: Run, cutoff: Callable[[], int | None] = no_cutoff
    ) -> None:
        self.problem, self.run, self._cutoff = problem, run, cutoff
        self.searches: list[EngineSearch] = []
        COMPILATIONS["engines"].start()

    def seed(self, most_s: float | None = None) -> None:
        """Look for first good cuts on the grids of each engine, for at most `most_s` seconds."""
        if len(set(self.problem.platform.gpus)) > 1:
            return
        clock = self._clock(SHARE * SHARE_OF_SEEDS, most_s)
        engines = _engines(self.problem)
        for number, engine in enumerate(engines):
            if self.run.stopped() or self.run.settled():
                return
            inner = _ask_engine(self.problem, engine)
            part = self.run.subrun(inner, 1.0)
            part.cutoff = self._length_ns
            part.begin("engine_step")
            search = EngineSearch(inner, part)
            seeds = part.fork(part.workers, 1.0)
            seeds.clock = clock.fork(1 / (len(engines) - number))
            with suppress(TooManyTasks):
                search.seed(seeds, _best_of(self.searches))
            _report_best(self.problem, search, self.run)
            self.searches.append(search)

    def improve(self, most_s: float | None = None) -> None:
        """Look for better ones, for at most `most_s` seconds.

        Engines begin from the good cuts of each other, and the one with the shortest step goes on
        first.
        """
        clock = self._clock(SHARE, most_s)
        searches = sorted(self.searches, key=_shortest_ns)
        for number, search in enumerate(searches):
            if self.run.stopped() or self.run.settled():
                return
            others = _best_of(other for other in searches if other is not search)
            share = SHARE_OF_BEST if number < len(searches) - 1 else 1.0
            search.run.clock = clock.fork(share)
            with suppress(TooManyTasks):
                search.run_all(others)
            _report_best(self.problem, search, self.run)

    def shortest_ns(self) -> int:
        """Return the shortest step known of any engine, ns, laid out or not."""
        return min(map(_shortest_ns, self.searches), default=NEVER)

    def _clock(self, share: float, most_s: float | None) -> Clock:
        clock = self.run.clock
        if clock.remaining() is None:
            return clock.fork(1.0, share * max(LEAST_S, clock.seconds()))
        return clock.fork(share, most_s)

    def _length_ns(self) -> int | None:
        """Return from which length on a step is of no use, ns."""
        best, other = self.run.best(), self._cutoff()
        known = [] if best is None else [best.pattern.period_total_ns]
        return min([*known, *([] if other is None else [other])], default=None)


def _best_of(searches: Iterable[EngineSearch]) -> list[EngineShape]:
    """Return the few shapes of each search with the shortest steps known."""
    return [shape for search in searches for shape in best_of(search.shapes)]


def _shortest_ns(search: EngineSearch) -> int:
    return min((shape.known_ns for shape in best_of(search.shapes)), default=NEVER)


def _report_best(problem: Problem, search: EngineSearch, run: Run) -> None:
    if (best := search.run.best()) is not None:
        if any(stage.is_empty for stage in best.stages):
            best = lay_out_without_empty(problem, best)
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
    hybrid = scope.hybrid and may_copy_shards(engine)
    scope = replace(scope, uneven=False, split_backward=False, hybrid=hybrid)
    return replace(problem, scope=replace(scope, engine=engine, shard=shard))
