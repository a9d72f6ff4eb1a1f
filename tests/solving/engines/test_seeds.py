from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schedopt.engine import ENGINES, Engine
from schedopt.solving.engines.descent import nearest
from schedopt.solving.engines.grid import ALL, Grid
from schedopt.solving.engines.seeds import best_of, start_from
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.solving.engines.test_descent import cuts_of


@trials(200)
@given(st.data(), st.sampled_from(ENGINES), st.integers(1, 3), st.integers(1, 2))
def test_the_nearest_cut_is_one(
    data: st.DataObject, engine: Engine, ranks: int, chunks: int
) -> None:
    cuts = cuts_of(engine, ranks, chunks)
    inner = data.draw(st.lists(st.integers(0, 8), min_size=cuts.parts - 1, max_size=cuts.parts - 1))
    begins = nearest(cuts, (0, *sorted(inner)))
    at = [*map(cuts.places.index, begins), len(cuts.places)]
    sizes = [end - begin for begin, end in pairwise(at)]
    assert begins[0] == 0
    assert all(size >= cuts.least_places(number) for number, size in enumerate(sizes))
    assert nearest(cuts, begins) == begins


def test_an_engine_begins_from_the_best_cut_of_another() -> None:
    first = EngineShape(cuts_of("megatron", 2, 1, 8))
    first.descend(first.balanced, lambda: False)
    second = EngineShape(cuts_of("torch", 2, 1, 8))
    elsewhere = EngineShape(cuts_of("torch", 3, 1, 8))
    run = Run(second.cuts.problem)
    assert not best_of([second, elsewhere])
    start_from([first], [second, elsewhere], run)
    assert best_of([second, elsewhere]) == [second]
    assert second.known_ns <= first.known_ns


def test_where_an_engine_recomputes_other_layers_the_rest_of_the_grid_counts() -> None:
    first = EngineShape(cuts_of("megatron", 2, 1, 8))
    first.cuts.grid = Grid(ranks=2, chunks=1, recomputed=1)
    first.descend(first.balanced, lambda: False)
    none, every = EngineShape(cuts_of("torch", 2, 1, 8)), EngineShape(cuts_of("torch", 2, 1, 8))
    every.cuts.grid = Grid(ranks=2, chunks=1, recomputed=ALL)
    start_from([first], [none, every], Run(none.cuts.problem))
    assert none.is_improved
    assert every.is_improved
