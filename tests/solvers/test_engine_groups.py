"""Groups of replicas that have copies of shards (HSDP), against all grids and cuts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope, check
from schedopt.engine import Engine
from schedopt.formats.presets import make_preset
from schedopt.network import Link, Network, Node, NodeLink
from schedopt.platform import Gpu
from schedopt.problem import training_step
from schedopt.solving.engines.answers import EngineAnswers
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid, grids_of
from schedopt.solving.engines.layout import lay_out_step
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.run import Run
from tests import strategies
from tests.budgets import trials
from tests.solvers.test_engine_grids import (
    compare_with_bounds,
    compare_with_steps_of_any_kind,
    compare_with_the_answer,
    every_plan,
    trained,
)
from tests.tensor_groups import two_nodes

SMALL = st.integers(0, 6)


@st.composite
def steps_of_groups(draw: st.DrawFn) -> Problem:
    """Draw the question for a step in which groups of replicas may have copies of the shards."""
    chain, _ = draw(trained(most=2))
    memory = draw(st.integers(10, 120))
    platform = draw(
        st.sampled_from(
            [
                Platform(4, memory, bandwidth=10**9, duplex="full"),
                Platform(8, memory, bandwidth=3 * 10**8),
                two_nodes(2, memory),
                two_nodes(4, memory),
            ]
        )
    )
    engines: list[Engine] = ["megatron", "torchtitan"]
    scope = Scope(
        allocation="general",
        max_k=None,
        memory="peak",
        replicas=None,
        shard="optimizer",
        hybrid=True,
        engine=draw(st.sampled_from(engines)),
    )
    context = draw(st.sampled_from([1, 1, 1, 2]))
    return training_step(replace(chain, context=context), platform, 8 // context, scope)


def step_of_groups(part: int, platform: Platform) -> Problem:
    """Return the question for a step of one micro-batch a GPU, of layers with three such parts."""
    layer = Layer(
        forward_ns=1000,
        backward_ns=2000,
        weight_bytes=3 * part,
        parameter_bytes=part,
        gradient_bytes=part,
        optimizer_bytes=part,
        activation_bytes=4 * part,
    )
    chain = Chain(layers=tuple(replace(layer, name=name) for name in ("embed", "layers.0", "head")))
    scope = Scope.usual(
        max_k=None, replicas=None, shard="optimizer", hybrid=True, engine="megatron"
    )
    return training_step(chain, platform, len(platform.gpus), scope)


@pytest.mark.parametrize(("copies", "share"), [(8, 0.99), (4, 0.92), (2, 0.86)])
def test_little_is_left_out_of_what_goes_between_groups(copies: int, share: float) -> None:
    problem = step_of_groups(10**9, make_preset("dgx-h100:2"))
    grid = Grid(ranks=1, chunks=1, replicas=16, shard="optimizer", copies=copies)
    cuts = EngineCuts(problem, grid)
    length = lay_out_step(problem, grid, cuts.stages((0,))).pattern.period_total_ns
    assert share * length <= cuts.schedule_bound((0,)) <= length


@pytest.mark.parametrize("gpus", [2, 4])
def test_both_ways_between_two_gpus_share_a_link(gpus: int) -> None:
    problem = step_of_groups(10**9, Platform(gpus, "80G", bandwidth="12GB/s"))
    cuts = EngineCuts(problem, Grid(ranks=1, chunks=1, replicas=gpus, shard="optimizer"))
    length = lay_out_step(problem, cuts.grid, cuts.stages((0,))).pattern.period_total_ns
    assert 0.999 * length <= cuts.schedule_bound((0,)) <= length


def test_replicas_that_are_done_earlier_send_earlier() -> None:
    # Of the second of four ranks one replica lies in a node with the first, the others in the next.
    layer = Layer(
        forward_ns=15,
        backward_ns=22,
        weight_bytes=150,
        parameter_bytes=57,
        gradient_bytes=57,
        optimizer_bytes=9,
        activation_bytes=4,
        update_ns=41,
    )
    layers = [replace(layer, name=name) for name in ("embed", *map("layers.{}".format, range(5)))]
    layers[1] = replace(layers[1], forward_ns=24, backward_ns=15, parameter_bytes=56, update_ns=48)
    layers[1] = replace(layers[1], gradient_bytes=1, activation_bytes=3)
    chain = Chain(layers=(*layers, replace(layer, name="head")), input_bytes=1)
    inside = Link(bandwidth_bytes_per_s=10**9, latency_ns=2, duplex="full")
    network = Network(
        nodes=(*(Node(name=name, gpus=4, link=inside) for name in "abc"), Node(name="s", gpus=0)),
        links=tuple(
            NodeLink(between=(name, "s"), bandwidth_bytes_per_s=2 * 10**8, cards=4)
            for name in "abc"
        ),
    )
    platform = Platform([Gpu(memory_bytes=10**6)] * 12, network=network)
    scope = Scope.usual(max_k=None, replicas=None, shard="optimizer", engine="megatron")
    problem = training_step(chain, platform, 12, scope)
    cuts = EngineCuts(problem, Grid(ranks=4, chunks=1, replicas=3, shard="optimizer"))
    begins = (0, 2, 5, 6)
    plan = lay_out_step(problem, cuts.grid, cuts.stages(begins))
    assert check(plan) == ()
    assert cuts.schedule_bound(begins) <= plan.pattern.period_total_ns


BEHIND = Network(
    nodes=(Node(name="a", gpus=2), Node(name="behind b", gpus=1), Node(name="b", gpus=1)),
    links=(
        NodeLink(between=("a", "b"), bandwidth_bytes_per_s=10**10),
        NodeLink(between=("b", "behind b"), bandwidth_bytes_per_s=10**8),
    ),
)


@trials(400, by_day=2)
@given(strategies.networks(4), st.integers(1, 2000))
@example(BEHIND, 500)
def test_replicas_may_lie_otherwise_in_the_nodes(network: Network, part: int) -> None:
    # What comes and goes on a link takes longer for those that go on from there.
    problem = step_of_groups(part, Platform([Gpu(memory_bytes=10**9)] * 4, network=network))
    for grid in grids_of(problem, 3):
        cuts, begins = EngineCuts(problem, grid), (0, 1, 2)[: grid.parts]
        length = lay_out_step(problem, grid, cuts.stages(begins)).pattern.period_total_ns
        assert max(cuts.schedule_bound(begins), cuts.link_bound()) <= length


def test_steps_of_groups_are_folds_on_many_gpus() -> None:
    # Spelled out, 130,000 chunks would go round.
    result = solve_problem(step_of_groups(10**9, make_preset("dgx-h100:32")), workers=1)
    assert result.plan is not None
    assert result.plan.pattern.fold == 32
    assert {stage.shard_copies for stage in result.plan.stages} == {32}
    assert check(result) == ()


def test_groups_that_gain_nothing_are_one() -> None:
    # On links that are alike as many chunks go one after the other, whatever the groups.
    problem = step_of_groups(10**9, make_preset("dgx-h100:1"))
    grid = Grid(ranks=1, chunks=1, replicas=8, shard="optimizer", copies=2)
    cuts, run = EngineCuts(problem, grid), Run(problem)
    EngineAnswers(problem, run).offer(cuts, (0,))
    best, grouped = run.best(), lay_out_step(problem, grid, cuts.stages((0,)))
    assert best is not None
    assert {stage.shard_copies for stage in best.stages} == {1}
    assert best.pattern.period == grouped.pattern.period


@pytest.mark.parametrize("copies", [2, 4, 8])
def test_as_folds_steps_of_groups_are_no_longer(copies: int) -> None:
    problem = step_of_groups(10**9, make_preset("dgx-h100:2"))
    grid = Grid(ranks=1, chunks=1, replicas=16, shard="optimizer", copies=copies)
    stages = EngineCuts(problem, grid).stages((0,))
    whole, fold = (lay_out_step(problem, grid, stages, folded=folded) for folded in (False, True))
    assert fold.pattern.fold == 2
    assert check(whole) == () == check(fold)
    assert fold.pattern.period <= whole.pattern.period


@trials(150, by_day=2)
@given(steps_of_groups())
def test_equal_to_trying_all_groups_of_replicas(problem: Problem) -> None:
    plans = [*every_plan(problem)]
    compare_with_the_answer(problem, plans)
    compare_with_bounds(problem, plans)


@trials(100, by_day=3)
@given(steps_of_groups())
def test_no_engine_with_groups_is_ahead_of_steps_of_any_kind(problem: Problem) -> None:
    compare_with_steps_of_any_kind(problem)


@trials(100, by_day=2)
@given(steps_of_groups())
def test_steps_of_any_kind_have_groups_of_replicas_too(problem: Problem) -> None:
    lengths = [plan.pattern.period_total_ns for _, plan in every_plan(problem)]
    free = replace(problem, scope=replace(problem.scope, engine=None))
    result = solve_problem(free, time_limit=1, gap=0, workers=1)
    assert check(result) == ()
    if lengths:
        assert result.plan is not None
        assert result.lower_bound is not None
        assert result.lower_bound * result.plan.pattern.k <= min(lengths)
