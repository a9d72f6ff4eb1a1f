"""Which splits of layers over the stages of a rank fit, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from schedopt.solving.local_search.njit import njit_entry

Array = npt.NDArray[np.int64]


@njit_entry
def find_fitting(
    kept: Array, running: Array, room: Array, vectors: Array, chunks: Array
) -> npt.NDArray[np.bool_]:
    """Return which splits have room for what stages hold as each backward begins.

    Parameters
    ----------
    kept, running : (N, v) array
        Of each stage what a micro-batch in flight keeps, and what its backward needs, bytes.
    room : (N,) array
        For both, bytes.
    vectors : (M, v) array
        How many micro-batches of each stage are in flight as a backward begins, the most first.
    chunks : (M,) array
        The place of the stage of that backward.
    """
    fits = np.ones(len(kept), dtype=np.bool_)
    for row in range(len(kept)):
        for number in range(len(vectors)):
            held = running[row, chunks[number]]
            for chunk in range(kept.shape[1]):
                held += vectors[number, chunk] * kept[row, chunk]
            if held > room[row]:
                fits[row] = False
                break
    return fits
