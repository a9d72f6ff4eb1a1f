"""All k-periodic patterns of a small allocation, by trying every start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from schedopt import Chain, Platform, Problem, Scope, Stage

Op = tuple[str, int, int, tuple[object, ...]]
"""Kind, stage, length, what it occupies."""


def fixed_problem(chain: Chain, platform: Platform, stages: Sequence[Stage]) -> Problem:
    """Return the problem of the best pattern for stages."""
    scope = Scope(allocation="fixed")
    return Problem(chain=chain, platform=platform, scope=scope, stages=tuple(stages))


def way(chain: Chain, platform: Platform, stages: Sequence[Stage]) -> list[Op]:
    """Return what a micro-batch does, in order."""
    forward: list[Op] = []
    backward: list[Op] = []
    for index, stage in enumerate(stages):
        gpu = platform.gpus[stage.gpus[0]]
        own = chain.layers[stage.first : stage.last + 1]
        ahead = sum(gpu.duration_ns(layer.forward_ns) for layer in own)
        back = sum(gpu.duration_ns(layer.backward_ns) for layer in own)
        forward.append(("F", index, ahead, (("gpu", stage.gpus[0]),)))
        backward.append(("B", index, back, (("gpu", stage.gpus[0]),)))
        if index + 1 < len(stages):
            ends = stage.gpus[0], stages[index + 1].gpus[0]
            if there := platform.route(*ends):
                time = platform.transfer_ns(own[-1].activation_bytes, *ends)
                home = platform.route(*ends[::-1])
                forward.append(("a", index, time, there))
                backward.append(("g", index, time, home))
    return forward + backward[::-1]


def least_period(
    chain: Chain,
    platform: Platform,
    stages: Sequence[Stage],
    k: int,
    longest: int,
    *,
    flush: bool = False,
) -> int | None:
    """Return the least T for k micro-batches, or None if it is above `longest`."""
    ops = way(chain, platform, stages)
    after = range(-1, len(ops) - 1)
    for period in range(1, longest + 1):
        fitting = partial(fits, chain, platform, stages, ops, period=period)
        if exists(ops, after, k, period, fitting, flush=flush):
            return period
    return None


def exists(
    ops: Sequence[Op],
    after: Sequence[int],
    k: int,
    period: int,
    fitting: Callable[[list[list[int]]], bool],
    *,
    flush: bool = False,
) -> bool:
    """Whether there is a pattern with this T; with a flush, one that crosses no period.

    A step waits less than T for the one before: waiting T less leaves all in its place.

    Parameters
    ----------
    ops : sequence of Op
    after : sequence of int
        Which step each one follows; the first follows none.
    k, period : int
    fitting : callable
        Whether memory holds the starts of all micro-batches.
    flush : bool
    """
    starts: list[list[int]] = []

    def place(micro_batch: int, step: int) -> bool:
        if step == len(ops):
            return place(micro_batch + 1, 0)
        if micro_batch == k:
            return fitting(starts)
        if step == 0:
            starts.append([])
            earliest = 0
        else:
            before = after[step]
            earliest = starts[micro_batch][before] + ops[before][2]
        span = 1 if (micro_batch, step) == (0, 0) else period
        for start in range(earliest, earliest + span):
            if flush and start + max(1, ops[step][2]) > period:
                break
            if is_free(ops, starts, step, start, period):
                starts[micro_batch].append(start)
                if place(micro_batch, step + 1):
                    return True
                starts[micro_batch].pop()
        if step == 0:
            starts.pop()
        return False

    return place(0, 0)


def is_free(
    ops: Sequence[Op], starts: Sequence[Sequence[int]], step: int, start: int, period: int
) -> bool:
    """Whether a step runs at no time at which another one has its resource, modulo T."""
    _, _, length, resources = ops[step]
    if length > period:
        return False
    for of_micro_batch in starts:
        for other, begin in enumerate(of_micro_batch):
            if not set(ops[other][3]) & set(resources):
                continue
            apart = (start - begin) % period
            taken = ops[other][2]
            if length == 0 and taken == 0:
                continue
            if length == 0:
                if 0 < apart < taken:
                    return False
            elif taken == 0:
                if 0 < (begin - start) % period < length:
                    return False
            elif apart < taken or (begin - start) % period < length:
                return False
    return True


def fits(
    chain: Chain,
    platform: Platform,
    stages: Sequence[Stage],
    ops: Sequence[Op],
    starts: Sequence[Sequence[int]],
    period: int,
) -> bool:
    """Whether the memory of each GPU holds the pattern: weights, workspace, activations."""
    for number, gpu in enumerate(platform.gpus):
        need, workspace = 0, 0
        for index, stage in enumerate(stages):
            if stage.gpus[0] != number:
                continue
            layers = chain.layers[stage.first : stage.last + 1]
            need += sum(layer.weight_bytes for layer in layers)
            if any(layer.forward_ns + layer.backward_ns for layer in layers):
                workspace = max(workspace, *(layer.workspace_bytes or 0 for layer in layers))
            each = sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0)
            need += each * in_flight(ops, starts, index, period)
        if need + workspace > gpu.usable_bytes:
            return False
    return True


def in_flight(ops: Sequence[Op], starts: Sequence[Sequence[int]], stage: int, period: int) -> int:
    """Return the most micro-batches between the start of F and the end of B, at least 1."""
    enter = next(i for i, op in enumerate(ops) if op[:2] == ("F", stage))
    leave = next(i for i, op in enumerate(ops) if op[:2] == ("B", stage))
    spans = [(row[enter], row[leave] + ops[leave][2]) for row in starts]
    instants = sorted({time % period for span in spans for time in span})
    most = 1
    for instant in instants:
        most = max(most, sum(holding(begin, end, instant, period) for begin, end in spans))
    return most


def holding(begin: int, end: int, instant: int, period: int) -> int:
    """Return how many of [begin + q T, end + q T) hold an instant; an empty one holds its own."""
    last = max(end, begin + 1)
    return sum(
        begin + turn * period <= instant < last + turn * period
        for turn in range(-(end // period) - 2, 2)
    )
