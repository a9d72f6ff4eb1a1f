"""Even split: equal numbers of layers for each GPU.

What people do by hand, and Megatron-LM with the layers of a transformer (Narayanan et al. 2021).
"""

from __future__ import annotations

from schedopt.cuts import cuts_between, stages_in_order
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.stage import Stage


def partition(problem: Problem) -> list[Stage]:
    """Return one stage for each GPU, with equal numbers of layers.

    Raises
    ------
    InputError
        If the split would part tied layers.
    """
    stages = even_split(len(problem.chain.layers), len(problem.platform.gpus))
    for group in problem.chain.same_gpu:
        if not any(stage.first <= group[0] and group[-1] <= stage.last for stage in stages):
            raise InputError(
                f"the even split parts the tied layers {group[0]} and {group[-1]}",
                field="solver",
                way_out="Use contiguous",
            )
    return stages


def even_split(layers: int, gpus: int) -> list[Stage]:
    """Return one stage for each GPU, whose numbers of layers differ by one at most.

    With fewer layers than GPUs, one layer for each of the first GPUs.

    Examples
    --------
    >>> [stage.layers for stage in even_split(5, 3)]
    [(0, 0), (1, 2), (3, 4)]
    """
    count = min(layers, gpus)
    return stages_in_order(cuts_between([layers * gpu // count for gpu in range(count + 1)]))
