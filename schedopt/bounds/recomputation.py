"""The least time of recompute with which a stage fits into memory, over all subsets of its layers.

With n micro-batches in flight a kept layer holds n times what it saves, and a recomputed one only
once; but each run of recomputed layers keeps n times its input, and a kept layer behind a run n
times what it saves of its own input. So the choice is a path through the layers, each kept or
recomputed, with a time and with bytes on every step: the shortest path whose bytes fit.

It is found exactly. A price for each byte turns both into one length, and the best price gives a
bound (the Lagrangian dual, found as in Handler and Zang 1980); then all paths that the bound does
not exclude are followed, those that another one dominates left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from schedopt.chain import Chain
from schedopt.platform import Gpu

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

Runs = tuple[tuple[int, int], ...]
"""First and last layer of each run."""


@dataclass(frozen=True)
class RecomputeChoice:
    """What a stage recomputes, and how long that takes."""

    time_ns: int
    runs: Runs


class _LayerCost(NamedTuple):
    """What a layer costs, kept or recomputed, behind a kept layer or a recomputed one."""

    recompute_ns: int
    kept: tuple[int, int]
    recomputed: tuple[int, int]


_Path = tuple[int, int, int]
"""Time, bytes, and a bit for each layer, the last one lowest: whether it is recomputed."""
START: Final[tuple[_Path]] = ((0, 0, 0),)
"""No layer yet."""


def cheapest_recompute(
    chain: Chain, gpu: Gpu, layers: range, in_flight: int, room_bytes: int
) -> RecomputeChoice | None:
    """Return what a stage recomputes in the least time, or None if nothing fits.

    `in_flight` micro-batches are between forward and backward, and `room_bytes` are what the GPU
    has left after weights and workspace.
    """
    steps = [_step(chain, gpu, layer, in_flight) for layer in layers]
    cheapest = _shortest(steps, 1, 0)
    if cheapest[1] <= room_bytes:
        return RecomputeChoice(cheapest[0], runs_of(_read(cheapest, layers), layers.start))
    smallest = _shortest(steps, 0, 1)
    if smallest[1] > room_bytes:
        return None
    best, price = _best_price(steps, room_bytes, cheapest, smallest)
    best = _exact(steps, room_bytes, best, *price)
    return RecomputeChoice(best[0], runs_of(_read(best, layers), layers.start))


def held_bytes(
    chain: Chain, layers: range, runs: Sequence[tuple[int, int]], *, split: bool = False
) -> Counter[tuple[str, str]]:
    """Return what a stage holds for a micro-batch, by the operations between which it does, bytes.

    `runs` are recomputed, and `split` says whether the backward is.
    """
    begins = {first for first, _ in runs}
    recomputed = {layer for first, last in runs for layer in range(first, last + 1)}
    held: Counter[tuple[str, str]] = Counter()
    for number in layers:
        layer = chain.layers[number]
        end = "B" if not split else "W" if layer.saved_weight_bytes is None else "I"
        held["R" if number in recomputed else "F", end] += layer.saved
        if number in begins:
            held["F", end] += input_bytes(chain, number)
        elif number not in recomputed and (number == layers.start or number - 1 in recomputed):
            held["F", end] += layer.saved_input_bytes or 0
        if split:
            held["I", "W"] += layer.saved_weight_bytes or 0
    return held


def input_bytes(chain: Chain, layer: int) -> int:
    """Return the size of what a layer receives for one micro-batch."""
    return chain.layers[layer - 1].activation_bytes if layer else chain.input_bytes


def keeps_something(chain: Chain, layer: int, *, again: bool) -> bool:
    """Whether a layer keeps bytes of a micro-batch; `again`: it may be recomputed."""
    here = chain.layers[layer]
    kept = here.saved or here.saved_input_bytes or here.saved_weight_bytes
    return bool(kept or (again and input_bytes(chain, layer)))


def _step(chain: Chain, gpu: Gpu, layer: int, in_flight: int) -> _LayerCost:
    here = chain.layers[layer]
    kept = in_flight * here.saved
    checkpoint = in_flight * input_bytes(chain, layer)
    return _LayerCost(
        gpu.duration_ns(here.forward_ns),
        (kept, kept + in_flight * (here.saved_input_bytes or 0)),
        (here.saved + checkpoint, here.saved),
    )


def _shortest(steps: Sequence[_LayerCost], for_time: int, for_bytes: int) -> _Path:
    """Return the path of least `for_time` times its time and `for_bytes` times its bytes.

    Of those alike the one of fewest bytes, then of least time.
    """
    kept, recomputed = (
        (for_time * time + for_bytes * size, size, time, flags)
        for time, size, flags in _begin(steps[0])
    )
    for step in steps[1:]:
        (cost, size, time, flags), (other_cost, other_size, other_time, others) = kept, recomputed
        again, ways = step.recompute_ns, (*step.kept, *step.recomputed)
        kept = min(
            (cost + for_bytes * ways[0], size + ways[0], time, 2 * flags),
            (other_cost + for_bytes * ways[1], other_size + ways[1], other_time, 2 * others),
        )
        extra = for_time * again
        recomputed = min(
            (cost + for_bytes * ways[2] + extra, size + ways[2], time + again, 2 * flags + 1),
            (
                other_cost + for_bytes * ways[3] + extra,
                other_size + ways[3],
                other_time + again,
                2 * others + 1,
            ),
        )
    _, size, time, flags = min(kept, recomputed)
    return time, size, flags


def _best_price(
    steps: Sequence[_LayerCost], room: int, over: _Path, fits: _Path
) -> tuple[_Path, tuple[int, int]]:
    """Return the best path found that fits, and the price (bytes for time) of the best bound."""
    while True:
        for_bytes, for_time = fits[0] - over[0], over[1] - fits[1]
        found = _shortest(steps, for_time, for_bytes)
        length = for_time * found[0] + for_bytes * found[1]
        if length >= for_time * fits[0] + for_bytes * fits[1]:
            return fits, (for_time, for_bytes)
        if found[1] <= room:
            fits = found
        else:
            over = found


def _exact(
    steps: Sequence[_LayerCost], room: int, best: _Path, for_time: int, for_bytes: int
) -> _Path:
    """Return the path of least time that fits, following all that may be shorter than `best`."""
    least_length = _to_the_end(steps, for_time, for_bytes)
    least_bytes = _to_the_end(steps, 0, 1)
    limit = for_time * best[0] + for_bytes * room

    def lengthen(
        kept: Sequence[_Path], recomputed: Sequence[_Path], number: int, again: bool
    ) -> list[_Path]:
        """Return paths with one more layer, those that may win."""
        step = steps[number]
        time, sizes = (step.recompute_ns, step.recomputed) if again else (0, step.kept)
        most_time, most_bytes = best[0] - time, room - least_bytes[number + 1][again]
        most_length = limit - least_length[number + 1][again] - for_time * time
        return [
            (before + time, total, 2 * flags + again)
            for paths, size in zip((kept, recomputed), sizes, strict=True)
            for before, held, flags in paths
            if before < most_time
            and (total := held + size) <= most_bytes
            and for_time * before + for_bytes * total < most_length
        ]

    # The first layer is charged as in `_begin`.
    kept, recomputed = lengthen((), START, 0, False), lengthen(START, (), 0, True)
    for number in range(1, len(steps)):
        kept, recomputed = (
            _undominated(lengthen(kept, recomputed, number, again)) for again in (False, True)
        )
    return min([best, *kept, *recomputed])


def _begin(step: _LayerCost) -> tuple[_Path, _Path]:
    """Return the paths of the first layer of a stage, where it is kept and where recomputed.

    A kept one is charged as behind a run, and a recomputed one as behind a kept one.
    """
    return (0, step.kept[1], 0), (step.recompute_ns, step.recomputed[0], 1)


def _to_the_end(
    steps: Sequence[_LayerCost], for_time: int, for_bytes: int
) -> list[tuple[int, int]]:
    """Return the least length from behind each layer to the end, by whether it is recomputed."""
    ends = [(0, 0)]
    for step in reversed(steps[1:]):
        kept, recomputed = ends[-1]
        behind_kept, behind_recomputed = (
            min(
                for_bytes * step.kept[behind] + kept,
                for_bytes * step.recomputed[behind] + for_time * step.recompute_ns + recomputed,
            )
            for behind in (False, True)
        )
        ends.append((behind_kept, behind_recomputed))
    return [(0, 0), *reversed(ends)]


def lengthen_all(
    of_kept: Array, of_recomputed: Array, kept: tuple[Array, Array], recomputed: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the shortest lengths of many paths with one more layer, kept and recomputed.

    Each adds something else behind a kept layer, which comes first, than behind a recomputed one.
    """
    import numpy as np

    return (
        np.minimum(of_kept + kept[0], of_recomputed + kept[1]),
        np.minimum(of_kept + recomputed[0], of_recomputed + recomputed[1]),
    )


def _read(path: _Path, layers: range) -> list[bool]:
    """Return for each layer whether a path recomputes it."""
    return [bool(path[2] >> place & 1) for place in reversed(range(len(layers)))]


def _undominated(paths: Sequence[_Path]) -> list[_Path]:
    """Return the paths than which no other is both as short and as small."""
    found: list[_Path] = []
    for path in sorted(paths):
        if not found or path[1] < found[-1][1]:
            found.append(path)
    return found


def runs_of(flags: Sequence[bool], first: int) -> Runs:
    """Return the runs of layers, the first of which has a number, that are flagged."""
    edges = [
        first + place
        for place, (before, here) in enumerate(pairwise((False, *flags, False)))
        if before != here
    ]
    return tuple((begin, end - 1) for begin, end in zip(edges[::2], edges[1::2], strict=True))
