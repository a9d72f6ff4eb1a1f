"""Allocations near one that is known, all of whose GPUs have orders at once within a period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.solving.all_gpus.allocations import make_joint_data
from schedopt.solving.all_gpus.moves import Layers, walk
from schedopt.solving.all_gpus.orders import make_joint_scratch
from schedopt.solving.one_gpu.columns import CELLS, PIECE, GpuOrders
from schedopt.solving.packing_columns import UNITS, GpuLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedopt.bounds.propagation import ForcedWork
    from schedopt.stage import Stage

Array = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_DONE: Final = 2_000_000
"""Distances that are looked at for an allocation, before it is left."""


class Nearby:
    """A walk over allocations whose GPUs have orders at once.

    Parameters
    ----------
    around, forced : ForcedWork
        With instants, of a problem with k = 1, without recompute and split backwards: at the period
        that all allocations keep within, and at a shorter one that is looked for.
    stages : sequence of Stage
        Where the walk begins.
    seed : int or numpy.random.Generator
    stopped : callable, optional
        Says when to give up, by `interrupts.Stopped`.
    """

    def __init__(
        self,
        around: ForcedWork,
        forced: ForcedWork,
        stages: Sequence[Stage],
        seed: int | np.random.Generator,
        stopped: Callable[[], bool] = never_stop,
    ) -> None:
        chain, limits = forced.scaled.problem.chain, GpuLimits.of(around)
        count = len(chain.layers)
        self.gpus, self.stopped = len(forced.scaled.problem.platform.gpus), stopped
        self.around, self.data = (
            make_joint_data(each, GpuOrders(each, limits.sizes, UNITS, limits.apart), MOST_DONE)
            for each in (around, forced)
        )
        first = np.arange(count)
        for group in chain.same_gpu:
            first[list(group)] = min(group)
        self.layers = Layers(first, np.ascontiguousarray(limits.sizes), UNITS, self.gpus)
        self.owner = np.array([stage.gpus[0] for stage in stages for _ in _layers_of(stage)])
        self.scratch = make_joint_scratch(1, count)
        self._draw = np.random.default_rng(seed)

    @property
    def work(self) -> float:
        """What was done so far, in the unit of `solve_model`."""
        return float(self.scratch.done[0]) / CELLS

    def find(self, most_work: float) -> Flags | None:
        """Return what each GPU holds: array of bool, shape (GPUs, layers).

        None if nothing is found with that work.

        Raises
        ------
        Stopped
            When `stopped` says so.
        """
        until, is_found = self.work + most_work, False
        while not is_found and self.work < until:
            raise_if_stopped(self.stopped)
            most_done = int(min(until, self.work + PIECE) * CELLS)
            is_found = walk(
                most_done,
                self.owner,
                self.layers,
                self.around,
                self.data,
                self.scratch,
                self._draw,
            )
        return self.owner == np.arange(self.gpus)[:, None] if is_found else None


def _layers_of(stage: Stage) -> range:
    return range(stage.layers[0], stage.layers[1] + 1)
