"""What instants add to the relaxation: numbers that CP-SAT may simplify, and what they rule out."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Scope
from schedopt.bounds import load_bound, lower_bounds
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.load import one_after_the_other_ns
from schedopt.bounds.propagation import propagate
from schedopt.solvers.relaxation import (
    LARGEST,
    relaxed_allocations,
)
from schedopt.solving.cp_sat import LARGEST_SUM
from schedopt.solving.relaxation import RelaxationModel, decide
from schedopt.solving.run import Run
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.layers import layer


@pytest.mark.parametrize("recompute", [False, True])
@trials(200)
@given(data=st.data())
def test_sums_are_small_enough_to_be_simplified(data: st.DataObject, recompute: bool) -> None:
    problem = data.draw(linked_problems(recompute=recompute))
    low, high = load_bound(problem).period, one_after_the_other_ns(problem)
    part = Fraction(data.draw(st.integers(0, 16)), 64)
    forced = propagate(Amounts(problem, LARGEST), max(Fraction(1), low + part * (high - low)))
    if forced is None:
        return
    model = RelaxationModel(forced)
    decide(model, Run(problem, workers=1), 60)
    proto = model.model.proto
    for constraint in proto.constraints:
        linear = constraint.linear
        ends = [max(map(abs, proto.variables[number].domain)) for number in linear.vars]
        assert sum(abs(c) * end for c, end in zip(linear.coeffs, ends, strict=True)) < LARGEST_SUM


def test_what_each_cut_keeps_in_flight_counts_at_its_instant() -> None:
    # All three layers keep 9 bytes, one more than a GPU has, so that one cut at least is made. With
    # T = 7 the first layer alone waits 8 ns for transfers: a span of 15, three micro-batches, 9
    # bytes. With the second layer next to it, both keep two of them when that one starts, 14 bytes.
    scope = Scope(allocation="general", max_k=1, memory="peak", grain="layer")
    layers = (layer(1, 2, 3, sent=4), layer(1, 1, 4, sent=2), layer(1, 1, 2, sent=1))
    platform = Platform(2, 8, bandwidth="1GB/s", duplex="full")
    problem = Problem(chain=Chain(layers=layers), platform=platform, scope=scope)
    run = Run(problem, workers=1)
    assert list(relaxed_allocations(problem, run))
    assert max(bound.period for bound in lower_bounds(problem)) == 7
    assert run.bound() == 8
    assert has_plan(problem, Fraction(8))
