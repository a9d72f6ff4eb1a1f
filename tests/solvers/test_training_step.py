"""Training steps with replicas against every step of small problems."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from fractions import Fraction
from itertools import islice, pairwise, product
from math import gcd
from statistics import geometric_mean

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from schedopt import (
    Chain,
    Gpu,
    Layer,
    Link,
    Network,
    Node,
    NodeLink,
    Platform,
    Problem,
    Rule,
    check,
    solve,
)
from schedopt.account import fits
from schedopt.folding import whole
from schedopt.problem import training_step, widest_step
from schedopt.proofs import Proof, ProofKind
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.replicas import layout, stages
from schedopt.solving.replicas.candidates import Candidates, StageChoice
from schedopt.solving.replicas.layout import lay_out
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.solving.replicas.step_bound import least_memory
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from tests.budgets import trials
from tests.examples import layer as layer_of
from tests.solvers.asking import plan_of, why
from tests.solvers.every_training_step import every_way, least_step
from tests.solvers.step_searches import bound_of, searched, step_data, train
from tests.solvers.training_steps import training_steps


def in_parts(problem: Problem, parts: int) -> Problem:
    """Return the same problem in units of a byte that replicas cut evenly."""
    problem = replace(
        problem,
        chain=_chain_in_parts(problem.chain, parts),
        variants=tuple(
            replace(one, chain=_chain_in_parts(one.chain, parts)) for one in problem.variants
        ),
    )
    platform, link = problem.platform, problem.platform.link
    gpus = [replace(gpu, memory_bytes=parts * gpu.memory_bytes) for gpu in platform.gpus]
    if link is None:
        return replace(problem, platform=Platform(gpus))
    faster, latency = parts * link.bandwidth_bytes_per_s, link.latency_ns
    platform = Platform(gpus, bandwidth=faster, latency=latency, duplex=link.duplex)
    return replace(problem, platform=platform)


def _chain_in_parts(chain: Chain, parts: int) -> Chain:
    names = [field.name for field in fields(Layer) if field.name.endswith("_bytes")]
    layers = []
    for layer in chain.layers:
        sizes = {name: getattr(layer, name) for name in names}
        larger = {name: parts * size for name, size in sizes.items() if size is not None}
        layers.append(replace(layer, **larger))
    return replace(chain, layers=tuple(layers))


@trials(500)
@given(training_steps())
def test_no_step_is_below_the_bound(problem: Problem) -> None:
    if problem.scope.shard in SHARDS[2:]:
        # A byte more or less at home would be one for each layer.
        problem = in_parts(problem, 12)
    step = step_data(problem)
    least_bytes = min(max(stage.least_bytes for stage in way) for way in every_way(problem))
    assert holds(step) == (least_bytes <= problem.platform.gpus[0].usable_bytes)
    if not holds(step):
        assert least_memory(step) == least_bytes
        return
    bound = bound_of(problem)
    assert least_step(problem, bound - 1) is None
    assert bound <= searched(problem).best[0].makespan_ns


def assert_not_below_the_bound(problem: Problem, *splits: bool) -> None:
    """Hold orders of small steps, and what is laid out, against the bound."""
    problem = in_parts(problem, 12)
    if not holds(step_data(problem)):
        return
    bound, candidates = bound_of(problem), searched(problem)
    assert least_step(problem, bound - 1) is None
    for candidate, split in product(candidates.best[:2], splits):
        orders = candidates.orders(candidate)
        plan, found = check_sent_late(lay_out(candidates.step, candidate, orders, split=split))
        assert not found or fits(plan, buffers=False)
        assert bound <= plan.pattern.period_total_ns


@trials(300)
@given(training_steps(levels=SHARDS[:2], copied=True))
def test_copies_add_up_their_gradients_in_a_step(problem: Problem) -> None:
    assert_not_below_the_bound(problem, False)


@trials(300)
@given(training_steps(levels=SHARDS[:2], halves=True))
def test_no_step_of_split_backwards_is_below_the_bound(problem: Problem) -> None:
    assert_not_below_the_bound(problem, False, True)


@trials(300)
@given(training_steps(levels=SHARDS[:2], most=4, uneven=True))
def test_no_step_of_uneven_replicas_is_below_the_bound(problem: Problem) -> None:
    assert_not_below_the_bound(problem, False)


@pytest.mark.parametrize("examples", [50, pytest.param(500, marks=pytest.mark.nightly)])
def test_most_steps_are_the_shortest_and_most_bounds_are_reached(examples: int) -> None:
    """With the search to its end; orders that are not decided count as none."""
    ratios, apart = list[float](), list[float]()

    @settings(max_examples=examples, derandomize=True, database=None, phases=[Phase.generate])
    @given(training_steps(levels=SHARDS[:2]))
    def compare(problem: Problem) -> None:
        problem = in_parts(problem, 12)
        if holds(step_data(problem)):
            least = least_step(problem)
            assert least is not None
            ratios.append(searched(problem).best[0].makespan_ns / least)
            apart.append(least / bound_of(problem))

    compare()
    assert len(ratios) > 30
    assert min(apart) == min(ratios) == 1
    assert apart.count(1) >= 0.85 * len(apart)
    assert geometric_mean(apart) < 1.02, sorted(apart)
    assert ratios.count(1) >= 0.7 * len(ratios)
    assert geometric_mean(ratios) < 1.05, sorted(ratios)


@trials(300)
@given(training_steps(levels=SHARDS[:1], most=4), st.integers(1, 3))
def test_a_step_is_laid_out_as_it_was_simulated(problem: Problem, unit: int) -> None:
    """With parts of gradients that are equal, one behind the other on links of their own."""
    assume(problem.platform.link is not None and problem.platform.link.duplex == "full")
    layers = (
        replace(layer, gradient_bytes=2 * unit, weight_bytes=layer.weight_bytes + 2 * unit)
        for layer in problem.chain.layers
    )
    problem = replace(problem, chain=replace(problem.chain, layers=tuple(layers)))
    problem = replace(problem, scope=replace(problem.scope, replicas=2)).with_extra_memory(6)
    search = StepSearch(step_data(problem), Run(problem))
    candidates = search.candidates
    for candidate in list(islice(search.improve(), 1)) and candidates.best:
        plan, found = check_sent_late(lay_out(search.step, candidate, candidates.orders(candidate)))
        # What waits to be read may have no room.
        assert not found or fits(plan, buffers=False)
        assert plan.pattern.period_total_ns == candidate.makespan_ns


@trials(200)
@given(training_steps(levels=SHARDS[2:]))
def test_what_shares_gradients_or_parameters_is_valid_and_not_below_the_bound(
    problem: Problem,
) -> None:
    problem = in_parts(problem, 12)
    if not holds(step_data(problem)):
        return
    bound, candidates = bound_of(problem), searched(problem)
    assert candidates.best
    for candidate in candidates.best[:3]:
        plan, found = check_sent_late(
            lay_out(candidates.step, candidate, candidates.orders(candidate))
        )
        assert not found or fits(plan, buffers=False)
        assert plan.pattern.period_total_ns >= bound


@trials(200)
@given(training_steps(levels=["parameter"], longest=4), st.integers(1, 3), st.data())
def test_stages_that_share_parameters_are_laid_out_as_they_were_simulated(
    problem: Problem, cut: int, data: st.DataObject
) -> None:
    """Where what comes for an operation takes no longer than the one before."""
    layers = [
        replace(
            layer,
            forward_ns=100 * layer.forward_ns,
            backward_ns=100 * layer.backward_ns,
            parameter_bytes=1 + (layer.parameter_bytes or 0),
            weight_bytes=1 + layer.weight_bytes,
            update_ns=None,
        )
        for layer in problem.chain.layers
    ]
    chain = replace(problem.chain, layers=tuple(layers), same_gpu=())
    scope = replace(problem.scope, replicas=None, shard="parameter")
    room = data.draw(st.integers(20, 60))
    platform = Platform(4, room, bandwidth=10**9, latency=1, duplex="full")
    problem = in_parts(training_step(chain, platform, 4, scope), 12)
    count = len(layers)
    cuts = (0, cut, count) if cut < count else (0, count)
    stages = tuple(StageChoice(first, end, 2, 3) for first, end in pairwise(cuts))
    candidates = Candidates(step_data(problem), Run(problem))
    candidate = candidates.add(stages, [2] * len(stages))
    assume(candidate is not None)
    assert candidate is not None
    plan, found = check_sent_late(lay_out(candidates.step, candidate, candidates.orders(candidate)))
    assert not found or fits(plan, buffers=False)
    assert plan.pattern.period_total_ns == candidate.makespan_ns


@trials(200)
@given(training_steps(), st.sampled_from([(2, 1), (2, 2), (1, 3)]), st.integers(1, 4))
def test_no_step_on_nodes_is_below_the_bound(
    problem: Problem, sizes: tuple[int, int], slower: int
) -> None:
    nodes, each = sizes
    inside = Link(bandwidth_bytes_per_s=4 * 10**9, duplex="full")
    network = Network(
        nodes=tuple(Node(name=str(number), gpus=each, link=inside) for number in range(nodes + 1)),
        links=tuple(
            NodeLink(
                bandwidth_bytes_per_s=4 * 10**9 // slower, duplex="full", between=("0", str(other))
            )
            for other in range(1, nodes + 1)
        ),
    )
    room = problem.platform.gpus[0].usable_bytes + 9
    platform = Platform([Gpu(memory_bytes=room)] * (nodes + 1) * each, network=network)
    problem = replace(problem, platform=platform)
    step = read_step(problem)
    assume(step is not None and holds(step))
    assert step is not None
    bound, candidates = bound_of(problem), searched(problem)
    for candidate in candidates.best[:3]:
        plan, found = check_sent_late(lay_out(step, candidate, candidates.orders(candidate)))
        assert not found or fits(plan, buffers=False)
        assert plan.pattern.period_total_ns >= bound


@trials(300)
@given(training_steps(levels=SHARDS[:1], most=4))
def test_a_plan_is_valid_and_not_below_any_bound(problem: Problem) -> None:
    result = train(problem)
    least_bytes = min(max(stage.least_bytes for stage in way) for way in every_way(problem))
    if least_bytes > problem.platform.gpus[0].usable_bytes:
        found = why(result)
        assert found.least_memory_bytes == least_bytes
        assert found.proof == Proof(ProofKind.NO_STAGES_WITH_REPLICAS)
        return
    plan = plan_of(result)
    assert result.period is not None
    bound, count = bound_of(problem), problem.scope.microbatches
    assert result.lower_bound is not None
    assert result.lower_bound >= Fraction(bound, count or 1)
    assert plan.pattern.period_total_ns >= bound


@trials(200)
@given(
    training_steps(gpus=2, most=3, longest=2),
    st.sampled_from([2, 3]),
    st.sampled_from(["pairs", "nodes"]),
)
def test_one_part_of_a_fold_is_searched_for_all(problem: Problem, fold: int, linked: str) -> None:
    """Of so many times the GPUs and micro-batches; each part has a node, or pairs of links."""
    in_nodes = linked == "nodes"
    gpus, link = problem.platform.gpus * fold, problem.platform.link
    platform = Platform(gpus)
    object.__setattr__(platform, "link", link)
    each = len(gpus) // fold
    if in_nodes and link is not None:
        names = [str(number) for number in range(fold)]
        between = [NodeLink(between=(name, "switch"), **asdict(link)) for name in names]
        nodes = [Node(name=name, gpus=each, link=link) for name in names]
        network = Network(nodes=(*nodes, Node(name="switch", gpus=0)), links=tuple(between))
        platform = Platform(gpus, network=network)
    count = (problem.scope.microbatches or 1) * fold
    scope = replace(problem.scope, replicas=None, microbatches=count)
    problem = replace(problem, platform=platform, rule=Rule.of_flush(count), scope=scope)
    step, whole_step = read_step(problem, fold), step_data(problem)
    assume(step is not None and holds(whole_step))
    assert step is not None
    search, bound = StepSearch(step, Run(problem)), bound_of(problem)
    for candidate in list(islice(search.improve(), 2)):
        plan = lay_out(step, candidate, search.candidates.orders(candidate))
        found = check(plan)
        # What waits to be read may have no room.
        assert not found or fits(plan, buffers=False)
        assert bool(found) == bool(check(whole(plan)))
        assert plan.pattern.fold == fold
        assert plan.pattern.period_total_ns >= bound
        if link is not None and link.duplex == "full" and not in_nodes:
            # What takes no time starts within the period.
            assert plan.pattern.period_total_ns - candidate.makespan_ns in (0, 1)


@trials(200)
@given(training_steps(levels=SHARDS[:2], gpus=2, most=3, longest=2), st.sampled_from([2, 3]))
def test_parts_of_a_step_that_are_alike_are_laid_out_once(problem: Problem, fold: int) -> None:
    """On so many times the GPUs, for as many times the micro-batches."""
    link, count = problem.platform.link, (problem.scope.microbatches or 1) * fold
    platform = Platform(problem.platform.gpus * fold)
    object.__setattr__(platform, "link", link)
    scope = replace(problem.scope, replicas=None, microbatches=count)
    problem = replace(problem, platform=platform, rule=Rule.of_flush(count), scope=scope)
    step = step_data(problem)
    assume(holds(step))
    bound, search = bound_of(problem), StepSearch(step, Run(problem))
    for candidate in list(islice(search.improve(), 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "MOST_WHOLE", 0)
            plan = lay_out(step, candidate, search.candidates.orders(candidate))
        assert plan.pattern.fold == gcd(count, *(stage.replicas for stage in candidate.stages))
        found = check(plan)
        # What waits to be read may have no room.
        assert not found or fits(plan, buffers=False)
        assert bool(found) == bool(check(whole(plan)))
        assert plan.pattern.period_total_ns >= bound
        if link is not None and link.duplex == "full":
            # What takes no time starts within the period.
            assert plan.pattern.period_total_ns - candidate.makespan_ns in (0, 1)


def test_a_large_job_is_laid_out_as_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four layers with 2 ns of F and 4 of B, on twice as many GPUs as are laid out.
    monkeypatch.setattr(stages, "MOST_GPUS", 2)
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=(layer_of(2, 4, 16, 1, saved_bytes=3, **sizes),) * 4)
    platform = Platform(4, 60, bandwidth=4 * 10**9, duplex="full")
    result = solve(
        chain, platform, batch=8, scope=replace(widest_step(chain), allocation="contiguous")
    )
    plan = plan_of(result)
    assert plan.pattern.fold == 2
    assert check(whole(plan)) == ()
    assert result.lower_bound is not None
    assert result.lower_bound <= plan.pattern.period


def test_a_large_job_whose_parts_hold_nothing_is_searched_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A stage takes a GPU's memory, so that no part of one GPU holds both.
    monkeypatch.setattr(stages, "MOST_GPUS", 1)
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 0}
    chain = Chain(layers=(layer_of(2, 4, 8, 1, saved_bytes=1, **sizes),) * 2)
    result = solve(chain, Platform(2, 12), batch=2, scope=widest_step(chain))
    assert plan_of(result).pattern.fold == 1


def test_input_halves_run_before_there_are_gradients_away_from_home() -> None:
    first = Layer(
        forward_ns=4,
        backward_ns=6,
        backward_input_ns=6,
        backward_weight_ns=0,
        weight_bytes=8,
        activation_bytes=0,
        saved_bytes=2,
        parameter_bytes=2,
        gradient_bytes=3,
        optimizer_bytes=2,
        update_ns=9,
    )
    last = Layer(
        forward_ns=1,
        backward_ns=6,
        backward_input_ns=1,
        backward_weight_ns=5,
        weight_bytes=7,
        activation_bytes=5,
        saved_bytes=2,
        parameter_bytes=5,
        gradient_bytes=1,
        optimizer_bytes=0,
        update_ns=5,
    )
    chain = Chain(layers=(first, last))
    scope = replace(
        widest_step(chain),
        allocation="contiguous",
        recompute=False,
        shard="gradient",
        split_backward=True,
    )
    # A step of two replicas each, the first of which share gradients, takes 38 ns.
    assert bound_of(training_step(chain, Platform(4, 10), 6, scope)) <= 38
