"""Uniform grids: pipelines of equal numbers of replicas, as most engines run them."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.cuts import balanced_cuts, most_parts, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage


def propose(problem: Problem) -> Iterator[list[Stage]]:
    """Yield the stages of each grid of p stages with P / p replicas, their times balanced.

    From the longest pipeline to data parallelism (Narayanan et al. 2021).
    """
    gpus = len(problem.platform.gpus)
    most = most_parts(problem.chain, gpus)
    for replicas in problem.replica_counts:
        if gpus % replicas == 0 and gpus // replicas <= most:
            cuts = balanced_cuts(problem.chain, gpus // replicas)
            yield stages_in_order(cuts, [replicas] * len(cuts))
