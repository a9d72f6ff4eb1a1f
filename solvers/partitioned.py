"""The stages of a partitioner that people use, run by 1F1B* or by 1F1B."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schedopt.cuts import NoPartition
from schedopt.problem import Problem
from schedopt.solvers.eager import report_eager
from schedopt.solvers.one_f_one_b_star import report_stages
from schedopt.solving.registry import load_partitioner
from schedopt.solving.requirements import refuse_stages, refuse_unsupported
from schedopt.solving.run import Run
from schedopt.stage import Stage


def run_star(name: str, problem: Problem, run: Run) -> None:
    """Report the stages of a partitioner at the least period with which they fit into memory.

    Raises
    ------
    InputError
        If it cannot do the problem, or that asks for more than whole operations.
    """
    _report(name, name, problem, run, report_stages)


def run_eager(name: str, problem: Problem, run: Run) -> None:
    """Report the stages of a partitioner under 1F1B, if they fit.

    Raises
    ------
    InputError
        As for `run_star`, and if transfers at several cuts meet on a link.
    """
    _report(name, f"{name}_1f1b", problem, run, report_eager)


def _report(
    name: str,
    solver: str,
    problem: Problem,
    run: Run,
    report: Callable[[Problem, Sequence[Stage], Run], None],
) -> None:
    refuse_unsupported(problem, solver)
    refuse_stages(problem, solver)
    try:
        stages = load_partitioner(name)(problem)
    except NoPartition as error:
        run.leave_out(error.rule)
        return
    report(problem, stages, run)
