"""What layers keep when memory is at its most, for k up to 2 and the reading *peak*.

A GPU holds the most right after a forward starts, or just before a backward ends. Let a micro-batch
start the forward of layer m at x[m] and end its backward, or the half that its gradient waits for,
at e[m], let s[m] = e[m] - x[m] be its span, and let such a one come after each time P. Then layer m
holds the one that is q times P later in [x[m] + q P, e[m] + q P), and how many of these hold an
instant follows from its distances to both ends alone:

- right after x[l], for m <= l: floor(d / P) + ceil(r / P), with d = x[l] - x[m], r = e[m] - x[l];
- just before e[l], for m <= l: ceil(d / P) + floor(r / P), with d = e[l] - x[m], r = e[m] - e[l];
- at both, for m > l: ceil((d + s[m]) / P) - ceil(d / P), with d = x[m] - x[l], or e[l] - e[m].

The first two grow with d and r, so that least distances count least; the third one also needs the
most that d can be. All layers are counted at one instant, so that what those on one GPU keep must
fit it, whatever the order of its operations.

With k = 1 these are all micro-batches, and P = T. With k = 2 there are two of them in each period
of P = 2 T, the second one at layer l a share f of P behind the first, with f at most 1 / 2 if the
names are right. At an instant of the first one the second one starts f P later: in the sums above
d / P - f and r / P + f take the place of d / P and r / P, or d / P + f that of d / P for m > l. At
an instant of the second one that is 1 - f for the first one. So for every layer l, what is kept
must fit at both instants for some f, the same on all GPUs; f is looked at in a few intervals. What
is kept at both together hardly depends on it.

Where the gap of both is known (`schedopt.bounds.pairs`) they have their names from there, and f is
that of B behind A, at most 1. The end of the other one is then known from its crossed distance as
well, and the own span is at least the other crossed distance and f P. Seen from the ends, backward
in time, B takes the place of A. That B is behind by P or more, or before A, are two cases more, in
which one of the crossed distances says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import LONGEST, ResidentBytes, Scaled
from schedopt.bounds.instant_counts import FARTHEST, INTERVALS, Ways
from schedopt.bounds.runs import NEVER, Runs, fit_some_case, need_more
from schedopt.interrupts import never_stop, raise_if_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from schedopt.bounds.pairs import Pair
    from schedopt.problem import Scope

    Array = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

MOST_INSTANTS: Final = 12
"""Layers whose instants are looked at with recompute, those that save the most."""
MOST_SUM: Final = 1 << 62
"""Sums stay below this, or nothing is said of waits."""


def have_instants(scope: Scope) -> bool:
    """Whether the counts of this module hold for all plans of a scope."""
    return scope.memory == "peak" and scope.max_k in (1, 2) and scope.microbatches is None


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
    pair : Pair, optional
        Least distances of the two micro-batches of a period.

    Attributes
    ----------
    ahead, back : array, shape (layers, layers)
        From the start of a forward to that of a later layer, and from the end of a backward to that
        of an earlier layer, at least; 0 for others.
    counts : array, shape (2 * layers, cases, sides, layers)
        Micro-batches of each layer that are in flight at each instant. One case holds for each
        instant: with k = 1 there is one, with k = 2 an interval of f for each. Its sides are the
        micro-batches of a period, whose instant it is.
    kept, again : array, shape as counts
        What each layer keeps right after the start of each forward, and just before the end of each
        backward, if it is kept or recomputed, with the workspace of the operation itself.
    checkpoint, received : array, shape as counts
        Its input, where a run of recomputed layers begins; and what is kept on top behind another
        stage or a recomputed layer.
    lasts : array of bool, shape (layers,)
        Whether a forward, or a backward up to the gradient, takes time, so that what is recomputed
        for the backward is there before it ends.
    """

    def __init__(
        self,
        scaled: Scaled,
        spans: Array,
        transfers: Array,
        pair: Pair | None = None,
        stopped: Callable[[], bool] = never_stop,
    ) -> None:
        import numpy as np

        self.scaled, self.spans, self.pair, self.stopped = scaled, spans, pair, stopped
        self.ahead, self.back = (
            self._behind(times) + transfers for times in (scaled.ahead, scaled.back)
        )
        self.counts = counts = np.minimum(self._counts(self.ahead, self.back), LONGEST)
        self.kept, self.received, self.checkpoint = (
            np.minimum(counts * sizes, scaled.room + 1)
            for sizes in (scaled.saved, scaled.input, scaled.checkpoint)
        )
        self.again = np.zeros_like(counts)
        # The first layer is behind no other one.
        self.kept[..., 0] += self.received[..., 0]
        self.received[..., 0] = 0
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

        k = self.scaled.problem.scope.max_k
        longest = self.spans + self._waits(ahead + back)
        ahead, back = np.minimum(ahead, FARTHEST), np.minimum(back, FARTHEST)
        both = ((ahead, back, longest), (back, ahead, longest))
        if self.pair is not None:
            ways = [Ways(self.scaled, *each) for each in both]
            a, b = np.maximum(self.pair.own, self.spans)
            found = ways[0].named(a, b, self.pair), ways[1].named(b, a, self.pair)
            return np.asarray(np.moveaxis(np.concatenate(found, axis=2), 2, 0))

        def held(less: int, more: int) -> Array:
            raise_if_stopped(self.stopped)
            return np.concatenate(
                [Ways(self.scaled, *ways).held(self.spans, less, more) for ways in both]
            )

        own = held(0, 0)[:, None, None]
        if k == 1:
            return own
        whole = 2 * INTERVALS
        others = [
            [held(less, less + 1), held(whole - less - 1, whole - less)]
            for less in range(INTERVALS)
        ]
        return np.asarray(own + np.moveaxis(np.array(others), 2, 0))

    def _waits(self, through: Array) -> Array:
        """Return by how much each span is above its least at most, of shape (layers,).

        On average over time, and over the micro-batches of a period, layers keep saved s / T bytes,
        which add up to at most what all GPUs have beside weights and what operations take. What the
        span of l has more, that of j <= l has more too, but for what the least span of j has on top
        of the way from j to l and back and of the least span of l.

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
        held = int((scaled.saved * spans + scaled.workspace * scaled.work).sum())
        spare = max(0, scaled.above * spare - held)
        # One of k micro-batches may take what all of them have.
        spare = min(MOST_SUM, spare * (scaled.problem.scope.max_k or 1))
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
            own = layers + first, ..., layers
            workspace = np.where(works, scaled.workspace, 0)[:, None, None]
            self.kept[own] += workspace
            self.again[own] += workspace
        self.lasts = ahead | back
        anew = np.where(self.lasts, scaled.saved, 0)
        self.again[layers + len(layers), ..., layers] += anew[:, None, None]

    def narrow(self, runs: Runs, may_cut: Flags) -> bool:
        """Keep those runs only that fit the roomiest GPU at each instant.

        Returns
        -------
        bool
            Whether all layers may fit all GPUs.
        """
        scaled = self.scaled
        if not scaled.problem.scope.recompute:
            sizes = self.kept + scaled.weight
            runs.keep_fitting(sizes, self.received, self.stopped)
            return bool(fit_some_case(sizes.sum(axis=-1), scaled.rooms).all())
        for instant in self._worst():
            raise_if_stopped(self.stopped)
            for held in self._resident(instant):
                at_instant = Runs(scaled, held, runs)
                if not at_instant.fit_together(may_cut):
                    return False
                runs.keep(at_instant.begun, at_instant.inner)
        return True

    def fit_together(self) -> bool:
        """Whether each GPU may hold some layers whole, at each instant; true with recompute."""
        import numpy as np

        scaled = self.scaled
        if scaled.problem.scope.recompute:
            return True
        gpus = len(scaled.problem.platform.gpus)

        def fits(row: Array) -> bool:
            raise_if_stopped(self.stopped)
            # First fit fills any two GPUs with more than one holds: less than that surely fits.
            surely = 2 * int(row.sum()) <= (gpus + 1) * scaled.room
            return surely or not need_more(row, scaled.room, gpus)

        instants = np.unique(self.kept + scaled.weight, axis=0)
        return all(any(all(map(fits, sides)) for sides in cases) for cases in instants)

    def _worst(self) -> Array:
        """Return the instants that are looked at with recompute."""
        import numpy as np

        largest = np.argsort(-self.scaled.saved, kind="stable")[:MOST_INSTANTS]
        return np.concatenate([largest, largest + len(self.spans)])

    def _resident(self, instant: int) -> Iterator[ResidentBytes]:
        """Yield what layers keep at each side of an instant and on average, whatever the case.

        Not where another one of these is nowhere less.
        """
        import numpy as np

        sizes = np.stack([self.kept, self.again, self.checkpoint, self.received])[:, instant]
        sides = sizes.shape[2]
        parts = [sizes.sum(axis=2).min(axis=1) // sides]
        for side in range(sides):
            here = sizes[:, :, side].min(axis=1)
            parts = [part for part in parts if not (part <= here).all()]
            if not any((here <= part).all() for part in parts):
                parts.append(here)
        nothing = np.zeros_like(self.spans)
        layer = instant - len(self.spans)
        ending = layer if layer >= 0 and self.lasts[layer] else None
        for kept, again, checkpoint, received in parts:
            yield ResidentBytes(
                kept=kept,
                again=again,
                checkpoint=checkpoint,
                input=received,
                saved=nothing,
                second=nothing,
                workspace=nothing,
                worst=nothing,
                turn=nothing,
                ending=ending,
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
