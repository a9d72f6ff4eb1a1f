"""What layers keep when memory is at its most, in 1-periodic patterns and the reading *peak*.

A GPU holds the most right after a forward starts, or just before a backward ends. Let micro-batch 0
start the forward of layer m at x[m] and end its backward, or the half that its gradient waits for,
at e[m], and s[m] = e[m] - x[m] be its span. Then layer m holds micro-batch -q in
[x[m] - q T, e[m] - q T), and how many of these hold an instant follows from its distances to both
ends alone:

- right after x[l], for m <= l: floor(d / T) + ceil(r / T), with d = x[l] - x[m], r = e[m] - x[l];
- just before e[l], for m <= l: ceil(d / T) + floor(r / T), with d = e[l] - x[m], r = e[m] - e[l];
- at both, for m > l: ceil((d + s[m]) / T) - ceil(d / T), with d = x[m] - x[l], or e[l] - e[m].

The first two grow with d and r, so that least distances count least; the third one also needs the
most that d can be. All layers are counted at one instant, so that what those on one GPU keep must
fit it, whatever the order of its operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import LONGEST, ResidentBytes, Scaled
from schedopt.bounds.runs import NEVER, Runs, need_more

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from schedopt.problem import Scope

    Array = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

MOST_INSTANTS: Final = 12
"""Layers whose instants are looked at with recompute, those that save the most."""
MOST_SUM: Final = 1 << 62
"""Sums stay below this, or nothing is said of waits."""


def have_instants(scope: Scope) -> bool:
    """Whether the counts of this module hold for all plans of a scope."""
    return scope.memory == "peak" and scope.max_k == 1 and scope.microbatches is None


class Instants:
    """What each layer keeps at each instant, at least.

    Parameters
    ----------
    scaled : Scaled
        Of a problem for which `have_instants` is true.
    spans : array, shape (layers,)
        From the start of a layer's forward to the end of its backward, at least.
    transfers : array, shape (layers, layers)
        Of a micro-batch from each layer to each later one, one way, at least.

    Attributes
    ----------
    counts : array, shape (2 * layers, layers)
        Micro-batches of each layer that are in flight at each instant.
    kept, again : array, shape (2 * layers, layers)
        What each layer keeps right after the start of each forward, and just before the end of each
        backward, if it is kept or recomputed, with the workspace of the operation itself.
    checkpoint, received : array, shape (2 * layers, layers)
        Its input, where a run of recomputed layers begins; and what is kept on top behind another
        stage or a recomputed layer.
    """

    def __init__(self, scaled: Scaled, spans: Array, transfers: Array) -> None:
        import numpy as np

        self.scaled, self.spans = scaled, spans
        ahead, back = (self._behind(times) + transfers for times in (scaled.ahead, scaled.back))
        self.counts = counts = np.minimum(self._counts(ahead, back), LONGEST)
        self.kept, self.received, self.checkpoint = (
            np.minimum(counts * sizes, scaled.room + 1)
            for sizes in (scaled.saved, scaled.input, scaled.checkpoint)
        )
        self.again = np.zeros_like(counts)
        # The first layer is behind no other one.
        self.kept[:, 0] += self.received[:, 0]
        self.received[:, 0] = 0
        self._add_own()

    def _behind(self, times: Array) -> Array:
        """Return the time of layers m up to and without l, of shape (m, l); 0 for m > l."""
        import numpy as np

        before = np.cumsum(times) - times
        return np.maximum(before - before[:, None], 0)

    def _counts(self, ahead: Array, back: Array) -> Array:
        """Return how many micro-batches each layer keeps at each instant.

        Parameters
        ----------
        ahead, back : array, shape (layers, layers)
            From the start of a forward to that of a later layer, and from the end of a backward to
            that of an earlier layer, at least.
        """
        import numpy as np

        spans, above, limit = self.spans, self.scaled.above, self.scaled.limit
        before = np.triu(np.ones(ahead.shape, dtype=bool)).T
        whole = -(-spans // above)
        longest = spans + self._waits(ahead + back)
        rows = []
        # The distance to the one end is that of two forwards or backwards; to the other one with
        # the span of the layer of the instant on top.
        for near, far in ((ahead, back), (back, ahead)):
            held = near.T // above - (-(far.T + spans[:, None]) // above)
            most = longest[:, None] - spans - far
            behind = -(-(near + spans) // above) - np.maximum(0, -(-most // limit))
            rows.append(np.where(before, held, behind))
        return np.asarray(np.maximum(np.concatenate(rows), np.maximum(0, whole - 1)))

    def _waits(self, through: Array) -> Array:
        """Return by how much each span is above its least at most, of shape (layers,).

        On average over time layers keep saved s / T bytes, which add up to at most what all GPUs
        have beside weights. What the span of l has more, that of j <= l has more too, but for what
        the least span of j has on top of the way from j to l and back and of the least span of l.

        Parameters
        ----------
        through : array, shape (layers, layers)
            The least time from the start of a forward to that of a later layer, and back.
        """
        import numpy as np

        scaled, spans, count = self.scaled, self.spans, len(self.spans)
        if scaled.problem.scope.recompute:
            return np.full(count, NEVER)
        longest = int(max(spans.max(), through.max()))
        if 4 * int(scaled.saved.sum()) * longest >= MOST_SUM:
            return np.full(count, NEVER)
        spare = scaled.rooms + 1 - int(scaled.weight.sum())
        spare = max(0, min(MOST_SUM, scaled.above * spare) - int((scaled.saved * spans).sum()))
        gaps = spans[:, None] - spans - through
        # By layer l: the layers up to it, those that begin to wait first before the others.
        gaps = np.where(np.triu(np.ones_like(through, dtype=bool)), gaps, NEVER)
        order = np.argsort(gaps, axis=0)
        gaps = np.take_along_axis(gaps, order, axis=0)
        sizes = np.where(gaps < NEVER, scaled.saved[order], 0)
        total = np.cumsum(sizes, axis=0)
        delayed = np.cumsum(sizes * np.where(sizes > 0, gaps, 0), axis=0)
        most = np.where(total > 0, (spare + delayed) // np.maximum(1, total) + 1, NEVER)
        return np.asarray(np.maximum(0, most.min(axis=0)))

    def _add_own(self) -> None:
        """Add what an operation takes at its instant, and what is saved anew for a backward."""
        import numpy as np

        scaled, layers = self.scaled, np.arange(len(self.spans))
        backs = map(min, scaled.amounts.whole, scaled.amounts.half)
        ahead, back = (
            np.array([time > 0 for time in times]) for times in (scaled.amounts.ahead, backs)
        )
        for first, works in ((0, ahead), (len(layers), back)):
            own = layers + first, layers
            workspace = np.where(works, scaled.workspace, 0)
            self.kept[own] += workspace
            self.again[own] += workspace
        self.again[layers + len(layers), layers] += np.where(ahead | back, scaled.saved, 0)

    def narrow(self, runs: Runs, may_cut: Flags) -> bool:
        """Keep those runs only that fit the roomiest GPU at each instant.

        Returns
        -------
        bool
            Whether all layers may fit all GPUs.
        """
        scaled = self.scaled
        if not scaled.problem.scope.recompute:
            self._keep_fitting(runs)
            return bool(((self.kept + scaled.weight).sum(axis=1) <= scaled.rooms).all())
        for held in map(self._resident, self._worst()):
            at_instant = Runs(scaled, held, runs)
            if not at_instant.fit_together(may_cut):
                return False
            runs.keep(at_instant.begun, at_instant.inner)
        return True

    def _keep_fitting(self, runs: Runs) -> None:
        """Keep the runs of which nothing is recomputed that fit."""
        import numpy as np

        sizes = self.kept + self.scaled.weight
        until = np.concatenate([np.zeros_like(sizes[:, :1]), np.cumsum(sizes, axis=1)], axis=1)
        begun, inner = np.zeros_like(runs.begun), np.zeros_like(runs.inner)
        for more in range(runs.window):
            last = runs.count - more
            held = until[:, more + 1 :] - until[:, :last]
            inner[more, :last] = held.max(axis=0) <= self.scaled.room
            held += self.received[:, :last]
            begun[more, :last] = held.max(axis=0) <= self.scaled.room
        runs.keep(begun, inner)

    def fit_together(self) -> bool:
        """Whether each GPU may hold some layers whole, at each instant; true with recompute."""
        import numpy as np

        scaled = self.scaled
        if scaled.problem.scope.recompute:
            return True
        gpus = len(scaled.problem.platform.gpus)
        sizes = np.array([held.kept + scaled.weight for held in self.rows()])
        # First fit fills any two GPUs with more than one holds: less than that surely fits.
        doubtful = sizes[2 * sizes.sum(axis=1) > (gpus + 1) * scaled.room]
        return not any(need_more(row, scaled.room, gpus) for row in doubtful)

    def rows(self) -> list[ResidentBytes]:
        """Return what layers keep at the instants at which no other one has as much of all."""
        import numpy as np

        instants = self._worst()
        sizes = np.concatenate([self.kept, self.received], axis=1)
        if self.scaled.problem.scope.recompute:
            sizes = np.concatenate([sizes, self.checkpoint, self.again], axis=1)
        sizes = sizes[:, sizes.any(axis=0)]
        _, places = np.unique(sizes[instants], axis=0, return_index=True)
        instants = instants[places]
        less = np.ones((len(instants),) * 2, dtype=bool)
        for column in sizes[instants].T:
            less &= column[:, None] <= column
        np.fill_diagonal(less, False)
        return [*map(self._resident, instants[~less.any(axis=1)])]

    def _worst(self) -> Array:
        """Return the instants that are looked at."""
        import numpy as np

        count = len(self.spans)
        if not self.scaled.problem.scope.recompute:
            return np.arange(2 * count)
        largest = np.argsort(-self.scaled.saved, kind="stable")[:MOST_INSTANTS]
        return np.concatenate([largest, largest + count])

    def _resident(self, instant: int) -> ResidentBytes:
        import numpy as np

        nothing = np.zeros_like(self.spans)
        return ResidentBytes(
            kept=self.kept[instant],
            again=self.again[instant],
            checkpoint=self.checkpoint[instant],
            input=self.received[instant],
            saved=nothing,
            second=nothing,
            workspace=nothing,
            worst=nothing,
            turn=nothing,
        )


def least_transfers(runs: Runs, trips: Array, may_cut: Flags) -> Array:
    """Return the least time of transfers from each layer to each later one, one way.

    A shortest way over the runs that can be. No more than `NEVER` where there is none.

    Parameters
    ----------
    runs : Runs
    trips : array, shape (layers,)
        Of the transfer behind each layer.
    may_cut : array of bool, shape (layers,)

    Returns
    -------
    array, shape (layers, layers)
        From the row to the column; 0 where this is no later layer.
    """
    import numpy as np

    count, window = runs.count, len(runs.begun)
    way = np.zeros((count, count), dtype=np.int64)
    # To the begin of a run: from the row to the column.
    begins = np.full((count, count), NEVER, dtype=np.int64)
    for layer in range(count):
        starts = np.arange(max(0, layer - window + 1), layer + 1)
        can_begin = runs.begun[layer - starts, starts]
        reached = begins[: layer + 1, starts[can_begin]].min(axis=1, initial=NEVER)
        reached[starts[runs.inner[layer - starts, starts]]] = 0
        way[: layer + 1, layer] = reached
        if layer + 1 < count and may_cut[layer]:
            begins[: layer + 1, layer + 1] = np.minimum(NEVER, reached + trips[layer])
    return way
