"""The partition of PipeDream with replicas, and what its memory option makes of it."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.cuts import NoPartition, cut_places, cuts_between, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage

Array = npt.NDArray[np.int64]

NEVER: Final = 1 << 60
"""Longer than anything, ns."""


def partition(problem: Problem) -> list[Stage]:
    """Return the stages of PipeDream's dynamic programme, on all GPUs that they can use.

    Harlap et al. 2018; Narayanan et al. 2019, section 3.1, on one level of links: the least of the
    longest time of a stage or of a cut. A stage on R GPUs takes an R-th of its F and B, or, if that
    is longer, of 2 (R - 1) transfers of its parameters, which go round after every R micro-batches;
    a cut the activation there and back, 2 a / bandwidth, as two transfers with their latency.
    Memory does not count. GPUs are taken to be alike, and the slowest link counts. Times are whole
    ns, rounded up.
    """
    return _partition(problem, None)


def partition_within_memory(problem: Problem) -> list[Stage]:
    """Return the stages of PipeDream's dynamic programme under its own memory option.

    The optimizer published with Narayanan et al. 2019 (``--use_memory_constraint``) lets a stage on
    R of P GPUs, with U behind it, take at most the memory of a GPU by

        ceil(U / R) * (activation size + parameter size).

    This is not what 1F1B needs: with R = 1, U + 1 micro-batches are in flight, so that the last
    stage counts as empty, and weights count once for each. Plans may thus be over memory, and
    others that fit are left out. Its activation size is the sum over the layers of a stage of what
    their outputs take, for this is what a GPU keeps there; here it is the sum of what they save.
    Its parameter size is the sum of their `weight_bytes`, which a chain always has. Unequal GPUs
    count with the smallest memory.

    Raises
    ------
    NoPartition
        If by this account none fits.
    """
    return _partition(problem, min(gpu.usable_bytes for gpu in problem.platform.gpus))


def _partition(problem: Problem, room: int | None) -> list[Stage]:
    search = _Search(problem)
    units = len(search.places) - 1
    times, chosen = search.run(None, 0)
    gpus = int(np.flatnonzero(times[units] < NEVER)[-1])
    if room is not None:
        times, chosen = search.run(room, gpus)
    if times[units, gpus] == NEVER:
        raise NoPartition(
            f"no partition for {gpus} GPUs fits by the memory option of PipeDream",
            field="memory",
            way_out="Give more memory, or use contiguous",
        )
    place, places, replicas = units, [units], []
    while place:
        place, count = chosen[place, gpus].tolist()
        gpus -= count
        places.append(place)
        replicas.append(count)
    cuts = cuts_between([search.places[place] for place in reversed(places)])
    return stages_in_order(cuts, replicas[::-1])


class _Search:
    """The programme over prefixes of the chain and the GPUs that these use."""

    def __init__(self, problem: Problem) -> None:
        chain, platform = problem.chain, problem.platform
        self.platform, self.replicas = platform, problem.replica_counts
        self.places = cut_places(chain)
        sizes = (
            [layer.forward_ns + layer.backward_ns for layer in chain.layers],
            [layer.saved + layer.weight_bytes for layer in chain.layers],
            [layer.parameter_bytes or 0 for layer in chain.layers],
        )
        self.time, self.kept, self.parameters = ([0, *accumulate(size)] for size in sizes)
        outputs = [chain.layers[place - 1].activation_bytes for place in self.places[1:-1]]
        self.sent = [0, *(2 * platform.longest_transfer_ns(size) for size in outputs)]

    def run(self, room: int | None, gpus: int) -> tuple[Array, Array]:
        """Return the least longest time of each prefix, and its last stage: begin and replicas.

        Rows are prefixes, columns GPUs in use. `room` is that of the memory option on `gpus` GPUs.
        """
        units, gpu_count = len(self.places) - 1, len(self.platform.gpus)
        times = np.full((units + 1, gpu_count + 1), NEVER, dtype=np.int64)
        times[0, 0] = 0
        chosen = np.zeros((units + 1, gpu_count + 1, 2), dtype=np.int64)
        used, replicas = np.arange(gpu_count + 1), np.array(self.replicas)
        before = used - replicas[:, None]
        for end in range(1, units + 1):
            most = min(gpu_count, self.replicas[-1] * end)
            for first in reversed(range(end)):
                work = self._between(self.time, first, end)
                if -(-work // self.replicas[-1]) > times[end, 1 : most + 1].max():
                    break
                allowed = before >= 0
                if room is not None:
                    each = self._between(self.kept, first, end)
                    allowed &= -((used - gpus) // replicas[:, None]) * each <= room
                lasts = [self._stage_ns(first, end, count) for count in self.replicas]
                longest = np.maximum(lasts, self.sent[first])[:, None]
                found = np.maximum(times[first, before], longest)
                found[~allowed] = NEVER
                which = found.argmin(axis=0)
                least = found[which, used]
                better = least < times[end]
                times[end, better] = least[better]
                chosen[end, better, 0] = first
                chosen[end, better, 1] = replicas[which[better]]
        return times, chosen

    def _stage_ns(self, first: int, end: int, replicas: int) -> int:
        work = self._between(self.time, first, end)
        if replicas > 1:
            parameters = self._between(self.parameters, first, end)
            sent = self.platform.longest_transfer_ns(parameters) if parameters else 0
            work = max(work, 2 * (replicas - 1) * sent)
        return -(-work // replicas)

    def _between(self, sums: list[int], first: int, end: int) -> int:
        return sums[self.places[end]] - sums[self.places[first]]
