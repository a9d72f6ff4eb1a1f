"""Best plans by the rule of Piper: against every plan of small graphs, and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedopt.bench.piper.model import Cluster, Model, PiperStage, Variant, time_of
from schedopt.bench.piper.search import PiperSearch
from schedopt.errors import InputError

SMALL = st.integers(0, 6)


@st.composite
def models(draw: st.DrawFn) -> Model:
    count = draw(st.integers(1, 4))
    edges = tuple(
        (a, b, draw(SMALL)) for b in range(count) for a in range(b) if draw(st.booleans())
    )
    nodes = []
    for node in range(count):
        degrees = draw(st.sampled_from([(1,), (1, 2), (2,)]))
        nodes.append(
            {
                degree: tuple(
                    Variant(
                        name=str(number),
                        time_ns=draw(st.integers(0, 30)),
                        parameter_bytes=draw(SMALL),
                        saved_bytes=draw(SMALL),
                        fixed_bytes=draw(SMALL),
                        gathered={a: draw(SMALL) for a, b, _ in edges if b == node},
                        scattered={b: draw(SMALL) for a, b, _ in edges if a == node},
                    )
                    for number in range(draw(st.integers(1, 2)))
                )
                for degree in degrees
            }
        )
    return Model(tuple(nodes), edges)


def every_plan(model: Model, cluster: Cluster) -> Iterator[tuple[PiperStage, ...]]:
    """Yield all assignments of nodes to stages, grids of stages, and variants."""
    count = len(model.nodes)
    grids = [
        (d, t)
        for d in range(1, cluster.gpus + 1)
        for t in (1, 2)
        if d * t <= cluster.gpus and cluster.microbatches % d == 0
    ]
    for places in product(range(count), repeat=count):
        stages = [[n for n in range(count) if places[n] == s] for s in range(max(places) + 1)]
        if not all(stages):
            continue
        for chosen in product(grids, repeat=len(stages)):
            if sum(d * t for d, t in chosen) > cluster.gpus or any(
                t not in model.nodes[n]
                for nodes, (_, t) in zip(stages, chosen, strict=True)
                for n in nodes
            ):
                continue
            degree = {n: chosen[places[n]][1] for n in range(count)}
            for picked in product(*(range(len(model.nodes[n][degree[n]])) for n in range(count))):
                yield tuple(
                    PiperStage({n: picked[n] for n in nodes}, d, t)
                    for nodes, (d, t) in zip(stages, chosen, strict=True)
                )


def best_of_all(model: Model, cluster: Cluster) -> Fraction | None:
    times = []
    for plan in every_plan(model, cluster):
        try:
            times.append(time_of(model, cluster, plan))
        except InputError:
            continue
    return min(times, default=None)


@settings(max_examples=60, deadline=None)
@given(
    models(),
    st.integers(1, 4),
    st.integers(0, 40),
    st.sampled_from([1, 2, 4, 6]),
    st.sampled_from([10**9, 3 * 10**8]),
)
def test_no_plan_is_shorter(
    model: Model, gpus: int, memory: int, microbatches: int, rate: int
) -> None:
    cluster = Cluster(gpus, memory, rate, microbatches)
    found = PiperSearch(model, rate, microbatches).solve(gpus, memory)
    least = best_of_all(model, cluster)
    if found is None or least is None:
        assert found is None
        assert least is None
    else:
        assert found.load_ns == ceil(least) == ceil(time_of(model, cluster, found.plan))


def one(
    time: int,
    saved: int,
    *,
    parameters: int = 0,
    name: str = "vanilla",
    gathered: dict[int, int] | None = None,
    scattered: dict[int, int] | None = None,
) -> Variant:
    return Variant(
        name=name,
        time_ns=time,
        parameter_bytes=parameters,
        saved_bytes=saved,
        fixed_bytes=0,
        gathered=gathered or {},
        scattered=scattered or {},
    )


def test_a_load_by_hand() -> None:
    model = Model(
        (
            {1: (one(10, 1, parameters=6, scattered={1: 2}),)},
            {1: (one(20, 1, gathered={0: 0}),)},
        ),
        ((0, 1, 3),),
    )
    cluster = Cluster(3, 100, 10**9, 4)
    # 2 replicas: (10 + 2 (3 + 2) + 4 x 6 / 4) / 2 ns; behind them one: 20 + 2 x 3 ns.
    first, second = PiperStage({0: 0}, 2, 1), PiperStage({1: 0}, 1, 1)
    assert time_of(model, Cluster(3, 100, 10**9, 4), (first, second)) == 26
    slow = Model(({1: (one(90, 1, parameters=6, scattered={1: 2}),)}, model.nodes[1]), model.edges)
    assert time_of(slow, cluster, (first, second)) == 53
    with pytest.raises(InputError, match="backwards"):
        time_of(model, cluster, (second, first))
    # The first stage keeps ceil(3 / 2) micro-batches of 1 byte.
    assert time_of(model, Cluster(3, 2, 10**9, 4), (first, second)) == 26
    with pytest.raises(InputError, match="memory"):
        time_of(model, Cluster(3, 1, 10**9, 4), (first, second))


def test_variants_are_chosen_exactly() -> None:
    # 10 bytes must go: by price for a byte 6 for 5 comes first, and then 10 is needed too.
    model = Model(
        (
            {1: (one(0, 6), one(5, 0, name="recompute"))},
            {1: (one(0, 10), one(9, 0, name="recompute"))},
        ),
        ((0, 1, 0),),
    )
    zero = {0: 0}
    nodes = (
        {1: tuple(one(v.time_ns, v.saved_bytes, scattered={1: 0}) for v in model.nodes[0][1])},
        {1: tuple(one(v.time_ns, v.saved_bytes, gathered=zero) for v in model.nodes[1][1])},
    )
    found = PiperSearch(Model(nodes, model.edges), 10**9, 1).solve(1, 6)
    assert found is not None
    assert found.load_ns == 9
    assert found.plan[0].nodes == {0: 0, 1: 1}


def test_a_cycle_is_refused() -> None:
    both = {0: 0, 1: 0}
    nodes = ({1: (one(1, 0, gathered=both, scattered=both),)},) * 2
    with pytest.raises(InputError, match="cycle"):
        PiperSearch(Model(nodes, ((0, 1, 0), (1, 0, 0))), 10**9, 1)
