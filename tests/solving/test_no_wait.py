"""Packings in which nothing waits, against what is counted and timed step by step."""

from __future__ import annotations

from decimal import Decimal
from itertools import combinations, product
from types import SimpleNamespace
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
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.no_wait import Packing, can_pack, pack_layers
from schedopt.solving.local_search.params import LocalSearchParams
from schedopt.solving.local_search.search import LocalSearch
from schedopt.solving.local_search.state import PERIOD, Floats, Workspace
from schedopt.solving.local_search.tables import Ints, Tables, make_tables
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.test_general import GENERAL, UNIT
from tests.strategies import chains

PERIODS = st.integers(9, 40)
BYTE_A_NS = "1GB/s"


def tables_of(
    chain: Chain, gpus: int = 2, memory: int = 100, bandwidth: str | None = None
) -> Tables:
    platform = Platform(gpus, memory, bandwidth=bandwidth)
    return make_tables(Problem(chain=chain, platform=platform, scope=Scope.usual()))


@trials(400, by_day=40)
@given(chains(), PERIODS)
def test_a_layer_never_does_two_things_at_once(chain: Chain, period: int) -> None:
    tables = tables_of(chain, bandwidth=BYTE_A_NS)
    length = np.diff(tables.time[0, :2])
    sent = tables.sending[0, :-1]
    start = no_wait._times(period, length, sent)
    for number in range(len(chain.layers)):
        (forward, backward), (long, back) = start[:, number], length[:, number]
        if long + back <= period:
            busy = [*range(forward, forward + long), *range(backward, backward + back)]
            assert len({moment % period for moment in busy}) == long + back
    assert (start[1] >= start[0] + length[0]).all()
    assert (np.diff(start[0]) >= length[0, :-1] + sent).all()
    assert (-np.diff(start[1]) >= length[1, 1:] + sent).all()


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


def counted(packing: Packing, gpu: Ints) -> tuple[Floats, Floats]:
    """Return the bytes on each GPU at each moment, and the energies of each, from the start."""
    gpus, units = range(len(packing.room)), range(len(gpu))
    used = np.array([packing.held[gpu == one].sum(axis=0) for one in gpus])
    excess = np.maximum(0, used.max(axis=1) / packing.room - 1)
    pairs = [(u, v) for u, v in combinations(units, 2) if gpu[u] == gpu[v]]
    joined = [sum(packing.together[pair] for pair in pairs if gpu[pair[0]] == one) for one in gpus]
    return used, np.column_stack([excess, joined])


@trials(400, by_day=40)
@given(chains(tied=True), PERIODS, st.integers(1, 4), st.integers(0, 99), st.sampled_from([0, 200]))
def test_what_moves_change_is_counted(
    chain: Chain, period: int, gpus: int, seed: int, steps: int
) -> None:
    draw = np.random.default_rng(seed)
    tables = tables_of(chain, gpus, memory=int(draw.integers(1, 30)), bandwidth=BYTE_A_NS)
    unit = no_wait._units(tables)
    cuts = draw.random(len(chain.layers) - 1) < 0.5
    gpu = draw.integers(gpus, size=int(unit.max()) + 1)
    # Cold, where nothing longer is taken, or hot, where all is.
    for hot in (1e-12, 1e9):
        packing = no_wait._make_packing(tables, period, cuts, unit, gpu)
        before = counted(packing, gpu)[1].sum()
        no_wait._pack(lean(packing), steps, hot, hot, draw)
        used, energy = counted(packing, packing.gpu)
        assert packing.used == pytest.approx(used)
        assert packing.energy == pytest.approx(energy, abs=1e-9)
        for one, unit_of in product(range(gpus), range(len(gpu))):
            others = [v for v in np.flatnonzero(packing.gpu == one) if v != unit_of]
            beside = packing.together[unit_of, others].sum()
            assert packing.beside[one, unit_of] == pytest.approx(beside, abs=1e-9)
        best = counted(packing, packing.best)[1].sum()
        assert best <= min(before, energy.sum()) + 1e-9
        if hot < 1:
            assert energy.sum() <= before + 1e-9
        elif steps and gpus > 1 and best + packing.apart > no_wait.ROUNDED:
            packings = 1
            # By chance all units may be back where they were, but not each time.
            while len(gpu) > 1 and (packing.gpu == gpu).all():
                assert packings < 30
                no_wait._pack(lean(packing), steps, hot, hot, draw)
                packings += 1


