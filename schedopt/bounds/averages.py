"""What micro-batches keep over a step, for any allocation, with replicas and recompute.

All GPUs together have P T of time in a step of T ns, and T times their room beside the weights, in
bytes times ns. Each layer has its weights somewhere, and as many replicas at least as share its
optimizer state so that a GPU holds it when a backward runs. What m micro-batches need of both is
priced: a ns of a GPU at 1, a byte kept for a ns at a price p. If a micro-batch cannot do with less
than c, then P T + p T room >= m c, whatever p is.

**A micro-batch.** Let f and b be the times of a layer, s what it saves. Forwards and backwards of
a micro-batch come one after the other, whatever GPU runs them. So a layer that is not recomputed
keeps s over its span, the times of all layers from it on, at least. A run of layers that is
recomputed takes all their forwards again. It keeps its input over the span of its first layer, and
all that its layers save while it is recomputed and while its backwards run. Each operation needs
its workspace. What is least is a shortest path over the layers: the next one is kept, or some run
begins with it. The choice is the same for all micro-batches, which counts no less.

**At first.** Until t, the sum of all f, no backward runs. When micro-batches have done some first
layers by then, of each of them all is there that these keep. So let a ns before t cost a price
q <= 1 only, and each byte that is there just before t a price r. Then P (T - t) + q P t + r room +
p T room >= m c, where c is the least again, over all numbers of layers that begin before t. What
is recomputed so early is there at t, too. Layers that take no time may begin at t itself, but then
nothing has run behind them, and fewer layers say the same.

GPUs run at the speed of the fastest, and links take no time. Any prices prove a bound; good ones
are looked for with floats, and the bound is that of fractions near them, computed exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from schedopt.bounds.recomputation import input_bytes
from schedopt.bounds.scopes import make_bound, widest
from schedopt.chain import Layer
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[Any]
    """Floats, or whole numbers of any size."""

MOST_LAYERS: Final = 400
"""Of a chain: runs of layers are looked at, which are as many as pairs."""
ONE: Final = 1 << 60
"""The price of a ns where prices are whole numbers."""
SHARES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 6.4, 1e4)
"""Prices of a byte for a ns, over that at which all room costs what all GPUs do."""
EARLY: Final = (0.0, 0.5)
"""Prices of a ns at first."""
STEPS: Final = (1.5, 1.2, 1.06)
"""By which prices are changed as long as that helps."""
PROOF: Final = Proof(ProofKind.STEP_OF_AVERAGES)


@dataclass(frozen=True)
class Prices:
    """What is charged; all are at least 0, and `early` is at most `time`.

    Parameters
    ----------
    time, early : int or float
        Of a ns of a GPU, and of one before the instant t.
    kept : int or float
        Of a byte for a ns.
    instant : int or float
        Of a byte just before t.
    """

    time: Any
    early: Any
    kept: Any
    instant: Any

    def exact(self) -> Prices:
        """Return whole numbers near these, for a ns at `ONE`."""
        return Prices(
            time=ONE,
            early=min(ONE, int(self.early * ONE)),
            kept=int(self.kept * ONE),
            instant=int(self.instant * ONE),
        )


def average_step_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the step whose averages over time allow what micro-batches keep, on any allocation.

    Returns
    -------
    Bound or None
        None if no step of whole stages with whole backwards is asked for, in tensor groups, if
        nothing is saved or no room is left, and for chains that are too long.
    """
    scope, count = problem.scope, problem.scope.microbatches
    if count is None or scope.split_backward or scope.grain == "layer":
        return None
    if problem.degrees != (1,) or len(problem.chain.layers) > MOST_LAYERS:
        return None
    step = _Step(problem, count)
    if step.room <= 0 or not step.saved.any() or not step.forward.any():
        return None
    prices = _search(step, stopped).exact()
    wide = replace(widest(scope), grain="stage", microbatches=count)
    return make_bound(Fraction(*step.least(prices)) / count, wide, PROOF)


