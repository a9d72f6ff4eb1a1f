"""All k-periodic patterns of a small allocation, by trying every start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

from schedopt import Chain, Platform, Stage

Op = tuple[str, int, int, tuple[object, ...]]
"""Kind, stage, length, what it occupies."""


def way(
    chain: Chain, platform: Platform, stages: Sequence[Stage], halves: Sequence[bool] = ()
) -> list[Op]:
    """Return what a micro-batch does, in order; W directly behind its I.

    Parameters
    ----------
    chain : Chain
    platform : Platform
    stages : sequence of Stage
    halves : sequence of bool
        Of which stages the backward is split. Default: of none.
    """
    ahead: list[Op] = []
    back: list[list[Op]] = []

    def operation(kind: str, index: int, name: str) -> Op:
        gpu = stages[index].gpus[0]
        own = (chain.layers[layer] for layer in stages[index].layer_range)
        times = (platform.gpus[gpu].duration_ns(getattr(layer, name) or 0) for layer in own)
        return kind, index, sum(times), (("gpu", gpu),)

    for index, stage in enumerate(stages):
        ahead.append(operation("F", index, "forward_ns"))
        if halves and halves[index]:
            both = (("I", "backward_input_ns"), ("W", "backward_weight_ns"))
            back.append([operation(kind, index, name) for kind, name in both])
        else:
            back.append([operation("B", index, "backward_ns")])
        if index + 1 < len(stages):
            ends = stage.gpus[0], stages[index + 1].gpus[0]
            if there := platform.route(*ends):
                time = platform.transfer_ns(chain.layers[stage.last].activation_bytes, *ends)
                ahead.append(("a", index, time, there))
                back.append([("g", index, time, platform.route(*ends[::-1]))])
    return ahead + [op for ops in reversed(back) for op in ops]


def least_period(
    chain: Chain,
    platform: Platform,
    stages: Sequence[Stage],
    k: int,
    longest: int,
    *,
    flush: bool = False,
    split: bool = False,
) -> int | None:
    """Return the least T for k micro-batches, or None if it is above `longest`.

    With a split, over all choices of split and whole backwards.
    """
    choices = product((False, True) if split else (False,), repeat=len(stages))
    ways = [way(chain, platform, stages, halves) for halves in choices]
    for period in range(1, longest + 1):
        for ops in ways:
            fitting = partial(fits, chain, platform, stages, ops, period=period)
            if exists(ops, k, period, fitting, flush=flush):
                return period
    return None


def exists(
    ops: Sequence[Op],
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
            # Nothing waits for W.
            before = step - 2 if ops[step - 1][0] == "W" else step - 1
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
    works = {index for kind, index, length, _ in ops if kind in "FBIW" and length}
    split = {index for kind, index, *_ in ops if kind == "I"}
    for number, gpu in enumerate(platform.gpus):
        need, workspace = 0, 0
        for index, stage in enumerate(stages):
            if stage.gpus[0] != number:
                continue
            layers = chain.layers[stage.first : stage.last + 1]
            need += sum(layer.weight_bytes for layer in layers)
            if index in works:
                workspace = max(workspace, *(layer.workspace_bytes or 0 for layer in layers))
            kept: Counter[str] = Counter()
            for place, layer in enumerate(layers):
                own = layer.saved + (0 if place else layer.saved_input_bytes or 0)
                if index not in split:
                    kept["FB"] += own
                else:
                    kept["FW" if layer.saved_weight_bytes is None else "FI"] += own
                    kept["IW"] += layer.saved_weight_bytes or 0
            for ends, size in kept.items():
                need += size * in_flight(ops, starts, index, period, ends)
        if need + workspace > gpu.usable_bytes:
            return False
    return True


def in_flight(
    ops: Sequence[Op], starts: Sequence[Sequence[int]], stage: int, period: int, ends: str
) -> int:
    """Return the most micro-batches from the start of one kind to the end of another, >= 1."""
    enter, leave = (next(i for i, op in enumerate(ops) if op[:2] == (end, stage)) for end in ends)
    spans = [(row[enter], row[leave] + ops[leave][2]) for row in starts]
    instants = {time % period for span in spans for time in span}
    return max(1, *(sum(holding(*span, at, period) for span in spans) for at in instants))


def holding(begin: int, end: int, instant: int, period: int) -> int:
    """Return how many of [begin + q T, end + q T) hold an instant; an empty one holds its own."""
    last = max(end, begin + 1)
    return sum(
        begin + turn * period <= instant < last + turn * period
        for turn in range(-(end // period) - 2, 2)
    )
