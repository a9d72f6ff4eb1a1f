"""Training steps with replicas: by hand, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from schedopt import Chain, Layer, Platform, Problem, Result, Rule, Scope, Stage, check, solve
from schedopt.engine import Engine
from schedopt.problem import training_step, widest_step
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.scope import Allocation
from schedopt.solving import solve_problem
from schedopt.solving.replicas.candidates import Candidates, StageChoice
from schedopt.solving.replicas.descent import Descent
from schedopt.solving.replicas.step_bound import least_memory
from schedopt.solving.run import Run
from schedopt.stage import Shard
from schedopt.systems import list_scheduler
from tests.examples import layer
from tests.refusals import assert_refused
from tests.solvers.asking import ask, plan_of, why
from tests.solvers.step_searches import bound_of, searched, step_data, train


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


def test_replicas_that_do_not_divide_the_micro_batches_run_one_more_or_less() -> None:
    # A layer of 3 ns and 1 ns of update: of 5 micro-batches one of 2 GPUs runs 3.
    chain, platform = Chain(layers=(unit(update_ns=1),)), Platform(2, 1000)
    assert best(chain, platform, 5).period == Fraction(5 * 3 + 1, 5)
    result = best(chain, platform, 5, uneven=True)
    assert (result.status, result.period) == ("optimal", Fraction(3 * 3 + 1, 5))
    assert plan_of(result).stages == (Stage(layers=(0, 0), gpus=(0, 1)),)
    # The next step begins on the other GPU, and each then runs 2 or 3.
    plan = plan_of(result)
    starts = [stage.gpu(i) for stage in plan.stages for i in (0, 5)]
    assert (starts, check(plan)) == ([0, 1], ())
    wide, scope = Platform(5, 1000), contiguous(chain, uneven=True)
    assert training_step(chain, wide, 5, scope).uneven_counts == (2, 3, 4)
    assert training_step(chain, wide, 5, contiguous(chain)).uneven_counts == ()
    assert scope.covers(contiguous(chain))
    assert not contiguous(chain).covers(scope)
    assert str(scope).endswith("replicas of a stage, some of which run one micro-batch more")
    sharing = str(replace(scope, shard="optimizer"))
    assert sharing.endswith(" the optimizer state, or some of which run one micro-batch more")


def test_a_start_whose_replicas_are_uneven_is_refused_where_they_are_not_asked_for() -> None:
    # It is shorter than the bound of all steps that are.
    chain, platform = Chain(layers=(unit(update_ns=1),)), Platform(2, 1000)
    start = best(chain, platform, 5, uneven=True)

    def again(**more: Any) -> Result:
        scope = contiguous(chain, **more)
        return solve(chain, platform, batch=5, scope=scope, initial=start, workers=1)

    assert again(uneven=True).period == start.period
    assert_refused(again, "initial", way_out="Scope.uneven")
    stages = plan_of(start).stages
    sharing = contiguous(chain, uneven=True, microbatches=5, shard="optimizer")
    assert sharing.allows(stages)
    assert not sharing.allows([replace(stages[0], shard="optimizer")])


def test_what_is_dealt_unevenly_shares_nothing_and_comes_round_soon() -> None:
    chain = Chain(layers=(unit(),) * 4)
    problem = training_step(chain, Platform(16, 1000), 16, replace(widest_step(chain), uneven=True))
    shared = {option.replicas for option in step_data(problem).options if option.shard}
    assert shared == {2, 4, 8, 16}
    candidates = Candidates(step_data(problem), Run(problem))
    # After 3 x 5 steps of 16 micro-batches all begin where they began; after 3 here.
    chosen = (StageChoice(0, 2, 3, 0), StageChoice(2, 4, 5, 0))
    assert candidates.add(chosen, [8, 8]) is None
    assert candidates.add((StageChoice(0, 2, 3, 0), StageChoice(2, 4, 6, 0)), [8, 8]) is not None


def test_on_one_gpu_all_is_done_in_turn() -> None:
    # 4 micro-batches of 2 layers of 3 ns each, wherever stages may lie.
    chain = Chain(layers=(unit(),) * 2)
    result = train(training_step(chain, Platform(1, 1000), 4))
    assert result.status == "optimal"
    assert plan_of(result).pattern.period_total_ns == 4 * 2 * 3


@pytest.mark.parametrize("allocation", ["contiguous", "general"])
def test_what_is_too_long_to_be_laid_out_is_left_out(
    monkeypatch: pytest.MonkeyPatch, allocation: Allocation
) -> None:
    monkeypatch.setattr(list_scheduler, "MOST_EVENTS", 10)
    chain = Chain(layers=(unit(),) * 2)
    problem = training_step(chain, Platform(2, 1000), 6)
    scope = replace(problem.scope, allocation=allocation)
    result = solve_problem(replace(problem, scope=scope), time_limit=3)
    assert result.status == "unknown"
    assert result.lower_bound == Fraction(2 * 3, 2)


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
    # When it is through with the first of its two last, the first stage has 2 ns for either.
    assert plan_of(result).pattern.period_total_ns == 1 + 2 * 6 + 2 + 2
    assert result.status == "optimal"


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


def test_the_last_replica_to_be_ready_may_have_less_than_half_to_update() -> None:
    # The first two layers run twice. Replica 0, the home of 3 of 7 bytes of parameters, waits for
    # the gradient of replica 1, and so updates last: 24 x 3 / 7 ns, not 12.
    rows = [(4, 2, 4, 19, 29, 3, 4, 0), (6, 6, 3, 8, 38, 3, 3, 24), (4, 3, 3, 33, 29, 7, 11, 24)]
    names = ("forward_ns", "backward_ns", "parameter_bytes", "gradient_bytes", "optimizer_bytes",
             "activation_bytes", "saved_bytes", "update_ns")  # fmt: skip
    layers = [
        unit(weight_bytes=sum(row[2:5]), **dict(zip(names, row, strict=True))) for row in rows
    ]
    link: dict[str, Any] = {"bandwidth": "2GB/s", "latency": 1, "duplex": "full"}
    chain = Chain(layers=tuple(layers), input_bytes=5)
    result = best(chain, Platform(3, 123, **link), 4, shard="optimizer")
    assert plan_of(result).pattern.period_total_ns == 74


def test_where_none_fits_replicas_may_share_more() -> None:
    # Two layers on a GPU: 24 bytes, and 1 kept of each. Or all three on both GPUs, half of all 36,
    # 2 bytes of a copy and 2 of a gradient, and 1 kept of each; without copies 6 bytes more.
    layer = unit(weight_bytes=12, parameter_bytes=4, gradient_bytes=4, optimizer_bytes=4)
    chain = Chain(layers=(layer,) * 3)
    for shard, least in (("none", 26), ("optimizer", 26), ("gradient", 26), ("parameter", 25)):
        scope = contiguous(chain, shard=shard, recompute=False)
        found = why(ask(chain, Platform(2, 9), batch=2, scope=scope))
        assert found.least_memory_bytes == least
        assert (Suggestion.SHARE_OPTIMIZER in found.wider) == (shard == "none")
        assert (Suggestion.SHARE_MORE in found.wider) == (shard != "parameter")
        plan_of(ask(chain, Platform(2, least), batch=2, scope=scope))


def test_layers_that_share_parameters_are_added_up_in_the_reading_sum() -> None:
    # At once there are copies for two layers; in the reading sum those of all three add up.
    names = ("forward_ns", "backward_ns", "weight_bytes", "parameter_bytes", "gradient_bytes",
             "optimizer_bytes", "saved_bytes", "workspace_bytes", "update_ns")  # fmt: skip
    rows = [(1, 8, 45, 11, 14, 14, 11, 4, 9), (4, 8, 77, 19, 11, 40, 19, 0, 0),
            (9, 1, 42, 12, 8, 19, 14, 0, 5)]  # fmt: skip
    layers = tuple(unit(**dict(zip(names, row, strict=True))) for row in rows)
    chain = Chain(layers=layers, same_gpu=((0, 2),))
    for memory in ("peak", "sum"):
        allowed: dict[str, Any] = {"shard": "parameter", "memory": memory, "recompute": True}
        result = best(chain, Platform(3, 138), 4, **allowed)
        assert result.plan is None or check(result.plan) == ()
        assert (result.plan is None) == (memory == "sum")
        few = best(chain, Platform(3, 60), 4, **allowed)
        assert (why(few).least_memory_bytes is None) == (memory == "sum")


def test_stages_with_copies_are_not_told_to_share_more_than_they_may() -> None:
    tied = {"tied_parameter_bytes": 1, "tied_gradient_bytes": 1, "tied_optimizer_bytes": 2}
    chain = Chain(layers=(unit(), unit(**tied)), copied=((0, 1),))
    levels: tuple[Shard, ...] = ("none", "optimizer", "parameter")
    for shard in levels:
        scope = contiguous(chain, shard=shard, recompute=False)
        found = why(ask(chain, Platform(2, 3), batch=2, scope=scope))
        assert (Suggestion.SHARE_OPTIMIZER in found.wider) == (shard == "none")
        assert Suggestion.SHARE_MORE not in found.wider


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
        ({"batch": 2**17 + 2}, "batch", "65537 micro-batches are more than", "a smaller batch"),
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
    ],
)
def test_scopes_without_replicas(
    changes: dict[str, Any], field: str, rule: str, way_out: str
) -> None:
    assert_refused(lambda: Scope(**{"replicas": 2, **changes}), field, rule, way_out)


@pytest.mark.parametrize("engine", [None, "megatron"])
@pytest.mark.parametrize(("updated", "count"), [(None, 4), (2, None), (2, 4)])
def test_replicas_need_a_step_with_an_update(
    updated: int | None, count: int | None, engine: Engine | None
) -> None:
    scope = Scope(replicas=2, microbatches=count, max_k=None, engine=engine)
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


def test_the_search_goes_on_from_a_plan_to_start_from() -> None:
    chain, platform = Chain(layers=(unit(), unit(), unit())), Platform(3, 10**6)
    alone = replace(widest_step(chain), allocation="contiguous", replicas=1, shard="none")
    start = plan_of(solve(chain, platform, batch=6, scope=alone))
    scope = replace(widest_step(chain), allocation="contiguous")
    best = solve(chain, platform, batch=6, scope=scope)
    assert best.period is not None
    assert best.period < start.pattern.period
    assert solve(chain, platform, batch=6, scope=scope, initial=start).period == best.period


def test_changes_of_stages_leave_none_empty_and_cut_no_tied_layers() -> None:
    sizes = {"parameter_bytes": 4, "gradient_bytes": 4, "optimizer_bytes": 8}
    chain = Chain(layers=(layer(2, 4, 16, **sizes),) * 7, same_gpu=((5, 6),))
    step = step_data(training_step(chain, Platform(6, 200), 6, widest_step(chain)))
    candidates = Candidates(step, Run(step.problem))
    candidate = candidates.add(
        tuple(StageChoice(n, e, 1, 0) for n, e in ((0, 2), (2, 4), (4, 7))), (1, 1, 1)
    )
    assert candidate is not None
    cuts = set()
    for changed, depth in Descent(candidates).neighbours(candidate):
        assert [0, *(one.end for one in changed)] == [*(one.first for one in changed), 7]
        assert all(one.first < one.end for one in changed)
        assert sum(one.replicas for one in changed) <= 6
        assert len(depth) == len(changed) == 3
        cuts.add(tuple(one.end for one in changed))
    assert all(6 not in row for row in cuts)
    # The middle stage goes along where the outer ones lend and borrow a layer.
    assert {(1, 3, 7), (3, 5, 7)} <= cuts
