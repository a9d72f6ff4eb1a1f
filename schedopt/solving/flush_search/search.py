"""The search for a step with a flush, whose layers lie on any GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from schedopt.chain import Chain, Layer
from schedopt.plan import Kind
from schedopt.platform import Platform
from schedopt.problem import Problem
from schedopt.scope import Scope
from schedopt.solving.flush_search.annealing import Schedule, anneal
from schedopt.solving.flush_search.state import (
    END,
    FIRST,
    GPU,
    NEVER,
    Choice,
    copy_choice,
    new_workspace,
    read_step,
)
from schedopt.solving.local_search.tables import Ints
from schedopt.stage import Stage
from schedopt.systems.flush_step import Turn

KINDS: Final[tuple[Kind, ...]] = ("F", "B", "R")
"""By the numbers of `state`."""
MOST_CHUNKS: Final = 4
"""Stages of a GPU in a placement to start from."""
HOT: Final = 0.01
"""Where an annealing begins, as a share of the makespan; further ones begin colder."""
COLD: Final = 0.0003


def compile_search() -> None:
    """Run a search that has next to nothing to do."""
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    scope = Scope(microbatches=1)
    problem = Problem(chain=Chain(layers=(layer, layer)), platform=Platform(2, 0), scope=scope)
    search = FlushSearch(problem, (0, 0), 0)
    search.begin(next(search.starts()), 1)


class FlushSearch:
    """The shortest step that is known of some micro-batches, on stages anywhere.

    Parameters
    ----------
    problem : Problem
        With a number of micro-batches in its scope; each stage has one GPU. Weights are given.
    sync : sequence of int
        What the collectives and the update of each layer take behind the last backward, ns.
    seed : int

    Attributes
    ----------
    makespan_ns : int
        Of the best; `NEVER` and more if none is known that fits.
    """

    def __init__(self, problem: Problem, sync: Sequence[int], seed: int) -> None:
        self.problem, self.makespan_ns = problem, 2 * NEVER
        self.step = read_step(problem, sync)
        self._work = new_workspace(self.step)
        self._best = Choice(*(one.copy() for one in self._work.now))
        self._draw = np.random.default_rng(seed)

    def is_found(self) -> bool:
        """Whether a step is known that fits."""
        return self.makespan_ns < NEVER

    def least_load_ns(self) -> int:
        """Return what the GPU with the most to do has at least, ns."""
        tables, count = self.step.tables, self.step.microbatches
        work = count * int((tables.time[:, 0, -1] + tables.time[:, 1, -1]).min())
        return (work + int(self.step.sync[-1])) // tables.gpus

    def starts(self) -> Iterator[Choice]:
        """Yield placements to start from: a few stages of equal times on each GPU, in turn.

        With two stages each, also there and back. All of it is recomputed, or nothing.
        """
        tables = self.step.tables
        time = tables.time[0, 0] + tables.time[0, 1]
        middle = (time[:-1] + time[1:]) / (2 * max(1, int(time[-1])))
        for chunks in range(1, MOST_CHUNKS + 1):
            stages = chunks * tables.gpus
            if stages > tables.layers and chunks > 1:
                return
            number = np.minimum((middle * stages).astype(np.int64), stages - 1)
            back = np.where(number < tables.gpus, number, stages - 1 - number)
            for gpu in (number % tables.gpus, back) if chunks == 2 else (number % tables.gpus,):
                for recomputed in range(1 + tables.recompute):
                    yield self._choice(gpu, np.full_like(gpu, recomputed))

    def _choice(self, gpu: Ints, recomputed: Ints) -> Choice:
        """Return a choice, with layers that must share a GPU on that of the first of them."""
        for group in self.problem.chain.same_gpu:
            gpu[[*group]] = gpu[group[0]]
        return Choice(gpu, recomputed, np.array([self.step.microbatches, 0], dtype=np.int64))

    def start_of(self, stages: Sequence[Stage]) -> Choice | None:
        """Return what stages choose; None where they take more groups of GPUs than there are."""
        groups = {gpus: n for n, gpus in enumerate(dict.fromkeys(one.gpus for one in stages))}
        if len(groups) > self.step.tables.gpus:
            return None
        gpu, recomputed = (np.zeros(self.step.tables.layers, dtype=np.int64) for _ in range(2))
        for one in stages:
            gpu[one.first : one.last + 1] = groups[one.gpus]
            recomputed[[*one.recomputed_layers]] = 1
        return self._choice(gpu, recomputed)

    def begin(self, start: Choice, moves: int) -> None:
        """Look for a better step from a start on."""
        copy_choice(start, self._work.now)
        self._anneal(moves, HOT)

    def improve(self, moves: int) -> None:
        """Look for a better step from the best on, from another temperature each time."""
        copy_choice(self._best, self._work.now)
        self._anneal(moves, HOT * self._draw.random() ** 2 + COLD)

    def _anneal(self, moves: int, hot: float) -> None:
        plan = Schedule(moves, 0, hot, min(hot, COLD))
        found = anneal(self.step, self._work, self._draw, plan)
        if found < self.makespan_ns:
            self.makespan_ns = found
            copy_choice(self._work.best, self._best)

    def found(self) -> tuple[list[Stage], list[Turn]]:
        """Return the stages of the best step, and what runs, as it starts."""
        copy_choice(self._best, self._work.now)
        anneal(self.step, self._work, self._draw, Schedule(0, 0, HOT, COLD))
        room, recomputed = self._work.room, np.flatnonzero(self._best.recomputed).tolist()
        stages = []
        for row in room.stage[: room.counts[0]]:
            own = [layer for layer in recomputed if row[FIRST] <= layer < row[END]]
            # Neighbours differ from their place in the list by the same.
            runs = [[*one] for _, one in groupby(enumerate(own), lambda pair: pair[1] - pair[0])]
            again = tuple((one[0][1], one[-1][1]) for one in runs)
            layers = int(row[FIRST]), int(row[END]) - 1
            stages.append(Stage(layers=layers, gpus=(int(row[GPU]),), recompute=again))
        most, count = len(room.stage), self.step.microbatches
        codes = room.order[: room.counts[1]].tolist()
        return stages, [
            (KINDS[code // (most * count)], code // count % most, code % count) for code in codes
        ]
