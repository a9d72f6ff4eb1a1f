"""What a period forces, for any allocation: counts, cuts, and layers apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from schedopt.bounds.amounts import Amounts, Scaled
from schedopt.bounds.instants import Instants, have_instants, least_transfers
from schedopt.bounds.load import load_bound
from schedopt.bounds.pairs import Gap, pair_of
from schedopt.bounds.runs import Runs
from schedopt.bounds.scopes import period_between, refuted_bound
from schedopt.interrupts import Stopped, never_stop, raise_if_stopped
from schedopt.problem import LARGEST_HORIZON_NS, Problem, Scope
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

MOST_ROUNDS: Final = 24
MOST_GAPS: Final = 64
"""Parts of all gaps, a power of 4."""
MOST_LAYERS: Final = 128
"""Gaps of longer chains are not looked at."""
WORTH: Final = Fraction(201, 200)
"""How much higher a bound has to be for gaps to be looked at."""
MOST_CELLS: Final = 1 << 19
"""Layers, squared, a GPU: no more are looked at."""


@dataclass(frozen=True)
class ForcedWork:
    """What holds in every plan whose normalized period is at most the one looked at.

    Parameters
    ----------
    scaled : Scaled
        The amounts at this period.
    spans : array, shape (layers,)
        From the start of a layer's forward to the end of its backward, or of the half that its
        gradient waits for: at least this, in the unit of `scaled`.
    counts : array, shape (layers,)
        Micro-batches in flight for which each layer keeps what it saves, at least.
    windows : array, shape (layers,)
        How many layers from one on can share a GPU at most.
    may_cut : array of bool, shape (layers,)
        Whether a layer and the next one may lie on two GPUs.
    instants : Instants or None
        What layers keep at each instant; None if that is not known.
    """

    scaled: Scaled
    spans: Array
    counts: Array
    windows: Array
    may_cut: Flags
    instants: Instants | None = None

    def non_coresident(self) -> Flags:
        """Return which pairs of layers cannot share a GPU: array of bool, (layers, layers)."""
        import numpy as np

        scaled = self.scaled
        held = scaled.resident(self.spans)
        ways = [(held.kept, scaled.work)]
        if scaled.problem.scope.recompute:
            ways.append((held.again, scaled.work + scaled.ahead))
        fits = np.zeros((len(self.spans),) * 2, dtype=bool)
        largest = np.maximum.outer(held.workspace, held.workspace)
        spare = scaled.room - np.add.outer(scaled.weight, scaled.weight) - largest
        for sizes, times in ways:
            for others, further in ways:
                fits |= (np.add.outer(sizes, others) <= spare) & (
                    np.add.outer(times, further) <= scaled.limit
                )
        fits |= fits.T
        np.fill_diagonal(fits, True)
        return ~fits


def propagate(
    amounts: Amounts,
    period: Fraction,
    gap: Gap | None = None,
    stopped: Callable[[], bool] = never_stop,
) -> ForcedWork | None:
    """Return what a normalized period forces; None if no plan has it, or a shorter one.

    With a gap it speaks of patterns alone whose two micro-batches have it.

    The span of a layer is at least its own way, and that of all layers behind it with a transfer
    ahead and back at each cut. As many micro-batches are in flight as the span takes periods; each
    keeps what is saved, or less and a time of recompute. That says which runs of layers fit a GPU,
    these where the chain must be cut, and cuts lengthen spans: again and again, until nothing
    changes. A period is refuted if a layer, a run that must be or all together do not fit. For
    patterns of one or two micro-batches in the reading *peak*, what layers keep at an instant
    counts too: see `schedopt.bounds.instants`.

    R may run while the layers behind work, so that recompute does not lengthen a span.

    Raises
    ------
    Stopped
        When `stopped` says so: for long chains it takes seconds.
    """
    import numpy as np

    scaled = Scaled(amounts, period)
    may_cut = allowed_cuts(scaled)
    spans = np.cumsum((scaled.ahead + scaled.back)[::-1])[::-1]
    if (scaled.work > scaled.limit).any():
        return None
    means, pair = spans, None
    runs, instants = Runs(scaled, scaled.resident(means)), None
    for _ in range(MOST_ROUNDS):
        raise_if_stopped(stopped)
        found = runs.spans(may_cut)
        if found is None or not runs.fit_together(may_cut):
            return None
        if (found[1] > spans).any():
            spans = np.maximum(spans, found[1])
            means = np.maximum(means, spans)
            runs = Runs(scaled, scaled.resident(means), runs)
            continue
        if gap is not None:
            pair = pair_of(runs, may_cut, spans, gap)
            if pair is None:
                return None
            if (pair.mean > means).any():
                means = np.maximum(means, pair.mean)
                runs = Runs(scaled, scaled.resident(means), runs)
                continue
        if not have_instants(scaled.problem.scope):
            break
        transfers, before = least_transfers(runs, scaled.trips // 2, may_cut), runs.size()
        instants = Instants(scaled, spans, transfers, pair, stopped)
        if not instants.narrow(runs, may_cut):
            return None
        if runs.size() == before:
            break
    if instants is not None and not instants.fit_together():
        return None
    counts = scaled.counts(
        spans - scaled.back + np.minimum(scaled.whole, scaled.half + scaled.tail)
    )
    return ForcedWork(scaled, spans, counts, runs.inner.sum(axis=0), may_cut, instants)


def gaps_refute(
    amounts: Amounts, period: Fraction, stopped: Callable[[], bool] = never_stop
) -> bool:
    """Whether a period forces what cannot be, whatever the gap of two micro-batches.

    Gaps that are not refuted are split, down to one of `MOST_GAPS` parts. Where patterns do not
    repeat after two micro-batches, there are none.
    """
    gaps = [Gap()]
    while gaps:
        raise_if_stopped(stopped)
        gap = gaps.pop()
        if propagate(amounts, period, gap if gap.parts > 1 else None, stopped) is None:
            continue
        if amounts.repeat != 2 or gap.parts == MOST_GAPS:
            return False
        gaps.extend(gap.split())
    return True


def proof_of(scope: Scope) -> Proof:
    """Return why a period that `propagate` refutes has no plan of a scope."""
    known = have_instants(scope)
    return Proof(ProofKind.IN_FLIGHT_INSTANTS if known else ProofKind.IN_FLIGHT_CUTS)


def allowed_cuts(scaled: Scaled) -> Flags:
    """Return behind which layers a cut is possible: on some link, and outside of `same_gpu`."""
    import numpy as np

    may_cut: Flags = scaled.links <= scaled.limit
    if len(scaled.problem.platform.gpus) == 1:
        may_cut[:-1] = False
    for group in scaled.problem.chain.same_gpu:
        numbers = np.array(group)
        may_cut[numbers[:-1][np.diff(numbers) == 1]] = False
    return may_cut


def is_propagated(problem: Problem) -> bool:
    """Whether a problem is one that `propagate` speaks of, and short enough for it."""
    cells = len(problem.chain.layers) ** 2 // len(problem.platform.gpus)
    return problem.rule.is_given and cells <= MOST_CELLS


def propagation_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the period that `propagate` does not refute, bisected, for any allocation.

    It holds for any k, but where counts at instants say more: see `have_instants`.

    Patterns are real-valued here: one with a period can be stretched to any longer one, in the
    same order and with no more in flight; so what refutes a period refutes all shorter ones.

    Returns
    -------
    Bound or None
        None with updates, if nothing is refuted, if no period will do, or for chains that are too
        long.
    """
    load = load_bound(problem).period
    if not load or not is_propagated(problem):
        return None
    amounts = Amounts(problem)

    def is_refuted(period: Fraction) -> bool:
        return propagate(amounts, period, stopped=stopped) is None

    low = _last_refuted(problem, load, is_refuted, stopped)
    if amounts.repeat == 2 and len(problem.chain.layers) <= MOST_LAYERS:
        # Gaps take their time: they are looked at where they say more at once.
        least = load if low is None else low * WORTH
        found = _last_refuted(
            problem, least, lambda period: gaps_refute(amounts, period, stopped), stopped
        )
        low = low if found is None else found
    return None if low is None else refuted_bound(problem, low, proof_of(problem.scope))


def _last_refuted(
    problem: Problem,
    low: Fraction,
    is_refuted: Callable[[Fraction], bool],
    stopped: Callable[[], bool],
) -> Fraction | None:
    """Return the last period that is refuted, bisected; None if `low` is not, or any is.

    When `stopped` says so, the last that is refuted by then, or None.
    """
    refuted: Fraction | None = None
    with suppress(Stopped):
        if not is_refuted(low):
            return None
        refuted = high = low
        while is_refuted(high):
            if high > LARGEST_HORIZON_NS:
                return None
            refuted, high = high, 2 * high
        while (middle := period_between(refuted, high, problem.scope)) is not None:
            raise_if_stopped(stopped)
            if is_refuted(middle):
                refuted = middle
            else:
                high = middle
    return refuted
