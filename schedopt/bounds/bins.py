"""How many GPUs layers need that cannot be cut: a bound for bin packing by rounding sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]

MOST_UNITS: Final = 256
"""So many units are looked at."""


def need_more(sizes: Array, room: int, bins: int) -> bool:
    """Whether items of these sizes surely do not fit into the bins.

    Sizes are rounded in units of u: a bin holds floor(room / u) of them. What is at most half a bin
    counts floor(size / u), and what is more takes away as much as is left beside it at most,
    floor((room - size) / u). What fits a bin still fits it, and lost room is seen (Carlier,
    Clautiaux and Moukrim 2007, the function f_CCM,1).

    Parameters
    ----------
    sizes : array of int, shape (things,)
        Not below 0; what is larger than a bin fits none.
    room : int
        Of a bin.
    bins : int
    """
    import numpy as np

    if (sizes > room).any():
        return True
    # Twice all, so that half a bin is a unit.
    sizes, room = 2 * sizes, 2 * room
    units = np.unique(np.concatenate([sizes, room - sizes + 1, [room // 2]]))
    units = units[(units > 0) & (2 * units <= room)]
    if len(units) > MOST_UNITS:
        units = units[np.linspace(0, len(units) - 1, MOST_UNITS).astype(np.int64)]
    unit = units[:, None]
    whole = room // unit
    twice = np.where(2 * sizes > room, 2 * (whole - (room - sizes) // unit), 2 * (sizes // unit))
    twice = np.where(2 * sizes == room, whole, twice)
    return bool((twice.sum(axis=1) > bins * 2 * whole[:, 0]).any())
