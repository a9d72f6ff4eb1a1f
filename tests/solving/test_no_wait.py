"""Packings in which nothing waits, against what is counted and timed step by step."""

from __future__ import annotations

from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope, solve
from schedopt.platform import Gpu
from schedopt.solving import Run
from schedopt.solving.local_search import no_wait
from schedopt.solving.local_search import search as search_module
from schedopt.solving.local_search.annealing import Schedule
from schedopt.solving.local_search.no_wait import can_pack, pack_layers
from schedopt.solving.local_search.params import LocalSearchParams
from schedopt.solving.local_search.search import LocalSearch
from schedopt.solving.local_search.state import Workspace
from schedopt.solving.local_search.tables import Tables, make_tables
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.test_general import GENERAL, UNIT
from tests.strategies import chains

PERIODS = st.integers(9, 40)


def tables_of(chain: Chain, gpus: int = 2, memory: int = 100) -> Tables:
    scope = Scope.usual()
    return make_tables(Problem(chain=chain, platform=Platform(gpus, memory), scope=scope))


@trials(400, by_day=40)
@given(chains(), PERIODS)
def test_a_layer_never_does_two_things_at_once(chain: Chain, period: int) -> None:
    tables = tables_of(chain)
    length = np.diff(tables.time[0, :2])
    start = no_wait._times(period, length, tables.sending[0, :-1])
    for number in range(len(chain.layers)):
        (forward, backward), (long, back) = start[:, number], length[:, number]
        if long + back <= period:
            busy = [*range(forward, forward + long), *range(backward, backward + back)]
            assert len({moment % period for moment in busy}) == long + back
    assert (start[1] >= start[0] + length[0]).all()
    assert (np.diff(start[0]) >= length[0, :-1]).all()
    assert (-np.diff(start[1]) >= length[1, 1:]).all()


@trials(400, by_day=40)
@given(chains(), PERIODS)
def test_bytes_and_overlaps_are_those_of_each_moment(chain: Chain, period: int) -> None:
    tables = tables_of(chain)
    length, cuts = np.diff(tables.time[0, :2]), np.ones(len(chain.layers) - 1, dtype=bool)
    start = no_wait._times(period, length, tables.sending[0, :-1])
    held = no_wait._held(tables, period, cuts, start, length)
    overlaps = no_wait._overlaps(start, length, period)
    layers = range(len(chain.layers))
    for row, (operation, other) in enumerate(product(range(2), layers)):
        now = start[operation, other]
        for number, one in enumerate(chain.layers):
            first, end = start[0, number], start[1, number] + length[1, number]
            lying = sum(first <= now + turn * period < end for turn in range(-99, 100))
            saved = one.saved + (one.saved_input_bytes or 0)
            own = (one.workspace_bytes or 0) if number == other else 0
            assert held[row, number] == one.weight_bytes + lying * saved + own
    for one_layer, other in product(layers, repeat=2):
        both = sum(
            (now - start[a, one_layer]) % period < length[a, one_layer]
            and (now - start[b, other]) % period < length[b, other]
            for now, a, b in product(range(period), range(2), range(2))
        )
        if length.max() <= period and one_layer != other:
            assert overlaps[one_layer, other] == both


def test_layers_that_fit_without_waiting_are_packed() -> None:
    # Six layers, two of which fill a GPU at any time: 90 = 2 * (30 + 15), each held at most once.
    chain = Chain(layers=tuple(layer(1, 1, 15, weight=30) for _ in range(6)))
    tables = tables_of(chain, gpus=3, memory=90)
    stages = pack_layers(tables, 12, 2000, np.random.default_rng(0))
    layers = [sum(s.last - s.first + 1 for s in stages if s.gpus == (gpu,)) for gpu in range(3)]
    assert layers == [2, 2, 2]


def test_layers_that_must_share_a_gpu_do() -> None:
    chain = Chain(layers=tuple(layer(1, 1) for _ in range(5)), same_gpu=((0, 4),))
    for seed in range(5):
        stages = pack_layers(tables_of(chain, gpus=4), 9, 50, np.random.default_rng(seed))
        assert stages[0].gpus == stages[-1].gpus


@pytest.mark.parametrize("speed", ["1", "2"])
def test_times_on_gpus_of_two_speeds_are_not_given(speed: str) -> None:
    chain = Chain(layers=(layer(2, 2), layer(2, 2)))
    platform = Platform([Gpu(memory_bytes=9), Gpu(memory_bytes=9, speed=Decimal(speed))])
    assert can_pack(make_tables(Problem(chain=chain, platform=platform))) == (speed == "1")


def test_packings_are_tried_and_then_left_where_they_find_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 60), platform=Platform(4, 10**6), scope=GENERAL)
    run, params = Run(problem, work_limit=80_000), LocalSearchParams(placements=800)
    kinds: list[str] = []

    def note(*_: Any) -> int:
        kinds.append("packings")
        return 800

    def find(tables: Tables, work: Workspace, draw: Any, plan: Schedule, stop: Any) -> int:
        if plan.hot == params.hot:
            kinds.append("starts")
            work.found[0] = 1
        return 800

    monkeypatch.setattr(search_module, "anneal_packings", note)
    monkeypatch.setattr(search_module, "anneal", find)
    monkeypatch.setattr(LocalSearch, "_keep", lambda *_: None)
    assert not list(LocalSearch(problem, run, 1, params).rounds(lambda _: None))
    assert kinds[:2] == ["starts", "packings"]
    assert 0 < kinds.count("packings") < kinds.count("starts") / 4


def test_no_packings_are_tried_where_gpus_work_most_of_the_period() -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 4), platform=Platform(2, 10**6), scope=GENERAL)
    run = Run(problem)
    search = LocalSearch(problem, run, 1)
    assert search._draw_packs(1)
    run.begin("even_split")
    even = solve(problem.chain, problem.platform, solver="even_split").plan
    assert even is not None
    run.report(even)
    assert not search._draw_packs(1)
