"""The true peak of memory in the models that choose the allocation, against trying all orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Scope
from tests.budgets import trials
from tests.solvers.asking import ask, prove
from tests.solvers.brute_force import all_stages
from tests.solvers.order_words import least_of
from tests.strategies import short_chains, tight_platforms

PEAK = Scope(allocation="general", memory="peak")
HALVES = Layer(
    forward_ns=1, backward_ns=2, backward_input_ns=1, backward_weight_ns=1,
    weight_bytes=0, activation_bytes=1, saved_bytes=3, saved_weight_bytes=2,
)  # fmt: skip


@trials(400)
@given(
    short_chains(longest=4),
    tight_platforms(most=3) | tight_platforms(unequal=True),
    st.integers(1, 2),
)
def test_any_allocation_equals_that_of_all_orders(chain: Chain, platform: Platform, k: int) -> None:
    layers = tuple(
        replace(
            layer,
            saved_input_bytes=None,
            forward_ns=max(1, layer.forward_ns),
            backward_ns=max(1, layer.backward_ns),
        )
        for layer in chain.layers
    )
    chain, scope = replace(chain, layers=layers), replace(PEAK, max_k=k)
    least = least_of(chain, platform, all_stages(chain, platform), scope)
    assert prove(chain, platform, scope=scope, solver="general_cpsat").period == least


@pytest.mark.parametrize(
    ("scope", "proven"),
    [
        (Scope(memory="peak"), "peak"),
        (Scope(memory="peak", split_backward=True), "sum"),
        (PEAK, "peak"),
        (replace(PEAK, split_backward=True), "sum"),
    ],
    ids=str,
)
def test_a_peak_is_proven_only_where_one_thing_is_kept(scope: Scope, proven: str) -> None:
    solver = "general_cpsat" if scope.allocation == "general" else "contiguous_cpsat"
    result = ask(Chain(layers=(HALVES,) * 3), Platform(2, 15), scope=scope, solver=solver)
    assert {
        bound.scope.memory for bound in result.bounds if str(bound.proof).startswith("CP-SAT")
    } == {proven}
