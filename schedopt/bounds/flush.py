"""What the makespan of a step forces, for any allocation: counts, cuts, and when a GPU can work.

In a step of m micro-batches that takes D ns, let a layer's forward start at x and its backward, or
the half that the gradient waits for, end at e. Ahead of x lie the forwards of the layers before it,
and behind e their backwards, with transfers: r ns together at least. So of the D ns a layer has
D - r, its *window*. A GPU has the window of its first layer, and does all its work in it.

**Counts.** Let a layer hold at most N micro-batches at once, each for a span of R ns, and number
them in the order of their forwards. When number i + N starts, i of those before it have ended, and
one of these is not before number i; so x[i + N] >= x[i] + R. With f ns for a forward, the m of them
take ceil(m / N) R + ((m - 1) mod N) f ns of the window at least, which gives the least N.

**Instants.** A micro-batch that is between the forward and the backward of a layer is so for all
layers before it. So when a layer holds its most, the layers before it hold as many, at one instant,
on whatever GPU: just before the next backward of this layer ends, or right after a forward starts.

**Turns.** Let no instant have N micro-batches between the forward and the backward of layer b, and
one more for a layer c <= b. Number starts and ends of each layer in their order: forward i + N of c
starts behind end i of b, or forward i + N - 1 of b does; for else, at the later of these two
starts, there were such an instant. So behind end i of b, end i + N comes no sooner than the way
from c to b and a span of b, or end i + N - 1 no sooner than a span of b. Likewise with the way back
from b to c. If that takes longer than the window of b, there is such an instant: layers up to c
hold N + 1 micro-batches, and those behind them up to b hold N.

**Averages.** What a layer saves for a micro-batch lies there for its span, in the window of the
first layer of its run. So saved bytes times spans, summed over the layers of a run and over the
micro-batches, are at most the room beside the weights times this window.

Fewer runs of layers fit than without all that; so the chain must be cut more often, cuts take
transfers, and these lengthen spans and shorten windows: again and again, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import Amounts, ResidentBytes, Scaled
from schedopt.bounds.load import load_bound
from schedopt.bounds.propagation import allowed_cuts, is_propagated
from schedopt.bounds.runs import NEVER, Runs, need_more
from schedopt.bounds.scopes import refuted_bound
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.problem import LARGEST_HORIZON_NS, Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

MOST_ROUNDS: Final = 24
CLOSE: Final = 2048
"""A makespan is found up to this part of itself."""
MOST_HELD: Final = 6
"""Of instants that turns ask for, micro-batches that all layers hold."""
MOST_INSTANTS: Final = 8
"""With recompute, the most of these instants that are looked at, those at which most is kept."""
PROOF: Final = Proof(ProofKind.STEP_IN_FLIGHT)


def flush_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the makespan of a step that is not refuted, bisected, for any allocation.

    Returns
    -------
    Bound or None
        None if no step is asked for, with updates, if nothing is refuted, if no makespan will do,
        or for chains that are too long.
    """
    count, low = problem.scope.microbatches, load_bound(problem).period
    if count is None or not low or not is_propagated(problem):
        return None
    amounts, least = Amounts(problem), -(-count * low // 1)

    def is_refuted(makespan: int) -> bool:
        return _Flush(amounts, count, makespan, stopped).is_refuted()

    if not is_refuted(least):
        return None
    # Refuted, and not refuted.
    below, above = least, 2 * least
    while is_refuted(above):
        if above > count * LARGEST_HORIZON_NS:
            return None
        below, above = above, 2 * above
    while above - below > max(1, below // CLOSE):
        middle = (below + above) // 2
        if is_refuted(middle):
            below = middle
        else:
            above = middle
    return refuted_bound(problem, Fraction(below, count), PROOF)


class _Flush:
    """Whether a step may have a makespan, ns.

    Attributes
    ----------
    spans : array, shape (layers,)
        From the start of a layer's forward to the end of its backward, at least.
    around, ahead : array, shape (2, layers)
        What comes before and behind a layer, and before it alone: if a run begins with the layer,
        and in any case.
    """

    def __init__(
        self, amounts: Amounts, count: int, makespan: int, stopped: Callable[[], bool]
    ) -> None:
        import numpy as np

        self.stopped = stopped
        self.count, self.scaled = count, Scaled(amounts, Fraction(makespan, count))
        self.whole, self.above = self.scaled.time(makespan), -self.scaled.time(-makespan)
        self.may_cut = allowed_cuts(self.scaled)
        way = self.scaled.ahead + self.scaled.back
        self.spans = np.cumsum(way[::-1])[::-1]
        self.around = np.tile(np.cumsum(way) - way, (2, 1))
        self.ahead = np.tile(np.cumsum(self.scaled.ahead) - self.scaled.ahead, (2, 1))

    def is_refuted(self) -> bool:
        """Whether no step has this makespan or a shorter one."""
        if (self.scaled.work > self.scaled.limit).any():
            return True
        runs: Runs | None = None
        for _ in range(MOST_ROUNDS):
            raise_if_stopped(self.stopped)
            counts = self._counts()
            if counts is None:
                return True
            runs = FlushRuns(self, self._resident(counts), runs)
            if not self._fit_at(runs, self._instants(counts)) or not self._take_turns(runs):
                return True
            found = runs.spans(self.may_cut)
            if found is None or not runs.fit_together(self.may_cut):
                return True
            if not self._lengthen(runs, found[1]):
                return False
            if int(self.spans[0]) > self.whole:
                return True
        return False

    @property
    def lost(self) -> Array:
        """What a layer's window lacks of the makespan, by whether a run begins with the layer.

        The weight half of a split backward may come last, so that only what is ahead counts.
        """
        return self.ahead if self.scaled.problem.scope.split_backward else self.around

    def _counts(self) -> Array | None:
        """Return how many micro-batches each layer holds at once, at least; None if none will do.

        0 where they stay for no time.
        """
        import numpy as np

        windows = self.whole - self.around[1]
        found = np.zeros_like(self.spans)
        numbers = np.arange(1, self.count + 1)
        turns, rest = -(-self.count // numbers), (self.count - 1) % numbers
        for layer, (span, window) in enumerate(zip(self.spans, windows, strict=True)):
            if span:
                fitting = turns * span + rest * self.scaled.ahead[layer] <= window
                if not fitting.any():
                    return None
                found[layer] = numbers[fitting.argmax()]
        # What is in flight for a layer is so for all layers before it.
        return np.maximum.accumulate(found[::-1])[::-1]

    def _resident(self, counts: Array) -> ResidentBytes:
        """Return what layers keep: averages in the reading *peak*, and else their most."""
        import numpy as np

        scaled, held = self.scaled, self.scaled.resident(self.spans)
        counts = np.maximum(1, counts)
        if not scaled.problem.scope.recompute:
            timed = np.where(scaled.ahead + scaled.back > 0, scaled.workspace, 0)
            held = replace(
                held, worst=np.maximum(held.worst, self._hold(scaled.saved, counts) + timed)
            )
        if scaled.peak:
            return held
        kept, later = self._hold(scaled.saved, counts), self._hold(scaled.checkpoint, counts)
        return replace(
            held,
            kept=np.maximum(held.kept, kept),
            checkpoint=np.maximum(held.checkpoint, later),
            input=np.maximum(held.input, self._hold(scaled.input, counts)),
        )

    def _hold(self, sizes: Array, counts: Array) -> Array:
        import numpy as np

        # More than fits is as good as one more than fits.
        return np.asarray(np.minimum(sizes * counts, self.scaled.room + 1))

    def _fit_at(self, runs: Runs, instants: Iterable[ResidentBytes]) -> bool:
        """Keep those runs only that fit at each instant; whether all may fit."""
        for held in instants:
            raise_if_stopped(self.stopped)
            at_instant = Runs(self.scaled, held, runs)
            if not at_instant.fit_together(self.may_cut):
                return False
            runs.keep(at_instant.begun, at_instant.inner)
        return True

    def _instants(self, counts: Array) -> Iterator[ResidentBytes]:
        """Yield what layers keep when some layer holds its most, for the last with each count.

        Just before a backward ends what it needs is there, kept or recomputed.
        """
        import numpy as np

        scaled, nothing = self.scaled, np.zeros_like(counts)
        for layer in np.flatnonzero(counts > np.append(counts[1:], 0)):
            again, workspace = nothing.copy(), nothing.copy()
            if scaled.back[layer]:
                again[layer] = scaled.saved[layer]
            if scaled.ahead[layer] or scaled.back[layer]:
                workspace[layer] = scaled.workspace[layer]
            held = self._kept_at(np.where(np.arange(len(counts)) <= layer, counts[layer], 0))
            yield replace(held, kept=held.kept + workspace, again=again + workspace)

    def _kept_at(self, counts: Array) -> ResidentBytes:
        """Return what each layer keeps for its count of micro-batches."""
        scaled, nothing = self.scaled, 0 * counts
        return ResidentBytes(
            kept=self._hold(scaled.saved, counts),
            again=nothing,
            checkpoint=self._hold(scaled.checkpoint, counts),
            input=self._hold(scaled.input, counts),
            saved=nothing,
            second=nothing,
            workspace=nothing,
            worst=nothing,
            turn=nothing,
        )

    def _turns(self) -> Array:
        """Return how many micro-batches layers hold at instants that turns ask for.

        An array of shape (instants, layers), without those at which others hold as much of all.
        """
        import numpy as np

        count, layers = self.count, np.arange(len(self.spans))
        ways = np.zeros((len(layers),) * 2, dtype=np.int64)
        for times in (self.scaled.ahead, self.scaled.back):
            until = np.cumsum(times) - times
            ways = np.maximum(ways, until - until[:, None])
        left = self.whole - self.around[1] - self.spans
        found: list[Array] = []
        for held in range(1, min(count - 1, MOST_HELD) + 1):
            # By layer c and layer b.
            too_long = (count - held) * (self.spans + ways) > held * left
            too_long &= (held == 1) | ((count - held) * self.spans > (held - 1) * left)
            too_long &= (self.spans > 0) & (layers[:, None] <= layers)
            # It takes the longest from the first layers on.
            more = too_long.sum(axis=0)
            farther = np.append(np.maximum.accumulate(more[::-1])[::-1][1:], 0)
            found += [
                np.where(layers < more[layer], held + 1, held) * (layers <= layer)
                for layer in np.flatnonzero(more > farther)
            ]
        return np.array(found, dtype=np.int64).reshape(-1, len(layers))

    def _take_turns(self, runs: Runs) -> bool:
        """Keep those runs only that fit at the instants of `_turns`; whether all may fit."""
        import numpy as np

        scaled, turns = self.scaled, self._turns()
        if scaled.problem.scope.recompute:
            order = np.argsort(-(turns * scaled.saved).sum(axis=1), kind="stable")
            return self._fit_at(runs, map(self._kept_at, turns[order[:MOST_INSTANTS]]))
        sizes = self._hold(scaled.saved, turns) + scaled.weight
        received = self._hold(scaled.input, turns)
        runs.keep_fitting(sizes[:, None, None], received[:, None, None])
        gpus = len(scaled.problem.platform.gpus)
        for row in sizes:
            raise_if_stopped(self.stopped)
            if row.sum() > scaled.rooms or need_more(row, scaled.room, gpus):
                return False
        return True

    def _lengthen(self, runs: Runs, spans: Array) -> bool:
        """Lengthen spans and what is around them as the runs say; whether anything grew."""
        import numpy as np

        scaled, most = self.scaled, self.above + 1
        before = [self.spans, self.around, self.ahead]
        around = self._shortest(runs, scaled.ahead + scaled.back, scaled.trips)
        ahead = self._shortest(runs, scaled.ahead, scaled.trips // 2)
        self.spans = np.maximum(self.spans, np.minimum(spans, most))
        self.around = np.maximum(self.around, np.minimum(around, most))
        self.ahead = np.maximum(self.ahead, np.minimum(ahead, most))
        after = [self.spans, self.around, self.ahead]
        return any((one < other).any() for one, other in zip(before, after, strict=True))

    def _shortest(self, runs: Runs, lengths: Array, trips: Array) -> Array:
        """Return the shortest way to each layer over the runs that can be, as `around` is."""
        import numpy as np

        count = len(lengths)
        until = np.concatenate([[0], np.cumsum(lengths)])
        found = np.full((2, count), NEVER, dtype=np.int64)
        found[0, 0] = 0
        for layer in range(count):
            firsts = np.arange(max(0, layer - runs.window + 1), layer + 1)
            firsts = firsts[runs.begun[layer - firsts, firsts]]
            ways = found[0, firsts] + until[layer] - until[firsts]
            found[1, layer] = ways.min(initial=NEVER)
            if layer + 1 < count and self.may_cut[layer]:
                found[0, layer + 1] = min(NEVER, found[1, layer] + lengths[layer] + trips[layer])
        return found


class FlushRuns(Runs):
    """The runs that can be in a step, each in the window of its first layer.

    Parameters
    ----------
    flush : _Flush
    held : ResidentBytes
        What the layers keep.
    known : Runs, optional
        Runs that are not in these cannot be.
    """

    def __init__(self, flush: _Flush, held: ResidentBytes, known: Runs | None) -> None:
        self.flush = flush
        super().__init__(flush.scaled, held, known)

    def _time_left(self, work: Array) -> Array:
        windows = self.flush.whole - self.flush.lost[:, : len(work)]
        return windows // self.flush.count - work

    def _room_left(self, spare: Array) -> Array:
        """As above; in the reading *peak* what is kept is an average over the whole step."""
        import numpy as np

        if not self.scaled.peak:
            return spare[None]
        flush = self.flush
        windows = np.maximum(0, flush.above - flush.lost[:, : len(spare)])
        return np.minimum(spare, (spare + 1) * windows // flush.above)

    def _of_all(self) -> tuple[int, int]:
        """As above, each GPU in the window of its first layer, which it shares with no other one.

        The most room is left if the weights lie where the windows are shortest.
        """
        import numpy as np

        left, spare = super()._of_all()
        flush, gpus = self.flush, self.scaled.problem.platform.gpus
        lost = np.sort(np.minimum(flush.lost[0], flush.above))[: len(gpus)].tolist()
        speeds = sorted((Fraction(gpu.speed) for gpu in gpus), reverse=True)
        windows = sum(
            speed / speeds[0] * (flush.above - one)
            for speed, one in zip(speeds, lost, strict=False)
        )
        left = min(left, int(windows // flush.count) - int(self.scaled.work.sum()))
        if not self.scaled.peak:
            return left, spare
        weights, room, held = int(self.scaled.weight.sum()), self.scaled.room + 1, 0
        for one in reversed(lost):
            own = min(weights, room)
            weights -= own
            held += (flush.above - one) * (room - own)
        return left, min(spare, held // flush.above)
