from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.engine import ENGINES, Engine
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.descent import NEVER, Moves, find_better, kick
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.order import ROUNDS, EngineOrder
from tests.budgets import trials
from tests.layers import layer


def transformer(count: int, most: int, seed: int) -> Chain:
    """Return a chain of transformer layers of which each takes up to so many times as long."""
    names = ["embed", *(f"layers.{n}" for n in range(count)), "head"]
    times = np.random.default_rng(seed).integers(1, most, len(names), endpoint=True).tolist()
    each = [layer(n, 2 * n, 1, weight=4, sent=n) for n in times]
    return Chain(
        layers=tuple(replace(one, name=name) for name, one in zip(names, each, strict=True))
    )


def cuts_of(
    engine: Engine, ranks: int, chunks: int, layers: int = 5, most: int = 1, seed: int = 0
) -> EngineCuts:
    scope = Scope(allocation="general", max_k=None, engine=engine, microbatches=2 * ranks)
    platform = Platform(gpus=ranks, memory=10**6, bandwidth=10**9)
    problem = Problem(chain=transformer(layers, most, seed), platform=platform, scope=scope)
    return EngineCuts(problem, Grid(ranks=ranks, chunks=chunks))


@trials(100)
@given(
    ranks=st.integers(1, 4),
    chunks=st.integers(1, 3),
    rounds=st.integers(1, 3),
    updates=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_many_steps_at_once_are_those_of_each(
    ranks: int, chunks: int, rounds: int, updates: bool, seed: int
) -> None:
    chunks = chunks if ranks > 1 else 1
    order = EngineOrder(ranks, chunks, rounds * ranks, updates=updates)
    kinds = (3 if updates else 2) * order.parts
    times = np.random.default_rng(seed).integers(0, 9, (6, kinds + 2 * order.parts))
    each = [order.makespan(row[:kinds], row[kinds:]) for row in times]
    assert order.makespans(times, NEVER).tolist() == each
    limit = sorted(each)[3]
    for found, step in zip(order.makespans(times, limit).tolist(), each, strict=True):
        assert found == step if step < limit else found >= limit


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (4, 1), (4, 2)])
def test_an_estimate_of_equal_stages_is_their_step(ranks: int, chunks: int) -> None:
    order = EngineOrder(ranks, chunks, 9 * ranks, updates=True)
    assert order.count > (ROUNDS + 1) * ranks
    lengths = np.repeat([3, 5, 7], order.parts)
    sent = np.ones(2 * order.parts, dtype=np.int64)
    assert order.estimate(lengths, sent) == order.makespan(lengths, sent)


@pytest.mark.parametrize("engine", ENGINES)
def test_neighbours_are_all_cuts_with_one_place_moved(engine: Engine) -> None:
    cuts = cuts_of(engine, 3, 1)
    begins = cuts.balanced()

    def sizes(cut: tuple[int, ...]) -> list[int]:
        places = [cuts.places.index(begin) for begin in cut]
        return np.diff(places, append=len(cuts.places)).tolist()

    own = sizes(begins)
    expected = set()
    for more in range(3):
        for less in range(3):
            moved = [n + (i == more) - (i == less) for i, n in enumerate(own)]
            least = [cuts.least_places(number) for number in range(3)]
            if more != less and all(n >= few for n, few in zip(moved, least, strict=True)):
                expected.add(tuple(moved))
    found = [tuple(sizes(tuple(row))) for row in Moves.of(cuts, begins).begins.tolist()]
    assert sorted(found) == sorted(expected)


@trials(30)
@given(
    engine=st.sampled_from(ENGINES),
    shape=st.sampled_from([(2, 2), (4, 2), (5, 1), (3, 1)]),
    seed=st.integers(0, 10**6),
)
def test_the_shortest_neighbour_is_found_if_only_that_is_short_enough(
    engine: Engine, shape: tuple[int, int], seed: int
) -> None:
    ranks, chunks = shape
    cuts = cuts_of(engine, ranks, 1 if engine == "deepspeed" else chunks, 11, 9, seed)
    here = kick(cuts, cuts.balanced(), np.random.default_rng(seed))
    moves = Moves.of(cuts, here)
    others = [tuple(row) for row in moves.begins.tolist()]
    path = cuts.order.critical_path(*cuts.times(here))
    assert moves.lengths(path).tolist() == (cuts.times_of(others) @ path.counts).tolist()
    shortest = min(map(cuts.schedule_bound, others))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("schedopt.solving.engines.descent.AT_ONCE", 3)
        assert find_better(cuts, here, shortest) is None
        found = find_better(cuts, here, shortest + 1)
    assert found is not None
    assert found[1] in others
    assert found[0] == cuts.schedule_bound(found[1]) == shortest


def test_no_more_neighbours_are_looked_at_once_it_is_stopped() -> None:
    cuts = cuts_of("megatron", 2, 2)
    here = kick(cuts, cuts.balanced(), np.random.default_rng(1))
    length = cuts.schedule_bound(here)
    assert find_better(cuts, here, length) is not None
    assert find_better(cuts, here, length, lambda: True) is None
