"""Cuts of any layers as paths through a graph, against all cuts of small chains."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.engine import Engine
from schedopt.solving.engines.cuts import EngineCuts, FirstLayers
from schedopt.solving.engines.graph import EngineGraph
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.mixture import CutMixture, Support
from schedopt.solving.engines.shape import EngineShape, are_alike, runs_of
from schedopt.solving.engines.spans import Cut, StageSpans, groups_of
from tests.budgets import trials
from tests.solvers.test_engine_grids import steps
from tests.solving.engines.test_tree import drawn_cuts, every_cut, shortest

TURNS = 1000
"""More than the cuts of a small chain take."""
BRANCHES = 5
"""Of a grid with one stage a GPU of BERT-large; the first one is enough."""
INSTANCES = Path(__file__).parents[3] / "instances"


def graph_of(cuts: EngineCuts) -> EngineGraph:
    """Return a graph that knows the longest path of a balanced cut."""
    return EngineGraph(cuts, [cuts.order.critical_path(*cuts.times(cuts.balanced()))])


def as_places(cuts: EngineCuts, begins: FirstLayers) -> Cut:
    """Return a cut by places, not layers."""
    return tuple(bisect_left(cuts.places, begin) for begin in begins)


@trials(1000, by_day=40)
@given(steps(), st.data())
def test_parted_to_the_end_the_bound_is_that_of_the_best_cut(
    problem: Problem, data: st.DataObject
) -> None:
    """Whatever layers take, hold and recompute, and with a limit or without one."""
    cuts, _ = drawn_cuts(problem, data)
    best = shortest(cuts)
    limit = data.draw(st.sampled_from([None, 10**6])) if best is None else best + 1
    graph, turns, seen = graph_of(cuts), 0, []
    while graph.grows_below(limit) and turns < TURNS:
        for begins in graph.grow(limit, lambda: False):
            assert len(begins) == cuts.parts
            seen.append(begins)
        assert graph.low is None or best is None or graph.low <= best
        turns += 1
    assert turns < TURNS
    assert graph.low == (limit if best is None else best)
    if best is not None:
        assert best in {cuts.schedule_bound(begins) for begins in seen if cuts.may_fit(begins)}


@trials(1000, by_day=30)
@given(steps(), st.data())
def test_only_what_is_below_the_limit_is_parted(problem: Problem, data: st.DataObject) -> None:
    cuts, _ = drawn_cuts(problem, data)
    best = shortest(cuts)
    assume(best is not None)
    assert best is not None
    graph, limit = graph_of(cuts), data.draw(st.integers(1, best))
    turns = 0
    while graph.grows_below(limit) and turns < TURNS:
        for _ in graph.grow(limit, lambda: False):
            pass
        turns += 1
    assert turns < TURNS
    assert graph.low == limit
    # A limit may rise again: then it begins again.
    while graph.grows_below(best + 1):
        for _ in graph.grow(best + 1, lambda: False):
            pass
    assert graph.low == best


@trials(1000, by_day=30)
@given(steps(), st.data())
def test_edges_add_up_to_what_a_cut_takes(problem: Problem, data: st.DataObject) -> None:
    """And no span is left out that a cut which may fit has."""
    cuts, _ = drawn_cuts(problem, data)
    spans = StageSpans(cuts)
    for begins in every_cut(cuts):
        lengths, sent = cuts.times(begins)
        counts = spans.padded(cuts.order.critical_path(lengths, sent).counts)
        cut = as_places(cuts, begins)
        assert spans.first_layers(cut) == begins
        costs = spans.costs(counts)
        ends = (*cut[1:], len(cuts.places))
        added = sum(int(costs[n, i, j]) for n, (i, j) in enumerate(zip(cut, ends, strict=True)))
        assert added == counts @ spans.values(cut) == cuts.order.makespan(lengths, sent)
        if cuts.may_fit(begins):
            assert spans.contain(spans.allowed, np.array([cut])).all()
            edges = spans.allowed.copy()
            assert spans.trim(edges)
            assert spans.contain(edges, np.array([cut])).all()
            assert spans.through(edges, costs)[range(cuts.parts), cut, ends].max() <= added


@trials(300, by_day=20)
@given(steps(), st.data())
def test_the_best_mixture_is_no_longer_than_any_cut(problem: Problem, data: st.DataObject) -> None:
    cuts, _ = drawn_cuts(problem, data)
    every = [*every_cut(cuts)]
    assume(every)
    paths = [cuts.order.critical_path(*cuts.times(begins)) for begins in every]
    mixture = CutMixture(len(paths[0].counts), unit_ns=10, scale=1 << 20)
    mixture.begin(Support(), np.zeros(0, dtype=np.bool_), [])
    for path in paths:
        mixture.add_path(path, np.array(path.counts))
    for begins in every:
        mixture.add_cut(as_places(cuts, begins), np.concatenate(cuts.times(begins)))
    assert mixture.solve()
    mixed = max(int(np.array(path.counts) @ mixture.values()) for path in paths)
    # Times of the mixture are rounded to whole ns, each of which a path may have many times.
    assert mixed <= min(map(cuts.schedule_bound, every)) + max(sum(p.counts) for p in paths)
    counts, total, got = mixture.weighted()
    assert got == 0
    least = min(int(counts @ np.concatenate(cuts.times(begins))) for begins in every)
    assert least / total <= min(map(cuts.schedule_bound, every))


@trials(500, by_day=30)
@given(steps(), st.data())
def test_a_cut_that_fits_is_within_the_limits_of_ranks(
    problem: Problem, data: st.DataObject
) -> None:
    cuts, _ = drawn_cuts(problem, data)
    graph = graph_of(cuts)
    limits = graph.limits()
    assert bool(limits) == (cuts.chunks > 1)
    for begins in filter(cuts.may_fit, every_cut(cuts)):
        values = graph.spans.values(as_places(cuts, begins))
        for counts, most, _ in limits:
            assert 0 <= counts @ values <= most


def test_attention_and_the_rest_of_layers_are_counted_apart() -> None:
    """So that a rank has a whole number of each, of which one takes three times the other."""
    chain = Chain.load(INSTANCES / "llama-8b.json")
    scope = Scope(allocation="general", max_k=None, memory="peak", engine="torch", microbatches=32)
    problem = Problem(chain=chain, platform=Platform(8, 80 * 10**9), scope=scope)
    cuts = EngineCuts(problem, Grid(ranks=8, chunks=2))
    rest, attention, others = groups_of(cuts)
    assert rest[2:-2:2].all()
    assert attention[1:-2:2].all()
    assert [rest.sum(), attention.sum(), others.sum()] == [32, 32, 3]
    assert len(graph_of(cuts).limits()) >= 3 * cuts.ranks


@pytest.mark.parametrize("engine", ["deepspeed", "megatron"])
def test_one_stage_a_gpu_of_a_measured_chain_is_proven_after_few_branches(engine: Engine) -> None:
    chain = Chain.load(INSTANCES / "bert-large.json")
    platform = Platform(8, 80 * 10**9, bandwidth=12 * 10**9, duplex="full")
    scope = Scope(allocation="general", max_k=None, memory="peak", engine=engine, microbatches=32)
    problem = Problem(chain=chain, platform=platform, scope=scope)
    cuts = EngineCuts(problem, Grid(ranks=8, chunks=1))
    shape = EngineShape(cuts)
    shape.descend(shape.balanced, lambda: False)
    for _ in range(BRANCHES):
        if shape.low < shape.known_ns:
            assert [*shape.grow(shape.known_ns, lambda: False)]
    assert shape.low == shape.known_ns == cuts.schedule_bound(shape.best[1])


def test_layers_are_counted_only_if_little_is_lost_by_it() -> None:
    chain = Chain.load(INSTANCES / "bert-large.json")
    found = {}
    for engine in ("torch", "megatron"):
        scope = Scope(
            allocation="general", max_k=None, memory="peak", engine=engine, microbatches=32
        )
        problem = Problem(chain=chain, platform=Platform(8, 80 * 10**9), scope=scope)
        cuts = EngineCuts(problem, Grid(ranks=8, chunks=2))
        found[engine] = are_alike(cuts, runs_of(cuts))
    # Attention takes two thirds of the time of what follows it; whole layers differ by a percent.
    assert found == {"torch": False, "megatron": True}
