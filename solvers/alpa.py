"""The stages of Alpa's dynamic programme, with data parallelism inside each stage."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.bounds.recomputation import input_bytes
from schedopt.cuts import NoPartition, cut_places, cuts_between, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import SHARDS, Shard, Stage

Array = npt.NDArray[np.int64]

NEVER: Final = 1 << 60
"""Longer than anything, ns."""


def partition(problem: Problem) -> list[Stage]:
    """Return the stages of Alpa's dynamic programme over stages, on as many GPUs as they can use.

    Zheng et al. 2022, section 5: the least sum of t over stages + (m - 1) times the longest t. Alpa
    finds by another programme how a stage is spread over 1, 2, 4, ... GPUs; here it is by data
    parallelism, so that t is that part of F and B (of 2 F and B where a stage is recomputed). A
    stage with s GPUs from its first layer on keeps ceil(s / R) micro-batches on each of its R GPUs,
    and must fit there: weights, of the optimizer state an R-th where that may be shared, workspace,
    and what it saves. Where recompute is allowed all stages are recomputed as a whole, each keeping
    its input, or none is. Transfers are ignored. Without m the longest t counts alone. GPUs are
    taken to be alike: unequal ones count with the smallest memory. Times are whole ns, rounded up.

    Raises
    ------
    NoPartition
        If none fits.
    """
    ways = (False, True) if problem.scope.recompute else (False,)
    found = [best for again in ways if (best := _Search(problem, again).solve()) is not None]
    if not found:
        raise NoPartition(
            "no partition fits when the s-th stage from the end keeps s micro-batches",
            field="memory",
            way_out="Give more memory or GPUs, or use contiguous",
        )
    return min(found, key=lambda best: best[0])[1]


class _Search:
    """The programme over suffixes of the chain and the GPUs that these use."""

    def __init__(self, problem: Problem, again: bool) -> None:
        self.problem, self.again = problem, again
        self.places = cut_places(problem.chain)
        self.replicas = [n for n in problem.replica_counts if n & (n - 1) == 0]
        self.gpus = len(problem.platform.gpus)
        self.room = min(gpu.usable_bytes for gpu in problem.platform.gpus)
        layers, times = problem.chain.layers, 2 if again else 1
        work = (times * layer.forward_ns + layer.backward_ns for layer in layers)
        self.time = [0, *accumulate(work)]
        self.weight = [0, *accumulate(layer.weight_bytes for layer in layers)]
        self.saved = [0, *accumulate(layer.saved for layer in layers)]
        self.optimizer = [0, *accumulate(layer.optimizer_bytes or 0 for layer in layers)]
        self.stages = [
            (first, np.array([stage[1:] for stage in stages], dtype=np.int64))
            for first, stages in groupby(self._stages(), key=itemgetter(0))
        ]

    def solve(self) -> tuple[tuple[int, int], list[Stage]] | None:
        """Return objective and stages of the best partition.

        The least longest t is found by bisection. Without m that is all; else the least sum is
        found, and then one with a smaller longest t, as long as that can be better.
        """
        widest = self._least_sum(NEVER, -1)
        if widest is None:
            return None
        count, gpus = self.problem.scope.microbatches, widest[2][-1].gpus[-1] + 1
        times = np.unique(np.concatenate([options[:, 2] for _, options in self.stages])).tolist()
        fits = bisect_left(
            times, True, key=lambda time: self._least_sum(time + 1, gpus) is not None
        )
        found = self._least_sum(times[fits] + 1, gpus)
        assert found is not None
        total, least, stages = found
        if count is None:
            return (least, total), stages
        best = (total + (count - 1) * least, least), stages
        # Of all that are better none has a smaller sum than the widest.
        limit = NEVER if count == 1 else (best[0][0] - widest[0]) // (count - 1) + 1
        while (found := self._least_sum(limit, gpus)) is not None:
            total, limit, stages = found
            best = min(best, ((total + (count - 1) * limit, limit), stages), key=itemgetter(0))
        return best

    def _stages(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield all stages that fit, from the end of the chain on, those of a begin together.

        Each is its begin and end, by place, its GPUs, its t, and the most GPUs from it on.
        """
        layers = self.problem.chain.layers
        shared = SHARDS.index(self.problem.scope.shard) > 0
        for first in reversed(range(len(self.places) - 1)):
            largest = 0
            for end in range(first + 1, len(self.places)):
                a, b = self.places[first], self.places[end]
                added = layers[self.places[end - 1] : b]
                largest = max(largest, *(layer.workspace_bytes or 0 for layer in added))
                time, saved = self.time[b] - self.time[a], self.saved[b] - self.saved[a]
                optimizer = self.optimizer[b] - self.optimizer[a] if shared else 0
                workspace = largest if time else 0
                spare = self.room - workspace - (self.weight[b] - self.weight[a]) + optimizer
                each = saved + (layers[a].saved_input_bytes or 0)
                if self.again:
                    spare, each = spare - saved, input_bytes(self.problem.chain, a)
                for replicas in self.replicas:
                    left = spare - -(-optimizer // replicas)
                    kept = self.gpus if not each else left // each
                    if left >= 0 and kept > 0:
                        most = min(self.gpus, kept * replicas)
                        yield first, end, replicas, -(-time // replicas), most

    def _least_sum(self, limit: int, gpus: int) -> tuple[int, int, list[Stage]] | None:
        """Return the least sum of t, each below a limit, the longest t, and the stages.

        They use `gpus` GPUs; -1 for as many as they can.
        """
        units = len(self.places) - 1
        sums = np.full((units + 1, self.gpus + 1), NEVER, dtype=np.int64)
        sums[units, 0] = 0
        chosen = np.zeros((units + 1, self.gpus + 1, 3), dtype=np.int64)
        counts = np.arange(self.gpus + 1)
        for first, options in self.stages:
            short = options[options[:, 2] < limit]
            if not len(short):
                continue
            end, replicas, time, most = short.T[:, :, None]
            behind = counts - replicas
            found = np.where(
                (behind >= 0) & (counts <= most), sums[end, np.maximum(behind, 0)] + time, NEVER
            )
            best = found.argmin(axis=0)
            sums[first] = np.minimum(NEVER, found[best, counts])
            chosen[first] = short[best, :3]
        fitting = np.flatnonzero(sums[0] < NEVER).tolist()
        if not fitting or (gpus >= 0 and gpus not in fitting):
            return None
        total, place, places = fitting[-1] if gpus < 0 else gpus, 0, [0]
        used, longest = total, 0
        replicas_of: list[int] = []
        while place < units:
            place, replicas, time = chosen[place, used].tolist()
            used, longest = used - replicas, max(longest, time)
            places.append(place)
            replicas_of.append(replicas)
        cuts = cuts_between([self.places[place] for place in places])
        stages = stages_in_order(cuts, replicas_of)
        return int(sums[0, total]), longest, [self._describe(stage) for stage in stages]

    def _describe(self, stage: Stage) -> Stage:
        shared = self.problem.scope.shard != "none" and len(stage.gpus) > 1
        shard: Shard = "optimizer" if shared else "none"
        return replace(stage, recompute=(stage.layers,) if self.again else (), shard=shard)
