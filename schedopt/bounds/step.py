"""What filling and draining the GPUs adds to a step of m micro-batches with a flush."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Final

from schedopt.bounds.cuts import LATEST, NEVER, Cuts, is_readable, longest_way
from schedopt.bounds.load import least_backward, load_bound, way_back
from schedopt.bounds.scopes import contiguous, first_possible, make_bound, widest
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.network import Link
from schedopt.platform import Gpu
from schedopt.problem import LARGEST_HORIZON_NS, Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound

if TYPE_CHECKING:
    from schedopt.bounds.cuts import Array

ANY: Final = Proof(ProofKind.STEP_OF_GPUS)
CONTIGUOUS: Final = Proof(ProofKind.STEP_OF_STAGES)

Times = tuple[int, int]
"""Of a layer, ahead and back, ns at speed 1."""


def step_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the step that filling and draining the GPUs allows, on any allocation.

    Let f be the first layer that a GPU runs. Before its first forward comes the forward of all
    layers before f and a transfer, and behind its last backward their backward and a transfer:
    r_f at least, on the fastest GPU. So in a step of D ns it does at most its speed times
    D - r_f of work. No two GPUs share f, so with n GPUs all of this is at most the sum over i <= n
    of the i-th fastest speed times D less the i-th least r_f, and at least m times all work. With
    a split backward this holds for forwards and input halves; the weight halves may come last, so
    for all work only the forwards before f count. All of a layer runs on one GPU, between the
    forwards and the backwards of the layers before it. One micro-batch takes at least as long as
    on the fastest GPU alone.

    Returns
    -------
    Bound or None
        None if no step is asked for.
    """
    count, split = problem.scope.microbatches, problem.scope.split_backward
    if count is None:
        return None
    raise_if_stopped(stopped)
    layers, gpus = problem.chain.layers, problem.platform.gpus
    fastest = max(gpus, key=lambda gpu: gpu.speed)
    speeds = sorted((Fraction(gpu.speed) for gpu in gpus), reverse=True)
    trips = [problem.platform.least_transfer_ns(layer.activation_bytes) for layer in layers]
    ahead = [(layer.forward_ns, 0) for layer in layers]
    ways = [(layer.forward_ns, way_back(layer, split)) for layer in layers]
    work = [(layer.forward_ns, least_backward(layer, split)) for layer in layers]

    def least(waits: Sequence[Times], trips: Sequence[int], own: Sequence[Times]) -> Fraction:
        """Return the least makespan if a GPU waits so for each layer before what it does."""
        before = list(accumulate(_lengths(fastest, waits[:-1]), initial=0))
        longest = max(
            wait + count * length
            for wait, length in zip(before, _lengths(fastest, own), strict=True)
        )
        around = sorted(wait + trip for wait, trip in zip(before, [0, *trips[:-1]], strict=True))
        return max(Fraction(longest), _shared(count * sum(map(sum, own)), speeds, around))

    alone = sum(_lengths(fastest, [work[0], *ways[1:]]))
    makespan = max(Fraction(alone), least(ways, [2 * trip for trip in trips], ways))
    if split:
        makespan = max(makespan, least(ahead, trips, work))
    scope = replace(widest(problem.scope), microbatches=count)
    return make_bound(makespan / count, scope, ANY)


def _lengths(gpu: Gpu, times: Sequence[Times]) -> list[int]:
    return [gpu.duration_ns(forward) + gpu.duration_ns(backward) for forward, backward in times]


def _shared(work: int, speeds: Sequence[Fraction], waits: Sequence[int]) -> Fraction:
    """Return the least time, ns, in which GPUs that wait first do all the work."""
    most = min(len(speeds), len(waits))
    together = accumulate(speeds[:most])
    lost = accumulate(speed * wait for speed, wait in zip(speeds, waits, strict=False))
    return min((work + idle) / speed for speed, idle in zip(together, lost, strict=False))


def contiguous_step_bound(
    problem: Problem, stopped: Callable[[], bool] = never_stop
) -> Bound | None:
    """Return the least step that waiting allows, over all contiguous allocations.

    The GPU of a stage starts behind the forward of all stages before it, with a transfer at each
    cut, and behind the last backward of the stage the gradient goes back through all of them. In
    between lies m times the work of the stage. With a split backward the stage ends its input
    halves before the gradient goes back; its weight halves may come last, so that all its work
    counts with the way ahead only. A half-duplex link waits likewise, and carries m micro-batches
    both ways, at best at once. Stages must hold their weights and one micro-batch. The least time
    before each cut decides whether a makespan is possible, and that is bisected.

    Returns
    -------
    Bound or None
        None if no step is asked for, if the allocation is not contiguous, if no stages fit the
        memory, or for chains and steps that are too long.
    """
    count, scope = problem.scope.microbatches, problem.scope
    if count is None or scope.allocation != "contiguous":
        return None
    if not is_readable(problem) or not _is_short(problem, count):
        return None
    reading = _Steps(problem, count, stopped)
    if not reading.is_possible(LATEST):
        return None
    load = max(1, ceil(load_bound(problem).period * count))
    makespan = first_possible(load, LATEST, reading.is_possible)
    return make_bound(Fraction(makespan, count), contiguous(problem), CONTIGUOUS)


def _is_short(problem: Problem, count: int) -> bool:
    """Whether a step of all layers on the slowest GPU stays far below the latest time."""
    return count * longest_way(problem) + LARGEST_HORIZON_NS < LATEST


class _Steps:
    """Whether a step of m micro-batches is possible within a makespan."""

    def __init__(self, problem: Problem, count: int, stopped: Callable[[], bool]) -> None:
        import numpy as np

        self.count = count
        self.cuts = Cuts(problem, most=1, stopped=stopped)
        # From a whole trip of one micro-batch to that of all of them at once.
        self.carried = 2 * self.cuts.trip
        kinds, sent = problem.platform.kinds_of_links, problem.chain.layers[:-1]
        times = [min(_trip(kind, a.activation_bytes, count) for kind in kinds) for a in sent]
        self.carried[1:-1] = np.array(times, dtype=np.int64)

    def is_possible(self, makespan: int) -> bool:
        """Whether some stages may have a step of at most this makespan, ns."""
        import numpy as np

        cuts, count = self.cuts, self.count

        def extend(here: Array, first: int) -> Array:
            before, around = here
            layers = cuts.within(first, (makespan - int(before.min())) // count)
            ahead, way, work = cuts.lengths(first, layers)
            ends = slice(first + 1, first + 1 + layers)
            through = around + (way if first else work)
            fits = (
                (before + count * work <= makespan)
                & (around + count * way <= makespan)
                & (through + self.carried[ends] <= makespan)
                & (cuts.caps(first, layers) > 0)
            )
            trip = cuts.trip[ends]
            return np.where(fits, [before + ahead + trip, through + 2 * trip], NEVER)

        return cuts.read(extend, values=2) is not None


def _trip(link: Link | None, size: int, count: int) -> int:
    """Return how long a link carries `count` micro-batches there and back at least, ns.

    A half-duplex link carries all of them, at best at once; of others one is looked at.
    """
    if link is None:
        return 0
    return min(NEVER, 2 * link.transfer_ns(size * (count if link.duplex == "half" else 1)))
