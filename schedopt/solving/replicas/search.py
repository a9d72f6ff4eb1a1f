"""The search for the shortest step on contiguous stages with replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from schedopt.chain import Chain, Layer
from schedopt.platform import Platform
from schedopt.problem import Scope, training_step
from schedopt.solving.replicas.arrays import NEVER, Array, Option, StepData
from schedopt.solving.replicas.candidates import Candidate, Candidates, StageChoice, filled_by_1f1b
from schedopt.solving.replicas.descent import Descent
from schedopt.solving.replicas.labels import label_stages
from schedopt.solving.replicas.layered import choose_redone
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import least_makespan
from schedopt.solving.run import Run
from schedopt.stage import Stage

STRETCHES: Final = (1.0, 1.02, 1.06, 1.12, 1.25, 1.5, 2.0, 4.0, 20.0)
"""Periods at which stages are looked for, over the least."""
WEIGHTS: Final = (1.0, 0.7, 0.4)
"""How much the way to a stage and back counts, against its work."""
STEADY: Final = -1.0
"""In place of such a weight: stages are judged by the steady state."""
PATIENCE: Final = 1.3
"""How much longer than the best simulated step one may be by the programme to be simulated."""
CLOSE: Final = 200
"""A least period is found up to this part of itself."""

IDLE_BEFORE_OTHERS: Final = 4
"""Starts in a row that may end no better before others are asked, which takes them a while."""

Proposal = tuple[Sequence[Stage], Sequence[int] | None]
"""Stages that somebody else chose, and how deep to fill them; by default as 1F1B does."""


def compile_step_search() -> StepData:
    """Search for the step of a chain of two layers, and return it."""
    layer = Layer(
        forward_ns=1,
        backward_ns=1,
        weight_bytes=0,
        activation_bytes=0,
        parameter_bytes=0,
        gradient_bytes=0,
        optimizer_bytes=0,
    )
    chain, platform = Chain(layers=(layer, layer)), Platform(2, 9, bandwidth=1)
    scope = Scope(replicas=None, shard="parameter", recompute=True)
    problem = training_step(chain, platform, 2, scope)
    step = read_step(problem)
    assert step is not None
    run = Run(problem)
    search = StepSearch(step, run)
    for candidate in search.improve():
        search.candidates.orders(candidate)
    least_makespan(step, run)
    # What two layers need not choose, larger chains do.
    choose_redone(step.costs.layered.layers, 0, 1, 1, 0, 1, step.machine.room)
    return step


class StepSearch:
    """Stages with replicas for one training step, on a machine of equal GPUs.

    Parameters
    ----------
    step : StepData
    run : Run
    late : bool
        See `Candidates`.
    enough : float, optional
        When all programmes have proposed stages, changing these ends after such a share of the time
        of the run, unless it still finds better ones.
    proposals : iterable of (sequence of Stage, sequence of int or None)
        What others choose, as `start` takes it; it is asked for behind the programmes and the
        first changes, for it may take a while to choose.
    enough_ns : int
        A makespan up to which the search ends.
    """

    def __init__(
        self,
        step: StepData,
        run: Run,
        *,
        late: bool = True,
        enough: float | None = None,
        proposals: Iterable[Proposal] = (),
        enough_ns: int = 0,
    ) -> None:
        self.step, self.run, self.enough, self.proposals = step, run, enough, iter(proposals)
        self.candidates = Candidates(step, run, late=late, enough_ns=enough_ns)
        self.is_through = False
        self._descent = Descent(self.candidates)
        self._passes = [*self._list_passes()]
        self._uniform = [n for n in step.replicas if step.machine.gpus % n == 0]
        if len(step.replicas) == 1:
            self._uniform = []
        self._seen: set[tuple[StageChoice, ...]] = set()
        self._starts: list[Proposal] = []
        self._told_ns = NEVER

    def start(self, stages: Sequence[Stage], depth: Sequence[int] | None = None) -> None:
        """Try stages that somebody else chose, with and without shards.

        They are filled to a depth and deeper; by default as 1F1B does.
        """
        self._starts.append((stages, depth))
        if depth is None:
            depth = filled_by_1f1b([len(stage.gpus) for stage in stages])
        for level in sorted({option.shard for option in self.step.options}):
            chosen = [self._choose(stage, level) for stage in stages]
            choice = tuple(stage for stage in chosen if stage is not None)
            if len(choice) == len(chosen) and choice not in self._seen:
                self._seen.add(choice)
                self.candidates.add(choice, depth)

    def _choose(self, stage: Stage, level: int) -> StageChoice | None:
        """Return a stage whose replicas share as much as they may, up to a level if possible.

        None if there may be no such stage.
        """
        group = self.step.problem.degrees.index(stage.tensor)
        levels = [
            option.shard for option in self.step.options if option[::2] == (len(stage.gpus), group)
        ]
        if not levels:
            return None
        shard = max((one for one in levels if one <= level), default=min(levels))
        return StageChoice(stage.first, stage.last + 1, len(stage.gpus), shard, group)

    def resume(self, run: Run) -> None:
        """Take more time: `improve` goes on where it was cut short, unless it `is_through`."""
        self.run = self.candidates.run = run
        self.enough = None

    def improve(self) -> Iterator[Candidate]:
        """Look for stages, fold after fold, until time is up; yield each best one so far.

        In a fold g the job is g times the same with P / g GPUs, or at least all replicas are
        multiples of g: micro-batches of different residue modulo g never meet.
        """
        for _ in self._propose():
            if self.candidates.best and self.candidates.best[0].makespan_ns < self._told_ns:
                self._told_ns = self.candidates.best[0].makespan_ns
                yield self.candidates.lighten(self.candidates.best[0])
            if self.candidates.is_over():
                return
        if self.enough is not None:
            self.run.clock.end_early(self.enough)
        yield from self._descent.improve()
        if self._uniform and self.candidates.best:
            yield from self._improve_uniform()
        self.is_through = not self.candidates.is_over()

    def _propose(self) -> Iterator[None]:
        """Try the stages of one programme after the other, change the best, try all proposals."""
        while self._passes:
            options, fold, weights = self._passes[0]
            self._search_fold(np.array(options, dtype=np.int64), fold, weights)
            if not self.candidates.is_over():
                del self._passes[0]
            yield
        for _ in self._descent.improve(most_idle=IDLE_BEFORE_OTHERS):
            yield
        for stages, depth in self.proposals:
            self.start(stages, depth)
            yield

    def _list_passes(self) -> Iterator[tuple[list[Option], int, Sequence[float]]]:
        """Yield options of stages, their fold and the weights to try: first what takes least.

        The more replicas, the fewer stages; and what is much longer than the best is not simulated.
        """
        folds = [n for n in reversed(self.step.replicas) if self.step.machine.gpus % n == 0]
        for fold in folds:
            alike = [option for option in self.step.options if option.replicas == fold]
            yield alike, fold, (STEADY, *WEIGHTS)
        for fold in folds:
            multiples = [option for option in self.step.options if option.replicas % fold == 0]
            if any(option.replicas > fold for option in multiples):
                yield multiples, fold, (STEADY, *WEIGHTS) if fold == 1 else (STEADY,)

    def _improve_uniform(self) -> Iterator[Candidate]:
        """Look among stages that all have the same replicas, one number after the other.

        With so few choices the descent ends elsewhere, now and then at a shorter step.
        """
        best = self.candidates.best[0]
        while self._uniform:
            count = self._uniform[0]
            options = tuple(option for option in self.step.options if option.replicas == count)
            uniform = replace(self.step, replicas=(count,), options=options)
            search = StepSearch(uniform, self.run, late=False, enough_ns=self.candidates.enough_ns)
            for stages, depth in self._starts:
                if {len(stage.gpus) for stage in stages} == {count}:
                    search.start(stages, depth)
            for candidate in search.improve():
                self.candidates.keep(candidate)
            if self.candidates.best[0] != best:
                best = self.candidates.best[0]
                yield self.candidates.lighten(best)
            if self.candidates.is_over():
                return
            del self._uniform[0]
        yield from self._descent.improve()

    def _search_fold(self, options: Array, fold: int, weights: Sequence[float]) -> None:
        period = self._least_period(options, fold)
        if period is None:
            return
        for stretch in STRETCHES:
            longer = int(period * stretch) + 1
            if (self.step.count - fold) * longer > self._limit():
                return
            for weight in weights:
                labels, counts = self._label(options, longer, fold, weight)
                for stages, depth in self._read(labels, counts, options):
                    if stages not in self._seen:
                        self._seen.add(stages)
                        self.candidates.add(stages, depth)
                if self.candidates.is_over():
                    return

    def _limit(self) -> int:
        """Return a makespan above which what the programme says is not worth a simulation, ns."""
        return (
            int(PATIENCE * self.candidates.best[0].makespan_ns) if self.candidates.best else NEVER
        )

    def _label(self, options: Array, period: int, fold: int, weight: float) -> tuple[Array, Array]:
        found: tuple[Array, Array] = label_stages(
            self.step.costs,
            self.step.machine,
            options,
            self.step.count,
            period,
            fold,
            weight,
            self._limit(),
        )
        return found

    def _least_period(self, options: Array, fold: int) -> int | None:
        """Return about the least period at which there are stages; None if there are none."""

        def possible(period: int) -> bool:
            return bool(self._label(options, period, fold, STEADY)[1][0].any())

        costs = self.step.costs
        work = int((costs.forward[:, -1] + costs.backward[:, -1]).max())
        trips = np.maximum(costs.trip, costs.far).max(axis=(0, 1))
        longest = 2 * work + 2 * int(trips.sum()) + 1
        low = int(costs.load[-1]) // self.step.machine.gpus
        high = low + low // 64 + 1
        while not possible(high):
            if high >= longest or self.candidates.is_over():
                return None
            low, high = high, min(longest, high + high // 2 + 1)
        while high - low > 1 + low // CLOSE and not self.candidates.is_over():
            middle = (low + high) // 2
            if possible(middle):
                high = middle
            else:
                low = middle
        return high

    def _read(
        self, labels: Array, counts: Array, options: Array
    ) -> Iterator[tuple[tuple[StageChoice, ...], list[int]]]:
        """Yield the stages of all labels of the whole chain, and how deep 1F1B* fills them."""
        layers = len(self.step.costs.load) - 1
        for used in range(self.step.machine.gpus, 0, -1):
            for which in range(int(counts[0, used])):
                first, left, number = 0, used, which
                stages: list[StageChoice] = []
                depth: list[int] = []
                while first < layers:
                    row = [int(value) for value in labels[first, left, number]]
                    option = Option(*(int(value) for value in options[row[5]]))
                    stages.append(StageChoice(first, row[4], *option))
                    depth.append(row[6])
                    first, left, number = row[4], left - self.step.gpus_of(option), row[7]
                yield tuple(stages), depth
