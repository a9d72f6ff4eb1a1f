"""GPUs that have one port for all that they send and take, such as a network card.

Beside its neighbours' transfers nothing of a stage is on its port: what comes in and what goes
out, of activations and of gradients, takes a_in + a_out each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from schedopt.platform import Platform
from schedopt.stage import Stage

Array = npt.NDArray[np.int64]
MANY: Final = 2**12
"""Of a GPU whose transfers are not all on one port: more periods than they ever take."""


class Ports:
    """What contiguous stages need of the ports of their GPUs.

    Parameters
    ----------
    platform : Platform
    trips : (L + 1,) array
        Of each cut, how long its transfers take at least, both ways together, ns.
    """

    def __init__(self, platform: Platform, trips: Array) -> None:
        self.trips = trips
        self.shares = np.full(len(platform.gpus), MANY, dtype=np.int64)
        for gpu in range(len(platform.gpus) if platform.network is not None else 0):
            assert platform.network is not None
            port = platform.network.port_of(gpu)
            if port is not None:
                # Each direction of a full-duplex port is a port of its own.
                self.shares[gpu] = 2 if port.duplex == "full" else 1

    def are_full(self, gpus: slice, first: int, ends: slice, period: int) -> Array:
        """Return by GPU and end whether a stage sends and takes more than its port can.

        Returns
        -------
        (P, W) array of bool
        """
        both = self.trips[first] + self.trips[ends]
        full: Array = both > self.shares[gpus, None] * period
        return full

    def least_period(self, stages: Sequence[Stage]) -> int:
        """Return the period that stages need on the ports of their GPUs, ns."""
        times = [
            -(-int(self.trips[stage.first] + self.trips[stage.last + 1]) // self.shares[gpu])
            for stage in stages
            for gpu in stage.gpus
        ]
        return int(max(times, default=0))
