"""The true peak of memory in the models that choose, against trying all orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Scope, Stage
from schedopt.solvers import periodic
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, assert_best, on, plan_of, prove
from tests.solvers.brute_force import every_allocation
from tests.solvers.order_words import least_of
from tests.strategies import short_chains, tight_platforms

GENERAL = Scope(allocation="general", memory="peak")
CONTIGUOUS = Scope(memory="peak")
SPLIT: dict[str, Any] = {"split_backward": True}
RECOMPUTE: dict[str, Any] = {"recompute": True}
SOLVERS = {"contiguous": "contiguous_cpsat", "general": "general_cpsat"}
HALVES = Layer(
    forward_ns=1, backward_ns=2, backward_input_ns=1, backward_weight_ns=1,
    weight_bytes=0, activation_bytes=1, saved_bytes=3, saved_weight_bytes=2,
)  # fmt: skip
TIGHT = tight_platforms() | tight_platforms(unequal=True)
TIMES = ("forward_ns", "backward_ns", "backward_input_ns", "backward_weight_ns")


def with_time(chain: Chain, times: Sequence[str] = TIMES, *, saves: bool = True) -> Chain:
    """Return the chain whose operations take at least 1 ns, and save their input only if said."""
    layers = tuple(
        replace(
            one,
            saved_input_bytes=one.saved_input_bytes if saves else None,
            **{time: max(1, getattr(one, time)) for time in times},
        )
        for one in chain.layers
    )
    return replace(chain, layers=layers)


def least(chain: Chain, platform: Platform, scope: Scope) -> Fraction | None:
    """Return the least normalized period of all orders of all allocations."""
    return least_of(chain, platform, every_allocation(chain, platform, scope), scope)


@pytest.mark.parametrize(
    ("scope", "longest"),
    [
        (GENERAL, 4),
        (replace(GENERAL, **SPLIT), 3),
        (replace(GENERAL, **RECOMPUTE), 3),
        (replace(GENERAL, **SPLIT, **RECOMPUTE), 2),
        (replace(CONTIGUOUS, **SPLIT), 3),
        (replace(CONTIGUOUS, **RECOMPUTE), 3),
        (replace(CONTIGUOUS, **SPLIT, **RECOMPUTE), 2),
    ],
    ids=str,
)
@trials(150, by_day=4)
@given(data=st.data(), platform=TIGHT, k=st.integers(1, 2))
def test_equal_to_all_orders_of_all_allocations(
    scope: Scope, longest: int, data: st.DataObject, platform: Platform, k: int
) -> None:
    chain = with_time(data.draw(short_chains(longest=longest)))
    asked = replace(scope, max_k=k if len(chain.layers) < 3 else 1)
    result = prove(chain, platform, scope=asked, solver=SOLVERS[scope.allocation])
    assert_best(result, least(chain, platform, asked))


@pytest.mark.parametrize("solver", ["contiguous_cpsat", None])
@pytest.mark.parametrize("split", [False, True])
@trials(150)
@given(short_chains(), TIGHT)
def test_layers_apart_equal_to_all_orders(
    split: bool, solver: str | None, chain: Chain, platform: Platform
) -> None:
    chain = with_time(chain, saves=False)
    scope = replace(CONTIGUOUS, grain="layer", split_backward=split)
    # One worker of CP-SAT alone may not end on some of these.
    result = prove(chain, platform, scope=scope, solver=solver, workers=2, gap=0)
    assert_best(result, least(chain, platform, scope))


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
@trials(150)
@given(short_chains(longest=2), TIGHT, st.booleans())
def test_weight_halves_without_time_equal_to_all_orders(
    allocation: Any, chain: Chain, platform: Platform, no_work: bool
) -> None:
    # As of layers without parameters: what is kept goes with them, and nothing comes.
    chain = with_time(chain, TIMES[:3], saves=False)
    layers = tuple(replace(one, backward_weight_ns=0, workspace_bytes=None) for one in chain.layers)
    chain = replace(chain, layers=layers) if no_work else with_time(chain)
    scope = Scope(allocation=allocation, memory="peak", split_backward=True)
    result = prove(chain, platform, scope=scope, solver=SOLVERS[allocation])
    assert_best(result, least(chain, platform, scope))


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
@trials(200)
@given(
    short_chains(longest=2),
    TIGHT,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["stage", "layer"]),
)
def test_what_takes_no_time_is_never_proven_falsely(
    allocation: Any, chain: Chain, platform: Platform, split: bool, again: bool, grain: Any
) -> None:
    scope = Scope(
        allocation=allocation, memory="peak", split_backward=split, recompute=again, grain=grain
    )
    best = least(chain, platform, scope)
    result = ask(chain, platform, scope=scope, solver=SOLVERS[allocation])
    if result.status == "infeasible":
        assert best is None
    elif best is not None and result.lower_bound is not None:
        assert result.lower_bound <= best
        assert result.status != "optimal" or result.period == best


@pytest.mark.parametrize(
    ("scope", "times", "proven"),
    [
        (CONTIGUOUS, 1, "peak"),
        (replace(CONTIGUOUS, **SPLIT), 1, "peak"),
        (replace(CONTIGUOUS, **SPLIT), 0, "sum"),
        (GENERAL, 1, "peak"),
        (replace(GENERAL, **SPLIT, **RECOMPUTE), 1, "peak"),
        (GENERAL, 0, "sum"),
    ],
    ids=str,
)
def test_a_peak_is_proven_unless_bytes_come_and_go_at_one_instant(
    scope: Scope, times: int, proven: str
) -> None:
    one = replace(HALVES, forward_ns=times, backward_ns=2 * times, backward_input_ns=times)
    solver = SOLVERS[scope.allocation]
    result = ask(Chain(layers=(one, HALVES)), Platform(2, 15), scope=scope, solver=solver)
    assert {
        bound.scope.memory for bound in result.bounds if str(bound.proof).startswith("CP-SAT")
    } == {proven}


def test_two_stages_of_one_gpu_recompute_what_the_peak_needs() -> None:
    # 8 bytes. Kept, both stages hold 10 as the second forward starts. With layer 0 recomputed its
    # 5 bytes lie there from its recompute on only, when layer 1 has gone: 1 + 5 at the most.
    chain = Chain(layers=(layer(2, 2, 5, sent=1), layer(2, 2, 5, sent=1)), input_bytes=1)
    scope = Scope(allocation="fixed", memory="peak", recompute=True)
    result = prove(chain, Platform(1, 8), stages=on(0, 0), scope=scope)
    assert result.period == 10
    assert [stage.recompute for stage in plan_of(result).stages] == [((0, 0),), ()]


@pytest.mark.parametrize("count", [2, 10])
def test_what_given_stages_recompute_is_a_hint(count: int) -> None:
    layers = (layer(2, 2, 1, sent=1),) * count
    stages = [Stage(layers=(0, count - 1), gpus=(0,), recompute=((0, count - 1),))]
    scope = Scope(allocation="fixed", memory="peak", recompute=True)
    result = prove(Chain(layers=layers), Platform(1, 99), stages=stages, scope=scope)
    assert plan_of(result).stages[0].recompute == ()
    assert result.period == 4 * count


@trials(100)
@given(short_chains(longest=2), TIGHT, st.integers(0, 1))
def test_a_choice_of_recompute_in_one_model_equals_all_orders(
    chain: Chain, platform: Platform, gpu: int
) -> None:
    chain, last = with_time(chain), len(platform.gpus) - 1
    scope = Scope(allocation="fixed", memory="peak", recompute=True)
    stages = on(*(min(gpu, last) * layer for layer in range(len(chain.layers))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periodic, "MOST_SUBSETS", 0)
        result = prove(chain, platform, stages=stages, scope=scope, solver="periodic")
    assert_best(result, least_of(chain, platform, [stages], scope))


def test_one_gpu_without_room_is_proven_infeasible() -> None:
    chain = Chain(layers=(layer(2, 2, 5, sent=1), layer(2, 2, 5, sent=1)))
    for scope in (GENERAL, replace(CONTIGUOUS, grain="layer"), CONTIGUOUS):
        assert prove(chain, Platform(1, 9), scope=scope).plan is None
