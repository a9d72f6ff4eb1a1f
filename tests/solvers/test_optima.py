"""Solvers that claim the optimum find it: 400 small problems solved before by brute force."""

from __future__ import annotations

import random

import pytest

from schedopt import Problem, check, solve
from schedopt.bounds import lower_bounds
from tests.budgets import PROFILE
from tests.optima import COUNTS, load, make

SOLVERS: dict[str, tuple[str | None, ...]] = {
    "programme": ("contiguous", "contiguous_cpsat", None),
    "recompute": ("contiguous", "contiguous_cpsat", None),
    "contiguous": ("contiguous_cpsat", None),
    "general": ("general_cpsat", None),
    "fixed": ("periodic", None),
}
"""Of each group those that claim the optimum; None is what `solve` chooses."""


@pytest.mark.parametrize(
    ("group", "solver"), [(group, name) for group, names in SOLVERS.items() for name in names]
)
def test_the_optimum_is_found_and_proven(group: str, solver: str | None) -> None:
    # By day each second problem is for one solver of its group.
    turn, of = SOLVERS[group].index(solver), 1 if PROFILE == "nightly" else 2 * len(SOLVERS[group])
    for golden in load(group)[turn % of :: of]:
        result = solve(
            golden.chain,
            golden.platform,
            scope=golden.scope,
            stages=golden.stages,
            solver=solver,
            time_limit=60,
        )
        assert check(result) == (), golden
        assert result.period == golden.optimum, golden
        assert result.status == ("infeasible" if golden.optimum is None else "optimal"), golden
        bound = result.lower_bound
        assert bound is None or golden.optimum is None or bound <= golden.optimum, golden


@pytest.mark.parametrize("group", SOLVERS)
def test_no_bound_is_above_the_optimum(group: str) -> None:
    for golden in load(group):
        problem = Problem(
            chain=golden.chain,
            platform=golden.platform,
            scope=golden.scope,
            stages=golden.stages,
        )
        for bound in lower_bounds(problem):
            assert bound.scope.covers(golden.scope)
            assert golden.optimum is None or bound.period <= golden.optimum, golden


def test_the_problems_are_many_and_of_both_kinds() -> None:
    for group, count in COUNTS.items():
        optima = [golden.optimum for golden in load(group)]
        assert len(optima) == count
        assert 0.1 * count <= optima.count(None) <= 0.5 * count, group
        assert len(set(optima)) >= 10, group


@pytest.mark.parametrize("group", COUNTS)
def test_the_file_holds_the_problems_that_are_made(group: str) -> None:
    made = [make(group, number) for number in range(COUNTS[group])]
    assert [(one.chain, one.platform, one.scope, one.stages) for one in made] == [
        (one.chain, one.platform, one.scope, one.stages) for one in load(group)
    ]


@pytest.mark.parametrize("group", COUNTS)
def test_brute_force_says_the_same_of_some(group: str) -> None:
    for golden in random.Random(0).sample(load(group), 3):
        assert golden.solve_by_brute_force() == golden.optimum, golden


@pytest.mark.nightly
@pytest.mark.parametrize("group", COUNTS)
def test_brute_force_says_the_same_of_all_and_of_new_ones(group: str) -> None:
    for golden in load(group):
        assert golden.solve_by_brute_force() == golden.optimum, golden
    for number in random.sample(range(10**6, 10**9), 10):
        golden = make(group, number)
        result = solve(
            golden.chain, golden.platform, scope=golden.scope, stages=golden.stages, time_limit=60
        )
        assert result.period == golden.solve_by_brute_force(), (number, golden)
