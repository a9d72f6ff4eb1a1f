"""Descent over the cuts, replicas and depths of candidates for a training step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from random import Random
from typing import Final

from schedopt.solving.replicas.arrays import NEVER, Option
from schedopt.solving.replicas.candidates import Candidate, Candidates, StageChoice

MOST_SHAKES: Final = 4
"""Changes that are made at once."""
MOST_IDLE: Final = 16
"""Starts in a row that may end no better before the descent ends."""

Filled = tuple[tuple[StageChoice, ...], tuple[int, ...]]
"""Stages, and how deep each is filled."""


class Descent:
    """Changes of the candidates that there are."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates, self.step = candidates, candidates.step
        self._generator = Random(candidates.run.seed)
        self._tried: set[Filled] = set()
        self._next: tuple[Candidate, Candidate] | None = None
        self._options_near: dict[tuple[int, ...], list[Option]] = {}

    def improve(self, most_idle: int = MOST_IDLE) -> Iterator[Candidate]:
        """Change the best candidate a little while that helps; yield each best one so far.

        Where nothing helps, a few changes of one of the best at once make a start that is worse,
        and may end better. After `most_idle` that do not it ends, and goes on from there the next
        time unless others found a better one.
        """
        if not self.candidates.best:
            return
        start, idle = self.candidates.best[0], 0
        if self._next is not None and self._next[0] == start:
            start = self._next[1]
        while idle < most_idle and not self.candidates.is_over():
            best = self.candidates.best[0]
            self._descend_from(start)
            idle = idle + 1 if self.candidates.best[0] == best else 0
            if not idle:
                yield self.candidates.best[0]
            start = self._shake(self._generator.choice(self.candidates.best))
            self._next = self.candidates.best[0], start

    def _descend_from(self, candidate: Candidate) -> None:
        """Take the first change that shortens the step, again and again."""
        while True:
            for neighbour in self.neighbours(candidate):
                if self.candidates.is_over():
                    return
                if neighbour in self._tried:
                    continue
                self._tried.add(neighbour)
                better = self.candidates.add(*neighbour, deeper=(0,), longest=candidate.makespan_ns)
                if better is not None and better.makespan_ns < candidate.makespan_ns:
                    candidate = better
                    break
            else:
                return

    def _shake(self, candidate: Candidate) -> Candidate:
        """Make a few changes at random."""
        for _ in range(self._generator.randint(2, MOST_SHAKES)):
            stages, depth = self._generator.choice([*self.neighbours(candidate)])
            found = self.candidates.add(stages, depth, deeper=(0,), longest=NEVER)
            candidate = found or candidate
        return candidate

    def neighbours(self, candidate: Candidate) -> Iterator[Filled]:
        """Yield stages that differ in cuts, in the replicas of two stages or one, or in depth."""
        stages, depth = candidate.stages, candidate.depth
        spare = self.step.machine.gpus - sum(self.step.gpus_of(stage) for stage in stages)
        for number, stage in enumerate(stages):
            for more in (-1, 1):
                if depth[number] + more >= 1:
                    yield stages, (*depth[:number], depth[number] + more, *depth[number + 1 :])
            for option in self._near(stage):
                if self.step.gpus_of(option) - self.step.gpus_of(stage) <= spare:
                    changed = stage._replace(**option._asdict())
                    yield (*stages[:number], changed, *stages[number + 1 :]), depth
        for number, (ahead, behind) in enumerate(pairwise(stages)):
            before, after = stages[:number], stages[number + 2 :]
            for moved in (-2, -1, 1, 2):
                for shifted in self._shift(stages, range(number, number + 1), moved):
                    yield shifted, depth
            own = self.step.gpus_of(ahead) + self.step.gpus_of(behind)
            for one in self._near(ahead):
                for other in self._near(behind):
                    if self.step.gpus_of(one) + self.step.gpus_of(other) - own <= spare:
                        pair = (
                            ahead._replace(**one._asdict()),
                            behind._replace(**other._asdict()),
                        )
                        yield (*before, *pair, *after), depth
        for start, end in combinations(range(len(stages)), 2):
            for moved in (-1, 1) if end > start + 1 else ():
                for shifted in self._shift(stages, range(start, end), moved):
                    yield shifted, depth

    def _shift(
        self, stages: tuple[StageChoice, ...], cuts: range, moved: int
    ) -> Iterator[tuple[StageChoice, ...]]:
        """Yield stages with some cuts in a row moved, if none is left empty.

        So the first stage lends a layer to the last one, or borrows one, and those between go on.
        """
        found = [*stages]
        for number in cuts:
            cut = stages[number].end + moved
            found[number] = found[number]._replace(end=cut)
            found[number + 1] = found[number + 1]._replace(first=cut)
        allowed = all(stage.first < stage.end for stage in found)
        if allowed and not any(self.step.costs.joined[found[number].end] for number in cuts):
            yield tuple(found)

    def _near(self, stage: StageChoice) -> list[Option]:
        """Return the options with the next fewer and the next more replicas, in groups of any size.

        Of another size those that take about as many GPUs.
        """
        if stage.option[::2] not in self._options_near:
            place = self.step.replicas.index(stage.replicas)
            counts = self.step.replicas[max(0, place - 1) : place + 2]
            near = {(count, stage.group) for count in counts}
            gpus = self.step.gpus_of(stage)
            for group in {option.group for option in self.step.options} - {stage.group}:
                known = [option.replicas for option in self.step.options if option.group == group]
                tensor = int(self.step.costs.tensor[group])
                fewer = max((n for n in known if n * tensor <= gpus), default=None)
                more = min((n for n in known if n * tensor >= gpus), default=None)
                near |= {(count, group) for count in (fewer, more) if count is not None}
            self._options_near[stage.option[::2]] = [
                option for option in self.step.options if option[::2] in near
            ]
        return self._options_near[stage.option[::2]]
