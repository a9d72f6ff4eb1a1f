"""The search for a general allocation: many short annealings, several at a time.

A round is one annealing for each worker. In turn, a round begins hot from starts, each of which may
join a pool of elites, or goes on from these, warm and below the best period (`elite_pool`). Some of
the starts are packings in which nothing waits (`no_wait`). All see the best of the round before, so
that a run with the same seed, the same number of workers and no time limit goes the same way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

from schedopt.account.memory import fits
from schedopt.bounds.cuts import longest_period
from schedopt.chain import Chain, Layer
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.solving.local_search.annealing import Schedule, anneal
from schedopt.solving.local_search.coding import decode, encode
from schedopt.solving.local_search.compilation import COMPILATIONS, POLL_S
from schedopt.solving.local_search.elite_pool import SLACK, ElitePool, period_of
from schedopt.solving.local_search.no_wait import anneal_packings, can_pack
from schedopt.solving.local_search.params import DEFAULTS, LocalSearchParams
from schedopt.solving.local_search.state import LONGEST, State, Workspace, new_workspace, restart
from schedopt.solving.local_search.tables import (
    BACKWARD,
    FORWARD,
    Ints,
    Tables,
    make_tables,
)
from schedopt.solving.retiming import compress_shifts
from schedopt.solving.run import Run
from schedopt.stage import Stage

NARROWED: Final = 0.5
"""How often an annealing leaves out what is allowed, and the best plan does not use."""
LONGER: Final = 0.05
"""How often a period has more than one micro-batch, where that of the best plan has one."""
READ_BY_SUM: Final = 0.1
"""How often memory is read as a sum, where the best plan uses that only its peak must fit.

What is found fits too, and such an annealing meets other placements than one that follows the peak.
"""
SPARED: Final = 0.5
"""How often an annealing for the peak without recompute spares memory on average (`SPARING`).

