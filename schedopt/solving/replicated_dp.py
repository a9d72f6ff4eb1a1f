"""The exact dynamic programme over cuts and replicas: which stages 1F1B* can run with a period.

`schedopt.solving.replicas.least_spans` decides it for a period. With recompute it works with bounds
on the time that stages take for it; those of a solution are worked out exactly, and the programme
is run again until all stages of its solution were exact before.

Notes
-----
With L layers, stages of at most W layers, and P GPUs, one period takes O(L W P^2) operations, and
where the directions of a link exclude each other O(L P^3) more. What fits at a period fits at every
longer one, with all starts stretched, so that the least one is found by bisection. The groups of
different numbers of replicas do not keep when it shrinks, as they do where all have one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import lcm
from typing import Final, NamedTuple

import numpy as np

from schedopt.interrupts import Stopped
from schedopt.problem import Problem
from schedopt.solving.replicas.arrays import NEVER, Array, Machine
from schedopt.solving.replicas.least_spans import LeastSpans, find_least_spans, name_of_choice
from schedopt.solving.replicas.search import compile_step_search
from schedopt.solving.replicas.stages import read_costs
from schedopt.solving.run import Run
from schedopt.solving.stage_chain import StageChain
from schedopt.stage import Stage

MANY_TURNS: Final = 2520
"""What most small numbers of replicas divide."""
MOST_TURNS: Final = 2 * MANY_TURNS
"""Micro-batches after which all replicas of a plan do the same again: it is checked over all."""
MOST_ENTRIES: Final = 1 << 24
"""Layers times GPUs times numbers of replicas up to which all numbers are looked at."""


def compile_search() -> None:
    """Search for the step of a chain of two layers, and for its steady state."""
    step = compile_step_search()
    problem = Problem(chain=step.problem.chain, platform=step.problem.platform)
    steady = ReplicatedDP(problem, step.machine)
    steady.stages_at(steady.longest_period(), Run(problem))


class _Placed(NamedTuple):
    """A stage of a solution: its layers, its replicas, and the span behind it, ns."""

    first: int
    end: int
    replicas: int
    behind_ns: int


class ReplicatedDP:
    """The dynamic programme for one problem, on equal GPUs whose links are alike.

    Parameters
    ----------
    problem : Problem
    machine : Machine
        Its GPUs and links.
    replicas : sequence of int, optional
        Numbers of replicas to look at, ascending. Default: all that the scope allows.
    """

    def __init__(
        self, problem: Problem, machine: Machine, replicas: Sequence[int] | None = None
    ) -> None:
        self.problem, self.machine, self.replicas = problem, machine, replicas
        self.costs = read_costs(replace(problem, variants=()), machine, (), machine.gpus)
        self.most = min(machine.gpus, problem.scope.replicas or machine.gpus)
        self._exact: dict[int, int] = {}

    @property
    def looks_at_all(self) -> bool:
        """Whether all numbers of replicas are looked at, and not only some."""
        return (len(self.costs.load) - 1) * self.machine.gpus * self.most <= MOST_ENTRIES

    def with_extra_memory(self, extra: int) -> ReplicatedDP:
        """Return the same for GPUs with `extra` bytes more."""
        other = copy.copy(self)
        other.problem = self.problem.with_extra_memory(extra)
        other.machine = self.machine._replace(room=self.machine.room + extra)
        other._exact = {}
        return other

    def least_period(self) -> int:
        """Return a bound: the work of all GPUs, and the longest layer on its replicas, ns."""
        works = self.costs.load
        longest = int(np.diff(works).max())
        return max(1, -(-int(works[-1]) // self.machine.gpus), -(-longest // self.most))

    def longest_period(self) -> int:
        """Return a period at which one micro-batch runs after the other in every plan, ns."""
        costs, work = self.costs, int(self.costs.load[-1])
        if self.problem.scope.recompute:
            work += int(costs.head[-1])
        trips = np.sort(costs.trip[0, 0])[1 - self.machine.gpus :]
        return max(1, work + 2 * int(trips.sum()))

    def descend(
        self,
        best: StageChain,
        high: int,
        run: Run,
        refuted: Callable[[int], None],
    ) -> tuple[StageChain, int]:
        """Return the stages of least period, and that period, from some possible at `high`.

        The best so far if the run stops. `refuted` hears of each period that no stages reach.
        Where a pattern goes through too many turns before all its replicas meet again, the best
        with fewer turns is returned.
        """
        low, high = self.least_period(), best.shorten(high, run)
        for replicas in self._numbers():
            every = len(replicas) == self.most
            least, top = low, high
            while least < top and not run.stopped():
                middle = (least + top) // 2
                shorter = self.stages_at(middle, run, replicas)
                if shorter is not None:
                    top = shorter.shorten(middle, run)
                    if _turns(shorter) <= MOST_TURNS:
                        best, high = shorter, top
                elif not run.stopped():
                    least = middle + 1
                    if every:
                        refuted(middle)
        return best, high

    def _numbers(self) -> list[Sequence[int]]:
        """Return numbers of replicas to look at: few, which bring the period down; more; and all.

        The first are 2^n and 3 times 2^n, the second divide a number of turns that is not too many.
        """
        if self.replicas is not None:
            return [self.replicas]
        every = range(1, self.most + 1)
        few = [n for n in every if n // (n & -n) in (1, 3)]
        more = [n for n in every if MANY_TURNS % n == 0]
        ways = [few, more, *([every] if self.looks_at_all else [])]
        return [way for way in ways if len(way) < self.most] + ways[-1:]

    def stages_at(
        self, period: int, run: Run, replicas: Sequence[int] | None = None
    ) -> StageChain | None:
        """Return stages with which 1F1B* reaches a period, or None (also when stopped).

        Of some numbers of replicas; by default, of all that are looked at. What is under way when
        time is up goes on where no plan is known.
        """

        def is_over() -> bool:
            return run.stopped() and not run.needs_plan()

        numbers = np.array(replicas or self._numbers()[-1], dtype=np.int64)
        shard = int(self.problem.scope.shard != "none")
        asked = self.costs, self.machine, numbers, self._exact, shard, period
        with suppress(Stopped):
            while not run.stopped():
                found = find_least_spans(*asked, is_over)
                placed = [*self._read(found, numbers)]
                if not placed:
                    return None
                chain = self._chain(placed)
                if chain.fits(period):
                    return chain
                self._make_exact(chain, placed, period)
        return None

    def _read(self, found: LeastSpans, numbers: Array) -> Iterator[_Placed]:
        """Yield the stages of the whole chain on the fewest GPUs, if there are some."""
        possible = found.spans[0] < NEVER
        if not possible.any():
            return
        used = int(possible.any(axis=1).argmax())
        option = int(np.flatnonzero(possible[used])[-1])
        first, layers = 0, len(self.costs.load) - 1
        while first < layers:
            end, own = int(found.ends[first, used, option]), int(numbers[option])
            used -= own
            yield _Placed(first, end, own, int(found.behind[end, used, option]))
            first, option = end, int(found.options[end, used, option])

    def _chain(self, placed: Sequence[_Placed]) -> StageChain:
        """Return stages on the last GPUs, as 1F1B* sees them."""
        gpu = self.machine.gpus - sum(stage.replicas for stage in placed)
        stages: list[Stage] = []
        for first, end, replicas, _ in placed:
            stages.append(
                Stage(
                    layers=(first, end - 1),
                    gpus=tuple(range(gpu, gpu + replicas)),
                    shard=self.problem.scope.shard if replicas > 1 else "none",
                )
            )
            gpu += replicas
        return StageChain(self.problem, stages, free=self.problem.scope.recompute)

    def _make_exact(self, chain: StageChain, placed: Sequence[_Placed], period: int) -> None:
        """Work out what the stages of a solution recompute, which is not what was assumed."""
        known = len(self._exact)
        for number, stage in enumerate(placed):
            item = chain.items[2 * number]
            in_flight = chain.in_flight(item, item.span(stage.behind_ns, period), period)
            name = name_of_choice(*stage[:3], in_flight)
            if name not in self._exact:
                choice = chain.cheapest_recompute(number, in_flight)
                self._exact[name] = NEVER if choice is None else choice.time_ns
        assert len(self._exact) > known, "stages that fit do not"


def _turns(chain: StageChain) -> int:
    """Return after how many micro-batches all replicas do the same again."""
    return lcm(*(len(stage.gpus) for stage in chain.stages))
