"""Next Fit: a contiguous allocation within twice the best of any, when memory does not bind.

Beaumont et al. 2021, proof of Theorem 5. With equal GPUs and T0 the larger of the average load
and the longest layer, layers go to the first GPU while its load stays within 2 T0, then to the
next. A GPU that is closed has a load above T0, since no layer is longer than T0; so P closed GPUs
would hold more than all the work. T0 is a bound for any allocation and any k, which certifies the
factor period / T0 of its plan; where memory is ample and transfers are free it is at most two.
"""

from __future__ import annotations

from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.one_f_one_b_star import report_stages
from schedopt.solving.requirements import refuse_stages, refuse_unsupported
from schedopt.solving.run import Run
from schedopt.stage import Stage


def solve(problem: Problem, run: Run) -> None:
    """Report the plan of Next Fit, at the least period with which 1F1B* fits it into memory.

    Raises
    ------
    InputError
        If the GPUs differ, or the problem asks for more than whole operations.
    """
    refuse_unsupported(problem, "next_fit")
    refuse_stages(problem, "next_fit")
    if not problem.platform.uniform or problem.chain.same_gpu:
        raise InputError(
            "next_fit needs equal GPUs and links, and no tied layers",
            field="solver",
            way_out="Use contiguous",
        )
    report_stages(problem, next_fit(problem), run)


def next_fit(problem: Problem) -> list[Stage]:
    """Return the stages of Next Fit with capacity 2 T0."""
    gpu = problem.platform.gpus[0]
    times = [
        gpu.duration_ns(layer.forward_ns) + gpu.duration_ns(layer.backward_ns)
        for layer in problem.chain.layers
    ]
    capacity = 2 * max(-(-sum(times) // len(problem.platform.gpus)), *times, 0)
    stages: list[Stage] = []
    first = load = 0
    for layer, time in enumerate(times):
        if load + time > capacity:
            stages.append(Stage(layers=(first, layer - 1), gpus=(len(stages),)))
            first, load = layer, 0
        load += time
    return [*stages, Stage(layers=(first, len(times) - 1), gpus=(len(stages),))]
