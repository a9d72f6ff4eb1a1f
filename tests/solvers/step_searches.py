"""Bounds and searches of training steps, as tests ask for them."""

from __future__ import annotations

from schedopt import Problem, Result
from schedopt.solving.replicas.arrays import StepData
from schedopt.solving.replicas.candidates import Candidates
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.stages import read_step, with_halves
from schedopt.solving.replicas.step_bound import least_makespan
from schedopt.solving.run import Run
from tests.solvers.asking import ask


def train(problem: Problem) -> Result:
    """Solve; what is found is valid, and not below any bound of its scope."""
    count = problem.scope.microbatches
    result = ask(problem.chain, problem.platform, batch=count, scope=problem.scope)
    assert all(bound.period <= (result.period or bound.period) for bound in result.bounds)
    return result


def step_data(problem: Problem) -> StepData:
    step = read_step(problem)
    assert step is not None
    return step


def bound_of(problem: Problem) -> int:
    return least_makespan(with_halves(step_data(problem)), Run(problem))


def searched(problem: Problem) -> Candidates:
    """Return what a search finds."""
    search = StepSearch(step_data(problem), Run(problem))
    list(search.improve())
    return search.candidates