With recompute, and for the sum, such annealings found longer plans in the same time.
"""
MOST_BUSY: Final = 0.75
"""Part of the best period up to which GPUs work on average where packings in which nothing waits
are tried (`no_wait`): where they work more, something has to."""
WARM_PART: Final = 2
"""Such an annealing is this part of one from a start, as 1 / `WARM_PART`."""


def is_compiled(run: Run) -> bool:
    """Wait until the search is compiled: see `Compilation.wait`."""
    return COMPILATIONS["local_search"].wait(run, late=True)


def compile_search() -> None:
    """Run a search that has nothing to do.

    Packings are compiled when they are first used, which many searches never do.
    """
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    problem = Problem(chain=Chain(layers=(layer,)), platform=Platform(1, 0))
    tables = make_tables(problem)
    work, stop = new_workspace(tables, 1), np.zeros(1, dtype=np.int64)
    encode([Stage(layers=(0, 0), gpus=(0,))], work.state, 2)
    anneal(tables, work, np.random.default_rng(0), DEFAULTS.schedule(0, 1, 2), stop)


def _read_as_sum(plan: Plan) -> Plan:
    return replace(plan, scope=replace(plan.scope, memory="sum"))


def place_stages(problem: Problem, run: Run) -> Plan | None:
    """Return a 1-periodic plan of the stages that are given; None if the greedy rule finds none.

    From the last stage to the first, F lies as late and B as early as the others leave room, at
    the least period that bisection finds.
    """
    tables = make_tables(problem)
    work, stop = new_workspace(tables, len(problem.stages)), np.zeros(1, dtype=np.int64)
    encode(problem.stages, work.state, longest_period(problem))
    draw = np.random.default_rng(run.seed)
    # An annealing of no steps bisects, and moves nothing.
    no_steps = DEFAULTS.schedule(0, 0, ceil(run.bound() or 1))
    anneal(tables, work, draw, no_steps, stop)
    return compress_shifts(decode(problem, tables, work.best)) if work.found[0] else None


class LocalSearch:
    """The search for a general allocation, with as many micro-batches in a period as are allowed.

    At most `LONGEST`; most periods that are searched have one, until a longer one is better.

    Parameters
    ----------
    problem : Problem
    run : Run
        For its clock, seed, best period and bound.
    workers : int
        Annealings at a time.
    params : LocalSearchParams
    elites : ElitePool, optional
        From which it goes on: those of a search with the same layers and GPUs. Default: none yet.

    Raises
    ------
    Stopped
        If the run is stopped before all pairs of many GPUs were looked at.
    """

    def __init__(
        self,
        problem: Problem,
        run: Run,
        workers: int,
        params: LocalSearchParams = DEFAULTS,
        elites: ElitePool | None = None,
    ) -> None:
        self.problem, self.run, self.params = problem, run, params
        self.tables = make_tables(problem, run.stopped)
        self.most = min(len(problem.chain.layers), 12 * len(problem.platform.gpus) + 16)
        self.workers = [new_workspace(self.tables, self.most) for _ in range(workers)]
        self.elites = ElitePool(self.tables, self.most) if elites is None else elites
        self.placements = self._improving = 0
        self._read: Plan | None = None
        self._fits = False
        self.longest = longest_period(problem)
        self._packs = self.tables.layers <= self.most and can_pack(self.tables)
        self._busy_ns = int(self.tables.time[0, [FORWARD, BACKWARD], -1].sum()) / self.tables.gpus
        self._rounds, self._found = Counter[bool](), Counter[bool]()
        self._bounds_at_first = {k: self._bound(k) for k in range(1, LONGEST + 1)}

    def improve(self, stages: Sequence[Stage]) -> Iterator[Plan]:
        """Yield the plan of one short annealing from stages, if it is better than the best."""
        steps = min(self.params.shortest, self._steps(longest=False))
        if self._is_done() or not steps or 1 not in self._open_for():
            return
        worker, plan = self.workers[0], self.params.schedule(0, steps, self._low(1))
        self._prepare(worker, stages, plan, 1, self.run.period())
        draw = np.random.default_rng([self.run.seed, 0, 2])
        tables, stop = self.tables._replace(sparing=0.0), np.zeros(1, dtype=np.int64)
        # Later annealings are as long as they would be without this one.
        self._improving = max(1, anneal(tables, worker, draw, plan, stop))
        self.placements += self._improving
        if worker.found[0]:
            yield compress_shifts(decode(self.problem, self.tables, worker.best))

    def rounds(
        self,
        starts: Callable[[int], Sequence[Stage] | None],
        at_once: Callable[[], int] | None = None,
        news: deque[Sequence[Stage]] | None = None,
        *,
        afresh: bool = False,
    ) -> Iterator[Plan]:
        """Yield each plan that is better than the best of the run, until it is stopped.

        Parameters
        ----------
        starts : callable
            Returns the stages to start from in annealing number n; None: all layers as one.
        at_once : callable, optional
            Returns how many annealings the next round has, at most one for each worker. Default:
            one for each.
        news : deque, optional
            Stages that somebody else finds meanwhile. Each is taken from it once, the last first,
            and has an annealing as long as any may be: a short one would not leave much of it.
        afresh : bool
            Whether the first round goes as if no plan were known: as that of a search without one.
        """
        number, hot, warm, news = 0, 0, False, deque() if news is None else news
        with ThreadPoolExecutor(len(self.workers)) as pool:
            while not self._is_done():
                # All of a round are as long as one of them is, since they wait for each other.
                is_new = bool(news)
                warm = not (warm or is_new or afresh) and bool(self.elites)
                steps, open_for = self._steps(longest=is_new, warm=warm), self._open_for()
                if not (steps and open_for):
                    return
                packs = not (warm or is_new) and self._draw_packs(number)
                stop = np.zeros(1, dtype=np.int64)
                tasks, parents = [], []
                workers = self.workers[: at_once() if at_once else None]
                known = None if afresh else self.run.period()
                if known is not None and not warm:
                    known *= 1 + SLACK
                for turn, worker in enumerate(workers):
                    # Drawn apart, so that neither goes with some of the drops or starts alone.
                    choice = np.random.default_rng([self.run.seed, number, 1])
                    k, tables = self._draw_k(open_for, choice), self._tables_of(choice, number)
                    parent = self.elites.draw(choice) if warm else None
                    length, low = self._length(steps, k), self._low(k)
                    search = anneal_packings if packs and k == 1 else anneal
                    is_warm = warm or search is not anneal
                    plan = self.params.schedule(hot + turn, length, low, warm=is_warm)
                    begin = parent or (news.pop() if is_new and news else starts(number))
                    self._prepare(worker, begin, plan, k, known)
                    draw = np.random.default_rng([self.run.seed, number])
                    tasks.append(pool.submit(search, tables, worker, draw, plan, stop))
                    parents.append(parent)
                    number += 1
                self._wait(tasks, stop)
                self.placements += sum(max(1, task.result()) for task in tasks)
                if not (warm or is_new):
                    self._rounds[packs] += 1
                    self._found[packs] += any(worker.found[0] for worker in workers)
                afresh, hot = False, hot + (not warm)
                best = self._keep(workers, parents)
                if best is not None:
                    yield compress_shifts(decode(self.problem, self.tables, best))

    def _draw_packs(self, number: int) -> bool:
        """Whether a round starts from packings: as often as that finds more than other starts."""
        known = self.run.period()
        if not self._packs or number == 0 or (known and self._busy_ns > MOST_BUSY * known):
            return False
        packed, others = (
            (self._found[packs] + 1) / (self._rounds[packs] + 1) for packs in (True, False)
        )
        draw = np.random.default_rng([self.run.seed, number, 3])
        return not self._rounds[True] or draw.random() * (packed + others) < packed

    def _keep(self, workers: Sequence[Workspace], parents: Sequence[State | None]) -> State | None:
        """Keep what a round found, and return the best of it if none better is known."""
        best, known = None, self.run.period()
        for worker, parent in zip(workers, parents, strict=True):
            if worker.found[0]:
                self.elites.add(worker.best, parent)
                if known is None or period_of(worker.best) < known:
                    best, known = worker.best, period_of(worker.best)
        return best

    def _draw_k(self, open_for: Sequence[int], draw: np.random.Generator) -> int:
        """Return how many micro-batches the period of an annealing has."""
        best = self.run.best()
        share = NARROWED if best is not None and best.pattern.k > 1 else LONGER
        return open_for[-1 if draw.random() < share else 0]

    def _tables_of(self, draw: np.random.Generator, number: int) -> Tables:
        """Return the tables of an annealing, some of which look at less than what is allowed.

        What they find is a plan too, and without the others a freedom that does not help would only
        take time. The first one may use all: with little time there is no other.
        """
        tables, best = self.tables, self.run.best()
        if number == 0:
            return tables._replace(sparing=0.0)
        if tables.peak and draw.random() < (NARROWED if self._fits_as_sum(best) else READ_BY_SUM):
            tables = tables._replace(peak=0)
        keeps_all = best is not None and not any(stage.recompute for stage in best.stages)
        if tables.recompute and keeps_all and draw.random() < NARROWED:
            tables = tables._replace(recompute=0)
        if not tables.peak or tables.recompute or draw.random() >= SPARED:
            tables = tables._replace(sparing=0.0)
        return tables

    def _fits_as_sum(self, best: Plan | None) -> bool:
        """Whether the best plan fits in the reading *sum*, too; looked up once for each plan."""
        if best is not self._read:
            self._read, self._fits = best, best is not None and fits(_read_as_sum(best))
        return self._fits

    def _steps(self, *, longest: bool, warm: bool = False) -> int:
        """Return how many placements each annealing of the next round looks at; 0: no more."""
        limit, params = self.run.work_limit, self.params
        layers = self.tables.layers
        most = params.placements_times_layers // layers, params.placements_of_few * layers**3
        steps = min(params.placements, *most)
        if self.tables.recompute and not longest:
            looked_at = self.placements - self._improving
            steps = min(steps, max(params.shortest, looked_at // params.part))
        if warm:
            steps = max(1, steps // WARM_PART)
        if limit is None:
            return steps
        # Packings may have taken some more than they had.
        return max(0, min(steps, (limit - self.placements) // len(self.workers)))

    def _length(self, steps: int, k: int) -> int:
        """Return how many placements an annealing has, where one with k = 1 has `steps`.

        Of k micro-batches a placement takes k^2 times as long at least: each of k times as many
        operations is held against k times as many. So until such a period is the best, an annealing
        for it that is not short anyway takes no longer than the others, which wait for it.
        """
        best = self.run.best()
        if best is not None and best.pattern.k == k:
            return steps
        return max(min(steps, self.params.shortest), steps // k**2)

    def _open_for(self) -> list[int]:
        """Return with how many micro-batches in a period there may be something to find.

        What is proven to be near enough to the best of a length is not searched for any more.
        """
        longest = min(self.problem.scope.max_k or LONGEST, LONGEST)
        known, gap = self.run.period(), self.run.incumbent.gap
        return [
            k
            for k in range(1, longest + 1)
            if self._high(k, known) >= self._low(k)
            and (known is None or known > self._known_bound(k) * (1 + gap))
        ]

    def _high(self, k: int, period: Fraction | None) -> int:
        """Return the longest T of k micro-batches that is better than a period, ns."""
        asked = self.problem.scope.period_ns
        high = k * self.longest if period is None else ceil(k * period) - 1
        return high if asked is None else min(high, k * asked)

    def _low(self, k: int) -> int:
        """Return a T of k micro-batches below which there is nothing to find, ns."""
        return ceil(k * self._known_bound(k))

    def _known_bound(self, k: int) -> Fraction:
        # Bounds that come when they come would make runs with a limit of work differ.
        at_first = self.run.work_limit is not None
        return self._bounds_at_first[k] if at_first else self._bound(k)

    def _bound(self, k: int) -> Fraction:
        """Return what no pattern of k micro-batches is below, which is higher for fewer, ns."""
        return self.run.bound(replace(self.problem.scope, max_k=k)) or Fraction(1)

    def _prepare(
        self,
        worker: Workspace,
        begin: Sequence[Stage] | State | None,
        plan: Schedule,
        k: int,
        known: Fraction | None,
    ) -> None:
        worker.found[:] = 0
        high = self._high(k, known)
        # Near the bound a far drop would leave nothing to find.
        least = (plan.low + high) // 2
        period = max(least, min(high, int((high + 1) * (1 - plan.drop))))
        if isinstance(begin, State):
            restart(worker.state, begin, period, k)
            return
        if begin is None or len(begin) > self.most:
            begin = [Stage(layers=(0, self.tables.layers - 1), gpus=(0,))]
        encode(begin, worker.state, period, k)

    def _is_done(self) -> bool:
        run = self.run
        return run.stopped() or run.settled() or run.settled(self.problem.scope)

    def _wait(self, tasks: Sequence[Future[int]], stop: Ints) -> None:
        """Wait until all are done, and let them stop when the run does."""
        left: set[Future[int]] = set(tasks)
        while left:
            _, left = wait(left, timeout=POLL_S, return_when=FIRST_COMPLETED)
            if self._is_done() or not self._open_for():
                stop[0] = 1
