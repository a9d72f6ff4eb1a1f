"""What the memory of all GPUs together allows, for any allocation and any k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor
from typing import Final

from schedopt.bounds.load import least_backward, load_bound, way_back
from schedopt.bounds.scopes import lowered, make_bound, widest
from schedopt.chain import Layer
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.platform import Gpu
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

PROOF: Final = Proof(ProofKind.IN_FLIGHT_OF_ALL)


def packing_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the period that the memory of all GPUs together needs, for any allocation and k.

    What layer l saves for a micro-batch stays from its forward to its backward, at least R_l: the
    work of l and of all layers behind it on the fastest GPU, of a split backward the input half.
    A micro-batch comes every T / k on average, so on average at least R_l k / T of them are in
    flight, and at some instant that rounded up. The GPU of a layer must hold this most; the sum
    over all GPUs of what lies there at the worst instant is at least the sum of the averages, and
    at least the sum for one micro-batch. In the reading *sum* each layer counts with its most. What
    operations take while they run is a part of the averages.

    Returns
    -------
    Bound or None
        None where nothing follows: with recompute, with updates, or if no plan fits at all.
    """
    scope = problem.scope
    if scope.recompute or not problem.rule.is_given:
        return None
    layers, gpus = problem.chain.layers, problem.platform.gpus
    fastest = max(gpus, key=lambda gpu: gpu.speed)
    ways = [
        fastest.duration_ns(layer.forward_ns)
        + fastest.duration_ns(way_back(layer, scope.split_backward))
        for layer in layers
    ]
    rest = list(accumulate(reversed(ways)))[::-1]
    saved = [layer.saved for layer in layers]
    saved[0] += layers[0].saved_input_bytes or 0
    largest = max(gpu.usable_bytes for gpu in gpus)
    spare = sum(gpu.usable_bytes for gpu in gpus) - sum(layer.weight_bytes for layer in layers)
    if sum(saved) > spare:
        return None
    least = load_bound(problem).period
    for layer, way, span, each in zip(layers, ways, rest, saved, strict=True):
        own = largest - layer.weight_bytes - ((layer.workspace_bytes or 0) if way else 0)
        if each > own:
            return None
        if each:
            least = max(least, Fraction(span, own // each))
    if any(saved):
        held = sum(each * span for each, span in zip(saved, rest, strict=True))
        held += sum(_workspace_held(layer, fastest, scope.split_backward) for layer in layers)
        least = max(least, Fraction(held, spare))
    if scope.memory == "sum":
        counted = [(span, each) for span, each in zip(rest, saved, strict=True) if span and each]
        least = _with_whole_counts(counted, spare - sum(saved), least, stopped)
    within = replace(
        widest(scope),
        memory=scope.memory,
        max_k=scope.max_k,
        microbatches=scope.microbatches,
    )
    return make_bound(least, within, PROOF)


def _workspace_held(layer: Layer, gpu: Gpu, split: bool) -> int:
    """Return what operations of a layer take for a micro-batch, bytes times ns on a GPU."""
    work = gpu.duration_ns(layer.forward_ns) + gpu.duration_ns(least_backward(layer, split))
    return work * (layer.workspace_bytes or 0)


def _with_whole_counts(
    counted: Sequence[tuple[int, int]],
    spare: int,
    least: Fraction,
    stopped: Callable[[], bool],
) -> Fraction:
    """Return the least period at which whole counts of micro-batches fit, from `least` on.

    Of each layer are counted the span in ns and the bytes for each micro-batch. `spare` are the
    bytes on top of weights and one micro-batch.
    """

    def reach(period: Fraction, below: bool = False) -> Fraction | None:
        """Return the least period with the counts at a period, or just below it, if they fit."""
        raise_if_stopped(stopped)
        if below:
            found = [floor(span / period) + 1 for span, _ in counted]
        else:
            found = [max(1, ceil(span / period)) for span, _ in counted]
        if sum((n - 1) * each for n, (_, each) in zip(found, counted, strict=True)) > spare:
            return None
        return max(Fraction(span, n) for n, (span, _) in zip(found, counted, strict=True))

    if not counted or reach(least) is not None:
        return least
    # At least one layer counts, one micro-batch of each fits, and `least` is refuted.
    return lowered(reach, least, Fraction(max(span for span, _ in counted)))
