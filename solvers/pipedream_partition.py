"""The partition of PipeDream without replicas, and what its memory option makes of it."""

from __future__ import annotations

from itertools import accumulate

from schedopt.cuts import NoPartition, cut_places, cuts_between, most_parts, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage

_Row = list[tuple[int, int] | None]
"""By the end of a prefix: its least longest time, ns, and where its last stage begins."""


def partition(problem: Problem) -> list[Stage]:
    """Return the stages of PipeDream's dynamic programme, one on each GPU.

    Harlap et al. 2018; Narayanan et al. 2019, section 3.1, with one GPU a stage: the least of the
    longest time of a stage (F and B) or of a cut (the activation there and back, 2 a / bandwidth),
    taken as two transfers with their latency. All GPUs are used; they are taken to be alike, and
    the slowest link counts.
    """
    return _partition(problem, None)


def partition_within_memory(problem: Problem) -> list[Stage]:
    """Return the stages of PipeDream's dynamic programme under its own memory option.

    The optimizer published with Narayanan et al. 2019 (``--use_memory_constraint``) lets stage m
    of P, counted from 0 and on m' GPUs, take at most the memory of a GPU by

        ceil((P - (m + 1)) / m') * (activation size + parameter size),  here with m' = 1.

    This is not what 1F1B needs: P - m micro-batches are in flight, so that the last stage counts
    as empty, and weights count once for each. Plans may thus be over memory, and others that fit
    are left out. Its activation size is the sum over the layers of a stage of what their outputs
    take, for this is what a GPU keeps there; here it is the sum of what they save. Its parameter
    size is the sum of their `weight_bytes`, which a chain always has. Unequal GPUs count with
    the smallest memory.

    Raises
    ------
    NoPartition
        If by this account none fits.
    """
    return _partition(problem, min(gpu.usable_bytes for gpu in problem.platform.gpus))


def _partition(problem: Problem, room: int | None) -> list[Stage]:
    chain, platform = problem.chain, problem.platform
    places = cut_places(chain)
    units, stages = len(places) - 1, most_parts(chain, len(platform.gpus))
    times = [layer.forward_ns + layer.backward_ns for layer in chain.layers]
    kept = [layer.saved + layer.weight_bytes for layer in chain.layers]
    time_to, kept_to = ([0, *accumulate(sizes)] for sizes in (times, kept))
    sent = [
        2 * platform.longest_transfer_ns(chain.layers[place - 1].activation_bytes)
        for place in places[:-1]
    ]

    def is_over(stage: int, first: int, end: int) -> bool:
        once = kept_to[places[end]] - kept_to[places[first]]
        return room is not None and (stages - (stage + 1)) * once > room

    def extend(row: _Row, stage: int, end: int) -> tuple[int, int] | None:
        """Return the best prefix that ends there with a stage more."""
        found = None
        for first in reversed(range(stage, end)):
            time = time_to[places[end]] - time_to[places[first]]
            if (found is not None and time > found[0]) or is_over(stage, first, end):
                break
            before = row[first]
            if before is not None:
                longest = max(before[0], sent[first] if first else 0, time)
                found = min(found or (longest, first), (longest, first))
        return found

    row: _Row = [(0, 0), *([None] * units)]
    history = []
    for stage in range(stages):
        row = [extend(row, stage, end) for end in range(units + 1)]
        history.append(row)
    chosen = [units]
    for row in reversed(history):
        best = row[chosen[-1]]
        if best is None:
            raise NoPartition(
                f"no partition into {stages} stages fits by the memory option of PipeDream",
                field="memory",
                way_out="Give more memory, or use contiguous",
            )
        chosen.append(best[1])
    return stages_in_order(cuts_between([places[place] for place in reversed(chosen)]))
