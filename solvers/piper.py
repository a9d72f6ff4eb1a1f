"""The partition of Piper without replicas, tensor parallelism and recompute."""

from __future__ import annotations

from schedopt.cuts import NoPartition, cut_places, cuts_between, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage

_Row = list[tuple[int, int] | None]
"""By the start of a suffix: its least largest load, ns, and where its first stage ends."""


def partition(problem: Problem) -> list[Stage]:
    """Return the stages of Piper's dynamic programme, on as many GPUs as bring something.

    Tarnawski et al. 2021, with one GPU a stage: from the end of the chain on, the least largest
    load of a stage. The load is its F and B and what it sends and receives in both directions, as
    if a GPU did nothing else meanwhile. The stage that is the s-th from the end keeps s
    micro-batches, and must fit its GPU: weights, workspace and s times what it saves. GPUs are
    taken to be alike: unequal ones count with the smallest memory and the slowest link.

    Raises
    ------
    NoPartition
        If none fits, or only on more GPUs than there are.
    """
    search = _Search(problem)
    places, units = search.places, len(search.places) - 1
    row: _Row = [*([None] * units), (0, units)]
    history = []
    for kept in range(1, min(units, len(problem.platform.gpus)) + 1):
        row = [*(search.begin(row, first, kept) for first in range(units)), None]
        history.append(row)
    found = [(row[0][0], count) for count, row in enumerate(history, start=1) if row[0]]
    if not found:
        raise NoPartition(
            "no partition fits when the s-th stage from the end keeps s micro-batches",
            field="memory",
            way_out="Give more memory or GPUs, or use contiguous",
        )
    chosen = [0]
    for row in reversed(history[: min(found)[1]]):
        best = row[chosen[-1]]
        assert best is not None
        chosen.append(best[1])
    return stages_in_order(cuts_between([places[place] for place in chosen]))


class _Search:
    """What a stage of layers between two places costs."""

    def __init__(self, problem: Problem) -> None:
        platform = problem.platform
        self.layers = problem.chain.layers
        self.places = cut_places(problem.chain)
        self.room = min(gpu.usable_bytes for gpu in platform.gpus)
        outputs = [self.layers[place - 1].activation_bytes for place in self.places[1:-1]]
        self.sent = [0, *(2 * platform.longest_transfer_ns(size) for size in outputs), 0]

    def begin(self, row: _Row, first: int, kept: int) -> tuple[int, int] | None:
        """Return the best suffix that begins there with one more stage, by what it keeps."""
        found: tuple[int, int] | None = None
        time = fixed = workspace = 0
        saved = self.layers[self.places[first]].saved_input_bytes or 0
        for end in range(first + 1, len(self.places)):
            for layer in self.layers[self.places[end - 1] : self.places[end]]:
                time += layer.forward_ns + layer.backward_ns
                fixed += layer.weight_bytes
                saved += layer.saved
                workspace = max(workspace, layer.workspace_bytes or 0)
            least = self.sent[first] + time
            needed = fixed + kept * saved + (workspace if time else 0)
            if needed > self.room or (found is not None and least >= found[0]):
                break
            behind = row[end]
            if behind is not None:
                load = max(behind[0], least + self.sent[end])
                found = min(found or (load, end), (load, end))
        return found
