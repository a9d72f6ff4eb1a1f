"""Training steps with replicas, by hand and against every step of small problems."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from fractions import Fraction
from itertools import islice, pairwise
from statistics import geometric_mean
from typing import Any

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
    Result,
    Rule,
    Scope,
    Stage,
    check,
    solve,
)
from schedopt.account import fits
from schedopt.folding import whole
from schedopt.problem import training_step, widest_step
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.replicas import stages
from schedopt.solving.replicas.arrays import StepData
from schedopt.solving.replicas.candidates import Candidates, StageChoice
from schedopt.solving.replicas.layout import lay_out
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.replicas.stages import read_step
from schedopt.solving.replicas.step_bound import fits as holds
from schedopt.solving.replicas.step_bound import least_makespan, least_memory
from schedopt.solving.run import Run
from schedopt.stage import SHARDS
from tests.budgets import trials
from tests.examples import layer as layer_of
from tests.refusals import assert_refused
from tests.solvers.asking import ask, plan_of, why
from tests.solvers.every_training_step import every_way, least_step, training_steps


def train(problem: Problem) -> Result:
    """Solve; what is found is valid, and not below any bound of its scope."""
    count = problem.scope.microbatches
    result = ask(problem.chain, problem.platform, batch=count, scope=problem.scope)
    assert all(bound.period <= (result.period or bound.period) for bound in result.bounds)
    return result


def step_data(problem: Problem) -> StepData:
    step = read_step(problem)
    assert step is not None
    return step


def bound_of(problem: Problem) -> int:
    return least_makespan(step_data(problem), Run(problem))


def searched(problem: Problem) -> Candidates:
    """Return what a search finds."""
    search = StepSearch(step_data(problem), Run(problem))
    list(search.improve())
    return search.candidates


def in_parts(problem: Problem, parts: int) -> Problem:
    """Return the same problem in units of a byte that replicas cut evenly."""
    names = [field.name for field in fields(Layer) if field.name.endswith("_bytes")]
    layers = []
    for layer in problem.chain.layers:
        sizes = {name: getattr(layer, name) for name in names}
        larger = {name: parts * size for name, size in sizes.items() if size is not None}
        layers.append(replace(layer, **larger))
    chain = replace(problem.chain, layers=tuple(layers))
    platform, link = problem.platform, problem.platform.link
    gpus = [replace(gpu, memory_bytes=parts * gpu.memory_bytes) for gpu in platform.gpus]
    if link is None:
        return replace(problem, chain=chain, platform=Platform(gpus))
    faster, latency = parts * link.bandwidth_bytes_per_s, link.latency_ns
    platform = Platform(gpus, bandwidth=faster, latency=latency, duplex=link.duplex)
    return replace(problem, chain=chain, platform=platform)


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


def test_most_steps_are_the_shortest() -> None:
    """With the search to its end; orders that are not decided count as none."""
    ratios: list[float] = []

    @settings(max_examples=80, derandomize=True, database=None, phases=[Phase.generate])
    @given(training_steps(levels=SHARDS[:2]))
    def compare(problem: Problem) -> None:
        problem = in_parts(problem, 12)
        if holds(step_data(problem)):
            least = least_step(problem)
            assert least is not None
            ratios.append(searched(problem).best[0].makespan_ns / least)

    compare()
    assert len(ratios) > 30
    assert min(ratios) == 1
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


def unit(**more: Any) -> Layer:
    """Return a layer of F = 1 ns and B = 2 ns that keeps a byte, with 4 bytes of weights."""
    usual = {"weight_bytes": 4, "activation_bytes": 1, "parameter_bytes": 1, "gradient_bytes": 1}
    return Layer(**{"forward_ns": 1, "backward_ns": 2, "optimizer_bytes": 2, **usual, **more})


def contiguous(chain: Chain, **more: Any) -> Scope:
    return replace(widest_step(chain), **{"allocation": "contiguous", "shard": "none", **more})


def best(chain: Chain, platform: Platform, count: int, **more: Any) -> Result:
    return train(training_step(chain, platform, count, contiguous(chain, **more)))


def test_with_ample_memory_it_is_data_parallelism() -> None:
    # 6 layers of 3 ns on 4 GPUs; each runs 3 of 12 micro-batches, and updates all layers: 6 x 1 ns.
    chain = Chain(layers=(unit(update_ns=1),) * 6)
    result = best(chain, Platform(4, 1000), 12)
    assert result.status == "optimal"
    assert plan_of(result).stages == (Stage(layers=(0, 5), gpus=(0, 1, 2, 3)),)
    assert result.period == Fraction(3 * 18 + 6, 12)


def test_without_replicas_it_is_a_pipeline() -> None:
    # Two stages of one layer each, 3 ns: the last waits 1 ns, and its last gradient takes 2 more.
    chain = Chain(layers=(unit(weight_bytes=40),) * 2)
    result = best(chain, Platform(2, 60), 4, replicas=1)
    assert [stage.layers for stage in plan_of(result).stages] == [(0, 0), (1, 1)]
    assert result.status == "optimal"
    assert result.period == Fraction(1 + 4 * 3 + 2, 4)
    assert Proof(ProofKind.TRAINING_STEP) in [bound.proof for bound in result.bounds]


def test_replicas_are_as_uneven_as_the_work() -> None:
    # The second layer takes twice as long, and weights of both do not fit together.
    slow = unit(forward_ns=2, backward_ns=4, weight_bytes=40)
    chain = Chain(layers=(unit(weight_bytes=40), slow))
    result = best(chain, Platform(3, 60), 4, recompute=False)
    assert [len(stage.gpus) for stage in plan_of(result).stages] == [1, 2]
    # The second stage gets its two first micro-batches at 1 and 2 ns and has 12 ns of work on each.
    assert plan_of(result).pattern.period_total_ns == 1 + 2 * 6 + 2 + 2


def test_tied_layers_are_never_cut_apart() -> None:
    free = Chain(layers=(unit(weight_bytes=20),) * 3)
    tied = replace(free, same_gpu=((0, 2),))
    assert len(plan_of(best(free, Platform(3, 45), 2)).stages) > 1
    assert why(best(tied, Platform(3, 45), 2)).least_memory_bytes == 60 + 3
    assert plan_of(best(tied, Platform(3, 63), 2)).stages[0].layers == (0, 2)


def test_what_takes_no_time_on_its_own_stage_does_not_lie_there_twice_at_once() -> None:
    # Both replicas of the first stage end at once, and the second one has room for one of the two.
    first = Layer(forward_ns=3, backward_ns=9, weight_bytes=0, activation_bytes=0, saved_bytes=15)
    heavy = unit(forward_ns=0, backward_ns=0, weight_bytes=40, saved_bytes=9)
    chain = Chain(
        layers=(replace(first, parameter_bytes=0, gradient_bytes=0, optimizer_bytes=0), heavy)
    )
    result = best(chain, Platform(3, 50), 2, recompute=False)
    assert result.plan is None or check(result.plan) == ()


def test_a_layer_that_fits_nowhere_is_infeasible_wherever_layers_lie() -> None:
    # 9 bytes of weights, of which 4 may be halved, and a byte kept.
    chain = Chain(layers=(unit(), unit(weight_bytes=9, optimizer_bytes=4)))
    proof = why(ask(chain, Platform(2, 7), batch=2)).proof
    assert isinstance(proof, Proof)
    assert proof.kind is ProofKind.LAYER_TOO_LARGE
    assert plan_of(ask(chain, Platform(2, 12), batch=2)).stages


def test_an_infeasible_step_says_what_would_do() -> None:
    # The heaviest layer: 9 bytes of weights, 3 kept, 2 to work with.
    heavy = unit(weight_bytes=9, saved_bytes=3, workspace_bytes=2)
    result = best(Chain(layers=(unit(), heavy)), Platform(2, 13, reserved=1), 2)
    assert why(result).least_memory_bytes == 14 + 1
    assert plan_of(best(Chain(layers=(unit(), heavy)), Platform(2, 15, reserved=1), 2)).stages


def test_an_optimizer_state_fits_shared_where_it_does_not_fit_whole() -> None:
    # 1 + 9 bytes of weights, of which 6 may be halved, and a byte kept.
    chain = Chain(layers=(unit(weight_bytes=10, optimizer_bytes=6),))
    for shard, least in (("none", 11), ("optimizer", 8)):
        problem = training_step(chain, Platform(2, 7), 2, contiguous(chain, shard=shard))
        assert least_memory(step_data(problem)) == least


def test_where_none_fits_replicas_may_share_more() -> None:
    # Two layers on a GPU: 24 bytes, and 1 kept of each. Or all three on both GPUs, half of all 36,
    # 2 bytes of a copy and 2 of a gradient, and 1 kept of each; without copies 6 bytes more.
    layer = unit(weight_bytes=12, parameter_bytes=4, gradient_bytes=4, optimizer_bytes=4)
    chain = Chain(layers=(layer,) * 3)
    for shard, least in (("optimizer", 26), ("gradient", 26), ("parameter", 25)):
        scope = contiguous(chain, shard=shard, recompute=False)
        found = why(ask(chain, Platform(2, 9), batch=2, scope=scope))
        assert found.least_memory_bytes == least
        assert (Suggestion.SHARE_MORE in found.wider) == (shard != "parameter")
        plan_of(ask(chain, Platform(2, least), batch=2, scope=scope))


def test_what_takes_no_time_needs_nothing_to_work_with() -> None:
    layer = unit(forward_ns=0, backward_ns=0, workspace_bytes=9)
    assert plan_of(best(Chain(layers=(layer,)), Platform(1, 5), 1))
    busy = replace(layer, backward_ns=1)
    assert why(best(Chain(layers=(busy,)), Platform(1, 5), 1)).least_memory_bytes == 14


def test_replicas_may_leave_their_state_whole_where_that_is_faster() -> None:
    # Two micro-batches of 2 ns. Summed gradients of no bytes take no time, 8 bytes of weights do.
    layer = unit(
        backward_ns=1, weight_bytes=8, parameter_bytes=8, gradient_bytes=0, optimizer_bytes=0
    )
    chain = Chain(layers=(layer,))
    platform = Platform(2, 99, bandwidth="1GB/s")
    problem = training_step(chain, platform, 2, contiguous(chain, shard="optimizer"))
    assert bound_of(problem) == searched(problem).best[0].makespan_ns == 2


@pytest.mark.parametrize(
    ("change", "field", "rule", "way_out"),
    [
        ({"batch": 7}, "batch", "7 samples are no whole number", "Give 6 or 8"),
        ({"batch": 1}, "batch", "1 samples", "Give 2"),
        ({"batch": 0}, "batch", "0", ""),
        ({"batch": 2**22}, "batch", "2097152 micro-batches are more than", "a smaller batch"),
        ({"platform": Platform(2, [9, 8])}, "platform", "equal GPUs", "any allocation"),
        (
            {"platform": Platform(2, 9, speed=["1", "0.5"])},
            "platform",
            "equal GPUs",
            "any allocation",
        ),
        ({"rule": object()}, "batch", "given with a rule", "Leave these out"),
        ({"stages": [Stage(layers=(0, 0), gpus=(0,))]}, "batch", "with stages", "Leave these out"),
        ({"solver": "step"}, "solver", "step does not update the weights", "leave the batch out"),
        ({"solver": "general"}, "solver", "general does not update", "leave the batch out"),
        ({"grain": "layer"}, "scope.grain", "stages of a training step run as one", "Leave layers"),
    ],
)
def test_what_no_training_step_can_be(
    change: dict[str, Any], field: str, rule: str, way_out: str
) -> None:
    chain = Chain(layers=(unit(),), samples=2)
    asked: dict[str, Any] = {"platform": Platform(2, 9), "batch": 4} | change
    asked["scope"] = contiguous(chain, grain=asked.pop("grain", "stage"))
    assert_refused(lambda: solve(chain, **asked), field, rule, way_out)


@pytest.mark.parametrize(
    ("changes", "field", "rule", "way_out"),
    [
        ({"replicas": 0}, "replicas", "0 is out of range", "Give"),
        ({"replicas": 1, "shard": "optimizer"}, "shard", "only replicas share", "Allow replicas"),
        ({"shard": "weights"}, "shard", "'weights' is not known", "Choose none"),
        ({"allocation": "fixed"}, "replicas", "stages that are given", "Leave one of the two out"),
        ({"engine": "megatron", "microbatches": 2}, "replicas", "Megatron-LM", "Leave one of the"),
    ],
)
def test_scopes_without_replicas(
    changes: dict[str, Any], field: str, rule: str, way_out: str
) -> None:
    assert_refused(lambda: Scope(**{"replicas": 2, **changes}), field, rule, way_out)


@pytest.mark.parametrize(("updated", "count"), [(None, 4), (2, None), (2, 4)])
def test_replicas_need_a_step_with_an_update(updated: int | None, count: int | None) -> None:
    scope = Scope(replicas=2, microbatches=count, max_k=None)
    chain, rule = Chain(layers=(unit(),)), Rule()
    if updated is not None:
        rule = Rule(update_every=updated, forward_reads="delay")
    assert_refused(
        lambda: Problem(chain=chain, platform=Platform(2, 9), scope=scope, rule=rule),
        "scope.replicas",
        "replicas add up the gradients",
        "Give both the same number, neither, or a batch (solve.batch)",
    )


@pytest.mark.parametrize(
    ("name", "shard"),
    [
        ("gradient_bytes", "none"),
        ("parameter_bytes", "none"),
        ("parameter_bytes", "optimizer"),
        ("optimizer_bytes", "optimizer"),
    ],
)
def test_what_is_added_up_and_shared_is_known(name: str, shard: str) -> None:
    chain = Chain(layers=(unit(), unit(**{name: None})))
    assert_refused(
        lambda: training_step(chain, Platform(2, 9), 2, contiguous(chain, shard=shard)),
        f"layers[1].{name}",
        "absent",
        "Measure it",
    )


def test_a_shard_is_allowed_where_the_state_is_known() -> None:
    known = Chain(layers=(unit(),) * 2)
    unknown = Chain(layers=(unit(), unit(optimizer_bytes=None)))
    assert [widest_step(chain).shard for chain in (known, unknown)] == ["optimizer", "none"]


def test_a_batch_is_a_number_of_micro_batches() -> None:
    chain = Chain(layers=(unit(),), samples=3)
    problem = training_step(chain, Platform(2, 9), 12)
    assert problem.scope.microbatches == problem.rule.update_every == 4
    assert problem.scope.replicas is None


def test_without_a_step_the_solver_says_what_it_needs() -> None:
    scope = Scope(microbatches=4, max_k=None)
    asked: dict[str, Any] = {"scope": scope, "solver": "training_step"}
    chain = Chain(layers=(unit(),))
    assert_refused(
        lambda: solve(chain, Platform(2, 9), **asked), "rule.update_every", "update", "solve.batch"
    )


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
    assert step is not None
    assume(step.replicas and holds(whole_step))
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


def test_the_search_goes_on_from_a_plan_to_start_from() -> None:
    chain, platform = Chain(layers=(unit(), unit(), unit())), Platform(3, 10**6)
    alone = replace(widest_step(chain), allocation="contiguous", replicas=1, shard="none")
    start = plan_of(solve(chain, platform, batch=6, scope=alone))
    scope = replace(widest_step(chain), allocation="contiguous")
    best = solve(chain, platform, batch=6, scope=scope)
    assert best.period is not None
    assert best.period < start.pattern.period
    assert solve(chain, platform, batch=6, scope=scope, initial=start).period == best.period
