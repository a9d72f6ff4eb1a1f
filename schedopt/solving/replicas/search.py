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
from schedopt.solving.replicas.descent import MOST_IDLE, Descent
from schedopt.solving.replicas.labels import Labels, label_stages
from schedopt.solving.replicas.recomputed_layers import choose_recomputed
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import is_possible, least_makespan
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

FIRST_IDLE: Final = 4
"""Starts in a row that may end no better at first, of each kind of stages."""

Proposal = tuple[Sequence[Stage], Sequence[int] | None]
"""Stages that somebody else chose, and how deep to fill them; by default as 1F1B does."""
Pass = tuple[list[Option], int, Sequence[float]]
"""Options of stages, their fold, and the weights to try."""


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
    choose_recomputed(step, 0, 1, 1, 0, 1)
    return step


class StepSearch:
    """Stages with replicas for one training step, on a machine of equal GPUs.

    Parameters
    ----------
    step : StepData
    run : Run
    late : bool
        See `Candidates`.
    proposals : iterable of (sequence of Stage, sequence of int or None)
        What others choose, as `start` takes it. It is simulated before all else.
    enough_ns : int
        A makespan up to which the search ends.

    Attributes
    ----------
    alike : dict of int to Descent
        By the number of replicas, where all stages have as many.
    """

    def __init__(
        self,
        step: StepData,
        run: Run,
        *,
        late: bool = True,
        proposals: Iterable[Proposal] = (),
        enough_ns: int = 0,
    ) -> None:
        self.step, self.run, self.proposals = step, run, iter(proposals)
        self.candidates = Candidates(step, run, late=late, enough_ns=enough_ns)
        self.is_through = False
        self._descent = Descent(self.candidates)
        counts = [n for n in step.replicas if step.machine.gpus % n == 0]
        self.alike = {n: self._uniform_part(n) for n in counts if len(step.replicas) > 1}
        self._passes = [*self._list_passes()]
        self._first_descents = [self._descent, *self.alike.values()]
        self._seen: set[tuple[StageChoice, ...]] = set()
        self._enough: float | None = None
        self._told_ns = NEVER

    def _uniform_part(self, count: int) -> Descent:
        """Return a descent among stages that all have `count` replicas.

        With so few choices it ends elsewhere, now and then at a shorter step. It knows what a
        search for such stages alone would know by then, and no more, so that it goes the same way.
        """
        options, least_options = (
            tuple(option for option in known if option.replicas == count)
            for known in (self.step.options, self.step.least_options)
        )
        uniform = replace(
            self.step, replicas=(count,), options=options, least_options=least_options
        )
        own = self.candidates
        return Descent(Candidates(uniform, own.run, late=own.late, enough_ns=own.enough_ns))

    def start(self, stages: Sequence[Stage], depth: Sequence[int] | None = None) -> None:
        """Try stages that somebody else chose, with and without shards, until time is long up.

        They are filled to a depth and deeper; by default as 1F1B does.
        """
        if depth is None:
            depth = filled_by_1f1b([len(stage.gpus) for stage in stages])
        for level in sorted({option.shard for option in self.step.options}):
            chosen = [self._choose(stage, level) for stage in stages]
            choice = tuple(stage for stage in chosen if stage is not None)
            if len(choice) == len(chosen):
                alike = self._candidates_of(stage.replicas for stage in choice)
                self._add(choice, depth, alike, heeds_time=False)

    def _add(
        self,
        stages: tuple[StageChoice, ...],
        depth: Sequence[int],
        candidates: Candidates,
        *,
        heeds_time: bool = True,
    ) -> None:
        """Simulate stages for some candidates, and for all.

        Once, but where time was perhaps up before all was tried.
        """
        if stages in self._seen and heeds_time:
            return
        self._seen.add(stages)
        found = candidates.add(stages, depth, heeds_time=heeds_time)
        if found is not None and candidates is not self.candidates:
            self.candidates.keep(found)

    def _candidates_of(self, counts: Iterable[int]) -> Candidates:
        """Return the candidates for stages with these numbers of replicas: all, if they differ."""
        known = {*counts}
        part = self.alike.get(known.pop()) if len(known) == 1 else None
        return self.candidates if part is None else part.candidates

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

    def resume(self, run: Run, enough: float | None = None) -> None:
        """Take more time: `improve` goes on where it was cut short, unless it `is_through`.

        When all have proposed stages, changing these ends after `enough` of the time of the run, a
        share, unless it still finds better ones.
        """
        self.run = self.candidates.run = run
        for part in self.alike.values():
            part.candidates.run = run
        self._enough = enough

    def begin(self) -> Iterator[Candidate]:
        """Try what is soon tried; yield each best one so far.

        The stages that others choose, those of one programme after the other, and a few changes of
        the best of all and of those with equal replicas.
        """
        for _ in self._propose():
            yield from self._tell()

    def improve(self) -> Iterator[Candidate]:
        """Look for stages, fold after fold, until time is up; yield each best one so far.

        In a fold g the job is g times the same with P / g GPUs, or at least all replicas are
        multiples of g: micro-batches of different residue modulo g never meet.
        """
        yield from self.begin()
        if self.candidates.is_over():
            return
        if self._enough is not None:
            self.run.clock.end_early(self._enough)
        for _ in self._descend_in_turns([self._descent, *self._promising()]):
            yield from self._tell()
        self.is_through = not self.candidates.is_over()

    def _descend_in_turns(self, parts: Sequence[Descent]) -> Iterator[None]:
        """Change the best stages of each kind, a few starts at a time.

        A kind is through after `MOST_IDLE` starts in a row that end no better, and goes on where
        others find better ones of it. Where there are others, stages of all kinds are after twice
        as many.
        """
        alike = len(parts) > 1
        idle, known = dict.fromkeys(parts, 0), dict[Descent, list[Candidate]]()
        going = True
        while going and not self.candidates.is_over():
            going = False
            for part in parts:
                best = part.candidates.best[:1]
                before = idle[part] if best == known.get(part) else 0
                if before >= MOST_IDLE * (2 if alike and part is self._descent else 1):
                    continue
                going = True
                yield from self._descend(part, FIRST_IDLE)
                known[part] = part.candidates.best[:1]
                idle[part] = FIRST_IDLE + (before if best == known[part] else 0)

    def _tell(self) -> Iterator[Candidate]:
        """Yield the best one, if it is new."""
        if self._best_ns() < self._told_ns:
            self._told_ns = self._best_ns()
            yield self.candidates.lighten(self.candidates.best[0])

    def _propose(self) -> Iterator[None]:
        """Try what one programme chooses after the other, all proposals, and some changes.

        The programmes for equal replicas take little and come first, so that they are looked at
        even where others take long to choose.
        """
        yield from self._run_programmes(
            [one for one in self._passes if len({option.replicas for option in one[0]}) == 1]
        )
        while not (self.candidates.is_past_all() or self.candidates.is_enough()):
            stages, depth = next(self.proposals, ((), None))
            if not stages:
                break
            self.start(stages, depth)
        yield
        yield from self._run_programmes([*self._passes])
        while self._first_descents and not self.candidates.is_over():
            part = self._next_first_descent()
            if part is self._descent or part in self._promising():
                for _ in self._descend(part, FIRST_IDLE):
                    yield
            if not self.candidates.is_over():
                self._first_descents.remove(part)

    def _next_first_descent(self) -> Descent:
        """Return what is changed next: among stages with equal replicas, where the best are such.

        There are far fewer of them, and others go on from the best.
        """
        counts = {stage.replicas for best in self.candidates.best[:1] for stage in best.stages}
        part = self.alike.get(counts.pop()) if len(counts) == 1 else None
        return part if part and part in self._first_descents else self._first_descents[0]

    def _run_programmes(self, chosen: Sequence[Pass]) -> Iterator[None]:
        """Try the stages of some programmes, which are through then."""
        for one in chosen:
            if self.candidates.is_over():
                return
            yield from self._search_fold(*one)
            if not self.candidates.is_over():
                self._passes.remove(one)
            yield

    def _promising(self) -> list[Descent]:
        """Return descents among stages with equal replicas that may end well, the best first.

        Others are bounded by the best step, or have none that is nearly as short.
        """
        limit = _limit(self.candidates)
        known = {
            part: part.candidates.best[0].makespan_ns
            for part in self.alike.values()
            if part.candidates.best
        }
        near = sorted((part for part in known if known[part] <= limit), key=known.__getitem__)
        return [part for part in near if is_possible(part.step, self._best_ns() - 1)]

    def _best_ns(self) -> int:
        return self.candidates.best[0].makespan_ns if self.candidates.best else NEVER

    def _descend(self, part: Descent, most_idle: int) -> Iterator[None]:
        """Change the best stages of a kind."""
        for candidate in part.improve(most_idle):
            self.candidates.keep(candidate)
            yield

    def _list_passes(self) -> Iterator[Pass]:
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

    def _search_fold(
        self, options: list[Option], fold: int, weights: Sequence[float]
    ) -> Iterator[None]:
        """Try the stages of a programme, for one period after the other.

        Those with equal replicas go on from each other alone: see `_uniform_part`.
        """
        candidates = self._candidates_of(option.replicas for option in options)
        rows = np.array(options, dtype=np.int64)
        known = candidates is not self.candidates and bool(self.candidates.best)
        if known and not is_possible(candidates.step, self._best_ns() - 1):
            return
        period = self._least_period(rows, fold, candidates)
        if period is None:
            return
        for stretch in STRETCHES:
            longer = int(period * stretch) + 1
            if (self.step.count - fold) * longer > _limit(candidates):
                return
            for weight in weights:
                labels = label_stages(self.step, rows, longer, fold, weight, _limit(candidates))
                for stages, depth in self._read(labels):
                    self._add(stages, depth, candidates)
                if self.candidates.is_over():
                    return
            yield

    def _least_period(self, options: Array, fold: int, candidates: Candidates) -> int | None:
        """Return about the least period at which there are stages; None if there are none.

        Those are left out that are far longer than the best candidate of their kind.
        """

        def possible(period: int) -> bool:
            limit = _limit(candidates)
            return bool(
                label_stages(self.step, options, period, fold, STEADY, limit).counts[0].any()
            )

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

    def _read(self, labels: Labels) -> Iterator[tuple[tuple[StageChoice, ...], list[int]]]:
        """Yield the stages of all labels of the whole chain, and how deep 1F1B* fills them."""
        layers = len(self.step.costs.load) - 1
        for used in range(self.step.machine.gpus, 0, -1):
            for which in range(int(labels.counts[0, used])):
                first, left, number = 0, used, which
                stages: list[StageChoice] = []
                depth: list[int] = []
                while first < layers:
                    row = [int(value) for value in labels.table[first, left, number]]
                    option = Option(*(int(value) for value in labels.options[row[5]]))
                    stages.append(StageChoice(first, row[4], *option))
                    depth.append(row[6])
                    first, left, number = row[4], left - self.step.gpus_of(option), row[7]
                yield tuple(stages), depth


def _limit(candidates: Candidates) -> int:
    """Return a makespan above which what a programme says is not worth a simulation, ns."""
    best = candidates.best[0].makespan_ns if candidates.best else NEVER
    return min(NEVER, int(PATIENCE * best))