class _Step:
    """What a micro-batch takes and keeps; times in ns on the fastest GPU, sizes in bytes.

    Attributes
    ----------
    forward, backward, saved, received, workspace : (L,) arrays
        Of whole numbers of any size; `received` is the input of a layer.
    room : int
        Of all GPUs together, beside the weights.
    """

    def __init__(self, problem: Problem, count: int) -> None:
        import numpy as np

        layers, gpus = problem.chain.layers, problem.platform.gpus
        fastest = max(gpus, key=lambda gpu: gpu.speed)
        self.count, self.gpus, self.recompute = count, len(gpus), problem.scope.recompute
        self.room = sum(gpu.usable_bytes for gpu in gpus)
        self.room -= sum(_least_weights(problem, layer) for layer in layers)

        def column(values: Iterator[int]) -> Numbers:
            return np.array([*values], dtype=object)

        self.forward = column(fastest.duration_ns(layer.forward_ns) for layer in layers)
        self.backward = column(fastest.duration_ns(layer.backward_ns) for layer in layers)
        self.saved = column(layer.saved for layer in layers)
        self.received = column(input_bytes(problem.chain, n) for n in range(len(layers)))
        self.workspace = column(layer.workspace_bytes or 0 for layer in layers)

    def least(self, prices: Prices) -> tuple[Any, Any]:
        """Return the bound of the step, ns, as what is divided and by what."""
        spared = self.gpus * int(self.forward.sum()) * (prices.time - prices.early)
        needed = self.count * self._cost(prices) + spared - self.room * prices.instant
        return needed, self.gpus * prices.time + self.room * prices.kept

    def _cost(self, prices: Prices) -> Any:
        """Return what a micro-batch costs at least.

        By how many layers are done, at the end of a kept layer or of a run: if all of them began
        before t, and in any case.
        """
        import numpy as np

        kind = object if isinstance(prices.kept, int) else float
        forward, backward, saved, received, workspace = (
            row.astype(kind)
            for row in (self.forward, self.backward, self.saved, self.received, self.workspace)
        )
        work = forward + backward
        span = np.cumsum(work[::-1])[::-1]
        first = prices.early * forward + prices.time * backward
        always = prices.kept * workspace * work
        keep = always + prices.kept * saved * span
        here = prices.instant * saved
        again = np.minimum(prices.time * forward, prices.early * forward + here)
        # Of layers that began before t, and of others.
        kept = (first + keep + here, prices.time * work + keep)
        recomputed = (first + always + again, prices.time * (work + forward) + always)
        sums = [np.concatenate([[0], np.cumsum(row)]) for row in recomputed]
        sizes, times = (np.concatenate([[0], np.cumsum(row)]) for row in (saved, work))
        best = [np.full(len(work) + 1, np.inf, dtype=kind) for _ in range(2)]
        best[0][0] = 0
        for layer in range(len(work)):
            best[1][layer] = min(best[1][layer], best[0][layer])
            for found, row in zip(best, kept, strict=True):
                found[layer + 1] = min(found[layer + 1], found[layer] + row[layer])
            if not self.recompute:
                continue
            ends, begun = slice(layer + 1, None), prices.instant * received[layer]
            own = prices.kept * (
                (sizes[ends] - sizes[layer]) * (times[ends] - times[layer])
                + received[layer] * span[layer]
            )
            # Some layers of a run may begin before t, and the others not.
            mixed = sums[1][ends] + np.minimum.accumulate(sums[0][ends] - sums[1][ends])
            runs = (
                (0, 0, begun + sums[0][ends] - sums[0][layer]),
                (0, 1, begun + mixed - sums[0][layer]),
                (1, 1, sums[1][ends] - sums[1][layer]),
            )
            for source, target, row in runs:
                best[target][ends] = np.minimum(best[target][ends], best[source][layer] + own + row)
        return min(found[-1] for found in best)


def _least_weights(problem: Problem, layer: Layer) -> int:
    """Return what the replicas of a layer hold together at least of its weights, bytes.

    Whatever is shared, all of it is somewhere. Where the optimizer state is shared at most, the
    rest is on each replica, with what the layer saves and needs while its backward runs.
    """
    if problem.scope.shard != "optimizer":
        return layer.weight_bytes
    room = max(gpu.usable_bytes for gpu in problem.platform.gpus) - layer.saved
    if layer.backward_ns:
        room -= layer.workspace_bytes or 0
    state = layer.shareable_bytes
    alone = layer.weight_bytes - state
    fitting = (n for n in problem.replica_counts if alone + -(-state // n) <= room)
    return next(fitting, 1) * alone + state


def _search(step: _Step, stopped: Callable[[], bool]) -> Prices:
    """Return prices that prove a high bound."""

    def value(prices: Prices) -> float:
        raise_if_stopped(stopped)
        needed, divisor = step.least(prices)
        return float(needed / divisor)

    best = max(_starts(step), key=value)
    high = value(best)
    for factor in STEPS:
        better = True
        while better:
            better = False
            for name in ("kept", "instant"):
                for change in (factor, 1 / factor):
                    one = replace(best, **{name: getattr(best, name) * change})
                    if (found := value(one)) > high * (1 + 1e-6):
                        best, high, better = one, found, True
    return best


def _starts(step: _Step) -> Iterator[Prices]:
    """Yield prices to begin with, the first of which are of the work alone."""
    shares = [0.0, *(share * step.gpus / step.room for share in SHARES)]
    for kept in shares:
        yield Prices(1.0, 1.0, kept, 0.0)
    each = int(step.forward.sum()) / int(step.saved.sum())
    for early in EARLY:
        for kept in shares[:4]:
            yield Prices(1.0, early, kept, (1 - early) * each)
