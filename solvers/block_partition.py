"""Block partition: consecutive parts whose times differ by one layer's at most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from schedopt.cuts import cut_places, cuts_between, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage


def partition(problem: Problem) -> list[Stage]:
    """Return the stages that torchgpipe makes of measured times, F and B together.

    torchgpipe (Kim et al. 2020) balances by the algorithm of Barany and Grinberg 2015. Its code
    takes the time of the shortest layer off each of them first, which changes what is balanced;
    here the times are what they are, as in the publication. Layers that must share a GPU count as
    one. GPUs are taken to be equally fast; one whose block comes out empty has no stage.
    """
    places = cut_places(problem.chain)
    layers = problem.chain.layers
    times = [
        sum(layer.forward_ns + layer.backward_ns for layer in layers[first:end])
        for first, end in pairwise(places)
    ]
    blocks = block_starts(times, min(len(times), len(problem.platform.gpus)))
    return stages_in_order(cuts_between(sorted({places[start] for start in blocks})))


def block_starts(sizes: Sequence[int], blocks: int) -> list[int]:
    """Cut a sequence into blocks, the largest and smallest of which differ by one element at most.

    Barany and Grinberg 2015: fix a largest block. While the smallest block is smaller by more
    than the largest element, the one that is nearest to the fixed one takes an element from its
    neighbour on that side. Once the fixed block has lost an element, fix a largest block again.

    Parameters
    ----------
    sizes : sequence of int
        At least 0, as many as blocks or more.
    blocks : int

    Returns
    -------
    list of int
        Where each block begins, and the end. Blocks may be empty.

    Examples
    --------
    >>> block_starts([1, 1, 4, 1, 1], 3)
    [0, 1, 3, 5]
    """
    count, most = len(sizes), max(sizes)
    starts = [*(count // blocks * block for block in range(blocks)), count]
    totals = [sum(sizes[first:end]) for first, end in pairwise(starts)]
    while True:
        fixed = totals.index(max(totals))
        taken_from = None
        while taken_from != fixed:
            least = min(totals)
            if totals[fixed] - least <= most:
                return starts
            small = min(
                (block for block in range(blocks) if totals[block] == least),
                key=lambda block: abs(block - fixed),
            )
            if fixed < small:
                taken_from = small - 1
                starts[small] -= 1
                moved = sizes[starts[small]]
            else:
                taken_from = small + 1
                moved = sizes[starts[taken_from]]
                starts[taken_from] += 1
            totals[small] += moved
            totals[taken_from] -= moved
