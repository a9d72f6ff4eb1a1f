"""The local search is as good as it was: ratios to the best periods known, after fixed work.

A limit of work gives the same plans on each machine, so that these gates do not depend on its load.
A search that becomes better lowers them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import cycle
from pathlib import Path
from statistics import geometric_mean

import pytest

from schedopt import Chain, Platform, Problem, Scope, solve
from schedopt.bounds import load_bound, lower_bounds
from schedopt.result import best_bound
from schedopt.solving.local_search.search import LocalSearch
from schedopt.solving.local_search.starts import fixed_patterns
from schedopt.solving.run import Run
from tests.layers import layer

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


def searched(problem: Problem, placements: int = PLACEMENTS, seed: int = 0) -> Fraction | None:
    """Return the best period of the search alone for k = 1, from fixed patterns and its own plans.

    A bound ends it early where it is reached, and changes nothing else: the quickest one will do.
    """
    problem = replace(problem, scope=replace(problem.scope, max_k=1))
    run = Run(problem, seed=seed, work_limit=placements)
    run.add_bound(load_bound(problem))
    run.begin("general")
    starts = cycle([*fixed_patterns(problem)] or [None])
    for plan in LocalSearch(problem, run, 1).rounds(lambda _number: next(starts)):
        run.report(plan)
    return run.period()


def ratios(
    problems: Iterable[tuple[Problem, Fraction]], placements: int = PLACEMENTS, seed: int = 0
) -> list[float]:
    """Return the ratio to the period of each problem that a plan is found for."""
    periods = ((searched(problem, placements, seed), best) for problem, best in problems)
    return [float(period / best) for period, best in periods if period is not None]


def test_the_search_is_within_3_percent_of_the_best_known() -> None:
    found = ratios(best_known())
    assert len(found) == len(best_known()) == 90
    assert geometric_mean(found) <= 1.03


@pytest.mark.nightly
def test_a_search_of_a_third_of_the_work_would_be_noticed() -> None:
    assert geometric_mean(ratios(best_known(), PLACEMENTS // 3)) > 1.03


@pytest.mark.nightly
@pytest.mark.parametrize(("placements", "most"), [(30_000, 1.03), (100_000, 1.026)])
def test_other_seeds_do_as_well(placements: int, most: float) -> None:
    """In the mean over three: a single one may be a few thousandths above.

    With the least memory a seed may find nothing on a problem; `solve` has the exact plan there.
    """
    of_seeds = [ratios(best_known(), placements, seed) for seed in range(1, 4)]
    assert min(map(len, of_seeds)) >= 89
    assert geometric_mean(geometric_mean(found) for found in of_seeds) <= most


def with_recompute() -> list[tuple[Problem, Fraction]]:
    """Return each third problem with recompute allowed, and the best period known without."""
    return [
        (replace(problem, scope=replace(problem.scope, recompute=True, memory="peak")), best)
        for problem, best in best_known()[::3]
    ]


def recompute_ratio(placements: int = PLACEMENTS) -> float:
    """Return the mean ratio to the best known period without recompute."""
    found = ratios(with_recompute(), placements)
    assert len(found) == 30
    return geometric_mean(found)


def test_with_recompute_the_search_takes_two_fifths_of_the_best_known_without() -> None:
    assert recompute_ratio() <= 0.395


@pytest.mark.nightly
def test_with_recompute_a_third_of_the_work_would_be_noticed() -> None:
    assert recompute_ratio(PLACEMENTS // 3) > 0.395


@pytest.mark.nightly
def test_with_recompute_the_search_is_close_to_what_is_proven() -> None:
    bounded = []
    for problem, _ in with_recompute():
        bound = best_bound([*lower_bounds(problem)], problem.scope)
        assert bound is not None
        bounded.append((problem, bound))
    found = ratios(bounded)
    assert len(found) == len(bounded)
    assert geometric_mean(found) <= 1.27


@pytest.mark.parametrize(
    ("layers", "gpus", "memory", "bandwidth"),
    [
        ([(9, 5, 7, 0, 5), (9, 0, 4, 3, 4), (3, 7, 9, 3, 1), (9, 9, 6, 5, 1)], 3, 17, None),
        ([(1, 2, 4, 1, 4), (1, 3, 2, 2, 2), (7, 4, 4, 1, 4), (6, 3, 6, 4, 6)], 2, 15, 10**9),
    ],
)
def test_of_few_layers_no_plan_of_the_sum_is_missed_for_the_peak(
    layers: list[tuple[int, ...]], gpus: int, memory: int, bandwidth: int | None
) -> None:
    chain = Chain(
        layers=tuple(layer(*each, weight=weight, sent=sent) for *each, weight, sent in layers)
    )
    platform = Platform(gpus, memory, bandwidth=bandwidth)
    recompute = bandwidth is not None
    in_sum, in_peak = (
        solve(
            chain,
            platform,
            scope=Scope(allocation="general", recompute=recompute, memory=reading),
            solver="general",
            work_limit=10_000,
            workers=1,
        ).period
        for reading in ("sum", "peak")
    )
    assert in_sum is not None
    assert in_peak is not None
    assert in_peak <= in_sum
