"""What the time between the two micro-batches of a period asks for, for k up to 2.

Let A and B be the micro-batches of a period P = 2 T; with k = 1 these are any two neighbours. At a
layer, A starts its forward at x[A] and ends its backward, or the half that its gradient waits for,
at e[A]; so does B; and all comes again after P. Look at the four distances e[Y] - x[X]: the spans
of A and B, where X = Y, and two crossed ones.

1. To the layer before, each of them grows as spans do: x[X] comes earlier by a forward at least,
   e[Y] later by a backward, and at a cut there are transfers between.
2. The forward of X and the backward of Y run on one GPU, at different times. So the distance is
   m P + r with a whole number m and f + b <= r <= P, with f and b the lengths of both. The same
   holds for what goes ahead and comes back over one link.
3. The spans add up to as much as the crossed distances, and so does their mean, which says what
   layers keep on average.
4. The forwards of A and B run at different times: j P + f <= x[B] - x[A] <= (j + 1) P - f for some
   whole number j. Their backwards likewise, with b and e.

Of all that are B let that one be named so which starts its last layer as the first one at or after
the end of A there: the distance of these is from f + b - P to 0. It is called the gap, and cut into
intervals. In an interval both crossed distances begin at a known least: the other one is the sum of
the spans less the gap. From there on 1 and 2 round all four up, and they do so at different layers:
what is gained of one micro-batch by a gap is lost of the other one.

By 4 there are cases at each layer, and each gives least distances, as x[B] - x[A] is the difference
of two distances with the same end. What has no smaller distance than another case is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from schedopt.bounds.amounts import Scaled
    from schedopt.bounds.runs import Runs

    Array = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

FAR: Final = 1 << 50
"""A limit that is none."""
MOST_CASES: Final = 16
"""More at one layer are joined to what holds in several of them."""
ROUNDS: Final = 3
"""How often the four distances of a case are compared with each other."""
LARGE: Final = 4
"""Cases are looked at where forward and backward take such a part of a period T."""


@dataclass(frozen=True)
class Gap:
    """An interval of the time from the start of the last forward of B to the end of A's backward.

    Parameters
    ----------
    number, parts : int
        All gaps are cut into `parts` of one length; this is part `number`, from the least on.
    """

    number: int = 0
    parts: int = 1

    def split(self) -> tuple[Gap, ...]:
        """Return the quarters of it."""
        return tuple(Gap(4 * self.number + more, 4 * self.parts) for more in range(4))

    def holds(self, other: Gap) -> bool:
        """Whether another interval, of as many parts or more, lies in this one."""
        return other.number * self.parts // other.parts == self.number

    def ends(self, scaled: Scaled) -> tuple[int, int]:
        """Return the least and the most of it, in the unit of scaled amounts."""
        least = int(scaled.ahead[-1] + scaled.back[-1]) - 2 * scaled.above
        first, last = (least - least * (self.number + more) // self.parts for more in (0, 1))
        return first, last


@dataclass(frozen=True)
class Pair:
    """The least distances of two micro-batches whose gap lies in an interval.

    Parameters
    ----------
    own : array, shape (2, layers)
        Spans of A and of B.
    crossed : array, shape (2, layers)
        From the start of A's forward to the end of B's backward, and from that of B to that of A.
    mean : array, shape (layers,)
        Mean of both spans.
    """

    own: Array
    crossed: Array
    mean: Array


def pair_of(runs: Runs, may_cut: Flags, spans: Array, gap: Gap) -> Pair | None:
    """Return the least distances at each layer; None if there is no such gap, or no way to cut.

    Parameters
    ----------
    runs : Runs
        Those that can be.
    may_cut : array of bool, shape (layers,)
    spans : array, shape (layers,)
        Of each micro-batch, at least.
    gap : Gap
    """
    import numpy as np

    scaled = runs.scaled
    last = int(scaled.ahead[-1] + scaled.back[-1])
    least_gap, most_gap = gap.ends(scaled)
    starts = 2 * int(spans[-1]) - most_gap, least_gap
    floors = [spans, spans]
    for start in starts:
        found = runs.spans(may_cut, start - last)
        if found is None:
            return None
        floors.append(found[1])
    least = np.stack(floors)
    count = len(spans)
    cases, distances = least[:, -1:], np.zeros((5, count), dtype=np.int64)
    for layer in range(count - 1, -1, -1):
        own = int(scaled.ahead[layer] + scaled.back[layer])
        if layer < count - 1:
            cases = cases + own
        cases = scaled.rounded_up(np.maximum(cases, least[:, layer, None]), own)
        if LARGE * own >= scaled.limit:
            cases = _apart(scaled, cases, layer)
        if layer == count - 1:
            cases = cases[:, cases[3] <= most_gap]
            if not cases.size:
                return None
        sums = np.maximum(cases[0] + cases[1], cases[2] + cases[3])
        distances[:, layer] = *cases.min(axis=1), int(sums.min()) // 2
    return Pair(own=distances[:2], crossed=distances[2:4], mean=distances[4])


def _windows(scaled: Scaled, length: int) -> Iterator[tuple[int, int]]:
    """Yield between what two of these starts, or ends, are apart: for j < 0, j = 0 and j > 0."""
    least, most = 2 * scaled.limit, 2 * scaled.above
    yield -FAR, -length
    yield length, most - length
    yield least + length, FAR


def _apart(scaled: Scaled, cases: Array, layer: int) -> Array:
    """Return the cases at a layer in which forwards do not overlap, nor backwards."""
    import numpy as np

    ahead, back = int(scaled.ahead[layer]), int(scaled.back[layer])
    pairs = product(_windows(scaled, ahead), _windows(scaled, back))
    limits = np.array([(*starts, *ends) for starts, ends in pairs], dtype=np.int64)
    # After each other, or the other way round, for all cases so far.
    first, last, early, late = np.repeat(limits, cases.shape[1], axis=0).T
    both = np.tile(cases, len(limits))
    for _ in range(ROUNDS):
        a, b, to_b, to_a = both
        a = np.maximum(a, np.maximum(to_a + first, to_b - late))
        b = np.maximum(b, np.maximum(to_b - last, to_a + early))
        to_b = np.maximum(to_b, np.maximum(b + first, a + early))
        to_a = np.maximum(to_a, np.maximum(a - last, b - late))
        rounded = scaled.rounded_up(np.stack([a, b, to_b, to_a]), ahead + back)
        if (rounded == both).all():
            break
        both = rounded
    return _least_cases(both)


def _least_cases(cases: Array) -> Array:
    """Return the cases that are nowhere above another one, at most `MOST_CASES`."""
    import numpy as np

    cases = np.unique(cases, axis=1)
    cases = cases[:, np.argsort(cases.sum(axis=0), kind="stable")]
    below = np.asarray((cases[:, :, None] <= cases[:, None, :]).all(axis=0))
    np.fill_diagonal(below, False)
    cases = cases[:, ~below.any(axis=0)]
    if cases.shape[1] > MOST_CASES:
        rest = cases[:, MOST_CASES - 1 :].min(axis=1, keepdims=True)
        cases = np.concatenate([cases[:, : MOST_CASES - 1], rest], axis=1)
    return np.asarray(cases)
