"""Training steps on nodes whose GPUs share network cards, or have their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Link, Network, Platform, Problem, check
from schedopt.account import fits
from schedopt.problem import training_step, widest_step
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.replicas.layout import lay_out
from schedopt.solving.replicas.machine import read_machine
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.stage import SHARDS
from tests.budgets import trials
from tests.examples import layer
from tests.solvers.every_step_on_nodes import is_shorter, on_switch, without_gradients
from tests.solvers.every_training_step import DUPLEX
from tests.solvers.step_searches import bound_of, searched
from tests.solvers.training_steps import training_steps
from tests.tensor_groups import chain_in_group, variants

SHAPES = [(2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 2, 2), (4, 1, 1)]
"""Nodes, GPUs of each, and its network cards."""
RATES = [10**9 // slower for slower in (1, 4, 16)]


def links(rates: list[int]) -> st.SearchStrategy[Link]:
    return st.builds(
        Link,
        bandwidth_bytes_per_s=st.sampled_from(rates),
        latency_ns=st.integers(0, 1),
        duplex=st.sampled_from(DUPLEX),
    )


@trials(3000, by_day=25)
@given(
    training_steps(levels=SHARDS[:1]) | training_steps(levels=SHARDS[:1], degrees=(2,), most=4),
    st.sampled_from(SHAPES),
    st.none() | links(RATES[:2]),
    links(RATES),
)
def test_no_step_on_nodes_is_below_the_bound(
    problem: Problem, shape: tuple[int, int, int], inside: Link | None, between: Link
) -> None:
    """Wherever its stages lie, with idle GPUs between them or not, and in any order."""
    problem = replace(
        problem,
        chain=without_gradients(problem.chain),
        variants=tuple(
            replace(one, chain=without_gradients(one.chain)) for one in problem.variants
        ),
        platform=on_switch(problem.platform.gpus[0], *shape, inside, between),
    )
    step = read_step(problem)
    assert step is not None
    if holds(step):
        assert not is_shorter(problem, bound_of(problem) - 1)


@trials(500, by_day=8)
@given(
    training_steps(levels=SHARDS[:2], degrees=(2,), most=4),
    st.sampled_from([(2, 2, 1), (2, 2, 2), (3, 2, 2)]),
    links(RATES),
)
def test_steps_over_network_cards_are_valid_and_not_below_the_bound(
    problem: Problem, shape: tuple[int, int, int], between: Link
) -> None:
    inside = Link(bandwidth_bytes_per_s=RATES[0], duplex="full")
    platform = on_switch(problem.platform.gpus[0], *shape, inside, between)
    problem = replace(problem, platform=platform)
    step = read_step(problem)
    assert step is not None
    if not holds(step):
        return
    bound, candidates = bound_of(problem), searched(problem)
    for candidate in candidates.best[:2]:
        orders = candidates.orders(candidate)
        plan, found = check_sent_late(lay_out(candidates.step, candidate, orders))
        assert not found or fits(plan, buffers=False)
        assert plan.pattern.period_total_ns >= bound


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_alone_is_like_its_gpus_with_links(nodes: int) -> None:
    """Whether a switch that leads nowhere is at it or not."""
    inside = Link(bandwidth_bytes_per_s=10**9, duplex="full")
    chain = without_gradients(Chain(layers=(layer(2, 3, 4, 5), layer(3, 1, 2, 5))))
    linked = Platform([Gpu(memory_bytes=100)] * 2, bandwidth=10**9, duplex="full")
    on_node = on_switch(linked.gpus[0], 1, 2, 1, inside, inside)
    assert on_node.network is not None
    if nodes == 1:
        alone = Network(nodes=on_node.network.nodes[:1])
        on_node = Platform(linked.gpus, network=alone)
    one, other = (read_machine(training_step(chain, each, 4)) for each in (linked, on_node))
    assert one is not None
    assert one == other


@pytest.mark.parametrize("duplex", DUPLEX)
def test_forwards_that_leave_a_node_take_turns(duplex: str) -> None:
    """Two nodes of a GPU, for a layer of 1 ns each way each; what is sent takes 10 ns.

    Behind the first forward four of them go one after the other, and the last comes back.
    """
    chain = without_gradients(Chain(layers=(layer(1, 1, 3, 10, saved_bytes=1),) * 2))
    between = Link(bandwidth_bytes_per_s=10**9, duplex=duplex)  # type: ignore[arg-type]
    platform = on_switch(Gpu(memory_bytes=6), 2, 1, 1, None, between)
    scope = replace(widest_step(chain), allocation="contiguous", replicas=1, shard="none")
    problem = training_step(chain, platform, 4, scope)
    assert bound_of(problem) == 1 + 4 * 10 + 2 + 10 + 1


def test_groups_with_cards_of_their_own_send_at_once() -> None:
    """Stages of two GPUs on two nodes, each with room for one: the presets but for memory."""
    chain = without_gradients(chain_in_group(1, 2))
    groups = tuple(
        replace(one, chain=without_gradients(_with_large_outputs(one.chain)))
        for one in variants((2,), 2)
    )
    found = []
    for shared in (1, 2):
        between = Link(bandwidth_bytes_per_s=10**9, latency_ns=5, duplex="full")
        platform = on_switch(Gpu(memory_bytes=1200), 2, 2, shared, None, between)
        problem = training_step(_with_large_outputs(chain), platform, 4, variants=groups)
        candidate = searched(problem).best[0]
        step = read_step(problem)
        assert step is not None
        plan = lay_out(step, candidate, searched(problem).orders(candidate))
        assert check(plan) == ()
        assert plan.pattern.period_total_ns == candidate.makespan_ns >= bound_of(problem)
        found.append(candidate)
    assert [len(one.stages) for one in found] == [2, 2]
    # Each of four micro-batches goes in two parts of 500 bytes, one behind the other or at once.
    assert found[0].makespan_ns - found[1].makespan_ns >= 4 * 500


def _with_large_outputs(chain: Chain) -> Chain:
    layers = (replace(layer, activation_bytes=1000) for layer in chain.layers)
    return replace(chain, layers=tuple(layers))
