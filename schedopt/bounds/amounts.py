"""What each layer takes at least, as small whole numbers: times and sizes rounded down.

A period a / b ns is `a` units of 1 / b ns. Where that is more than `largest`, times are rounded
down to a coarser unit, and sizes likewise, so that sums, products and weighted sums fit 64 bits.
What must stay below a limit is rounded down with it, which never refutes a possible plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Final

from schedopt.bounds.workspaces import reserve_workspace
from schedopt.network import Link
from schedopt.platform import Platform
from schedopt.problem import Problem

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]

LARGEST: Final = 1 << 24
"""Periods and memories become about this at most, if nothing else is said."""
LONGEST: Final = 1 << 36
"""Spans are taken as at most this."""
MOST_K: Final = 8
"""For larger k patterns repeat too late to say anything."""


def least_link_ns(platform: Platform, count: int) -> int:
    """Return how long a link is busy with `count` bytes there and back, at least, ns."""
    return min((_busy_ns(link, count) for link in _kinds_of_links(platform)), default=0)


def _busy_ns(link: Link | None, count: int) -> int:
    if link is None:
        return 0
    return link.transfer_ns(count) * (2 if link.duplex == "half" else 1)


def shares_links(platform: Platform) -> bool:
    """Whether what goes from one GPU to another and what comes back always share a link."""
    return all(link is not None and link.duplex == "half" for link in _kinds_of_links(platform))


def _kinds_of_links(platform: Platform) -> tuple[Link | None, ...]:
    """Return what differs among the pairs of GPUs, each as one link; nothing for one GPU.

    The way back takes the same hops, and shares them with the way there where a hop is half duplex.
    """
    return platform.kinds_of_links if len(platform.gpus) > 1 else ()


class Amounts:
    """What each layer takes at least, on a GPU as fast as the fastest and as roomy as the roomiest.

    Parameters
    ----------
    problem : Problem
    largest : int
        What periods and memories become about at most.

    Attributes
    ----------
    problem : Problem
        With what GPUs leave free at every moment reserved (`reserve_workspace`).
    ahead, whole, half, tail, work : list of Fraction
        Of each layer, ns: its forward; what the gradient waits for if the backward runs whole, and
        in halves; how long after that the second half keeps what was saved; and what forward and
        backward occupy the GPU for. Where no backward is split, the half is the whole.
    trips, links : list of int
        Behind each layer but the last, ns: transfers ahead and back, and what they occupy a link
        for.
    shares_links : bool
        Whether what goes ahead and what comes back always share a link.
    gpus : Fraction
        How many of the fastest GPU all of them are, in speed.
    room, rooms : int
        Bytes of the roomiest GPU, and of all.
    """

    def __init__(self, problem: Problem, largest: int = LARGEST) -> None:
        self.problem = problem = reserve_workspace(problem)
        self.largest, platform = largest, problem.platform
        layers = problem.chain.layers
        fastest = max(platform.gpus, key=lambda gpu: gpu.speed)
        speed = Fraction(fastest.speed)
        alike = len({gpu.speed for gpu in platform.gpus}) == 1

        def time(count: int | None) -> Fraction:
            count = count or 0
            return Fraction(fastest.duration_ns(count)) if alike else count / speed

        self.ahead = [time(layer.forward_ns) for layer in layers]
        self.whole = [time(layer.backward_ns) for layer in layers]
        self.half, self.tail, backwards = self.whole, [Fraction(0)] * len(layers), self.whole
        if problem.scope.split_backward:
            self.half = [time(layer.backward_input_ns) for layer in layers]
            weights = [time(layer.backward_weight_ns) for layer in layers]
            self.tail = [
                weight if layer.saved_weight_bytes is None else Fraction(0)
                for layer, weight in zip(layers, weights, strict=True)
            ]
            ways = zip(self.whole, self.half, weights, strict=True)
            backwards = [min(whole, half + weight) for whole, half, weight in ways]
        self.work = [one + two for one, two in zip(self.ahead, backwards, strict=True)]
        sent = [layer.activation_bytes for layer in layers[:-1]]
        self.trips = [2 * platform.least_transfer_ns(count) for count in sent]
        self.links = [least_link_ns(platform, count) for count in sent]
        self.shares_links = shares_links(platform)
        self.gpus = sum((Fraction(gpu.speed) / speed for gpu in platform.gpus), Fraction(0))
        self.room = max(gpu.usable_bytes for gpu in platform.gpus)
        self.rooms = sum(gpu.usable_bytes for gpu in platform.gpus)

    @property
    def repeat(self) -> int | None:
        """After how many micro-batches every pattern that is asked for repeats; None if unknown.

        A k-periodic pattern is one of any multiple of k, too.
        """
        scope = self.problem.scope
        if scope.max_k is None or scope.microbatches is not None or scope.max_k > MOST_K:
            return None
        return lcm(*range(1, scope.max_k + 1))


@dataclass(frozen=True)
class ResidentBytes:
    """What layers keep on their GPU at least, bytes, each an array of shape (layers,).

    Parameters
    ----------
    kept, again : array
        What is saved: from the forward on, and if it is recomputed.
    checkpoint : array
        The input of a layer, where a run of recomputed layers begins.
    input : array
        What a kept layer saves on top behind another stage, or behind a recomputed layer.
    saved : array
        As kept, but for what the second half of a backward keeps.
    second : array
        What the second half of a backward keeps if it is split.
    workspace : array
        What its operations take on top of all of this; nothing where averages are taken.
    worst : array
        At its own worst instant, all of a layer but its weights.
    turn : array
        What a layer keeps when a micro-batch turns, and so do all layers.
    ending : int or None
        A layer whose backward is about to end, if that is when they do: if it is recomputed, what
        those before it save that are recomputed together with it lies there once, too.
    """

    kept: Array
    again: Array
    checkpoint: Array
    input: Array
    saved: Array
    second: Array
    workspace: Array
    worst: Array
    turn: Array
    ending: int | None = None


class Scaled:
    """The amounts of a problem at one normalized period, as whole numbers.

    Parameters
    ----------
    amounts : Amounts
    period : Fraction
        Above 0, ns.

    Attributes
    ----------
    limit, above : int
        The period, rounded down and up.
    room, rooms : int
        Memory of the roomiest GPU, and of all.
    ahead, whole, half, tail, back, work : array, shape (layers,)
        As those of `Amounts`; back is the shorter of whole and half.
    trips, links : array, shape (layers,)
        Likewise; nothing follows the last layer.
    weight, saved, input, checkpoint, second, workspace : array, shape (layers,)
        Bytes: weights; what is saved; what on top behind another stage; the input that a run of
        recomputed layers keeps; what the second half of a backward keeps; what operations take.
    """

    def __init__(self, amounts: Amounts, period: Fraction) -> None:
        import numpy as np

        self.amounts, self.problem, self.period = amounts, amounts.problem, period
        self.peak = self.problem.scope.memory == "peak"
        whole, part = period.as_integer_ratio()
        largest = amounts.largest
        self._time = Fraction(part, max(1, -(-whole // largest)))
        self.limit, self.above = self.time(period), -self.time(-period)
        # Averages are no whole numbers of bytes: small memories are looked at in parts of a byte.
        finer = largest // max(1, amounts.room) if self.peak else 1
        self._size = Fraction(max(1, finer), max(1, -(-amounts.room // largest)))
        self.room, self.rooms = self.size(amounts.room), self.size(amounts.rooms)

        def times(values: Iterable[Fraction | int]) -> Array:
            return np.array([self.time(value) for value in values], dtype=np.int64)

        def sizes(values: Iterable[int | None]) -> Array:
            found = [min(self.room + 1, self.size(value or 0)) for value in values]
            return np.array(found, dtype=np.int64)

        self.ahead, self.whole, self.half = map(times, (amounts.ahead, amounts.whole, amounts.half))
        self.tail, self.work = times(amounts.tail), times(amounts.work)
        self.back = np.minimum(self.whole, self.half)
        self.trips, self.links = times([*amounts.trips, 0]), times([*amounts.links, 0])
        chain = self.problem.chain
        received = [chain.input_bytes, *(layer.activation_bytes for layer in chain.layers[:-1])]
        self.weight = sizes(layer.weight_bytes for layer in chain.layers)
        self.saved = sizes(layer.saved for layer in chain.layers)
        self.input = sizes(layer.saved_input_bytes for layer in chain.layers)
        self.checkpoint = sizes(received)
        self.second = sizes(layer.saved_weight_bytes for layer in chain.layers)
        self.workspace = sizes(
            layer.workspace_bytes if works else 0
            for layer, works in zip(chain.layers, amounts.work, strict=True)
        )

    def time(self, value: Fraction | int) -> int:
        """Return a time, rounded down."""
        return int(value * self._time // 1)

    def size(self, value: int) -> int:
        """Return a number of bytes, rounded down."""
        return int(value * self._size // 1)

    def counts(self, times: Array) -> Array:
        """Return how many micro-batches are there at once if each stays for a time.

        One comes every T / k on average, so that on average time k / T of them are there, and at
        some instant that rounded up, and one at least.
        """
        import numpy as np

        return np.asarray(np.maximum(1, -(-np.minimum(times, LONGEST) // self.above)))

    def rounded(self, span: int, own: int) -> int:
        """Return the least span from `span` on that leaves room for the work at its two ends.

        A pattern that repeats after time t has span = m t + r, 0 < r <= t. Forward and backward of
        a layer lie on one GPU, and there and back a transfer may be on one link, so that both,
        which take `own`, fit r.
        """
        repeat = self.amounts.repeat
        if repeat is None:
            return span
        # Times before another one are below 0, and periods are known up to rounding.
        turns = -(-span // (repeat * (self.above if span > 0 else self.limit))) - 1
        return max(span, turns * repeat * (self.limit if turns > 0 else self.above) + own)

    def rounded_up(self, distances: Array, own: int) -> Array:
        """Return distances as `rounded` does, for patterns that are known to repeat."""
        import numpy as np

        repeat = self.amounts.repeat or 1
        above, limit = repeat * self.above, repeat * self.limit
        turns = -(-distances // np.where(distances > 0, above, limit)) - 1
        return np.asarray(np.maximum(distances, turns * np.where(turns > 0, limit, above) + own))

    def sent(self, span: int, layer: int) -> int:
        """Return the least time from the start of a layer's transfer to its gradient's arrival.

        `span` is that of the next layer.
        """
        through = span + int(self.trips[layer])
        if not self.amounts.shares_links:
            return through
        return self.rounded(through, int(self.links[layer]))

    def resident(self, spans: Array) -> ResidentBytes:
        """Return what layers keep whose spans are at least these.

        In the reading *sum* each counts with its most. In the reading *peak* averages over time
        are taken, which add up to no more than the most of all at once; what operations take while
        they run is a part of these.
        """
        import numpy as np

        scope = self.problem.scope
        behind = spans - self.back
        whole, half = behind + self.whole, behind + self.half + self.tail
        least = np.minimum(whole, half)
        kept, second = self._hold(self.saved, whole), self._hold(self.second, self.half)
        if scope.split_backward:
            kept = np.minimum(kept, self._hold(self.saved, half) + second)
        again = self._hold(self.saved, np.minimum(self.ahead + self.back, self.limit))
        return ResidentBytes(
            kept=self._with_workspace(kept, self.work),
            again=self._with_workspace(again, self.work + self.ahead),
            checkpoint=self._hold(self.checkpoint, least),
            input=self._hold(self.input, least),
            saved=self._with_workspace(self._hold(self.saved, least), self.work),
            second=second,
            workspace=0 * self.workspace if self.peak else self.workspace,
            worst=self._worst(least),
            turn=self._turn(),
        )

    def _with_workspace(self, sizes: Array, times: Array) -> Array:
        """Add to averages the workspace of operations that run for these times per micro-batch."""
        import numpy as np

        if not self.peak:
            return sizes
        return np.asarray(np.minimum(sizes + self._hold(self.workspace, times), self.room + 1))

    def _worst(self, held: Array) -> Array:
        """Return what a layer keeps itself when it keeps the most, in one of its operations."""
        import numpy as np

        counts = 1 if self.problem.scope.recompute else self.counts(held)
        kept = np.minimum(self.saved * counts, self.room + 1)
        return np.asarray(kept + np.where(self.ahead + self.back > 0, self.workspace, 0))

    def _turn(self) -> Array:
        """Return what a layer keeps between the last forward and the first backward.

        Of a 1-periodic pattern that is what entered since then and one, for the time ahead, and
        what has not left yet, for the time back (half-open intervals). Where backwards take no
        time it may be gone by then. Nothing with recompute.
        """
        import numpy as np

        scope = self.problem.scope
        if scope.recompute:
            return np.zeros_like(self.saved)
        ahead = np.cumsum(self.ahead[::-1])[::-1] - self.ahead[-1]
        back = np.cumsum(self.back[::-1])[::-1] + self.ahead[-1]
        if scope.max_k != 1 or scope.microbatches is not None:
            return np.where(back > 0, self.saved, 0)
        counts = np.minimum(ahead // self.above - (-back // self.above), LONGEST)
        return np.asarray(np.minimum(self.saved * counts, self.room + 1))

    def _hold(self, sizes: Array, times: Array) -> Array:
        """Return what bytes held for a time by each micro-batch take together."""
        import numpy as np

        if self.peak:
            found = sizes * np.minimum(times, LONGEST) // self.above
        else:
            found = sizes * self.counts(times)
        # More than fits is as good as one more than fits.
        return np.asarray(np.minimum(found, self.room + 1))
