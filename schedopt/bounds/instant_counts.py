"""How many micro-batches a layer holds at an instant: see `schedopt.bounds.instants`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import Scaled

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from schedopt.bounds.pairs import Pair

    Array = npt.NDArray[np.int64]

FARTHEST: Final = 1 << 52
"""Times are taken as at most this."""
INTERVALS: Final = 8
"""Of the time between two micro-batches of a period, from none to half of it."""


class Ways:
    """What is held at the instants of one kind, from the distances between layers.

    Parameters
    ----------
    scaled : Scaled
    near, far : array, shape (layers, layers)
        From the instant of a layer to the end that is near of an earlier one, and from the other
        end of the layer to the far one. The distance to the one end is that of two forwards or
        backwards; to the other one with the span of the layer on top.
    longest : array, shape (layers,)
        What spans come to at most.
    """

    def __init__(self, scaled: Scaled, near: Array, far: Array, longest: Array) -> None:
        self.near, self.far, self.longest = near, far, longest
        k = scaled.problem.scope.max_k or 1
        self.period, self.shortest = k * scaled.above, k * scaled.limit

    def held(
        self,
        spans: Array,
        less: int,
        more: int,
        *,
        here: Array | None = None,
        end: Array | None = None,
    ) -> Array:
        """Return what each layer holds of micro-batches that come after each time P.

        Parameters
        ----------
        spans : array, shape (layers,)
            Of these micro-batches.
        less, more : int
            By which share of P they are behind that of the instant, in parts of 2 INTERVALS.
        here : array, shape (layers,), optional
            Their spans at the layer of the instant, if more is known of these.
        end : array, shape (layers,), optional
            From the instant to their far end at its layer, if that is known beside the spans.

        Returns
        -------
        array, shape (layers, layers)
            By the layer of the instant.
        """
        import numpy as np

        parts = 2 * INTERVALS
        before = np.triu(np.ones(self.near.shape, dtype=bool)).T
        most = np.minimum(self.longest[:, None] - spans - self.far, FARTHEST)

        def whole(times: Array, share: int, period: int = self.period) -> Array:
            """Return times and a share of the period as whole periods, rounded up."""
            return np.asarray(-((-parts * times - share * period) // (parts * period)))

        ends = whole(self.far.T + (spans if here is None else here)[:, None], less)
        if end is not None:
            ends = np.maximum(ends, whole(self.far.T + end[:, None], 0))
        held = ends - whole(-self.near.T, more)
        behind = whole(self.near + spans, less) - np.maximum(0, whole(most, more, self.shortest))
        # As many as whole periods fit a span are there at any instant.
        least = np.maximum(0, whole(spans, 0) - 1)
        return np.asarray(np.maximum(np.where(before, held, behind), least))

    def named(self, a: Array, b: Array, pair: Pair) -> Array:
        """Return what is held at instants of A and of B, for B behind A by each share of P.

        Returns
        -------
        array, shape (cases, 2, layers, layers)
        """
        import numpy as np

        parts, period = 2 * INTERVALS, self.shortest
        to_b, to_a = pair.crossed
        found = []
        for less in range(parts):
            more = less + 1
            own_a = np.maximum(a, to_a + less * period // parts)
            own_b = np.maximum(b, to_b + (-more * self.period // parts))
            at_a = self.held(a, 0, 0, here=own_a) + self.held(b, less, more, here=own_b, end=to_b)
            at_b = self.held(b, 0, 0, here=own_b)
            at_b += self.held(a, parts - more, parts - less, here=own_a, end=to_a + period)
            found.append([at_a, at_b])
        # Behind by more than P, and before A.
        own_a, own_b = np.maximum(a, to_a + period), np.maximum(b, to_b)
        at_a = self.held(a, 0, 0, here=own_a) + self.held(b, 0, parts)
        at_b = self.held(b, 0, 0) + self.held(a, 0, parts, end=to_a + 2 * period)
        found.append([at_a, at_b])
        at_a = self.held(a, 0, 0) + self.held(b, 0, parts, end=to_b + period)
        at_b = self.held(b, 0, 0, here=own_b) + self.held(a, 0, parts)
        found.append([at_a, at_b])
        return np.array(found)
