"""GPUs that share sequences: who shares which, what the check says, and what engines are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Pattern, Plan, Platform, Problem, Rule, Stage, solve
from schedopt.checking import check
from schedopt.comparing.baselines import named_baseline, usual_baselines
from schedopt.comparing.measures import measure_plan
from schedopt.exporting import find_target
from schedopt.folding import whole
from schedopt.formats.chains import chain_to_json
from schedopt.problem import training_step, widest_step
from schedopt.profile import Profile, Variant
from schedopt.running.job import Job
from schedopt.simulation import simulate
from schedopt.solvers.placed_folds import list_folds
from schedopt.solving import solve_problem
from schedopt.solving.engines.grid import Grid
from schedopt.solving.replicas.layout import lay_out_turns
from schedopt.systems.steps import engine_order
from tests.budgets import trials
from tests.exporting.engines import grid_plan, refusal
from tests.importing.launching import transformer
from tests.tensor_groups import two_nodes

GRID = Grid(ranks=2, chunks=1, replicas=4, shard="optimizer")


def shared() -> Plan:
    """Return a step on two ranks of two pairs that share sequences: GPUs 0 1, 2 3 and 4 5, 6 7."""
    return grid_plan("megatron", GRID, [0, 4], context=2)


@trials(100, by_day=10)
@given(st.permutations(range(12)), st.sampled_from([1, 2, 3, 4, 6]), st.integers(0, 40))
def test_replicas_on_gpus_in_a_row_share_sequences(
    gpus: list[int], context: int, micro_batch: int
) -> None:
    stage = Stage(layers=(0, 0), gpus=tuple(gpus))
    mates = stage.mates(micro_batch, context)
    begin = stage.gpu(micro_batch) // context * context
    assert [stage.gpu(i) for i in mates] == [*range(begin, begin + context)]
    assert {i // 12 for i in mates} == {micro_batch // 12}


def test_what_shares_a_sequence_starts_together() -> None:
    plan = shared()
    assert check(plan) == ()
    starts: dict[tuple[str, int, int], list[int]] = {}
    for one in plan.pattern.operations:
        if one.kind != "U":
            mates = plan.stages[one.stage].mates(one.shift, 2)
            starts.setdefault((one.kind, one.stage, min(mates)), []).append(one.start_ns)
    assert all(len(found) == 2 and len({*found}) == 1 for found in starts.values())
    assert simulate(plan, 8).makespan_ns == plan.pattern.period_total_ns


def test_a_step_of_parts_has_half_the_samples_and_all_the_replicas() -> None:
    plan, whole = shared(), grid_plan("megatron", GRID, [0, 4])
    # The links are free of conflicts, so that waiting for each other costs nothing.
    assert plan.pattern.period_total_ns == whole.pattern.period_total_ns
    figures = [measure_plan(one, 8, "a plan") for one in (plan, whole)]
    assert figures[0].step_of_sample == 2 * figures[1].step_of_sample
    assert figures[0].memory_peak_bytes == figures[1].memory_peak_bytes


def test_it_is_compared_with_steps_of_whole_sequences() -> None:
    plan, whole = shared(), grid_plan("megatron", GRID, [0, 4])
    figures = named_baseline("now.json", whole, plan, 8).figures
    assert figures is not None
    assert 2 * figures.step_of_sample == measure_plan(plan, 8, "ours").step_of_sample
    notes = [one.note for one in usual_baselines(plan, 8)]
    assert notes == ["2 GPUs share each sequence, and these have one each"] * 2


@pytest.mark.parametrize(("context", "fold"), [(2, 4), (4, 4), (3, 2)])
def test_parts_of_a_fold_have_whole_groups_or_groups_whole_parts(context: int, fold: int) -> None:
    """By threes two parts have a group each, else a group has several parts of one replica."""
    replicas = 6 if context == 3 else 4
    grid = replace(GRID, replicas=replicas)
    plan = grid_plan("megatron", grid, [0, 4], count=2 * replicas, context=context)
    turns = [
        (kind, stage, i * (replicas // fold) + replica)
        for kind, stage, i in engine_order(2, 1, 2)
        for replica in range(replicas // fold)
    ]
    own = replicas // fold
    stages = [
        replace(
            one, gpus=tuple(one.gpus[part * own + n] for n in range(own) for part in range(fold))
        )
        for one in plan.stages
    ]
    folded = lay_out_turns(plan.problem, stages, turns, fold=fold)
    assert folded.pattern.fold == fold
    assert check(folded) == ()
    assert check(whole(folded)) == ()


def test_a_fold_that_parts_a_group_is_refused() -> None:
    grid = replace(GRID, replicas=6)
    plan = grid_plan("megatron", grid, [0, 4], count=6, context=3)
    with pytest.raises(InputError, match="parts have 2 replicas of stage 0, and 3 GPUs share"):
        lay_out_turns(plan.problem, plan.stages, [], fold=3)


def test_parts_whose_groups_are_no_groups_of_the_whole_are_found() -> None:
    # GPUs 1, 2 and 5, 6 are the groups of the first part, and 0 is in the place of 1, 3 of 5: in
    # the whole 2 and 3 share a sequence, of which no part says that they start together.
    plan = grid_plan("megatron", replace(GRID, replicas=8), [0, 4], count=16, context=2)
    turns = [
        (kind, stage, i * 4 + replica)
        for kind, stage, i in engine_order(2, 1, 2)
        for replica in range(4)
    ]
    row = (1, 0, 2, 4, 5, 3, 6, 7)
    stages = [replace(one, gpus=tuple(one.gpus[n] for n in row)) for one in plan.stages]
    folded = lay_out_turns(plan.problem, stages, turns, fold=2)
    rules = {one.message for one in check(folded)}
    assert "GPUs 2 to 3 run together, and lie in 2 parts" in rules


def later(plan: Plan) -> Plan:
    """Return a plan one of whose first forwards starts 1 ns later."""
    first, *others = plan.pattern.operations
    moved = replace(first, start_ns=first.start_ns + 1)
    pattern = replace(plan.pattern, operations=(moved, *others))
    return replace(plan, pattern=pattern)


def on(plan: Plan, *gpus: tuple[int, ...]) -> Plan:
    """Return a plan with stages on other GPUs."""
    pairs = zip(plan.stages, gpus, strict=True)
    return replace(plan, stages=tuple(replace(stage, gpus=own) for stage, own in pairs))


def of(context: int) -> Callable[[Plan], Plan]:
    """Return what lets another number of GPUs share each sequence."""
    return lambda plan: replace(plan, chain=replace(plan.chain, context=context))


WRONG: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "apart": (later, "ns before that of micro-batch"),
    "no whole groups": (of(3), "it has 4 replicas on 4 GPUs, and 3 GPUs share each sequence"),
    "a gap": (lambda plan: on(plan, (0, 2, 3, 4), (5, 6, 7, 8)), "are not 2 replicas in a row"),
    "other mates": (
        lambda plan: on(plan, (0, 1, 2, 3), (4, 6, 5, 7)),
        "micro-batches 0, 1 run together in stage 0, and micro-batches 0, 2 here",
    ),
    "more replicas than share experts of no size": (
        lambda plan: replace(plan, chain=replace(plan.chain, expert=2)),
        "it has 4 replicas on 4 GPUs, and 2 GPUs share the experts of a layer",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_gpus_that_do_not_share_sequences_are_found(name: str) -> None:
    change, rule = WRONG[name]
    plan = shared()
    wide = replace(plan, platform=Platform(9, 10**4, bandwidth=10**9))
    found = check(change(wide))
    assert any(one.kind == "group" and rule in one.message for one in found), found


def test_what_fits_into_a_node_lies_in_one() -> None:
    # Nodes of four GPUs: 3 and 4 are neighbours, and lie in two.
    plan = shared()
    chain, pattern = plan.chain, Pattern(k=2, period_total_ns=1, operations=())
    last = len(chain.layers) - 1
    parted = Plan(
        chain=chain,
        platform=two_nodes(),
        stages=(Stage(layers=(0, last), gpus=(3, 4)),),
        pattern=pattern,
    )
    rules = [one.message for one in check(parted) if one.kind == "group"]
    assert rules == ["GPUs 3 to 4 run together, and do not lie in one node"]
    inside = replace(parted, stages=(Stage(layers=(0, last), gpus=(2, 3)),))
    assert not any(one.kind == "group" for one in check(inside))


@pytest.mark.parametrize(("shared", "folds"), [({"context": 2}, [2, 4]), ({"expert": 2}, [2])])
def test_as_many_parts_of_a_fold_as_share(shared: dict[str, int], folds: list[int]) -> None:
    # A stage has a replica in each part.
    chain = transformer(4, **shared)
    assert list_folds(training_step(chain, Platform(8, 10**6), 8, widest_step(chain))) == folds


@pytest.mark.nightly
def test_steps_of_any_kind_keep_those_together_that_share_sequences() -> None:
    chain = transformer(1, context=2)
    for platform in (Platform(4, 10**6, bandwidth=10**9), two_nodes(1)):
        result = solve(chain, platform, batch=2, work_limit=200, workers=1, time_limit=None)
        assert result.plan is not None
        assert check(result) == ()
        assert result.plan.pattern.k == 4
        assert all(len(stage.gpus) % 2 == 0 for stage in result.plan.stages)
        assert "for 2 samples" in str(result)


def test_engines_are_told_how_many_gpus_share_a_sequence() -> None:
    (text,) = find_target("megatron").export(shared(), 8).values()
    assert "--context-parallel-size 2\n" in text
    assert "--global-batch-size 4\n" in text
    assert "a step of 4 micro-batches takes" in text
    titan = grid_plan("torchtitan", GRID, [0, 4], context=2)
    text = find_target("torchtitan").export(titan, 8)["pipeline.py"]
    assert "context_parallel_degree = 2\n" in text
    assert "data_parallel_replicate_degree = 1\n" in text
    assert "data_parallel_shard_degree = 2\n" in text
    assert "local_batch_size = 2 * size\n" in text
    assert "global_batch_size = 4 * size\n" in text


def test_engines_are_told_how_many_gpus_share_experts() -> None:
    plan = grid_plan("megatron", GRID, [0, 4], context=2, expert=4)
    assert check(plan) == ()
    (text,) = find_target("megatron").export(plan, 8).values()
    assert "--expert-model-parallel-size 4\n" in text
    assert "--global-batch-size 4\n" in text
    titan = grid_plan("torchtitan", GRID, [0, 4], expert=4)
    text = find_target("torchtitan").export(titan, 8)["pipeline.py"]
    assert "expert_parallel_degree = 4\n" in text
    grouped = grid_plan("megatron", replace(GRID, tensor=2), [0, 4], expert=4)
    assert check(grouped) == ()
    assert "counts those of tensor groups among them" in refusal("torchtitan", grouped, 8)


def test_engines_that_cannot_are_refused() -> None:
    assert "no pipeline of DeepSpeed does that" in refusal("deepspeed", shared(), 8)
    alone = grid_plan("megatron", replace(GRID, shard="none"), [0, 4], context=2)
    assert "torchtitan then shares the optimizer state" in refusal("torchtitan", alone, 8)


CHAIN = transformer(4, context=2)
FOUR = Platform(4, 10**6)
STEP = widest_step(CHAIN)
REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "a period": (
        lambda: solve(CHAIN, FOUR),
        "chain.context",
        "add their gradients up in a training step",
    ),
    "one replica": (
        lambda: solve(CHAIN, FOUR, batch=4, scope=replace(STEP, replicas=1, shard="none")),
        "scope.replicas",
        "1, and 2 GPUs share each sequence",
    ),
    "one GPU": (
        lambda: solve(CHAIN, Platform(1, 10**6), batch=4),
        "platform.gpus",
        "1, and 2 GPUs share each sequence",
    ),
    "deepspeed": (
        lambda: solve(CHAIN, FOUR, batch=4, scope=replace(STEP, engine="deepspeed")),
        "chain.context",
        "no pipeline of DeepSpeed does that",
    ),
    "an engine on GPUs that are left over": (
        lambda: solve(CHAIN, Platform(5, 10**6), batch=4, scope=replace(STEP, engine="megatron")),
        "platform.gpus",
        "5 in a row, no multiple of 2: 2 GPUs share each sequence, and Megatron-LM takes all",
    ),
    "an engine on nodes that part them": (
        lambda: solve(CHAIN, two_nodes(3), batch=4, scope=replace(STEP, engine="megatron")),
        "platform.gpus",
        "3 in a row, no multiple of 2: 2 GPUs share each sequence, and Megatron-LM takes all",
    ),
    "torchtitan without shards": (
        lambda: solve(CHAIN, FOUR, batch=4, scope=replace(STEP, engine="torchtitan", shard="none")),
        "chain.context",
        "torchtitan then shares the optimizer state",
    ),
    "variants of several kinds": (
        lambda: Profile(
            variants=(
                Variant(tensor=1, chain=CHAIN),
                Variant(tensor=2, chain=replace(CHAIN, context=4)),
            )
        ),
        "variants[1].chain.context",
        "4, and another variant has 2",
    ),
    "a run": (
        lambda: Job(plan=shared(), model=None, backend="logical", microbatches=8),
        "chain.context",
        "2 GPUs share each sequence, and a run here does not do that",
    ),
    "experts of half a sequence": (
        lambda: replace(CHAIN, expert=3),
        "expert",
        "3 is no multiple of 2, the GPUs that share each sequence",
    ),
    "half a sequence": (
        lambda: solve_count(3),
        "scope.microbatches",
        "3 are no multiple of 2 replicas",
    ),
}


def solve_count(count: int) -> object:
    """Solve for a step of so many parts of sequences."""
    scope = replace(STEP, microbatches=count)
    rule = Rule.of_flush(count)
    return solve_problem(Problem(chain=CHAIN, platform=FOUR, rule=rule, scope=scope))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused(name: str) -> None:
    call, field, rule = REFUSED[name]
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert caught.value.way_out


def test_a_chain_says_how_many_gpus_share_a_sequence(tmp_path: Path) -> None:
    whole = replace(CHAIN, context=1)
    assert CHAIN.sha256 != whole.sha256
    CHAIN.save(tmp_path / "shared.json")
    assert Chain.load(tmp_path / "shared.json") == CHAIN
    assert "context" not in chain_to_json(whole)
    assert (CHAIN.samples_of(8), whole.samples_of(8)) == (4, 8)
