"""How one allocation becomes another: the moves of the search.

Each returns the first row that changes, counted from the end of the chain, or -1 if it has nothing
to change.
"""

from __future__ import annotations

import numpy as np

from schedopt.solving.local_search.njit import njit_inline, njit_kernel
from schedopt.solving.local_search.placing import measure
from schedopt.solving.local_search.state import (
    BACKWARD_GENE,
    BEGIN,
    FORWARD_GENE,
    GENES,
    GPU,
    HALVED,
    LAYERS_RECOMPUTED,
    MICRO_BATCHES,
    ORDER_GENE,
    SPACING,
    SPACINGS,
    STAGES,
    WAIT,
    WAITS,
    State,
)
from schedopt.solving.local_search.tables import Tables

Draw = np.random.Generator


@njit_inline
def below(draw: Draw, count: int) -> int:
    """Return a number from 0 to count - 1 by chance."""
    return int(draw.random() * count)


@njit_inline
def _mostly_little(draw: Draw, most: int) -> int:
    """Return a number from 1 to most by chance, mostly a small one."""
    share = draw.random()
    return 1 + int((most - 1) * (share * (share * share)))


@njit_inline
def _end(t: Tables, s: State, row: int) -> int:
    """Return the layer behind a stage."""
    return s.row[row - 1, BEGIN] if row > 0 else t.layers


@njit_inline
def _other_gpu(t: Tables, gpu: int, draw: Draw) -> int:
    return (gpu + 1 + below(draw, t.gpus - 1)) % t.gpus


@njit_inline
def _copy(s: State, source: int, target: int) -> None:
    """Copy what is chosen for a stage, and what follows, but not where it is placed."""
    for column in range(LAYERS_RECOMPUTED + 1):
        s.row[target, column] = s.row[source, column]


