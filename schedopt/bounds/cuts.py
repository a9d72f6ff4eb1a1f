"""The least way to every cut of a chain, over all contiguous allocations.

A chain is read from one end. A stage adds to what has been read; which stages may follow depends
on what was added so far, and the less the better. So the least for each (layers read, GPUs used)
decides whether the whole chain can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from schedopt.bounds.load import layers_through_time
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.platform import Gpu
from schedopt.problem import Problem

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]

NEVER: Final = 1 << 61
LATEST: Final = 1 << 60
"""Times stay below this."""
MOST_CELLS: Final = 1 << 25
"""Layers, squared, times GPUs: no more are read."""


def row_of_gpus(problem: Problem) -> tuple[Gpu, ...]:
    """Return GPUs in an order on which every contiguous allocation asked for has a place.

    Unequal GPUs in any order are taken as several of one that is as fast as the fastest and as
    roomy as the roomiest.
    """
    gpus, most = problem.platform.gpus, len(problem.chain.layers)
    if problem.platform.uniform:
        return gpus[:most]
    if problem.scope.gpu_order == "given":
        return gpus
    room = max(gpu.usable_bytes for gpu in gpus)
    best = Gpu(memory_bytes=room, speed=max(gpu.speed for gpu in gpus))
    return (best,) * min(len(gpus), most)


class Cuts:
    """What every stage of a chain costs on every GPU, in the order of reading.

    Parameters
    ----------
    problem : Problem
    most : int
        Micro-batches in flight above this are taken as any number.
    backwards : bool
        Whether the chain is read from its end.
    stopped : callable
        Whether to stop: then `Stopped` is raised, here and by `read`.

    Attributes
    ----------
    kinds : list of Gpu
        Those that differ.
    count, gpus : int
        Layers and GPUs.
    trip : array, shape (count + 1,)
        One transfer at each cut, between the two GPUs where it takes the least, ns.
    may_cut : array of bool, shape (count + 1,)
    most : int
    """

    def __init__(
        self,
        problem: Problem,
        *,
        most: int,
        backwards: bool = False,
        stopped: Callable[[], bool] = never_stop,
    ) -> None:
        import numpy as np

        layers = problem.chain.layers
        row = row_of_gpus(problem)
        self.kinds = kinds = list(dict.fromkeys(row))
        self.count, self.gpus, self.most = len(layers), len(row), most
        self.stopped = stopped
        self.split = problem.scope.split_backward
        self._kind = np.array([kinds.index(gpu) for gpu in row])
        self._uniform = len(kinds) == 1
        self._fastest = max(range(len(kinds)), key=lambda kind: kinds[kind].speed)
        self._ahead = self._prefix(problem, kinds, "forward_ns")
        self._back = self._prefix(problem, kinds, "backward_ns")
        if self.split:
            self._input = self._prefix(problem, kinds, "backward_input_ns")
            self._weight = self._prefix(problem, kinds, "backward_weight_ns")
            if problem.scope.grain == "layer":
                self._choose_by_layer()
        self.trip = np.zeros(self.count + 1, dtype=np.int64)
        least = problem.platform.least_transfer_ns
        self.trip[1:-1] = [least(layer.activation_bytes) for layer in layers[:-1]]
        self.may_cut = np.ones(self.count + 1, dtype=bool)
        for group in problem.chain.same_gpu:
            self.may_cut[group[0] + 1 : group[-1] + 1] = False
        self._caps = self._fill_caps(problem, kinds)
        if backwards:
            self._turn()

    def _prefix(self, problem: Problem, kinds: list[Gpu], name: str) -> Array:
        import numpy as np

        found = np.zeros((len(kinds), self.count + 1), dtype=np.int64)
        for row, gpu in zip(found, kinds, strict=True):
            times = [gpu.duration_ns(getattr(layer, name) or 0) for layer in problem.chain.layers]
            row[1:] = np.cumsum(np.array(times, dtype=np.int64))
        return found

    def _choose_by_layer(self) -> None:
        """Let each layer run its backward whole or in halves, whichever is shorter.

        What its gradient waits for and what it works are then the least of both ways, and of the
        second no less than of the first.
        """
        import numpy as np

        def added(prefix: Array) -> Array:
            return np.diff(prefix, axis=1, prepend=0)

        back, half, weight = added(self._back), added(self._input), added(self._weight)
        way, whole = np.minimum(back, half), np.minimum(back, half + weight)
        self._back = np.cumsum(whole, axis=1)
        self._input = np.cumsum(way, axis=1)
        self._weight = np.cumsum(whole - way, axis=1)

    def _fill_caps(self, problem: Problem, kinds: list[Gpu]) -> npt.NDArray[np.int32]:
        """Return how many micro-batches each stage can hold on each GPU, by first layer and end.

        The most are there while an operation that takes time runs: either the forward that comes
        last, or else the backward that frees the first.
        """
        import numpy as np

        caps = np.zeros((len(kinds), self.count, self.count + 1), dtype=np.int32)
        if not problem.rule.is_given:
            caps[:] = self.most
            return caps
        layers = problem.chain.layers
        counted = problem.scope.grain == "stage"
        keeps = not problem.scope.recompute

        def total(values: list[int]) -> Array:
            return np.concatenate([[0], np.cumsum(np.array(values, dtype=np.int64))])

        weights = total([layer.weight_bytes for layer in layers])
        # Apart, in the reading *peak*, layers behind may keep nothing while the others do.
        apart = problem.scope.memory == "peak" and not counted
        held = layers_through_time(problem) if apart else self.count
        saved = total([layer.saved for layer in layers[:held]] + [0] * (self.count - held))
        workspace = np.array([layer.workspace_bytes or 0 for layer in layers], dtype=np.int64)
        for first, layer in enumerate(layers):
            raise_if_stopped(self.stopped)
            fixed = weights[first + 1 :] - weights[first]
            if counted:
                _, way, _ = self._lengths(first, self.count - first)
                largest = np.maximum.accumulate(workspace[first:])
                fixed = fixed + np.where(way[0] > 0, largest, 0)
            each = saved[first + 1 :] - saved[first]
            if first < held:
                each = each + (layer.saved_input_bytes or 0)
            for kind, gpu in enumerate(kinds):
                spare = gpu.usable_bytes - fixed
                if keeps and counted:
                    groups = np.where(each > 0, spare // np.maximum(each, 1), self.most)
                else:
                    groups = np.where(spare < (each if keeps else 0), 0, self.most)
                fitting = np.where(spare < 0, 0, np.minimum(groups, self.most))
                caps[kind, first, first + 1 :] = fitting
        return caps

    def _turn(self) -> None:
        for name in ("_ahead", "_back", *(("_input", "_weight") if self.split else ())):
            prefix = getattr(self, name)
            setattr(self, name, prefix[:, -1:] - prefix[:, ::-1])
        self.trip = self.trip[::-1]
        self.may_cut = self.may_cut[::-1]
        self._kind = self._kind[::-1]
        turned = self._caps[:, ::-1, :0:-1].transpose(0, 2, 1)
        self._caps[:, :, 1:] = turned.copy()

    def within(self, first: int, longest: int) -> int:
        """Return the most layers of a stage from `first` whose work may be `longest` ns."""
        import numpy as np

        kind = self._fastest
        ahead = self._ahead[kind] - self._ahead[kind, first]
        back = self._back[kind] - self._back[kind, first]
        if self.split:
            halves = self._input[kind] + self._weight[kind]
            back = np.minimum(back, halves - halves[first])
        last = int(np.searchsorted((ahead + back)[first:], longest, side="right"))
        return min(last, self.count + 1 - first) - 1 if last else 0

    def lengths(self, first: int, layers: int) -> tuple[Array, Array, Array]:
        """Return forward, way and work of stages from `first` with 1, 2, ... layers, ns.

        The way is how long a micro-batch takes there and back at least: of a split backward the
        input half. The work is what it occupies the GPU for.

        Returns
        -------
        three arrays, shape (GPUs, layers) or (1, layers)
        """
        ahead, way, work = map(self.by_gpu, self._lengths(first, layers))
        return ahead, way, work

    def _lengths(self, first: int, layers: int) -> tuple[Array, Array, Array]:
        import numpy as np

        ends = slice(first + 1, first + 1 + layers)

        def part(prefix: Array) -> Array:
            found: Array = prefix[:, ends] - prefix[:, first, None]
            return found

        ahead, back = part(self._ahead), part(self._back)
        if not self.split:
            return ahead, ahead + back, ahead + back
        half = part(self._input)
        whole = half + part(self._weight)
        return ahead, ahead + np.minimum(back, half), ahead + np.minimum(back, whole)

    def by_gpu(self, by_kind: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return rows for each kind as rows for each GPU, or as one for all."""
        return by_kind if self._uniform else by_kind[self._kind]

    def caps(self, first: int, layers: int) -> npt.NDArray[np.int32]:
        """Return how many micro-batches these stages can hold, at most `most`; 0: not even one."""
        return self.by_gpu(self._caps[:, first, first + 1 : first + 1 + layers])

    def read(
        self, extend: Callable[[Array, int], Array], *, values: int = 1
    ) -> list[tuple[int, int, int]] | None:
        """Read the chain, and return the stages of one least reading; None if there is none.

        Parameters
        ----------
        extend : callable
            Given what was added before a layer, shape (values, GPUs, 1), returns what is added
            behind stages of 1, 2, ... layers from there, `NEVER` for those that may not be.
        values : int
            Numbers that are added up. Of several, each is the least on its own, so that what is
            read may be less than any allocation has; the stages are those of the first.

        Returns
        -------
        list of (int, int, int)
            First layer, end and GPU, from the last stage read to the first.
        """
        import numpy as np

        table = np.full((values, self.gpus + 1, self.count + 1), NEVER, dtype=np.int64)
        origin = np.zeros((self.gpus + 1, self.count + 1), dtype=np.int32)
        table[:, :, 0] = 0
        for first in np.flatnonzero(self.may_cut[:-1]).tolist():
            raise_if_stopped(self.stopped)
            column = np.minimum.accumulate(table[:, :, first], axis=1)
            table[:, :, first] = column
            if int(column[0, -1]) >= NEVER:
                continue
            added = extend(column[:, :-1, None], first)
            ends = slice(first + 1, first + 1 + added.shape[2])
            there = table[:, 1:, ends]
            np.copyto(origin[1:, ends], first, where=added[0] < there[0])
            np.minimum(there, added, out=there)
        table[:, :, -1] = np.minimum.accumulate(table[:, :, -1], axis=1)
        if int(table[:, -1, -1].max()) >= NEVER:
            return None
        return list(self._walk(table[0], origin))

    def _walk(self, table: Array, origin: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
        used, end = self.gpus, self.count
        while end:
            while table[used - 1, end] == table[used, end]:
                used -= 1
            first = int(origin[used, end])
            used -= 1
            yield first, end, used
            end = first


def is_readable(problem: Problem) -> bool:
    """Whether a chain is short enough to be read."""
    return len(problem.chain.layers) ** 2 * len(row_of_gpus(problem)) <= MOST_CELLS


def longest_way(problem: Problem) -> int:
    """Return what a micro-batch takes at most, on the slowest GPU through the longest transfers.

    Where stages may lie anywhere, each layer may send what it makes to another GPU.
    """
    platform, layers = problem.platform, problem.chain.layers
    time = min(platform.gpus, key=lambda gpu: gpu.speed).duration_ns
    total = 0
    for layer in layers:
        # Each operation is rounded up on its own.
        halves = time(layer.backward_input_ns or 0) + time(layer.backward_weight_ns or 0)
        total += time(layer.forward_ns) + max(time(layer.backward_ns), halves)
    sent = sorted(platform.longest_transfer_ns(layer.activation_bytes) for layer in layers)
    cuts = len(platform.gpus) if problem.scope.allocation == "contiguous" else len(layers)
    return total + 2 * sum(sent[-cuts:])


def longest_period(problem: Problem) -> int:
    """Return a period in which all that a micro-batch needs can run one after the other, ns."""
    slowest = min(problem.platform.gpus, key=lambda gpu: gpu.speed)
    again = sum(slowest.duration_ns(layer.forward_ns) for layer in problem.chain.layers)
    return max(1, longest_way(problem) + again * problem.scope.recompute)
