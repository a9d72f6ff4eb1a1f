"""Looped pipelines: the stages go round the GPUs, and the last one lies on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Plan, Platform, Problem, check
from schedopt.account import fits
from schedopt.bounds import lower_bounds
from schedopt.network import Link, Network, Node, NodeLink
from schedopt.problem import training_step, widest_step
from schedopt.solvers import looped_steps
from schedopt.solvers.looped_steps import LoopedSteps
from schedopt.solving.clock import Clock
from schedopt.solving.looped_pipeline import Rounds
from schedopt.solving.replicas.layout import lay_out_turns
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.training_steps import training_steps
from tests.tensor_groups import chain_in_group, two_nodes, variants


def propose(problem: Problem, run: Run) -> Iterator[Plan]:
    """Yield what is found in the time of a run."""
    loops = LoopedSteps(problem)
    loops.look(run)
    return loops.lay_out(run)


def heavy_end(memory: int) -> Problem:
    """Return two micro-batches of two layers and one that takes twice as long, on two GPUs."""
    sizes: dict[str, Any] = {"parameter_bytes": 10, "gradient_bytes": 0, "optimizer_bytes": 0}
    one, last = (replace(layer(time, time, weight=10), **sizes) for time in (1, 2))
    chain = Chain(layers=(one, one, last))
    return training_step(chain, Platform(2, memory), 2, widest_step(chain))


def test_the_last_layer_is_shared_by_all_gpus() -> None:
    # With one GPU for it, and another one for a layer before it at least, no step is below 12 ns.
    # On both of them its 8 ns go by turns, in between 1 ns each, there and back: GPU 0 has 2 ns of
    # forwards, 4 of the last layer, then waits until 8 for what GPU 1 begins last, and has 2 more.
    problem = heavy_end(memory=25)
    plans = [*propose(problem, Run(problem))]
    assert min(plan.pattern.period_total_ns for plan in plans if not check(plan)) == 10


def test_what_comes_behind_the_longest_layer_is_shared_with_it() -> None:
    # As above, with a loss of two layers behind it. What goes between these is on no link.
    problem = heavy_end(memory=25)
    *first, last = problem.chain.layers
    logits = replace(last, activation_bytes=8, saved_bytes=0)
    loss = replace(last, forward_ns=0, backward_ns=0, weight_bytes=0, parameter_bytes=0)
    chain = Chain(layers=(*first, logits, loss, loss))
    plans = [*propose(replace(problem, chain=chain), Run(problem))]
    best = min((plan for plan in plans if not check(plan)), key=lambda plan: plan.pattern.period)
    assert best.stages[-1].layers == (2, 4)
    assert best.pattern.period_total_ns == 10


def test_none_are_proposed_where_two_layers_do_not_fit() -> None:
    problem = heavy_end(memory=19)
    assert not [*propose(problem, Run(problem))]


def seven_layers(sizes: Sequence[tuple[int, int, int]], platform: Platform) -> Problem:
    """Return the step of as many micro-batches as GPUs, of layers of which each GPU holds three.

    Each layer takes as long forward as backward, and sends and adds up so many bytes.
    """
    layers = [
        replace(
            layer(time, time, weight=10, sent=sent),
            parameter_bytes=10 - added,
            gradient_bytes=added,
            optimizer_bytes=0,
        )
        for time, sent, added in sizes
    ]
    chain = Chain(layers=tuple(layers))
    return training_step(chain, platform, len(platform.gpus), widest_step(chain))


def test_layers_that_are_left_over_lie_on_as_few_gpus_as_can_be() -> None:
    # Each GPU has one of the first four layers, the last one, and one of the two that are left,
    # which take turns on two GPUs each. So it works 14 of all 56 ns; the fourth begins behind three
    # forwards, and three backwards come behind it.
    problem = seven_layers([(1, 0, 0)] * 7, Platform(4, 35))
    plans = [plan for plan in propose(problem, Run(problem)) if not check(plan)]
    best = min(plans, key=lambda plan: plan.pattern.period_total_ns)
    assert [len(stage.gpus) for stage in best.stages] == [1, 1, 1, 1, 2, 2, 4]
    assert best.pattern.period_total_ns == 14 + 3 + 3


@pytest.mark.parametrize("examples", [10, pytest.param(300, marks=pytest.mark.nightly)])
def test_random_layers_that_are_left_over_make_valid_steps(examples: int) -> None:
    sizes = st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 5))
    found: list[Plan] = []

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(st.lists(sizes, min_size=7, max_size=7), st.sampled_from([4, 8]))
    def look(drawn: list[tuple[int, int, int]], gpus: int) -> None:
        problem = seven_layers(drawn, Platform(gpus, 48, bandwidth=10**9, duplex="full"))
        for plan in propose(problem, Run(problem)):
            assert {found.kind for found in check(plan)} <= {"memory"}
            assert all(one.period <= plan.pattern.period for one in lower_bounds(problem))
            found.append(plan)

    look()
    several = [plan for plan in found if len(plan.stages[-2].gpus) * 2 == len(plan.stages[-1].gpus)]
    assert {plan.pattern.fold for plan in several} >= {1, 2}


@st.composite
def long_steps(draw: st.DrawFn) -> Problem:
    """Draw the question for a step of four samples on two or four GPUs, anywhere.

    GPUs may share sequences, or experts.
    """
    asked = draw(
        training_steps(longest=6, degrees=(2,)).filter(lambda one: len(one.chain.layers) > 2)
    )
    gpus = [Gpu(memory_bytes=draw(st.integers(20, 100)))] * draw(st.sampled_from([2, 4]))
    scope = replace(asked.scope, allocation="general", replicas=None)
    context, expert = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2)]))
    chain, *others = (
        replace(one, same_gpu=(), context=context, expert=expert)
        for one in (asked.chain, *(one.chain for one in asked.variants))
    )
    variants = [
        replace(one, chain=other) for one, other in zip(asked.variants, others, strict=True)
    ]
    return training_step(chain, asked.platform.with_gpus(gpus), 4, scope, variants)


@pytest.mark.parametrize("examples", [30, pytest.param(2000, marks=pytest.mark.nightly)])
def test_random_steps_are_valid_but_for_what_comes_early(examples: int) -> None:
    plans: list[Plan] = []

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(long_steps())
    def look(problem: Problem) -> None:
        for plan in propose(problem, Run(problem)):
            assert {found.kind for found in check(plan)} <= {"memory"}
            assert fits(plan, buffers=False)
            assert all(one.period <= plan.pattern.period for one in lower_bounds(problem))
            assert problem.chain.expert == 1
            plans.append(plan)

    look()
    assert len(plans) > examples / 2
    assert any(plan.chain.context > 1 for plan in plans)


def test_parts_and_ranks_lie_in_nodes() -> None:
    problem = training_step(
        chain_in_group(1), two_nodes(), 8, widest_step(chain_in_group(1), None), variants()
    )
    plans = [*propose(problem, Run(problem))]
    assert plans
    assert not any(map(check, plans))
    for plan in plans:
        # The last stage lies on all ranks, or on the last one, which is a node then.
        assert sorted(plan.stages[-1].gpus)[0] % 4 == 0


def test_a_first_layer_of_its_own_leaves_its_gradients_a_gpu_beside() -> None:
    # Two parts of two GPUs, each with two micro-batches. Rings of two take as long as a gradient of
    # the layer is large: 40, 20 and 10 ns, and that of the last layer, of all four, 12.
    sizes = [(1, 40, 80), (10, 20, 100), (10, 10, 110), (5, 8, 16)]
    layers = [
        replace(
            layer(time, time, weight=weight),
            parameter_bytes=size,
            gradient_bytes=size,
            optimizer_bytes=0,
        )
        for time, size, weight in sizes
    ]
    chain = Chain(layers=tuple(layers))
    # Layers 1 and 2 do not fit on one GPU beside the last one.
    platform = Platform(4, 210, bandwidth=10**9, duplex="full")
    problem = training_step(chain, platform, 4, widest_step(chain))
    plans = [plan for plan in propose(problem, Run(problem)) if not check(plan)]
    best = min(plans, key=lambda plan: plan.pattern.period_total_ns)
    # The second micro-batch goes ahead until 31 (layers 0 to 2), through the last layer until 41,
    # and back until 72, behind the first one; layer 2 is through at 61 and its ring at 71. Behind
    # layer 1 the ring of layer 0 would end 20 ns later.
    assert [stage.layers for stage in best.stages] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert {*best.stages[0].gpus} == {*best.stages[2].gpus}
    assert best.pattern.period_total_ns == 72 + 40


def test_gradients_go_between_nodes_while_others_run() -> None:
    # Two nodes of two GPUs, each with a card of its own. With a rank in each node all rings but
    # that of the last layer stay inside, where they take next to no time. Over the cards they would
    # take 80 ns behind the last backward; those of the last layer, 30 and 30, are through before.
    inside = Link(bandwidth_bytes_per_s=10**10)
    network = Network(
        nodes=(*(Node(name=name, gpus=2, link=inside) for name in "ab"), Node(name="c", gpus=0)),
        links=tuple(
            NodeLink(between=(name, "c"), bandwidth_bytes_per_s=10**9, duplex="full", cards=2)
            for name in "ab"
        ),
    )
    layers = [
        replace(
            layer(time, time, weight=2 * size, sent=2),
            parameter_bytes=size,
            gradient_bytes=size,
            optimizer_bytes=0,
        )
        for time, size in [(10, 80)] * 4 + [(5, 40)]
    ]
    chain = Chain(layers=tuple(layers))
    platform = Platform([Gpu(memory_bytes=10**6)] * 4, network=network)
    problem = training_step(chain, platform, 16, widest_step(chain))
    plans = [plan for plan in propose(problem, Run(problem)) if not check(plan)]
    best = min(plans, key=lambda plan: plan.pattern.period_total_ns).pattern
    last_backward = max(one.start_ns for one in best.operations if one.kind == "B")
    of_last = [one for one in best.collectives if one.stage == 4]
    assert len(of_last) == 2
    assert all(one.start_ns + 30 < last_backward for one in of_last)
    assert best.period_total_ns < last_backward + 10 + 80


def on_one_card_a_node(sent: int, gradient: int) -> Problem:
    """Return a step of nine equal layers on two nodes of two GPUs, each with one card."""
    inside = Link(bandwidth_bytes_per_s=10**12)
    network = Network(
        nodes=(*(Node(name=name, gpus=2, link=inside) for name in "ab"), Node(name="c", gpus=0)),
        links=tuple(
            NodeLink(between=(name, "c"), bandwidth_bytes_per_s=10**9, duplex="full")
            for name in "ab"
        ),
    )
    own: dict[str, Any] = {"parameter_bytes": 80, "gradient_bytes": gradient, "optimizer_bytes": 0}
    chain = Chain(layers=(replace(layer(10, 10, weight=80 + gradient, sent=sent), **own),) * 9)
    platform = Platform([Gpu(memory_bytes=10**6)] * 4, network=network)
    return training_step(chain, platform, 16, widest_step(chain))


def test_parts_that_share_a_card_are_laid_out_together() -> None:
    # Parts with a GPU in each node are in each other's way. The last layer on both nodes would send
    # half of all micro-batches once more.
    problem = on_one_card_a_node(sent=8, gradient=80)
    plans = [plan for plan in propose(problem, Run(problem)) if not check(plan)]
    best = min(plans, key=lambda plan: plan.pattern.period_total_ns)
    assert [{*stage.gpus} for stage in best.stages] == [{0, 1}, {2, 3}] * 2
    assert best.pattern.fold == 1
    # One rank has five of the nine layers, each for eight micro-batches of a GPU.
    assert 8 * 5 * 20 <= best.pattern.period_total_ns < 1.05 * (8 * 5 * 20)


def test_rings_that_leave_a_node_over_the_same_card_take_turns() -> None:
    # Each node is a part, and the gradients of its two ranks go to the other node over one card.
    problem = on_one_card_a_node(sent=1, gradient=8000)
    every = looped_steps._list_loops(problem, None)
    loops = [loop for loop in every if loop.inside and loop.fold == 2]
    assert loops
    for loop in loops:
        found = looped_steps._Simulation(loop, 0, loop.in_flight(1.0)).run(inf)
        assert found is not None
        about, turns = found
        plan = lay_out_turns(problem, loop.stages, turns, fold=loop.fold)
        assert about == pytest.approx(plan.pattern.period_total_ns, rel=0.02)


def test_parts_that_share_a_card_of_several_ranks_are_not_looked_at() -> None:
    # Two nodes of four GPUs, two to a card: with a pair of parts for each of four ranks, both ranks
    # of a node send over the cards of the other part, too.
    inside = Link(bandwidth_bytes_per_s=10**12)
    network = Network(
        nodes=(*(Node(name=name, gpus=4, link=inside) for name in "ab"), Node(name="c", gpus=0)),
        links=tuple(
            NodeLink(between=(name, "c"), bandwidth_bytes_per_s=10**9, cards=2) for name in "ab"
        ),
    )
    platform = Platform([Gpu(memory_bytes=10**6)] * 8, network=network)
    chain = on_one_card_a_node(sent=1, gradient=80).chain
    problem = training_step(chain, platform, 16, widest_step(chain))
    loops = [*looped_steps._list_loops(problem, None)]
    assert any(loop.inside for loop in loops)
    for loop in loops:
        found = looped_steps._Simulation(loop, 2, loop.in_flight(1.0)).run(inf)
        assert found is not None
        # It is no `InputError` that these are no fold.
        lay_out_turns(problem, loop.stages, found[1], fold=loop.fold // loop.sharing)


def test_activations_go_between_rounds_of_a_ring() -> None:
    # Three rounds of 10 ns. The first runs when an activation of 4 ns comes at 105; the second one
    # begins behind it, at 114, and ends before the next activation; the third one is in its way.
    rounds = Rounds(left=3, each_ns=10, begin=100)
    assert rounds.send(105, 4) == 110
    assert rounds.send(124, 2) == 124
    assert (rounds.left, rounds.begin) == (1, 126)
    assert rounds.send(130, 5) == 136
    assert (rounds.left, rounds.begin) == (0, 136)
    assert rounds.send(137, 5) == 137


@given(problem=training_steps())
@trials(300)
def test_loops_that_are_left_out_for_their_memory_do_not_fit(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looped_steps, "_may_fit", lambda *_: True)
        loops = [*looped_steps._list_loops(problem, None)]
    for loop in loops:
        if loop.in_flight(1.0):
            replicas = loop.fold * loop.ranks
            assert looped_steps._may_fit(problem, loop.tensor, loop.ranks, replicas)


def test_looking_goes_on_where_it_was_cut_short() -> None:
    problem, ticks = heavy_end(memory=25), count()
    run, short = Run(problem), Run(problem)
    whole, parts = LoopedSteps(problem), LoopedSteps(problem)
    whole.look(run)
    short.clock = Clock(100.0, now=lambda: float(next(ticks)))
    looks = 0
    while parts.least_ns() > whole.least_ns() and looks < 100:
        # It looks at the clock before each loop, and when it begins.
        parts.look(short, 0.06)
        looks += 1
    assert parts.least_ns() == whole.least_ns() == 10


def test_what_was_laid_out_is_not_laid_out_again() -> None:
    problem = heavy_end(memory=25)
    run, loops = Run(problem), LoopedSteps(problem)
    loops.look(run)
    assert [*loops.lay_out(run)]
    assert [*loops.lay_out(run)] == []
