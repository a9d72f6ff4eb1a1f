"""How many operations and transfers a step has, against plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedopt import Chain, Platform, Problem
from schedopt.problem import training_step, widest_step
from schedopt.solvers import grid_steps
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.replicas import layout
from schedopt.solving.replicas.layout import lay_out
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.run import Run
from tests.examples import layer
from tests.solvers.step_searches import step_data


def step_of(count: int, platform: Platform) -> Problem:
    """Return a step of a few layers, without recompute."""
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=tuple(layer(2 + n, 4, 16, 1, saved_bytes=3, **sizes) for n in range(4)))
    return training_step(chain, platform, count, replace(widest_step(chain), recompute=False))


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("count", [8, 1024])
def test_items_are_counted_as_they_are_laid_out(gpus: int, count: int) -> None:
    """Of grids: operations, and transfers over cuts and of rings."""
    problem = step_of(count, Platform(gpus, 10**6, bandwidth=10**9))
    seen = set()
    for plan in grid_steps.propose(problem):
        stages, pattern = [*plan.stages], plan.pattern
        counted = layout.count_in_parts(
            len(stages), count, len(stages[0].gpus), folded=pattern.fold > 1
        )
        assert 0.9 * counted <= len(pattern.items) <= 1.1 * counted
        seen.add((len(stages), pattern.fold))
    assert len(seen) == (1 if gpus == 1 else 3)
    assert (max(fold for _, fold in seen) > 1) == (gpus == 4 and count == 1024)


def test_items_of_candidates_are_counted_as_they_are_laid_out() -> None:
    COMPILATIONS["replicas"].compile_here()
    problem = step_of(64, Platform(4, 30, bandwidth=4 * 10**9))
    step = step_data(problem)
    search = StepSearch(step, Run(problem, work_limit=2000))
    found = [*search.improve()]
    assert found
    assert all(len(candidate.stages) > 1 for candidate in found)
    for candidate in found:
        plan = lay_out(step, candidate, search.candidates.orders(candidate))
        counted = layout.count_candidate(step, candidate, layout.fold_of(step, candidate))
        assert 0.8 * counted <= len(plan.pattern.items) <= 1.25 * counted
