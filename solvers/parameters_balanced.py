"""Parameters-balanced: consecutive parts, the heaviest of which weighs as little as can be."""

from __future__ import annotations

from schedopt.cuts import min_max_cuts, most_parts, stages_in_order
from schedopt.problem import Problem
from schedopt.stage import Stage


def partition(problem: Problem) -> list[Stage]:
    """Return the stages among which the weights are balanced, without regard to their times.

    The method *parameters* of DeepSpeed's pipelines (Rasley et al. 2020), its default. It counts
    the parameters of a layer; here these are all bytes that its weights take (`weight_bytes`),
    which a chain always has.
    """
    chain = problem.chain
    weights = [layer.weight_bytes for layer in chain.layers]
    return stages_in_order(
        min_max_cuts(chain, weights, most_parts(chain, len(problem.platform.gpus)))
    )