@trials(400, by_day=40)
@given(chains(), PERIODS, st.integers(1, 4), st.integers(0, 99))
def test_layers_on_two_gpus_send_and_those_on_one_wait(
    chain: Chain, period: int, gpus: int, seed: int
) -> None:
    draw, layers = np.random.default_rng(seed), len(chain.layers)
    tables = tables_of(chain, gpus, bandwidth=BYTE_A_NS)
    gpu = draw.integers(gpus, size=layers)
    cuts = draw.random(layers - 1) < 0.5
    packing = no_wait._make_packing(tables, period, cuts, np.arange(layers), gpu)
    length, sent = np.diff(tables.time[0, :2]), tables.sending[0, :-1]
    overlaps = no_wait._overlaps(no_wait._times(period, length, sent * cuts), length, period)
    waits = sum(overlaps[u, v] for u, v in combinations(range(layers), 2) if gpu[u] == gpu[v])
    # Behind a cut there is time to send.
    sends = 2 * (sent * ~cuts * (gpu[1:] != gpu[:-1])).sum()
    energy = packing.apart + counted(packing, gpu)[1][:, 1].sum()
    assert energy == pytest.approx((waits + sends) / period)


def test_of_a_sum_the_most_of_each_layer_counts() -> None:
    chain = Chain(layers=tuple(layer(1, 2, 5, weight=3) for _ in range(4)))
    held = []
    for reading in ("peak", "sum"):
        scope = Scope.usual(memory=reading)
        tables = make_tables(Problem(chain=chain, platform=Platform(2, 99), scope=scope))
        unit, cuts = np.arange(4), np.ones(3, dtype=bool)
        held.append(no_wait._make_packing(tables, 5, cuts, unit, unit % 2).held)
    assert [one.shape for one in held] == [(4, 8), (4, 1)]
    assert (held[1][:, 0] == held[0].max(axis=1)).all()


@pytest.mark.parametrize(
    ("finds", "low", "most", "stopped", "searches"),
    [
        # What is found begins to count failures anew, and after the last of them it ends.
        ([90, 90, 80, 80, 80, 80, 80, 80, 80, 70], 0, 900, 0, 8),
        # At what nothing is below.
        ([90, 60, 50], 60, 900, 0, 2),
        ([61, 60.9, 50], 60.9, 900, 0, 2),
        # When there were enough placements, and when it is asked to.
        ([90, 80, 70, 60, 50], 0, 32, 0, 2),
        ([90], 0, 900, 1, 0),
    ],
)
def test_each_packing_is_below_what_was_found(
    finds: list[float],
    low: float,
    most: int,
    stopped: int,
    searches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    known = [10**6, *(round(find * 10**4) for find in finds)]
    encoded: list[object] = []
    counts = np.zeros(9, dtype=np.int64)
    counts[PERIOD] = 990_000
    work: Any = SimpleNamespace(state=SimpleNamespace(counts=counts), found=np.array([10**6, 7]))

    def pack(tables: object, target: int, steps: int, draw: object) -> list[tuple[str, int]]:
        asked.append((target, steps))
        return [("packed", target)]

    def find(tables: object, work: Any, draw: object, plan: Schedule, stop: object) -> int:
        assert encoded[-1] == ([("packed", asked[-1][0])], work.state, asked[-1][0])
        work.found[0] = known[len(asked)]
        assert plan.steps == max(1, most // no_wait.SHORT)
        return 16

    monkeypatch.setattr(no_wait, "pack_layers", pack)
    monkeypatch.setattr(no_wait, "encode", lambda *given: encoded.append(given))
    monkeypatch.setattr(no_wait, "anneal", find)
    plan = Schedule(steps=most, low=round(low * 10**4), drop=0, hot=1, cold=1)
    draw, stop = np.random.default_rng(0), np.array([stopped])
    tables: Any = None
    assert no_wait.anneal_packings(tables, work, draw, plan, stop) == 16 * searches
    assert len(asked) == searches
    target = 990_000
    for turn, (period, steps) in enumerate(asked):
        if turn and known[turn] < known[turn - 1]:
            target = period
            assert target in {max(plan.low, int(known[turn] * (1 - one))) for one in no_wait.DROPS}
        # Where nothing was found the same is packed again.
        assert (period, steps) == (target, no_wait.MOVES * max(1, most // no_wait.SHORT))


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


def test_a_search_ends_where_packings_take_more_than_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(chain=Chain(layers=(UNIT,) * 60), platform=Platform(4, 10**6), scope=GENERAL)
    taken: list[int] = []

    def take(_: Tables, __: Workspace, ___: Any, plan: Schedule, ____: Any) -> int:
        assert plan.steps > 0
        taken.append(plan.steps + 700)
        return taken[-1]

    monkeypatch.setattr(search_module, "anneal_packings", take)
    monkeypatch.setattr(search_module, "anneal", take)
    run, params = Run(problem, work_limit=1_000), LocalSearchParams(placements=400)
    search = LocalSearch(problem, run, 1, params)
    assert not list(search.rounds(lambda _: None))
    assert search.placements == sum(taken) > 1_000


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
