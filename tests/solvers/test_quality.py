"""The local search is as good as it was: ratios to the best periods known, after fixed work.

A limit of work gives the same plans on each machine, so that these gates do not depend on its load.
A search that becomes better lowers them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import cycle
from pathlib import Path
from statistics import geometric_mean

import pytest

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds import load_bound, lower_bounds
from schedopt.result import best_bound
from schedopt.solving.local_search.search import LocalSearch
from schedopt.solving.local_search.starts import fixed_patterns
from schedopt.solving.run import Run

ROOT = Path(__file__).parents[2]
PLACEMENTS = 30_000


@cache
def best_known() -> tuple[tuple[Problem, Fraction], ...]:
    """Return each measured chain on its platforms, with the best period that anybody found."""
    document = json.loads((ROOT / "results" / "bks.json").read_text())
    scope = Scope(**document["scope"])
    return tuple(
        (
            Problem(
                chain=Chain.load(path),
                platform=Platform(
                    instance["gpus"],
                    instance["memory_bytes"],
                    bandwidth=instance["bandwidth_bytes_per_s"],
                ),
                scope=scope,
            ),
            Fraction(*instance["plan"]["period_exact"]),
        )
        for instance in document["instances"]
        if instance.get("plan")
        and (path := ROOT / "instances" / f"{instance['chain']}.json").exists()
    )


def searched(problem: Problem, placements: int = PLACEMENTS, seed: int = 0) -> Fraction:
    """Return the best period of the search alone for k = 1, from contiguous plans and its own.

    A bound ends it early where it is reached, and changes nothing else: the quickest one will do.
    """
    problem = replace(problem, scope=replace(problem.scope, max_k=1))
    run = Run(problem, seed=seed, work_limit=placements)
    run.add_bound(load_bound(problem))
    run.begin("general")
    starts = cycle([*fixed_patterns(problem), None])
    for plan in LocalSearch(problem, run, 1).rounds(lambda _number: next(starts)):
        run.report(plan)
    period = run.period()
    assert period is not None
    return period


def mean_ratio(placements: int = PLACEMENTS, seed: int = 0) -> float:
    """Return the mean ratio to the best known period."""
    return geometric_mean(
        float(searched(problem, placements, seed) / best) for problem, best in best_known()
    )


def test_the_search_is_within_4_percent_of_the_best_known() -> None:
    assert len(best_known()) == 90
    assert mean_ratio() <= 1.04


@pytest.mark.nightly
def test_a_search_of_a_third_of_the_work_would_be_noticed() -> None:
    assert mean_ratio(PLACEMENTS // 3) > 1.04


@pytest.mark.nightly
@pytest.mark.parametrize(("placements", "most"), [(30_000, 1.04), (100_000, 1.026)])
@pytest.mark.parametrize("seed", range(1, 4))
def test_other_seeds_do_as_well(placements: int, most: float, seed: int) -> None:
    assert mean_ratio(placements, seed) <= most


def with_recompute() -> Iterator[tuple[Problem, Fraction]]:
    """Yield each third problem with recompute allowed, and the best period known without."""
    for problem, best in best_known()[::3]:
        yield replace(problem, scope=replace(problem.scope, recompute=True, memory="peak")), best


def recompute_ratio(placements: int = PLACEMENTS) -> float:
    """Return the mean ratio to the best known period without recompute."""
    return geometric_mean(
        float(searched(problem, placements) / best) for problem, best in with_recompute()
    )


def test_with_recompute_the_search_takes_two_fifths_of_the_best_known_without() -> None:
    assert recompute_ratio() <= 0.395


@pytest.mark.nightly
def test_with_recompute_a_third_of_the_work_would_be_noticed() -> None:
    assert recompute_ratio(PLACEMENTS // 3) > 0.395


@pytest.mark.nightly
def test_with_recompute_the_search_is_close_to_what_is_proven() -> None:
    ratios = []
    for problem, _ in with_recompute():
        bound = best_bound([*lower_bounds(problem)], problem.scope)
        assert bound is not None
        ratios.append(float(searched(problem) / bound))
    assert geometric_mean(ratios) <= 1.27
