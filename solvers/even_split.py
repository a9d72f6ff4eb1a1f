"""Even split: equal numbers of layers for each GPU, run by 1F1B*.

What people do by hand. Any other allocation is measured against it.
"""

from __future__ import annotations

from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solvers.one_f_one_b_star import refuse_unsupported, report_stages
from schedopt.solving.run import Run
from schedopt.stage import Stage


def solve(problem: Problem, run: Run) -> None:
    """Report the plan of the even split, at the least period with which it fits into memory.

    Raises
    ------
    InputError
        If the split would part tied layers, or the problem asks for more than whole operations.
    """
    refuse_unsupported(problem, "even_split")
    if problem.scope.allocation == "fixed":
        raise InputError(
            "even_split makes an allocation",
            field="solver",
            way_out="Leave the fixed stages out, or use one_f_one_b_star",
        )
    stages = even_split(len(problem.chain.layers), len(problem.platform.gpus))
    for group in problem.chain.same_gpu:
        if not any(stage.first <= group[0] and group[-1] <= stage.last for stage in stages):
            raise InputError(
                f"the even split parts the tied layers {group[0]} and {group[-1]}",
                field="solver",
                way_out="Use contiguous",
            )
    report_stages(problem, stages, run)


def even_split(layers: int, gpus: int) -> list[Stage]:
    """Return one stage for each GPU, whose numbers of layers differ by one at most.

    With fewer layers than GPUs, one layer for each of the first GPUs.

    Examples
    --------
    >>> [stage.layers for stage in even_split(5, 3)]
    [(0, 0), (1, 2), (3, 4)]
    """
    count = min(layers, gpus)
    cuts = [layers * gpu // count for gpu in range(count + 1)]
    return [Stage(layers=(cuts[gpu], cuts[gpu + 1] - 1), gpus=(gpu,)) for gpu in range(count)]
