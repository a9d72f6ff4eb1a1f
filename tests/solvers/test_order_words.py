"""`periodic` against the search over order words, which reaches further than trying every start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Layer, Platform, Scope, Stage
from schedopt.account import fits
from schedopt.plan import Operation, Pattern, Plan, Transfer, place_in_period
from schedopt.solving.late_sending import check_sent_late
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import assert_best, on, prove
from tests.solvers.order_words import Found, least_period
from tests.strategies import networks

sizes = st.integers(0, 4)


class Instance(NamedTuple):
    """An allocation."""

    chain: Chain
    platform: Platform
    stages: list[Stage]


@st.composite
def instances(
    draw: st.DrawFn,
    *,
    layers: int = 3,
    stages: int = 3,
    gpus: int = 3,
    halves: bool = False,
    contiguous: bool = False,
    shortest: int = 0,
    longest: int = 4,
) -> Instance:
    """Return an allocation whose GPUs have about what few micro-batches need."""
    durations = st.integers(shortest, longest)

    def one_layer() -> Layer:
        whole = Layer(
            forward_ns=draw(durations),
            backward_ns=draw(durations),
            weight_bytes=draw(sizes),
            activation_bytes=draw(sizes),
            saved_bytes=draw(st.none() | sizes),
            saved_input_bytes=draw(st.none() | st.integers(0, 2)),
            workspace_bytes=draw(st.none() | st.integers(0, 2)),
        )
        if not halves:
            return whole
        return replace(
            whole,
            backward_input_ns=draw(durations),
            backward_weight_ns=draw(durations),
            saved_weight_bytes=draw(st.none() | sizes),
        )

    row = tuple(one_layer() for _ in range(draw(st.integers(1, layers))))
    count = draw(st.integers(1, min(stages, len(row), gpus if contiguous else stages)))
    inner = st.integers(1, max(1, len(row) - 1))
    cuts = draw(st.lists(inner, min_size=count - 1, max_size=count - 1, unique=True))
    edges = [0, *sorted(cuts), len(row)]
    homes = [i if contiguous else draw(st.integers(0, gpus - 1)) for i in range(count)]
    parts = [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(homes[i],)) for i in range(count)]
    rooms = [draw(st.integers(-3, 12)) for _ in range(gpus)]
    for part in parts:
        for one in row[part.first : part.last + 1]:
            kept = one.saved + (one.saved_input_bytes or 0) + (one.saved_weight_bytes or 0)
            rooms[part.gpus[0]] += one.weight_bytes + (one.workspace_bytes or 0) + kept
    speeds = [draw(st.sampled_from(["1", "1", "0.5", "2"])) for _ in range(gpus)]
    if draw(st.integers(0, 2)) == 0:
        network = draw(networks(gpus))
        of_nodes = Platform(gpus, [max(0, room) for room in rooms], speed=speeds, network=network)
        return Instance(Chain(layers=row, input_bytes=draw(sizes)), of_nodes, parts)
    link = draw(st.none() | st.tuples(st.integers(0, 1), st.sampled_from(["half", "full"])))
    platform = Platform(
        gpus,
        [max(0, room) for room in rooms],
        speed=speeds,
        bandwidth=None if link is None else draw(st.sampled_from([10**9, 2 * 10**9])),
        latency=0 if link is None else link[0],
        duplex="half" if link is None or link[1] == "half" else "full",
    )
    return Instance(Chain(layers=row, input_bytes=draw(sizes)), platform, parts)


class Where(TypedDict):
    """What operations and transfers have in common."""

    stage: int
    shift: int
    start_ns: int


def plan_of(instance: Instance, found: Found, scope: Scope) -> Plan:
    """Return the plan of what the search found."""
    operations: list[Operation] = []
    transfers: list[Transfer] = []
    for (what, stage), starts in found.starts.items():
        for j, begin in enumerate(starts):
            start, shift = place_in_period(begin, j, len(starts), found.period_ns)
            where: Where = {"stage": stage, "shift": shift, "start_ns": start}
            match what:
                case "activation" | "gradient" as tensor:
                    transfers.append(Transfer(tensor=tensor, **where))
                case "F" | "B" | "I" | "W" | "R" as kind:
                    operations.append(Operation(kind=kind, **where))
    pattern = Pattern(
        k=len(next(iter(found.starts.values()))),
        period_total_ns=found.period_ns,
        operations=tuple(operations),
        transfers=tuple(transfers),
    )
    return Plan(
        chain=instance.chain,
        platform=instance.platform,
        scope=scope,
        stages=tuple(found.stages),
        pattern=pattern,
    )


SPLIT, PEAK = {"split_backward": True}, {"memory": "peak"}
PAIR = {"stages": 2, "gpus": 2}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...], dict[str, Any]]] = {
    "contiguous": ({"layers": 4, "stages": 4, "gpus": 4, "contiguous": True}, (1, 2), {}),
    "on any GPUs": ({"layers": 4}, (1, 2), {}),
    "three micro-batches": (PAIR | {"longest": 2}, (3,), {}),
    "split": ({"halves": True}, (1, 2), SPLIT),
    "recompute": (PAIR, (1, 2), {"recompute": True}),
    "both": (PAIR | {"halves": True, "longest": 3}, (1,), SPLIT | {"recompute": True}),
    # Where something takes no time the solver may take the reading sum, and prove nothing for peak.
    "peak": ({"gpus": 2, "shortest": 1}, (1, 2), PEAK),
    "peak, split": (
        PAIR | {"halves": True, "shortest": 1, "longest": 3},
        (1, 2),
        PEAK | SPLIT,
    ),
    "peak, recompute": (PAIR | {"shortest": 1}, (1, 2), PEAK | {"recompute": True}),
    "peak, both": (
        PAIR | {"layers": 2, "halves": True, "shortest": 1, "longest": 3},
        (1,),
        PEAK | SPLIT | {"recompute": True},
    ),
}
"""Which instances, for up to how many micro-batches, and what is allowed."""


@pytest.mark.parametrize("case", CASES)
@trials(80, by_day=3)
@given(st.data())
def test_equal_to_all_orders(case: str, data: st.DataObject) -> None:
    """Hold the solver against the search, and the search against the check of plans."""
    drawn, ks, asked = CASES[case]
    instance = data.draw(instances(**drawn))
    scope = Scope(allocation="fixed", max_k=data.draw(st.sampled_from(ks)), **asked)
    least: list[Fraction] = []
    for k in range(1, (scope.max_k or 1) + 1):
        found = least_period(*instance, k, scope)
        if found is not None:
            assert_fits_just_in_time(plan_of(instance, found, scope))
            least.append(Fraction(found.period_ns, k))
    chain, platform, stages = instance
    result = prove(chain, platform, stages=stages, scope=scope, solver="periodic")
    assert_best(result, min(least, default=None))


def assert_fits_just_in_time(plan: Plan) -> None:
    """Assert that a plan is valid, but for what comes before it is read at worst."""
    _, violations = check_sent_late(plan)
    assert all(violation.kind == "memory" for violation in violations)
    assert fits(plan, buffers=False)


@trials(60)
@given(instances(stages=3, gpus=2, halves=True, longest=3), st.integers(1, 2), st.booleans())
def test_the_true_maximum_is_never_larger(instance: Instance, k: int, split: bool) -> None:
    scope = Scope(allocation="fixed", max_k=k, memory="peak", split_backward=split)
    in_sum = least_period(*instance, k, replace(scope, memory="sum"))
    peak = least_period(*instance, k, scope)
    if peak is not None:
        assert_fits_just_in_time(plan_of(instance, peak, scope))
    assert in_sum is None or (peak is not None and peak.period_ns <= in_sum.period_ns)


def test_what_takes_no_time_keeps_its_place() -> None:
    """Without the backwards of length 0 in the order of their GPUs it would be 5."""
    rows = [(2, 2, 1), (2, 0, 0), (2, 0, 0), (2, 0, 0)]
    found = least_period(*by_hand(rows, range(4), [2, 0, 0, 0]), 1)
    assert found is not None
    assert found.period_ns == 6


@pytest.mark.parametrize(("memory", "least"), [("sum", 6), ("peak", 4)])
def test_a_maximum_over_time_by_hand(memory: Any, least: int) -> None:
    """Room for 2 on GPU 0: F0, B0, F2, B2, where stage 0 holds two only while stage 2 has none."""
    instance = by_hand([(1, 1, 1), (1, 1, 0), (1, 1, 1)], [0, 1, 0], [2, 0])
    found = least_period(*instance, 1, Scope(memory=memory))
    assert found is not None
    assert found.period_ns == least


def by_hand(
    rows: Sequence[tuple[int, int, int]], gpus: Sequence[int], rooms: list[int]
) -> Instance:
    """Return stages of one layer: forward, backward, saved bytes."""
    layers = tuple(layer(f, b, saved, sent=saved) for f, b, saved in rows)
    return Instance(Chain(layers=layers), Platform([Gpu(memory_bytes=n) for n in rooms]), on(*gpus))
