"""Which consecutive layers can share a GPU, and what a chain takes that is cut into such runs.

Layers behind each other on one GPU are a run. Its weights, what its layers keep and the largest
workspace must fit the roomiest GPU, and its work, recompute included, the period of the fastest.
Each layer is kept or recomputed: a path with a time and with bytes on every step, as in
`schedopt.bounds.recomputation`, but with counts of micro-batches of each layer's own. A price for
a byte and one for a nanosecond make one length of both, and a run whose shortest path is longer
than the room and the time that are left, at these prices, cannot be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import ResidentBytes, Scaled
from schedopt.bounds.recomputation import lengthen_all
from schedopt.interrupts import never_stop, raise_if_stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

NEVER: Final = 1 << 60
MOST_UNITS: Final = 256
"""Units of rounding that a bin packing bound looks at."""
DEAREST: Final = 1 << 12
"""Prices are whole numbers up to this."""
MOST_PRICES: Final = 16
MOST_CELLS: Final = 1 << 22
"""Prices, times layers, times layers of a run: no more are looked at."""


class Runs:
    """The runs of a chain that can be, at the period of its amounts.

    Parameters
    ----------
    scaled : Scaled
    held : ResidentBytes
        What the layers keep.
    known : Runs, optional
        Runs that are not in these cannot be.

    Attributes
    ----------
    begun, inner : array of bool, shape (most layers of a run, layers)
        By layers behind the first and first layer: whether these can share a GPU if a run begins
        there, and whether they can be part of one.
    prices : array, shape (prices, 2)
        Of a unit of time and of a unit of memory.
    lengths : array, shape (prices, most layers of a run, layers)
        What each run takes at least on top of its work and its weights, at each price.
    """

    def __init__(self, scaled: Scaled, held: ResidentBytes, known: Runs | None = None) -> None:
        import numpy as np

        self.scaled, self.held = scaled, held
        self.count = len(scaled.work)
        loads = np.concatenate([[0], np.cumsum(scaled.work)])
        fitting = np.searchsorted(loads, loads[:-1] + scaled.limit, side="right") - 1
        self.window = int((fitting - np.arange(self.count)).max())
        if known is not None:
            self.window = min(self.window, known.window)
        self.prices = self._prices()
        self._fill(loads)
        if known is not None:
            self.keep(known.begun, known.inner)
        else:
            self._begin_where_apart()

    def _prices(self) -> Array:
        """Return prices around what layers take for each byte that recompute frees."""
        import numpy as np

        if not self.scaled.problem.scope.recompute:
            return np.array([[0, 1]], dtype=np.int64)
        freed = self.held.kept - self.held.again
        useful = (freed > 0) & (self.scaled.ahead > 0)
        most = min(MOST_PRICES, max(2, MOST_CELLS // max(1, self.window * self.count)))
        if not useful.any():
            return np.array([[0, 1]], dtype=np.int64)
        # Units of time and of memory may differ by far in small problems.
        for_time = max(1, self.scaled.room // max(1, self.scaled.limit))
        for_bytes = max(1, self.scaled.limit // max(1, self.scaled.room))
        ratios = (self.scaled.ahead * for_time)[useful] / (freed * for_bytes)[useful]
        chosen = np.quantile(ratios, np.linspace(0, 1, most - 1))
        dearer = np.maximum(1, np.round(DEAREST * np.minimum(1, chosen)))
        cheaper = np.maximum(1, np.round(DEAREST / np.maximum(1, chosen)))
        both = np.stack([cheaper * for_time, dearer * for_bytes], axis=1).astype(np.int64)
        return np.unique(np.concatenate([[[0, 1]], both]), axis=0)

    def _fill(self, loads: Array) -> None:
        """Lengthen all runs by a layer at a time, in both ways that the last one can be."""
        import numpy as np

        scaled, held, count = self.scaled, self.held, self.count
        for_time, for_bytes = self.prices.T[:, :, None]
        kept = for_bytes * held.kept
        again = for_bytes * held.again + for_time * scaled.ahead
        if not scaled.problem.scope.recompute:
            again = again + NEVER
        behind_run, begin_run = kept + for_bytes * held.input, again + for_bytes * held.checkpoint
        # The second axis: a run that begins here, or the rest of one.
        of_kept = np.stack([behind_run, kept], axis=1)
        of_again = np.stack([begin_run, again], axis=1)
        ending = None
        if held.ending is not None:
            ending = _Ending(held.ending, again, begin_run, for_bytes * scaled.saved)
        self.begun = np.zeros((self.window, count), dtype=bool)
        self.inner = np.zeros((self.window, count), dtype=bool)
        self.lengths = np.full((len(self.prices), self.window, count), NEVER, dtype=np.int64)
        weights, largest, worst = scaled.weight, held.workspace, held.worst
        turns = scaled.weight + held.turn
        for more in range(self.window):
            if more:
                before = of_kept[..., :-1], of_again[..., :-1]
                of_kept, of_again = lengthen_all(
                    *before,
                    (kept[:, None, more:], behind_run[:, None, more:]),
                    (begin_run[:, None, more:], again[:, None, more:]),
                )
                if ending is not None:
                    ending.lengthen(more, *before, of_again)
                weights = weights[:-1] + scaled.weight[more:]
                largest = np.maximum(largest[:-1], held.workspace[more:])
                worst = np.maximum(worst[:-1], held.worst[more:])
                turns = turns[:-1] + scaled.weight[more:] + held.turn[more:]
                of_again = np.minimum(of_again, NEVER)
            least = np.minimum(of_kept, of_again)
            starts = count - more
            spare = scaled.room - weights - largest
            left = self._time_left(loads[more + 1 :] - loads[:starts])
            paid = for_bytes[:, None] * self._room_left(spare) + for_time[:, None] * left
            fits = (least <= paid).all(axis=0) & (spare >= 0) & (left >= 0)
            fits &= (weights + worst <= scaled.room) & (turns <= scaled.room)
            fits &= self._parts_fit(more, left)
            self.begun[more, :starts], self.inner[more, :starts] = fits
            self.lengths[:, more, :starts] = np.where(fits[0], least[:, 0], NEVER)
            if not fits[1].any():
                self.window = more + 1
                self.begun, self.inner = self.begun[: more + 1], self.inner[: more + 1]
                self.lengths = self.lengths[:, : more + 1]
                return

    def _time_left(self, work: Array) -> Array:
        """Return the time that runs with this work leave, by whether more is before them.

        One row, or one for those that begin a run and one for parts of a run, as in `_room_left`.
        """
        return (self.scaled.limit - work)[None]

    def _room_left(self, spare: Array) -> Array:
        """Return the room for what is saved, of the room that runs leave beside their weights."""
        return spare[None]

    def _of_all(self) -> tuple[int, int]:
        """Return the time and the room that all GPUs have beside the work and the weights."""
        scaled = self.scaled
        left = scaled.time(scaled.period * scaled.amounts.gpus) - int(scaled.work.sum())
        return left, scaled.rooms - int(scaled.weight.sum())

    def _parts_fit(self, more: int, left: Array) -> Flags:
        """Whether the runs without their last and without their first layer can be.

        One layer alone is kept or recomputed, and nothing in between. `more` are the layers behind
        the first, `left` the time that each run leaves.
        """
        import numpy as np

        if more:
            starts = left.shape[-1]
            first, rest = slice(0, starts), self.inner[more - 1, 1 : starts + 1]
            return np.stack(
                [self.begun[more - 1, first] & rest, self.inner[more - 1, first] & rest]
            )
        held, spare = self.held, self.scaled.room - self.scaled.weight - self.held.workspace
        fits = np.stack([held.kept + held.input <= spare, held.kept <= spare])
        if self.scaled.problem.scope.recompute:
            in_time = self.scaled.ahead <= left
            fits |= np.stack([held.again + held.checkpoint <= spare, held.again <= spare]) & in_time
        return fits

    def keep(self, begun: Flags, inner: Flags) -> None:
        """Keep those runs only that can be by other reasons too: as `begun` and `inner`."""
        self.window = min(self.window, len(inner))
        self.begun = self.begun[: self.window] & begun[: self.window]
        self.inner = self.inner[: self.window] & inner[: self.window]
        self.lengths = self.lengths[:, : self.window]
        self.lengths[:, ~self.begun] = NEVER
        self._begin_where_apart()

    def _begin_where_apart(self) -> None:
        """Let runs begin with each layer that cannot share a GPU with the one before it."""
        import numpy as np

        apart = np.ones(self.count, dtype=bool)
        if len(self.inner) > 1:
            apart[1:] = ~self.inner[1, :-1]
        self.inner[:, apart] &= self.begun[:, apart]

    def keep_fitting(
        self, sizes: Array, received: Array, stopped: Callable[[], bool] = never_stop
    ) -> None:
        """Keep those runs only that fit the roomiest GPU at each instant, with nothing recomputed.

        Parameters
        ----------
        sizes, received : array, shape (instants, cases, sides, layers)
            What each layer takes, with its weights, and on top where a run begins, at all sides of
            one of the cases of an instant.
        """
        import numpy as np

        until = np.concatenate([np.zeros_like(sizes[..., :1]), np.cumsum(sizes, axis=-1)], axis=-1)
        room, first = self.scaled.room, np.arange(self.count)
        # Only instants at which one of the longest runs does not fit say anything.
        longest = until[..., first + self.inner.sum(axis=0)] - until[..., :-1]
        at = ~fit_some_case(longest + received, room).all(axis=-1)
        until, received = until[at], received[at]
        begun, inner = np.zeros_like(self.begun), np.zeros_like(self.inner)
        for more in range(self.window):
            raise_if_stopped(stopped)
            last = self.count - more
            held = until[..., more + 1 :] - until[..., :last]
            inner[more, :last] = fit_some_case(held, room).all(axis=0)
            held += received[..., :last]
            begun[more, :last] = fit_some_case(held, room).all(axis=0)
        self.keep(begun, inner)

    def size(self) -> int:
        """Return how many runs there are, those that begin and parts of one."""
        return int(self.begun.sum() + self.inner.sum())

    def spans(self, may_cut: Flags, turn: int = 0) -> tuple[Array, Array] | None:
        """Return the least span of each layer, if a run begins there and if any may hold it.

        None if the chain cannot be cut so.

        Parameters
        ----------
        may_cut : array of bool, shape (layers,)
            Whether a run may end with each layer.
        turn : int, optional
            From the end of the last forward to the start of a backward of the last layer: another
            than 0 for distances between two micro-batches, of which it may be below 0.
        """
        import numpy as np

        scaled = self.scaled
        ways = np.concatenate([[0], np.cumsum(scaled.ahead + scaled.back)])
        begun = np.full(self.count + 1, NEVER, dtype=np.int64)
        begun[-1] = turn
        inner = begun.copy()
        # Behind each layer, if a run ends with it. Nothing is behind the last.
        behind = np.full(self.count, NEVER, dtype=np.int64)
        behind[-1] = turn
        for first in range(self.count - 1, -1, -1):
            ends = slice(first + 1, min(self.count, first + self.window) + 1)
            added = ways[ends] - ways[first] + behind[first : ends.stop - 1]
            places = slice(0, ends.stop - first - 1)
            own = int(ways[first + 1] - ways[first])
            for found, can_be in ((begun, self.begun), (inner, self.inner)):
                span = int(added[can_be[places, first]].min(initial=NEVER))
                span = max(span, own + int(inner[first + 1]))
                found[first] = NEVER if span >= NEVER else scaled.rounded(span, own)
            if inner[first] >= NEVER:
                return None
            if first and may_cut[first - 1] and begun[first] < NEVER:
                behind[first - 1] = scaled.sent(int(begun[first]), first - 1)
        return begun[:-1], inner[:-1]

    def fit_together(self, may_cut: Flags) -> bool:
        """Whether the runs of the whole chain may fit the time and the memory of all GPUs."""
        import numpy as np

        if int((self.scaled.weight + self.held.turn).sum()) > self.scaled.rooms:
            return False
        if self._need_more_gpus():
            return False
        numbers = np.arange(self.window)
        least = np.full((len(self.prices), self.count + 1), NEVER, dtype=np.int64)
        least[:, -1] = 0
        for first in range(self.count - 1, -1, -1):
            ends = first + 1 + numbers[: self.count - first]
            added = self.lengths[:, : len(ends), first] + least[:, ends]
            added[:, ~may_cut[ends - 1]] = NEVER
            least[:, first] = np.minimum(added.min(axis=1), NEVER)
        left, spare = self._of_all()
        paid = self.prices[:, 0] * left + self.prices[:, 1] * spare
        return bool(spare >= 0 and left >= 0 and (least[:, 0] <= paid).all())

    def _need_more_gpus(self) -> bool:
        """Whether there are too few GPUs, as a layer cannot lie on two of them."""
        import numpy as np

        scaled, held = self.scaled, self.held
        least = held.kept
        if scaled.problem.scope.recompute:
            least = np.minimum(held.kept, held.again)
        gpus = len(scaled.problem.platform.gpus)
        return (
            need_more(scaled.weight + least, scaled.room, gpus)
            or need_more(scaled.weight + held.turn, scaled.room, gpus)
            or need_more(scaled.work, scaled.limit, gpus)
        )


class _Ending:
    """Paths on which layers are recomputed together with the one whose backward is about to end.

    A run of recomputed layers is made by one R and lies there up to the end of each backward, so
    that what its layers up to this one save is there. These are a third way of a path beside kept
    and recomputed, that has to go on up to this layer.

    Parameters
    ----------
    layer : int
        The one whose backward is about to end.
    again, begin_run, saved : array, shape (prices, layers)
        Lengths of a recomputed layer, of one with which a run begins, and of what is saved.
    """

    def __init__(self, layer: int, again: Array, begin_run: Array, saved: Array) -> None:
        import numpy as np

        self.layer, self.again, self.begin_run = layer, again, begin_run
        before = np.arange(again.shape[-1]) < layer
        self.goes_on = np.where(before, again + saved, NEVER)
        self.begins = np.where(before, begin_run + saved, NEVER)
        self.lengths = np.stack([self.begins, self.goes_on], axis=1)

    def lengthen(self, more: int, of_kept: Array, of_again: Array, longer: Array) -> None:
        """Lengthen the paths by the layer `more` behind the first, and correct the recomputed ones.

        Those before are `of_kept` and `of_again`, and `longer` those that are recomputed by now.
        """
        import numpy as np

        before, others = self.lengths[..., :-1], np.minimum(of_kept, of_again)
        place = self.layer - more
        if 0 <= place < before.shape[-1]:
            apart = others[..., place] + self.begin_run[:, None, self.layer]
            together = before[..., place] + self.again[:, None, self.layer]
            longer[..., place] = np.minimum(apart, together)
        found = np.minimum(
            others + self.begins[:, None, more:], before + self.goes_on[:, None, more:]
        )
        self.lengths = np.minimum(found, NEVER)


def fit_some_case(held: Array, room: int) -> Flags:
    """Whether something held at all sides of some case fits a room, for each instant.

    `held` is of shape (instants, cases, sides, ...); so are the flags, without the two in between.
    """
    import numpy as np

    return np.asarray(np.any(np.all(held <= room, axis=2), axis=1))


def need_more(sizes: Array, room: int, bins: int) -> bool:
    """Whether items of these sizes surely do not fit into the bins.

    Sizes are rounded in units of u: a bin holds floor(room / u) of them. What is at most half a bin
    counts floor(size / u), and a larger one takes away what is left next to it at most,
    floor((room - size) / u). What fits a bin still fits it, and lost room is seen (Carlier,
    Clautiaux and Moukrim 2007, the function f_CCM,1).

    Parameters
    ----------
    sizes : array of int, shape (things,)
        Not below 0; items larger than a bin fit into none.
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
