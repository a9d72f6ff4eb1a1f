"""Time-balanced: consecutive parts, the longest of which takes as little as can be."""

from __future__ import annotations

from schedopt.cuts import balanced_cuts, most_parts, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage


def partition(problem: Problem) -> list[Stage]:
    """Return the stages among which the times are balanced, F and B together.

    Chains-on-chains partitioning (Pinar and Aykanat 2004): the least bottleneck, without memory
    and transfers. GPUs are taken to be equally fast.
    """
    parts = most_parts(problem.chain, len(problem.platform.gpus))
    return stages_in_order(balanced_cuts(problem.chain, parts))
