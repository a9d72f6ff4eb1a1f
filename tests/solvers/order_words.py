"""The least period of an allocation, by a search over the order of what shares a GPU or a link.

Only the order of operations is chosen, never a start: at a fixed T an order is a set of
differences of starts, which can be met unless a cycle of them adds up to more than 0.

Micro-batches are alike: number the runs of each operation by their start, first in first out.
What had to follow still follows, and no instant holds more, for only the numbers of runs that
began and ended count, and of those that begin and end at once as few are left as can be.

No step of the way waits T or longer: else it, with all behind it, could run a micro-batch earlier
in the same places and hold less. Where a stage recomputes, its R goes along and may be in the way;
but then R waits less than T behind F, and B less than T behind R: less than 3 T for any step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, groupby, pairwise, product
from typing import Any, NamedTuple

import numpy as np

from schedopt import Chain, Platform, Scope, Stage

Array = np.ndarray[Any, np.dtype[np.int64]]
Resource = tuple[str, int, int]
NO_PATH = -(2**40)
WHOLE = Scope()
PARTS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


class Found(NamedTuple):
    """The least T of k micro-batches, with the recomputed layers and the starts of a pattern."""

    period_ns: int
    stages: Sequence[Stage]
    starts: dict[tuple[str, int], list[int]]


def least_period(
    chain: Chain, platform: Platform, stages: Sequence[Stage], k: int, scope: Scope = WHOLE
) -> Found | None:
    """Return the least T for k micro-batches, or None if the memory holds no pattern at all.

    The scope says whether each stage may run its backward in halves, whether it may recompute any
    of its layers, and not those that it names, and how memory is read.
    """
    courses = _courses(chain, platform, stages, scope)
    best: Found | None = None
    for course in sorted(courses, key=Course.load):
        # One micro-batch after the other, and everything at an instant of its own.
        limit = k * sum(max(1, op.length) for op in course.ops)
        if best is not None:
            limit = min(limit, best.period_ns - 1)
        for period in range(max(1, k * course.load()), limit + 1):
            starts = Words(course, k, period, scope.memory).search()
            if starts is not None:
                best = Found(period, course.stages, starts)
                break
    return best


def least_of(
    chain: Chain, platform: Platform, allocations: Iterable[Sequence[Stage]], scope: Scope
) -> Fraction | None:
    """Return the least normalized period of the allocations, by trying all orders of each."""
    found = [
        Fraction(one.period_ns, k)
        for stages in allocations
        for k in range(1, (scope.max_k or 1) + 1)
        if (one := least_period(chain, platform, stages, k, scope))
    ]
    return min(found, default=None)


def is_possible(
    chain: Chain,
    platform: Platform,
    stages: Sequence[Stage],
    k: int,
    period: int,
    scope: Scope = WHOLE,
) -> bool:
    """Return whether k micro-batches fit a T: see `least_period`."""
    return any(
        Words(course, k, period, scope.memory).search() is not None
        for course in _courses(chain, platform, stages, scope)
        if k * course.load() <= period
    )


def _courses(
    chain: Chain, platform: Platform, stages: Sequence[Stage], scope: Scope
) -> list[Course]:
    halves = product((False, True) if scope.split_backward else (False,), repeat=len(stages))
    again = product(*map(_choices, stages)) if scope.recompute else [tuple(stages)]
    return [Course(chain, platform, *choice) for choice in product(again, halves)]


def _choices(stage: Stage) -> Iterator[Stage]:
    """Yield the stage with each set of layers recomputed, in runs as long as they can be."""
    layers = range(stage.first, stage.last + 1)
    for chosen in product((False, True), repeat=len(layers)):
        pieces = groupby(layers, key=lambda layer: chosen[layer - stage.first])
        runs = [list(piece) for again, piece in pieces if again]
        yield replace(stage, recompute=tuple((run[0], run[-1]) for run in runs))


class Op(NamedTuple):
    """An operation or a transfer of each micro-batch."""

    what: str
    stage: int
    length: int
    resources: tuple[Resource, ...]
    workspace: int = 0


class Course:
    """What a micro-batch does and keeps, for one choice of recomputed layers and of halves.

    Attributes
    ----------
    ops : list of Op
    links : list of (int, int, int or None)
        Which operation follows which, and how many T it waits less than.
    kept : dict
        Of each GPU: bytes that lie from the start of one operation to the end of another.
    spare : dict
        Of each GPU: bytes beside weights.
    """

    def __init__(
        self, chain: Chain, platform: Platform, stages: Sequence[Stage], halves: Sequence[bool]
    ) -> None:
        self.chain, self.platform, self.stages = chain, platform, stages
        self.ops: list[Op] = []
        self.links: list[tuple[int, int, int | None]] = []
        self.kept: dict[Resource, list[tuple[int, int, int]]] = defaultdict(list)
        self.spare: dict[Resource, int] = {}
        way, ends = [], []
        for index in range(len(stages)):
            ends.append({"F": self._operation("F", index)})
            way += [ends[index]["F"], *self._transfer("activation", index, index, index + 1)]
        for index in reversed(range(len(stages))):
            of_stage, back = ends[index], "I" if halves[index] else "B"
            of_stage[back] = self._operation(back, index)
            if stages[index].recompute:
                of_stage["R"] = self._operation("R", index)
                self.links.append((of_stage["F"], of_stage["R"], None))
                self.links.append((of_stage["R"], of_stage[back], 1))
            if halves[index]:
                of_stage["W"] = self._operation("W", index)
                self.links.append((of_stage["I"], of_stage["W"], 1))
            way += [of_stage[back], *self._transfer("gradient", index - 1, index, index - 1)]
            self._keep(index, of_stage)
        turns = 3 if any(stage.recompute for stage in stages) else 1
        self.links += [(one, two, turns) for one, two in pairwise(way)]

    def load(self) -> int:
        """Return how long a GPU or link works for a micro-batch, at most."""
        work: dict[Resource, int] = defaultdict(int)
        for op in self.ops:
            for resource in op.resources:
                work[resource] += op.length
        return max(work.values())

    def _operation(self, kind: str, index: int) -> int:
        stage = self.stages[index]
        number, runs = stage.gpus[0], stage.recompute if kind == "R" else [stage.layers]
        layers = [layer for one, two in runs for layer in self.chain.layers[one : two + 1]]
        name = f"{PARTS['F' if kind == 'R' else kind]}_ns"
        times = [getattr(layer, name) or 0 for layer in layers]
        length = sum(map(self.platform.gpus[number].duration_ns, times))
        workspace = max(layer.workspace_bytes or 0 for layer in layers) if length else 0
        self.ops.append(Op(kind, index, length, (("gpu", number, number),), workspace))
        return len(self.ops) - 1

    def _transfer(self, tensor: str, index: int, source: int, target: int) -> list[int]:
        if not 0 <= target < len(self.stages):
            return []
        ends = self.stages[source].gpus[0], self.stages[target].gpus[0]
        if not (route := self.platform.route(*ends)):
            return []
        sent = self.chain.layers[self.stages[index].last].activation_bytes
        self.ops.append(Op(tensor, index, self.platform.transfer_ns(sent, *ends), route))
        return [len(self.ops) - 1]

    def _keep(self, index: int, ends: dict[str, int]) -> None:
        """Add what a stage keeps. What comes and goes together has its maximum together."""
        stage, layers = self.stages[index], self.chain.layers
        again = {layer for one, two in stage.recompute for layer in range(one, two + 1)}
        sizes: dict[tuple[str, str], int] = defaultdict(int)
        for number in range(stage.first, stage.last + 1):
            layer = layers[number]
            freed = "B" if "B" in ends else "W" if layer.saved_weight_bytes is None else "I"
            if number in again:
                sizes["R", freed] += layer.saved
            else:
                sizes["F", freed] += layer.saved
                if number == stage.first or number - 1 in again:
                    sizes["F", freed] += layer.saved_input_bytes or 0
            if number in (one for one, _ in stage.recompute):
                before = layers[number - 1].activation_bytes if number else self.chain.input_bytes
                sizes["F", freed] += before
            if "W" in ends:
                sizes["I", "W"] += layer.saved_weight_bytes or 0
        gpu = ("gpu", stage.gpus[0], stage.gpus[0])
        for (enter, leave), size in sizes.items():
            if size:
                self.kept[gpu].append((ends[enter], ends[leave], size))
        room = self.spare.get(gpu, self.platform.gpus[stage.gpus[0]].usable_bytes)
        own = layers[stage.first : stage.last + 1]
        self.spare[gpu] = room - sum(layer.weight_bytes for layer in own)


class Words:
    """The orders of k micro-batches at one T.

    A *cut* (a, b, lead, lag) is a number s with
    x[a] + s T + lead <= x[b] <= x[a] + (s + 1) T - lag, x being starts. Of two operations of a
    resource, lead and lag their lengths, it says between which runs of a each run of b lies. For
    memory lead + lag = 1, and it counts the runs of a that began (lead 0), began before (1) or
    ended (its length) when b starts. Held is what began and has not ended, at one instant after
    the releases; what is empty is held at its own instant.
    """

    def __init__(self, course: Course, k: int, period: int, memory: str) -> None:
        self.course, self.k, self.period, self.memory = course, k, period, memory
        ops, cuts = course.ops, []
        for one, two in combinations(range(len(ops)), 2):
            lead, lag = ops[one].length, ops[two].length
            if set(ops[one].resources) & set(ops[two].resources) and lead + lag:
                cuts += [(a, b, lead, lag) for a in self._runs(one) for b in self._runs(two)]
        self.pairs = len(cuts)
        self.rooms: list[tuple[int, int, int, Array, Array]] = []
        for gpu, spare in course.spare.items():
            begin, kept = len(cuts), course.kept[gpu]
            of_gpu = [op for op in range(len(ops)) if gpu in ops[op].resources]
            all_runs = [b for op in of_gpu for b in self._runs(op)]
            for enter, leave, _ in kept:
                end = ops[leave].length
                for b in all_runs if memory == "peak" else self._runs(enter):
                    for i, j in zip(self._runs(enter), self._runs(leave), strict=True):
                        cuts += [(i, b, 0, 1), (i, b, 1, 0), (j, b, end, 1 - end)]
            sizes = np.array([[size] for *_, size in kept]).reshape(-1, 1)
            workspaces = np.array([ops[b // k].workspace for b in all_runs])
            self.rooms.append((spare, begin, len(cuts), sizes, workspaces))
        self.a, self.b, self.lead, self.lag = np.array(cuts, dtype=np.int64).reshape(-1, 4).T

    def _runs(self, op: int) -> range:
        return range(op * self.k, (op + 1) * self.k)

    def search(self) -> dict[tuple[str, int], list[int]] | None:
        """Return starts, or None if no order will do."""
        longest: Array = np.full((len(self.course.ops) * self.k,) * 2, NO_PATH, dtype=np.int64)
        np.fill_diagonal(longest, 0)
        if not all(_add(longest, *arc) for arc in self._arcs()):
            return None
        found = self._choose(longest)
        if found is None:
            return None
        rows = [
            [int(found[0, run]) for run in self._runs(op)] for op in range(len(self.course.ops))
        ]
        return {(op.what, op.stage): row for op, row in zip(self.course.ops, rows, strict=True)}

    def _arcs(self) -> Iterator[tuple[int, int, int]]:
        """Yield what holds in every order: the way of each micro-batch; first in, first out."""
        ops = self.course.ops
        for one, two, turns in self.course.links:
            for a, b in zip(self._runs(one), self._runs(two), strict=True):
                yield a, b, ops[one].length
                if turns is not None:
                    yield b, a, 1 - ops[one].length - turns * self.period
        for number, op in enumerate(ops):
            runs = self._runs(number)
            yield from ((a, b, op.length) for a, b in pairwise(runs))
            yield runs[-1], runs[0], op.length - self.period

    def _choose(self, longest: Array) -> Array | None:
        """Choose one cut after the other, those that memory needs first."""
        while True:
            ahead, back = longest[self.a, self.b], longest[self.b, self.a]
            least = -(-(ahead + self.lag) // self.period) - 1
            most = (-back - self.lead) // self.period
            if (least > most).any():
                return None
            before = longest.copy()
            for cut in np.flatnonzero(least[: self.pairs] == most[: self.pairs]):
                if not self._fix(longest, cut, int(least[cut])):
                    return None
            if (longest == before).all():
                break
        is_open = least < most
        for spare, begin, end, sizes, workspaces in self.rooms:
            instants = len(workspaces) if self.memory == "peak" else self.k
            shape = (len(sizes), instants, self.k, 3)
            low, high = (bound[begin:end].reshape(shape) for bound in (least, most))
            fewest = np.maximum(0, low[..., 0] - high[..., 1:].min(axis=3)).sum(axis=2)
            if self._level(sizes * fewest, workspaces) > spare:
                return None
            largest = (high[..., 0] - low[..., 1:].min(axis=3)).sum(axis=2)
            if self._level(sizes * largest, workspaces) <= spare:
                is_open[begin:end] = False
        cuts = np.flatnonzero(is_open[self.pairs :]) + self.pairs
        if not len(cuts):
            cuts = np.flatnonzero(is_open[: self.pairs])
        if not len(cuts):
            return longest
        cut = cuts[np.argmin((most - least)[cuts])]
        for value in range(least[cut], most[cut] + 1):
            below = longest.copy()
            if self._fix(below, cut, value):
                found = self._choose(below)
                if found is not None:
                    return found
        return None

    def _fix(self, longest: Array, cut: np.int64 | np.intp, value: int) -> bool:
        a, b, turn = self.a[cut], self.b[cut], value * self.period
        return _add(longest, a, b, self.lead[cut] + turn) and _add(
            longest, b, a, self.lag[cut] - turn - self.period
        )

    def _level(self, held: Array, workspaces: Array) -> int:
        """Return the bytes beside weights, from those of each kind (rows) at each instant."""
        if self.memory == "sum":
            return int(held.max(axis=1, initial=0).sum() + workspaces.max())
        return int((held.sum(axis=0) + workspaces).max())


def _add(longest: Array, a: int, b: int, gap: int) -> bool:
    """Demand x[b] >= x[a] + gap; False if that closes a cycle with a positive sum.

    The longest path between any two starts is kept, so the way back from b to a is known.
    """
    if longest[b, a] + gap > 0:
        return False
    if longest[a, b] < gap:
        np.maximum(longest, longest[:, a, None] + gap + longest[b], out=longest)
    return True