@njit_kernel
def shift_cut(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Move the cut before a stage, mostly by little."""
    if row == s.counts[STAGES] - 1:
        row -= 1
    if row < 0:
        return -1
    begin = s.row[row, BEGIN]
    left = begin - s.row[row + 1, BEGIN] - 1
    right = _end(t, s, row) - begin - 1
    if left + right == 0:
        return -1
    to_left = right == 0 or (left > 0 and draw.random() < 0.5)
    room = left if to_left else right
    far = _mostly_little(draw, room)
    s.row[row, BEGIN] = begin - far if to_left else begin + far
    measure(t, s, row)
    measure(t, s, row + 1)
    return row


@njit_kernel
def reassign_gpu(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Let a stage run on another GPU."""
    if t.gpus == 1:
        return -1
    s.row[row, GPU] = _other_gpu(t, s.row[row, GPU], draw)
    measure(t, s, row)
    return row


@njit_kernel
def swap_gpus(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Let two stages change their GPUs."""
    other = below(draw, s.counts[STAGES])
    if s.row[row, GPU] == s.row[other, GPU]:
        return -1
    gpu = s.row[row, GPU]
    s.row[row, GPU] = s.row[other, GPU]
    s.row[other, GPU] = gpu
    measure(t, s, row)
    measure(t, s, other)
    return min(row, other)


@njit_kernel
def split_stage(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Cut a stage in two, and let one of them run on a GPU by chance."""
    stages = s.counts[STAGES]
    begin, end = s.row[row, BEGIN], _end(t, s, row)
    if end - begin < 2 or stages + 1 >= s.row.shape[0]:
        return -1
    for place in range(stages, row + 1, -1):
        _copy(s, place - 1, place)
    _copy(s, row, row + 1)
    s.row[row, BEGIN] = begin + 1 + below(draw, end - begin - 1)
    s.counts[STAGES] = stages + 1
    s.row[row + below(draw, 2), GPU] = below(draw, t.gpus)
    measure(t, s, row)
    measure(t, s, row + 1)
    return row


@njit_kernel
def merge_stages(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Make one of a stage and the one before it in the chain."""
    stages = s.counts[STAGES]
    if row == stages - 1:
        row -= 1
    if row < 0:
        return -1
    begin = s.row[row + 1, BEGIN]
    if draw.random() < 0.5:
        _copy(s, row + 1, row)
    s.row[row, BEGIN] = begin
    for place in range(row + 1, stages - 1):
        _copy(s, place + 1, place)
    s.counts[STAGES] = stages - 1
    measure(t, s, row)
    return row


@njit_kernel
def reassign_middle(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Let some layers at the end of a stage run on another GPU."""
    stages = s.counts[STAGES]
    begin, end = s.row[row, BEGIN], _end(t, s, row)
    if end - begin < 3 or stages + 2 >= s.row.shape[0] or t.gpus == 1:
        return -1
    for place in range(stages + 1, row + 2, -1):
        _copy(s, place - 2, place)
    _copy(s, row, row + 1)
    _copy(s, row, row + 2)
    cut = begin + 1 + below(draw, end - begin - 1)
    other = begin + 1 + below(draw, end - begin - 1)
    if cut == other:
        other = cut + 1 if cut + 1 < end else cut - 1
    s.row[row, BEGIN] = max(cut, other)
    s.row[row + 1, BEGIN] = min(cut, other)
    s.row[row + 1, GPU] = _other_gpu(t, s.row[row, GPU], draw)
    s.counts[STAGES] = stages + 2
    measure(t, s, row)
    measure(t, s, row + 1)
    measure(t, s, row + 2)
    return row


@njit_kernel
def exchange_gpus(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Let two GPUs change what they run from a row on."""
    if t.gpus == 1:
        return -1
    gpu = s.row[row, GPU]
    other = _other_gpu(t, gpu, draw)
    for place in range(row, s.counts[STAGES]):
        if s.row[place, GPU] == gpu:
            s.row[place, GPU] = other
            measure(t, s, place)
        elif s.row[place, GPU] == other:
            s.row[place, GPU] = gpu
            measure(t, s, place)
    return row


@njit_kernel
def slide_stages(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Move all cuts from a stage to the one before it on its GPU, mostly by little.

    The stages between move along the chain, and what one of both gives the other one gets. So no
    GPU has more to do where layers are alike, but for links and for what is held how long.
    """
    stages = s.counts[STAGES]
    other = row + 1
    while other < stages and s.row[other, GPU] != s.row[row, GPU]:
        other += 1
    if other >= stages or other == row + 1:
        return -1
    left = s.row[other - 1, BEGIN] - s.row[other, BEGIN] - 1
    right = _end(t, s, row) - s.row[row, BEGIN] - 1
    if left + right == 0:
        return -1
    to_left = right == 0 or (left > 0 and draw.random() < 0.5)
    room = left if to_left else right
    far = _mostly_little(draw, room)
    for place in range(row, other):
        s.row[place, BEGIN] += -far if to_left else far
    for place in range(row, other + 1):
        measure(t, s, place)
    return row


@njit_kernel
def swap_stages(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Let a stage and one not far before it change their places, with as many layers as before."""
    stages = s.counts[STAGES]
    other = row + 1 + below(draw, 3)
    if other >= stages or s.row[row, GPU] == s.row[other, GPU]:
        return -1
    first = s.row[other, BEGIN]
    more = _end(t, s, row) - s.row[row, BEGIN] - (s.row[other - 1, BEGIN] - first)
    gpu = s.row[row, GPU]
    s.row[row, GPU] = s.row[other, GPU]
    s.row[other, GPU] = gpu
    for place in range(row, other):
        s.row[place, BEGIN] += more
    for place in range(row, other + 1):
        measure(t, s, place)
    return row


@njit_inline
def change_order(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Place a stage in another way."""
    which, k = below(draw, 3), s.counts[MICRO_BATCHES]
    if which == 2:
        other = 1 if k == 1 else 1 + below(draw, 3)
        s.row[row, ORDER_GENE] = s.row[row, ORDER_GENE] ^ other
        return row
    gene = FORWARD_GENE if which == 0 else BACKWARD_GENE
    if k > 1:
        gene += GENES * below(draw, k)
    s.row[row, gene] = (s.row[row, gene] + 1 + below(draw, 2)) % 3
    if s.row[row, gene] == 2:
        s.row[row, WAIT] = below(draw, WAITS)
    return row


@njit_inline
def change_spacing(s: State, draw: Draw) -> int:
    """Let two micro-batches be farther apart, or nearer, mostly by little."""
    far = _mostly_little(draw, SPACINGS // 2 + 1)
    by = far if draw.random() < 0.5 else -far
    s.counts[SPACING] = (s.counts[SPACING] + by) % SPACINGS
    return 0


@njit_kernel
def split_backward(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Run a backward in halves, or whole."""
    s.row[row, HALVED] = 1 - s.row[row, HALVED]
    measure(t, s, row)
    return row


@njit_kernel
def flip_recompute(t: Tables, s: State, row: int, draw: Draw) -> int:
    """Keep some layers of a stage that were recomputed, or the other way round."""
    begin, end = s.row[row, BEGIN], _end(t, s, row)
    first = begin + below(draw, end - begin)
    last = first + 1
    how = draw.random()
    if how < 0.25:
        first, last = begin, end
    elif how < 0.5:
        last = first + 1 + below(draw, end - first)
    value = 1 - s.recompute[first]
    for layer in range(first, last):
        s.recompute[layer] = value
    measure(t, s, row)
    return row
