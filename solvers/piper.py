"""The partition of Piper, with replicas and recompute, and without tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
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
    stages = stages_in_order(cuts_between([search.places[place] for place in places]), replicas)
    return [
        replace(stage, recompute=runs_of(flags.tolist(), stage.first))
        for stage, flags in zip(stages, recompute, strict=True)
    ]


class _Weights(NamedTuple):
    """What a stage takes: times, ns, and bytes."""

    time: int
    fixed: int
    saved: int
    parameters: int


class _Search:
    """What a stage of layers between two places costs."""

    def __init__(self, problem: Problem) -> None:
        platform, layers = problem.platform, problem.chain.layers
        self.problem = problem
        self.places = cut_places(problem.chain)
        self.replicas = problem.replica_counts
        self.count = problem.scope.microbatches or 1
        self.room = min(gpu.usable_bytes for gpu in platform.gpus)
        outputs = [layers[place - 1].activation_bytes for place in self.places[1:-1]]
        self.sent = [0, *(2 * platform.longest_transfer_ns(size) for size in outputs), 0]
        self.forward = np.array([layer.forward_ns for layer in layers], dtype=np.int64)
        self.saved = np.array([layer.saved for layer in layers], dtype=np.int64)
        self.inputs = np.array([input_bytes(problem.chain, n) for n in range(len(layers))])

    def begin(self, loads: Array, chosen: Array, first: int) -> None:
        """Find for each number of GPUs the best suffix that begins there."""
        gpus, most = loads.shape[1] - 1, self.replicas[-1]
        largest = min(gpus, most * (len(self.places) - 1 - first))
        for end in range(first + 1, len(self.places)):
            stage = self._weigh(first, end)
            extra = self._extra(first, end, stage, gpus)
            least = -(-(self.sent[first] + stage.time) // most)
            if not len(extra) or least >= loads[first, 1 : largest + 1].max():
                break
            time = self.sent[first] + stage.time + self.sent[end]
            for replicas in self.replicas:
                # By GPUs that are used from here on: what it keeps must be known in `extra`.
                used = np.arange(replicas, min(gpus, replicas * len(extra)) + 1)
                work = time + extra[-(-used // replicas) - 1]
                sync = 4 * (replicas - 1) * stage.parameters
                load = -(-(work * self.count + sync) // (replicas * self.count))
                found = np.maximum(load, loads[end, used - replicas])
                better = used[found < loads[first, used]]
                loads[first, better] = found[better - replicas]
                chosen[first, better] = end, replicas

    def _weigh(self, first: int, end: int) -> _Weights:
        layers = self.problem.chain.layers[self.places[first] : self.places[end]]
        time = sum(layer.forward_ns + layer.backward_ns for layer in layers)
        workspace = max(layer.workspace_bytes or 0 for layer in layers) if time else 0
        parameters = sum(layer.parameter_bytes or 0 for layer in layers)
        return _Weights(
            time,
            sum(layer.weight_bytes for layer in layers) + workspace,
            sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0),
            self.problem.platform.longest_transfer_ns(parameters) if parameters else 0,
        )

    def _extra(self, first: int, end: int, stage: _Weights, most: int) -> Array:
        """Return the time of recompute with 1, 2, ... micro-batches kept, as far as they fit."""
        free = most
        if stage.saved:
            free = min(most, max(0, (self.room - stage.fixed) // stage.saved))
        elif stage.fixed > self.room:
            free = 0
        nothing = np.zeros(free, dtype=np.int64)
        if not self.problem.scope.recompute or free == most:
            return nothing
        layers, kept = slice(self.places[first], self.places[end]), np.arange(free + 1, most + 1)
        order, enough = self._choose(layers, kept, stage.fixed + kept * stage.saved - self.room)
        fitting = enough[enough < order.shape[1]]
        times = self.forward[layers][order[: len(fitting)]].cumsum(axis=1)
        return np.concatenate([nothing, times[np.arange(len(fitting)), fitting]])

    def recompute(self, first: int, end: int, kept: int) -> npt.NDArray[np.bool_]:
        """Return which layers of a stage that fits are recomputed to keep some micro-batches."""
        stage, layers = self._weigh(first, end), slice(self.places[first], self.places[end])
        missing = stage.fixed + kept * stage.saved - self.room
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
