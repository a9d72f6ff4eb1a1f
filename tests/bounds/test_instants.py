"""What layers keep at instants, against a search over all plans, and by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope
from schedopt.bounds import load_bound, propagation_bound
from schedopt.bounds.amounts import Amounts, Scaled
from schedopt.bounds.instant_counts import Ways
from schedopt.bounds.instants import Instants
from schedopt.bounds.load import one_after_the_other_ns
from schedopt.bounds.pairs import Gap, Pair
from schedopt.bounds.propagation import propagate
from schedopt.proofs import ProofKind
from tests.bounds.every_plan import has_plan
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.layers import layer


def of_any_length(problem: Problem) -> Problem:
    """Return the problem for any k, for which nothing is counted at an instant."""
    return replace(problem, scope=replace(problem.scope, max_k=None))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@trials(1250, by_day=3)
@given(data=st.data())
def test_no_plan_is_below(data: st.DataObject, split: bool, recompute: bool, k: int) -> None:
    longest_chain = max(2, 5 - split - recompute - k)
    problem = data.draw(linked_problems(longest=longest_chain, split=split, recompute=recompute))
    problem = replace(problem, scope=replace(problem.scope, max_k=k))
    longest = one_after_the_other_ns(problem)
    if propagate(Amounts(problem), longest) is None:
        if propagate(Amounts(of_any_length(problem)), longest) is not None:
            assert not has_plan(problem, longest)
        return
    bound = propagation_bound(problem)
    without = propagation_bound(of_any_length(problem)) or load_bound(problem)
    # What holds for any k is held against all plans in its own tests.
    if bound is not None and bound.period > without.period:
        assert bound.scope.covers(problem.scope)
        assert bound.scope.max_k == k
        assert bound.proof.kind is ProofKind.IN_FLIGHT_INSTANTS  # type: ignore[union-attr]
        assert not has_plan(problem, bound.period, below=True)


def force(
    layers: tuple[Layer, ...],
    period: int,
    *,
    k: int = 1,
    platform: Platform | None = None,
    gap: Gap | None = None,
) -> tuple[list[int], Any]:
    """Return the spans that a period forces on three GPUs, and the counts at each instant."""
    scope = Scope(allocation="general", max_k=k, memory="peak")
    problem = Problem(chain=Chain(layers=layers), platform=platform or Platform(3, 99), scope=scope)
    forced = propagate(Amounts(problem), Fraction(period), gap)
    assert forced is not None
    assert forced.instants is not None
    return forced.spans.tolist(), forced.instants.counts


def test_what_three_layers_keep() -> None:
    # Forward and backward take 2 ns each, T = 4: each layer has its own GPU, and no one waits for
    # transfers. Spans are 12, 8 and 4 ns: at most 3, 2 and 1 micro-batches. When the last forward
    # starts, the first layer started 4 ns ago and ends in 8: floor(4 / 4) + ceil(8 / 4) = 3. When
    # its own starts, the others may be a micro-batch behind.
    spans, counts = force((layer(2, 2, 1),) * 3, 4)
    assert spans == [12, 8, 4]
    # Three starts of forwards, three ends of backwards.
    assert counts[:, 0, 0].tolist() == 2 * [[3, 1, 0], [3, 2, 0], [3, 2, 1]]


def test_as_many_as_whole_periods_fit_a_span_are_kept_at_any_instant() -> None:
    # T = 9: the second layer cannot share its GPU, and its backward comes after the next forward,
    # 9 + 8 = 17 ns in all. The first layer spans 17 + 2 ns, or 2 T + 2 as its backward cannot run
    # beside a forward. The last forward starts 5 ns after its own and 7 ns before its end at least,
    # which alone would be one micro-batch.
    spans, counts = force((layer(1, 1, 1), layer(4, 4, 1), layer(1, 1, 1)), 9)
    assert spans == [20, 17, 2]
    assert counts[2, 0, 0].tolist() == [2, 1, 1]


def test_transfers_forced_between_layers() -> None:
    # Three equal layers again, with 4 ns for each transfer: the last forward starts 12 ns behind
    # the first one, and spans are 28, 16 and 4 ns.
    platform = Platform(3, 99, bandwidth="1GB/s", duplex="full")
    spans, counts = force((layer(2, 2, 1, sent=4),) * 3, 4, platform=platform)
    assert spans == [28, 16, 4]
    # Of the last forward: floor(12 / 4) + ceil(16 / 4), and floor(6 / 4) + ceil(10 / 4).
    assert counts[2, 0, 0].tolist() == [7, 4, 1]


def test_what_two_micro_batches_of_a_period_keep() -> None:
    # Three equal layers, with k = 2: a period of 8 ns. When a last forward starts, the first layer
    # started 4 ns ago and ends in 8 for its own micro-batch, floor(4 / 8) + ceil(8 / 8) = 1, and
    # for the other one, f periods behind, floor(1 / 2 - f) + ceil(1 + f): 2 for f up to 1 / 2. At
    # the instant of the other one, with 1 - f for f: -1 + 2, or 0 + 2 where f is 1 / 2. So it keeps
    # 3 at one instant at least, as many as with k = 1, unless both forwards start at once (f = 0).
    spans, counts = force((layer(2, 2, 1),) * 3, 4, k=2)
    assert spans == [12, 8, 4]
    of_first = counts[2, :, :, 0]
    assert of_first.max(axis=1).tolist() == [2] + [3] * (len(of_first) - 1)
    assert of_first[-1].tolist() == [3, 2]


def test_what_is_between_two_micro_batches_lengthens_what_they_keep() -> None:
    # Two layers fill a GPU each, with a period of 6 ns, and B starts its last forward up to 1 ns
    # behind A's last backward. So at the first layer A ends 3 ns behind B's start at least, and B
    # 9 ns behind A's start.
    spans, counts = force((layer(1, 2, 1), layer(1, 2, 1)), 3, k=2, gap=Gap(3, 4))
    assert spans == [6, 3]
    own = counts[0, :, :, 0].tolist()
    # Behind A by 11 / 16 of a period or more, A spans more than one: two of A when A starts, and B.
    assert own[11:16] == [[3, 2]] * 5
    # Behind by more than a period: two of A are there as B starts. Before A: two of B as A does.
    assert own[16:] == [[2, 3], [3, 2]]


def test_what_is_held_of_either_micro_batch_at_its_own_layer() -> None:
    # P = 10 ns. A spans 12 ns and B 14 ns; from A's start to B's end it is 21 ns, from B's to A's
    # end 11 ns, at least.
    scaled = Scaled(Amounts(alone((layer(1, 1),), k=2)), Fraction(5))
    nothing = np.zeros((1, 1), dtype=np.int64)
    known = Pair(own=np.array([[12], [14]]), crossed=np.array([[21], [11]]), mean=np.array([13]))
    ways = Ways(scaled, nothing, nothing, longest=np.array([99]))
    found = ways.named(known.own[0], known.own[1], known)
    assert found.shape == (18, 2, 1, 1)
    *between, later, sooner = found[:, :, 0, 0].tolist()
    # B starts 5 to 6.25 ns behind A, say. A starts: it spans 11 + 5 ns then, ceil(16 / 10) = 2; and
    # of B those are there that started 4 to 15 ns ago, 2 of them, as it ends in 21 ns. B starts: it
    # spans 21 - 6 ns, 2 of B; A started 5 and 15 ns ago, and ends in 11 ns.
    assert between[8] == [4, 4]
    # B starts more than 10 ns behind A, which spans 11 + 10 ns: 3 of A, and 1 of B before it. As B
    # starts there are 2 of B, and A started up to 10 ns ago and ends in 11 + 20 ns: 3 of A.
    assert later == [3 + 1, 2 + 3]
    # B starts before A, and spans 21 ns. As A starts there are 2 of A, and B ends in 21 + 10 ns: 3
    # of B. As B starts there are 3 of B, and 1 of A.
    assert sooner == [2 + 3, 3 + 1]


def alone(layers: tuple[Layer, ...], room: int = 99, *, gpus: int = 1, k: int = 1) -> Problem:
    """Return a problem without links, for a reading that counts at instants."""
    scope = Scope(allocation="general", max_k=k, memory="peak")
    return Problem(chain=Chain(layers=layers), platform=Platform(gpus, room), scope=scope)


def test_spans_that_what_is_saved_limits() -> None:
    # T = 6: of 25 * 6 bytes times ns, spans of 19, 13, 9 and 6 ns take 57 + 39 + 9 + 18, so 27 are
    # left. A span that is longer makes those of the layers before it longer, that of the first one
    # from 1 ns on. So no span is longer by 27 / 3 + 1 = 10 ns at the first layer, (27 + 3) / 6 + 1
    # = 6 at the second one, 5 at the third one, of (27 + 3) / 7, and 4 at the last one.
    layers = (layer(2, 3, 3), layer(1, 3, 3), layer(2, 1, 1), layer(3, 3, 3))
    scaled = Scaled(Amounts(alone(layers, 25)), Fraction(6))
    spans = np.array([19, 13, 9, 6])
    counts = Instants(scaled, spans, np.zeros((4, 4), dtype=np.int64)).counts[:, 0, 0]
    # As the third backward ends, the last one ended 1 to 9 + 5 - 2 - 6 = 6 ns ago, and its forward
    # began 7 ns ago or before: so of the next one, 6 ns later, only the forward began. As the third
    # forward starts, the last one starts in up to 9 + 5 - 1 - 6 = 7 ns: there may be none.
    assert counts[4 + 2].tolist() == [3, 2, 2, 1]
    assert counts[2].tolist() == [3, 2, 2, 0]
    assert counts[:2].tolist() == [[4, 2, 1, 0], [3, 3, 1, 0]]
    assert counts[3:6].tolist() == [[3, 2, 2, 1], [4, 2, 1, 0], [3, 3, 1, 0]]
    assert counts[7].tolist() == [3, 2, 2, 1]


def test_a_period_at_which_layers_do_not_fit_at_one_instant() -> None:
    # T = 6, spans are 10, 6 and 3 ns. As the last backward ends, the first layer started 8 ns ago
    # and ends in 2: it holds 2 micro-batches, the others 1. So each holds 4 of 7 bytes, which are
    # too many for two GPUs. At each other instant the first or the last layer holds less.
    layers = (layer(3, 1, 2), layer(2, 1, 4), layer(2, 1, 4))
    problem, roomy = alone(layers, 7, gpus=2), alone(layers, 8, gpus=2)
    assert propagate(Amounts(problem), Fraction(6)) is None
    assert not has_plan(problem, Fraction(6))
    forced = propagate(Amounts(roomy), Fraction(6))
    assert forced is not None
    assert forced.instants is not None
    assert forced.instants.counts[:, 0, 0].tolist() == [
        *([2, 0, 0], [2, 1, 0], [1, 1, 1]),
        *([2, 0, 0], [2, 1, 0], [2, 1, 1]),
    ]


def test_layers_fit_if_they_do_at_each_instant_in_some_case_at_both() -> None:
    scaled = Scaled(Amounts(alone((layer(1, 1, weight=1),) * 3, 9, gpus=2, k=2)), Fraction(3))
    nothing = np.zeros((3, 3), dtype=np.int64)
    instants = Instants(scaled, np.array([6, 4, 2]), nothing)
    # A GPU holds two layers that take half of it each, and no two that take more.
    small = scaled.room // 2 - scaled.weight
    large = small + 1

    def fit(*kept: list[list[np.ndarray]]) -> bool:
        instants.kept = np.array(kept)
        return instants.fit_together()

    assert fit([[small, small]])
    assert not fit([[small, large]])
    assert not fit([[large, small]])
    assert fit([[large, large], [small, small]])
    assert not fit([[large, small], [small, large]])
    assert not fit([[small, small]], [[small, large]])


@pytest.mark.parametrize("k", [1, 2])
def test_what_is_recomputed_together_lies_there_at_once(k: int) -> None:
    # 6 bytes: the second layer fits only for one micro-batch at a time. Recomputed alone it saves 4
    # bytes and keeps 4 of its input; together with the first layer 4 bytes for each of both. So its
    # span, 4 ns and 26 ns behind it, is at most T. Of two that come in 2 T both are there once
    # spans are longer than T, however they come.
    chain = Chain(
        layers=(layer(1, 1, 4, sent=4), layer(2, 2, 4, sent=1), layer(20, 6, 1)), input_bytes=1
    )
    scope = Scope(allocation="general", max_k=k, memory="peak", recompute=True)
    problem = Problem(chain=chain, platform=Platform(3, 6), scope=scope)
    bound = propagation_bound(problem)
    assert bound is not None
    assert bound.period == 30
    assert not has_plan(problem, Fraction(30), below=True)
    assert has_plan(problem, Fraction(30))


@pytest.mark.parametrize("k", [1, 2])
def test_the_first_layer_recomputes_behind_no_other_one(k: int) -> None:
    # 4 bytes: recomputed, the first layer would save 4 and keep 1 byte of its input. So it is kept,
    # for one micro-batch at a time, with no other layer, and neither has the second one room for
    # another. A span of 32 ns, with 4 ns for the first transfer and 1 ns for the second one, there
    # and back: 42 ns.
    chain = Chain(
        layers=(layer(1, 1, 4, sent=4), layer(2, 2, 4, sent=1), layer(20, 6, 1)), input_bytes=1
    )
    scope = Scope(allocation="general", max_k=k, memory="peak", recompute=True)
    platform = Platform(3, 4, bandwidth="1GB/s")
    problem = Problem(chain=chain, platform=platform, scope=scope)
    bound = propagation_bound(problem)
    assert bound is not None
    assert bound.period == 42
    assert not has_plan(problem, Fraction(42), below=True)
    assert has_plan(problem, Fraction(42))
