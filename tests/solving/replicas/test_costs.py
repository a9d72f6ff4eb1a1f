"""Spans, collectives and memory of stages with replicas, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform, Problem
from schedopt.layer import EXPERT_BYTES
from schedopt.problem import training_step, widest_step
from schedopt.solving.local_search.lean import lean
from schedopt.solving.local_search.njit import njit_entry
from schedopt.solving.replicas.arrays import NEVER, WAITING, Costs
from schedopt.solving.replicas.costs import (
    describe_stages,
    least_share_ns,
    most_share_ns,
    recompute_ns,
    sent_ns,
)
from schedopt.solving.replicas.least_spans import behind_link, next_span
from schedopt.solving.replicas.machine import read_machine
from schedopt.solving.replicas.stages import read_costs
from schedopt.solving.replicas.step_bound import least_makespan
from schedopt.solving.run import Run
from tests.solvers.step_searches import step_data

LAYER = Layer(
    forward_ns=1,
    backward_ns=2,
    weight_bytes=24,
    activation_bytes=3,
    saved_bytes=4,
    saved_input_bytes=1,
    parameter_bytes=6,
    gradient_bytes=12,
    optimizer_bytes=5,
    update_ns=9,
)
RATE = 10**9
"""A byte a nanosecond."""


@njit_entry
def time_sent(count: int, bandwidth: int) -> int:
    """Enter `sent_ns`."""
    return sent_ns(count, 7, bandwidth)


@njit_entry
def least_share(update: int, held: int, replicas: int) -> int:
    """Enter `least_share_ns`."""
    return least_share_ns(update, held, replicas)


@njit_entry
def most_share(update: int, held: int, replicas: int) -> int:
    """Enter `most_share_ns`."""
    return most_share_ns(update, held, replicas, 0, 1)


@njit_entry
def span_behind_link(span: int, trip: int, full: int, modulus: int) -> int:
    """Enter `behind_link`."""
    return behind_link(span, trip, full, modulus)


@njit_entry
def span_behind(span: int, work: int, modulus: int) -> int:
    """Enter `next_span`."""
    return next_span(span, work, 0, modulus)


@njit_entry
def recompute_of_both(costs: Costs, which: int, room: int) -> int:
    """Enter `recompute_ns` for two layers."""
    return recompute_ns(costs, 0, which, 0, 2, room)


@pytest.mark.parametrize("bandwidth", [1, 3, 12 * 10**9, 900 * 10**9, 9 * 10**15])
@pytest.mark.parametrize("count", [0, 1, 10**9 + 1, 11_999_999_999, 899_999_999_999, 10**13])
def test_what_is_sent_takes_whole_nanoseconds(count: int, bandwidth: int) -> None:
    expected = 7 + math.ceil(Fraction(count * 10**9, bandwidth))
    if expected < 2**63:
        assert time_sent(count, bandwidth) == expected


@pytest.mark.parametrize("update", [0, 1, 24, 2**39 - 1])
@pytest.mark.parametrize("held", [0, 1, 6, 7, 2**50 - 1])
@pytest.mark.parametrize("replicas", [1, 2, 3, 1024])
def test_the_home_of_a_smallest_chunk_updates_so_much(
    update: int, held: int, replicas: int
) -> None:
    chunk = Fraction(held // replicas, held) if held else Fraction(1, replicas)
    assert least_share(update, held, replicas) == math.floor(update * chunk)


@pytest.mark.parametrize("update", [0, 1, 24, 2**39 - 1])
@pytest.mark.parametrize("held", [0, 1, 6, 7, 2**50 - 1])
@pytest.mark.parametrize("replicas", [1, 2, 3, 1024])
def test_the_home_of_a_largest_chunk_updates_so_much(update: int, held: int, replicas: int) -> None:
    chunk = Fraction(-(-held // replicas), held) if held else Fraction(1)
    assert most_share(update, held, replicas) == math.ceil(update * chunk)


def question(*layers: Layer, **links: Any) -> Problem:
    chain = Chain(layers=layers, input_bytes=2)
    return training_step(chain, Platform(4, 99, **links), 12)


@pytest.mark.parametrize(
    ("span", "work", "modulus", "found"),
    [
        (5, 3, 10, 8),
        (7, 3, 10, 10),
        (8, 3, 10, 13),
        (10, 3, 10, 13),
        (18, 2, 20, 20),
        (0, 10, 10, 10),
        (1, 10, 10, 20),
        (0, 11, 10, NEVER),
    ],
)
def test_an_item_begins_in_its_own_period_or_in_the_next(
    span: int, work: int, modulus: int, found: int
) -> None:
    assert span_behind(span, work, modulus) == found


@pytest.mark.parametrize(
    ("trip", "full", "found"),
    [(0, 0, 7), (1, 0, 9), (2, 0, 14), (2, 1, 11), (5, 0, 20), (6, 0, NEVER), (10, 1, 27),
     (11, 1, NEVER)],
)  # fmt: skip
def test_transfers_of_a_span_of_7_ns_on_links_that_are_used_every_10_ns(
    trip: int, full: int, found: int
) -> None:
    assert span_behind_link(7, trip, full, 10) == found


def stage_costs(problem: Problem, replicas: int, shard: int, *, room: int = 99) -> list[int]:
    """Return collectives, bytes left, and most micro-batches in flight of a stage of all layers."""
    step = step_data(problem)
    step = replace(step, machine=step.machine._replace(room=room))
    found = describe_stages(step, [(0, len(problem.chain.layers), replicas, shard, 0)])
    return [int(value) for value in found[3:6, 0]]


def test_collectives_go_around_a_ring() -> None:
    def behind(replicas: int, shard: int, **links: Any) -> int:
        return stage_costs(question(LAYER, **links), replicas, shard)[0]

    one: dict[str, Any] = {"bandwidth": RATE, "latency": 1}
    assert behind(1, 0, **one) == 9
    # Twice 3 hops of 12 / 4 bytes, and the whole update.
    assert behind(4, 0, **one) == 2 * 3 * (3 + 1) + 9
    # 3 hops of gradients, a share of the update, 3 hops of 6 / 4 bytes: the largest of each.
    assert behind(4, 1, **one) == 3 * (3 + 1) + 3 + 3 * (2 + 1)
    assert behind(2, 0, bandwidth=RATE, duplex="full") == 2 * 6 + 9
    assert behind(2, 0, bandwidth=RATE // 2, duplex="full") == 2 * 12 + 9
    # Both chunks take the one link in turn.
    assert behind(2, 0, bandwidth=RATE, duplex="half") == 2 * 12 + 9
    assert [behind(4, shard) for shard in (0, 1)] == [9, 3]
    # The largest of three chunks of 4 bytes has 2 of them.
    uneven = question(replace(LAYER, parameter_bytes=4))
    assert stage_costs(uneven, 3, 1)[0] == 5


@pytest.mark.parametrize(("expert", "share"), [(2, 3 + 6), (4, 3 + 12)])
@pytest.mark.parametrize("scale", [1, 10**9])
def test_experts_are_updated_by_those_that_have_them(expert: int, share: int, scale: int) -> None:
    # Two replicas have the same of 12 bytes, and update half of them each; else one has all.
    own: dict[str, Any] = dict.fromkeys(EXPERT_BYTES, 12 * scale)
    layer = replace(
        LAYER, weight_bytes=99 * scale, parameter_bytes=12 * scale, update_ns=24000, **own
    )
    chain = Chain(layers=(layer,), input_bytes=2, expert=expert)
    found = stage_costs(training_step(chain, Platform(4, 99), 12), 4, 1)[0]
    assert found == pytest.approx(1000 * share, abs=scale > 1)


def test_a_gpu_holds_what_is_left_beside_weights() -> None:
    problem = question(LAYER, replace(LAYER, workspace_bytes=3))
    assert stage_costs(problem, 1, 0, room=60)[1] == 60 - 48 - 3
    # Of 10 bytes of optimizer state a third stays, rounded up.
    assert stage_costs(problem, 3, 1, room=60)[1] == 60 - 48 - 3 + 10 - 4
    # Each micro-batch keeps 4 bytes a layer, and 1 of the input of the stage.
    rooms = (8, 9, 17, 18, 90)
    assert [stage_costs(problem, 4, 0, room=51 + left)[2] for left in rooms] == [0, 1, 1, 2, 3]


def layered_costs(shard: int) -> list[int]:
    """Return what a stage of two layers costs that runs layer by layer on two of four GPUs.

    On each there are 2 bytes that are not shared, and of each layer 3 of parameters, 6 of gradients
    and 3 of the optimizer state. A micro-batch keeps 5 of each layer. Weights of a layer come in
    3 ns, and its gradients go home in 6 ns.
    """
    chain = Chain(layers=(LAYER,) * 2, input_bytes=2)
    scope = replace(widest_step(chain), shard="parameter")
    platform = Platform(4, 99, bandwidth=RATE, duplex="full")
    step = step_data(training_step(chain, platform, 12, scope))
    found = describe_stages(step, [(0, 2, 2, shard, 0)])[:, 0]
    return [int(found[place]) for place in (0, 1, 3, 4, 5, 8)]


def test_weights_of_a_layer_come_while_the_one_before_works() -> None:
    # At the second backward: two copies, and two gradients. What comes and goes takes 9 ns, and the
    # shortest operation beside it 1 ns.
    room = 99 - 26 - (2 * 3 + 2 * 6)
    # Gradients of the first layer come home last, and half of both updates follows.
    assert layered_costs(3) == [2 + 2 * 8, 4 + 2 * 8, 6 + 9, room, room // 10, 3]


def test_a_stage_may_wait_for_weights_and_gradients_of_each_layer() -> None:
    room = 99 - 26 - (3 + 6)
    assert layered_costs(3 + WAITING) == [2 + 2 * 3, 4 + 2 * (3 + 6), 6 + 9, room, room // 10, 3]


def test_where_nothing_is_kept_all_are_in_flight() -> None:
    nothing = replace(LAYER, saved_bytes=0, saved_input_bytes=0)
    assert stage_costs(question(nothing), 4, 0, room=24)[1:] == [0, 3]


def test_recompute_is_needed_where_not_all_is_kept() -> None:
    layers = (replace(LAYER, forward_ns=1000), replace(LAYER, forward_ns=9000))
    problem = question(*layers)
    machine = read_machine(problem)
    assert machine is not None
    costs = read_costs(problem, machine, (), 2)
    assert list(costs.counts) == [1, 2]

    def least(room: int) -> int:
        return int(recompute_of_both(lean(costs), 1, room))

    # Two micro-batches in flight keep 16 bytes, and 1 each of the input. One layer recomputed has
    # its 4 bytes only once, but 2 each of its input; the second one keeps 1 each of its own.
    assert least(18) == 0
    # Without the first layer 16 bytes and 2 + 1 for each; both: 8 bytes, and 2 for each.
    assert 0 < least(17) <= 10000
    assert 0 < least(12) <= 10000
    assert least(10) == NEVER


def test_a_step_on_one_gpu_takes_its_work_and_the_update() -> None:
    chain = Chain(layers=(LAYER,) * 2)
    scope = replace(widest_step(chain), recompute=False, shard="none")
    problem = training_step(chain, Platform(1, 100), 4, scope)
    step = step_data(problem)
    assert least_makespan(step, Run(problem)) == 4 * 6 + 18
