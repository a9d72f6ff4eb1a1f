"""Branch and bound over cuts, against all cuts of small chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.engine import stage_begins
from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
from schedopt.solving.engines.grid import Grid, grids_of
from schedopt.solving.engines.shape import runs_of
from schedopt.solving.engines.table import make_table
from schedopt.solving.engines.tree import EngineTree
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.test_engine_grids import steps

TURNS = 1000
"""More than the cuts of a small chain take."""


def every_cut(cuts: EngineCuts) -> Iterator[FirstLayers]:
    """Yield all cuts whose stages have enough layers, whether they fit or not."""
    for inner in combinations_with_replacement(range(1, len(cuts.places)), cuts.parts - 1):
        sizes = [end - begin for begin, end in pairwise((0, *inner, len(cuts.places)))]
        if all(size >= cuts.least_places(number) for number, size in enumerate(sizes)):
            yield tuple(cuts.places[place] for place in (0, *inner))


def shortest(cuts: EngineCuts) -> int | None:
    """Return the least bound of all cuts that may fit, ns."""
    return min(map(cuts.schedule_bound, filter(cuts.may_fit, every_cut(cuts))), default=None)


def drawn_cuts(problem: Problem, data: st.DataObject) -> tuple[EngineCuts, list[range]]:
    """Draw a grid, and how its places are counted."""
    assert problem.scope.engine is not None
    places = len(stage_begins(problem.chain, problem.scope.engine))
    grids = [grid for grid in grids_of(problem, places) if grid.ranks > 1]
    assume(grids)
    cuts = EngineCuts(problem, data.draw(st.sampled_from(grids)))
    runs = runs_of(cuts)
    assume(runs)
    if data.draw(st.booleans()):
        runs = [runs[0], range(runs[1].start, runs[-2].stop), runs[-1]]
    return cuts, runs


def tree_of(
    cuts: EngineCuts, runs: list[range], most: int | None, data: st.DataObject
) -> EngineTree:
    """Return a tree for steps below a limit, with a table of what ranks may have if it reaches."""
    alike = most is not None and len(set(cuts.gpus)) == 1
    table = make_table(cuts) if alike and data.draw(st.booleans()) else None
    reaches = table is not None and most is not None and most <= table.reach_ns
    return EngineTree(cuts, runs, [], table if reaches else None)


@trials(1000, by_day=15)
@given(steps(), st.data())
def test_parted_to_the_end_the_bound_is_that_of_the_best_cut(
    problem: Problem, data: st.DataObject
) -> None:
    """Also where layers differ, some are recomputed, and a run stands for different places."""
    cuts, runs = drawn_cuts(problem, data)
    best = shortest(cuts)
    limit = None if best is None else best + 1
    tree = tree_of(cuts, runs, limit, data)
    while tree.grows_below(limit) and (best is None or tree.low is None or tree.low < best):
        for begins in tree.grow(limit, lambda: False):
            assert len(begins) == cuts.parts
        assert tree.low is None or best is None or tree.low <= best
    assert tree.low == best


@trials(1000, by_day=20)
@given(steps(), st.data())
def test_only_what_is_below_the_limit_is_parted(problem: Problem, data: st.DataObject) -> None:
    cuts, runs = drawn_cuts(problem, data)
    best = shortest(cuts)
    assume(best is not None)
    assert best is not None
    tree, limit = tree_of(cuts, runs, best + 1, data), data.draw(st.integers(1, best))
    turns = 0
    while tree.grows_below(limit) and turns < TURNS:
        for _ in tree.grow(limit, lambda: False):
            pass
        turns += 1
    assert turns < TURNS
    assert tree.low is not None
    assert limit <= tree.low <= best
    # A limit may rise again: then what was left is parted.
    while tree.grows_below(best + 1):
        for _ in tree.grow(best + 1, lambda: False):
            pass
    assert tree.low == best


def test_what_ranks_have_room_for_is_in_the_first_bound() -> None:
    """Each stage may recompute one layer, and must where memory is short."""
    names = ("embed", *(f"layers.{number}" for number in range(10)), "head")
    one = layer(10, 20, 4, weight=1, sent=1)
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        recompute=True,
        microbatches=4,
        engine="megatron",
    )
    problem = Problem(
        chain=Chain(layers=tuple(replace(one, name=name) for name in names)),
        platform=Platform(2, 55),
        scope=scope,
    )
    cuts = EngineCuts(problem, Grid(ranks=2, chunks=2, recomputed=1))
    best = shortest(cuts)
    assert best is not None
    lows = []
    for table in (None, make_table(cuts)):
        tree = EngineTree(cuts, runs_of(cuts), [], table)
        for _ in tree.grow(best + 1, lambda: False):
            pass
        lows.append(tree.low)
    without, with_table = lows
    assert without is not None
    assert without < best == with_table
