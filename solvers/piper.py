"""The partition of Piper, with replicas and recompute, and without tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recomputation import input_bytes, runs_of
from schedopt.cuts import NoPartition, cut_places, cuts_between, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage

Array = npt.NDArray[np.int64]

NEVER: Final = 1 << 60
"""Longer than anything, ns."""
MOST_ENDS: Final = 64
"""Of stages that are looked at together."""


def partition(problem: Problem) -> list[Stage]:
    """Return the stages of Piper's dynamic programme, on as many GPUs as bring something.

    Tarnawski et al. 2021, with one way to split a layer: from the end of the chain on, the least
    largest load of a stage. A stage on d GPUs takes a d-th of its F and B, of its recompute, and of
    what it sends and receives in both directions, as if a GPU did nothing else meanwhile; and its
    gradients, 4 (d - 1) / (d m) of its parameters for a micro-batch of m. It keeps ceil(s / d)
    micro-batches, where s GPUs are behind its first layer, and must fit its GPU: weights, workspace
    and what it saves for each. Where it does not, layers are recomputed, those first that save
    most bytes for their time, each of which keeps its input. GPUs are taken to be alike: unequal
    ones count with the smallest memory and the slowest link. Loads are whole ns, rounded up.

    Raises
    ------
    NoPartition
        If none fits, or only on more GPUs than there are.
    """
    search = _Search(problem)
    units, gpus = len(search.places) - 1, len(problem.platform.gpus)
    loads = np.full((units + 1, gpus + 1), NEVER, dtype=np.int64)
    loads[units, 0] = 0
    chosen = np.zeros((units + 1, gpus + 1, 2), dtype=np.int64)
    for first in reversed(range(units)):
        search.begin(loads, chosen, first)
    used = int(loads[0].argmin())
    if loads[0, used] == NEVER:
        raise NoPartition(
            "no partition fits when the s-th stage from the end keeps s micro-batches",
            field="memory",
            way_out="Give more memory or GPUs, or use contiguous",
        )
    place, places, replicas, recompute = 0, [0], [], []
    while place < units:
        end, count = chosen[place, used].tolist()
        recompute.append(search.recompute(place, end, -(-used // count)))
        place, used = end, used - count
        places.append(place)
        replicas.append(count)
    stages = stages_in_order(cuts_between(search.places[places].tolist()), replicas)
    return [
        replace(stage, recompute=runs_of(flags.tolist(), stage.first))
        for stage, flags in zip(stages, recompute, strict=True)
    ]


class _Weights(NamedTuple):
    """What stages from one place to others take: times, ns, and bytes."""

    time: Array
    fixed: Array
    saved: Array


class _Search:
    """What a stage of layers between two places costs."""

    def __init__(self, problem: Problem) -> None:
        platform, layers = problem.platform, problem.chain.layers
        self.problem = problem
        self.places = np.array(cut_places(problem.chain), dtype=np.int64)
        self.replicas = problem.replica_counts
        self.count = problem.scope.microbatches or 1
        self.room = min(gpu.usable_bytes for gpu in platform.gpus)
        outputs = [layers[place - 1].activation_bytes for place in self.places[1:-1]]
        self.sent = np.array([0, *(2 * platform.longest_transfer_ns(size) for size in outputs), 0])
        self.forward = np.array([layer.forward_ns for layer in layers], dtype=np.int64)
        self.saved = np.array([layer.saved for layer in layers], dtype=np.int64)
        self.inputs = np.array([input_bytes(problem.chain, n) for n in range(len(layers))])
        self.workspace = np.array([layer.workspace_bytes or 0 for layer in layers], dtype=np.int64)
        self.times = _sums(layer.forward_ns + layer.backward_ns for layer in layers)
        self.saves = _sums(layer.saved for layer in layers)
        self.weights = _sums(layer.weight_bytes for layer in layers)
        self.parameters = _sums(layer.parameter_bytes or 0 for layer in layers)

    def begin(self, loads: Array, chosen: Array, first: int) -> None:
        """Find for each number of GPUs the best suffix that begins there.

        Stages get longer, some ends at a time. A number of GPUs is left out once no longer stage
        fits with it, or takes less than the best found.
        """
        units, gpus, most = len(self.places) - 1, loads.shape[1] - 1, self.replicas[-1]
        used = np.arange(1, min(gpus, most * (units - first)) + 1)
        end, stages = first + 1, self._weigh(first)
        while end <= units and len(used):
            ends = np.arange(end, min(2 * end - first, end + MOST_ENDS, units + 1))
            extra = self._extra(first, ends, stages, int(used[-1]))
            best, behind, replicas = self._best(first, ends, stages.time, extra, loads, used)
            better = best < loads[first, used]
            loads[first, used[better]] = best[better]
            chosen[first, used[better]] = np.stack([behind, replicas], axis=1)[better]
            end = int(ends[-1]) + 1
            fits = extra[-1, -(-used // most) - 1] < NEVER
            least = -(-(self.sent[first] + stages.time[ends[-1] - first - 1]) // most)
            used = used[fits & (loads[first, used] > least)]

    def _best(
        self, first: int, ends: Array, time: Array, extra: Array, loads: Array, used: Array
    ) -> tuple[Array, Array, Array]:
        """Return the least load for each number of GPUs, the nearest end that has it, and replicas.

        Of those the fewest.
        """
        best, behind, chosen = (np.full(len(used), NEVER) for _ in range(3))
        time = self.sent[first] + time[ends - first - 1] + self.sent[ends]
        for replicas in self.replicas:
            own = used >= replicas
            # By GPUs that are used from here on: what it keeps must be known in `extra`.
            spare = extra[:, -(-used[own] // replicas) - 1]
            work = (time[:, np.newaxis] + spare) * self.count + self._sync(first, ends, replicas)
            load = np.where(spare < NEVER, -(-work // (replicas * self.count)), NEVER)
            found = np.maximum(load, loads[ends[:, np.newaxis], used[own] - replicas])
            least, nearest = found.min(axis=0), ends[found.argmin(axis=0)]
            better = (least < best[own]) | ((least == best[own]) & (nearest < behind[own]))
            changed = np.flatnonzero(own)[better]
            best[changed], behind[changed] = least[better], nearest[better]
            chosen[changed] = replicas
        return best, behind, chosen

    def _sync(self, first: int, ends: Array, replicas: int) -> Array:
        """Return how long replicas of stages send gradients, in all of them, ns; a row each."""
        if replicas == 1:
            return np.zeros((len(ends), 1), dtype=np.int64)
        sizes = self.parameters[self.places[ends]] - self.parameters[self.places[first]]
        times = map(self.problem.platform.longest_transfer_ns, sizes.tolist())
        sent = np.array([time if size else 0 for time, size in zip(times, sizes, strict=True)])
        return 4 * (replicas - 1) * sent[:, np.newaxis]

    def _weigh(self, first: int) -> _Weights:
        """Return what stages take that begin at a place, by the places that they can end at."""
        begin, ends = self.places[first], self.places[first + 1 :]
        time = self.times[ends] - self.times[begin]
        workspace = np.maximum.accumulate(self.workspace[begin:])[ends - begin - 1]
        return _Weights(
            time,
            self.weights[ends] - self.weights[begin] + np.where(time > 0, workspace, 0),
            self.saves[ends]
            - self.saves[begin]
            + (self.problem.chain.layers[begin].saved_input_bytes or 0),
        )

    def _extra(self, first: int, ends: Array, stages: _Weights, most: int) -> Array:
        """Return the time of recompute with 1, 2, ... `most` micro-batches kept, a row for an end.

        `NEVER` where they do not fit.
        """
        which, kept = ends - first - 1, np.arange(1, most + 1)
        fixed, saved = stages.fixed[which], stages.saved[which]
        most_kept = np.where(saved > 0, (self.room - fixed) // np.maximum(saved, 1), most)
        most_kept = np.where(fixed <= self.room, np.minimum(most_kept, most), 0)
        extra = np.where(kept <= most_kept[:, np.newaxis], 0, NEVER)
        if not self.problem.scope.recompute:
            return extra
        for row, (end, free) in enumerate(zip(ends, most_kept, strict=True)):
            if free == most:
                continue
            layers = slice(self.places[first], self.places[end])
            missing = fixed[row] + kept[free:] * saved[row] - self.room
            order, enough = self._choose(layers, kept[free:], missing)
            fitting = enough[enough < order.shape[1]]
            times = self.forward[layers][order[: len(fitting)]].cumsum(axis=1)
            extra[row, free : free + len(fitting)] = times[np.arange(len(fitting)), fitting]
        return extra

    def recompute(self, first: int, end: int, kept: int) -> npt.NDArray[np.bool_]:
        """Return which layers of a stage that fits are recomputed to keep some micro-batches."""
        stages, which = self._weigh(first), end - first - 1
        layers = slice(self.places[first], self.places[end])
        missing = int(stages.fixed[which] + kept * stages.saved[which]) - self.room
        flags = np.zeros(layers.stop - layers.start, dtype=np.bool_)
        if missing > 0:
            order, enough = self._choose(layers, np.array([kept]), np.array([missing]))
            flags[order[0, : enough[0] + 1]] = True
        return flags

    def _choose(self, layers: slice, kept: Array, missing: Array) -> tuple[Array, Array]:
        """Return in which order layers are recomputed, and the place of the last one to be.

        A row for each number of micro-batches kept and bytes missing; where all layers save less,
        the place is behind all. More micro-batches miss more, and where one number is too many, all
        larger ones are.
        """
        saving = np.outer(kept - 1, self.saved[layers]) - np.outer(kept, self.inputs[layers])
        gain = np.maximum(saving, 0)
        price = np.where(gain > 0, self.forward[layers] / np.maximum(gain, 1), np.inf)
        order = np.argsort(price, axis=1, kind="stable")
        gained = np.take_along_axis(gain, order, axis=1).cumsum(axis=1)
        return order, (gained < missing[:, np.newaxis]).sum(axis=1)


def _sums(values: Iterable[int]) -> Array:
    """Return the sums of the first 0, 1, 2, ... values."""
    return np.array([0, *accumulate(values)], dtype=np.int64)
