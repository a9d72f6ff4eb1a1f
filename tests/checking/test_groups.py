"""Tensor groups: what they cost, by hand, and what the check says of those that are none."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import account
from schedopt.account.timeline import Timeline
from schedopt.actions import make_actions
from schedopt.checking import check
from schedopt.engine import why_not_stages
from schedopt.errors import InputError
from schedopt.formats.results import load_result
from schedopt.plan import Plan
from schedopt.problem import training_step
from schedopt.result import Result
from schedopt.simulation import simulate
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step
from tests.tensor_groups import chain_in_group, two_nodes, variants


def step(*stages: Stage) -> Plan:
    """Return a step of four micro-batches on two nodes of four GPUs."""
    config = SystemConfig(
        chain=chain_in_group(1), platform=two_nodes(), microbatches=4, variants=variants()
    )
    count = len(stages)
    turns: list[Turn] = []
    for i in range(4):
        turns += [("F", stage, i) for stage in range(count)]
        turns += [("B", stage, i) for stage in reversed(range(count))]
    return flush_step(config, stages, turns)


PAIRS = Stage(layers=(0, 2), gpus=(0, 2), tensor=2, shard="optimizer")
FOUR = Stage(layers=(3, 5), gpus=(4,), tensor=4)


def test_a_step_of_groups_is_valid() -> None:
    assert check(step(PAIRS, FOUR)) == ()


def test_operations_take_what_they_take_in_their_group() -> None:
    timeline = Timeline(step(PAIRS, FOUR))
    # Layers of 100, 200, 300 ns in two parts with 5 ns more each; of 400, 500, 600 ns in four.
    assert timeline.stage_ns("F", 0, 0) == 55 + 105 + 155
    assert timeline.stage_ns("B", 1, 4) == 205 + 255 + 305


def test_a_boundary_goes_in_as_many_lanes_as_the_smaller_group_has() -> None:
    plan = step(PAIRS, FOUR)
    sent = account.traffic(plan)
    # Half of the micro-batches go through the first pair: 64 bytes, half of them in each lane.
    assert sent[0, 4] == sent[1, 5] == sent[2, 4] == sent[5, 3] == Fraction(32, 2)
    lengths = {
        run.end_ns - run.start_ns
        for transfer, _, _, _, run in Timeline(plan).transfers()
        if transfer.is_boundary
    }
    # Both lanes share the link between the nodes: 64 bytes at 200 MB/s.
    assert lengths == {320}


def test_each_gpu_of_a_group_sends_its_part_of_the_weights() -> None:
    sent = account.traffic(step(PAIRS, FOUR))
    # A ring of two: half of 600 bytes of gradients and half of the weights, in 4 micro-batches.
    assert sent[0, 2] == sent[1, 3] == sent[3, 1] == Fraction(300 + 300, 4)
    assert (0, 3) not in sent


def test_all_gpus_of_a_group_hold_as_much_and_work_as_long() -> None:
    plan = step(PAIRS, FOUR)
    needs, loads = account.memory(plan), account.load(plan)
    assert all(need == needs[0] for need in needs[:4])
    assert all(need == needs[4] for need in needs[4:])
    assert needs[4].by_kind["weights"] == 3 * 400
    # Half of three times 1,600 bytes, of which a replica keeps half of the optimizer state.
    assert needs[1].by_kind["weights"] == 3 * 800 - 3 * 400 // 2
    assert loads[0] == loads[1]
    assert loads[4] == loads[7] != loads[0]


def test_a_stage_that_recomputes_keeps_the_input_of_its_group() -> None:
    plan = step(replace(PAIRS, recompute=((0, 2),)), FOUR)
    small = replace(plan.variants[0], chain=replace(plan.variants[0].chain, input_bytes=5))
    plan = replace(plan, variants=(small, *plan.variants[1:]))
    kept = account.memory(plan)[0].by_kind["checkpoint"]
    assert kept == 5 * account.concurrent_activations(plan)[0, 0]


def test_a_simulation_takes_the_time_of_the_plan() -> None:
    plan = step(PAIRS, FOUR)
    assert simulate(plan, 4).makespan_ns <= plan.pattern.period_total_ns


def test_memory_of_a_group_counts_on_its_first_gpu() -> None:
    plan = step(PAIRS, FOUR)
    need = max(need.peak_bytes for need in account.memory(plan))
    tight = replace(
        plan,
        platform=two_nodes(memory=need - 1),
        scope=replace(plan.scope, memory="peak"),
    )
    assert {violation.kind for violation in check(tight)} == {"memory"}
    enough = replace(tight, platform=two_nodes(memory=need))
    assert check(enough) == ()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            [replace(PAIRS, gpus=(0,)), replace(FOUR, gpus=(2,))],
            "GPUs 2 to 5 are a tensor group in 2 nodes",
        ),
        (
            [replace(PAIRS, gpus=(0, 3)), replace(FOUR, gpus=(4,))],
            "GPUs 3 to 4 are a tensor group in 2 nodes",
        ),
        (
            [replace(PAIRS, gpus=(4, 6)), FOUR],
            "belongs to the tensor group of GPUs 4 to 5 and to that of GPUs 4 to 7",
        ),
    ],
)
def test_groups_that_are_none(stages: list[Stage], message: str) -> None:
    found = check(replace(step(PAIRS, FOUR), stages=tuple(stages)))
    assert any(message in str(violation) for violation in found if violation.kind == "group")


def test_a_group_beyond_the_last_gpu() -> None:
    found = check(replace(step(PAIRS, FOUR), stages=(PAIRS, replace(FOUR, gpus=(6,)))))
    assert found[0].kind == "reference"
    assert "GPU 8 does not exist" in found[0].message


def test_a_size_of_groups_that_nothing_is_known_of() -> None:
    with pytest.raises(InputError, match="in groups of 3 GPUs") as caught:
        step(replace(PAIRS, gpus=(0,), tensor=3), FOUR)
    assert caught.value.field == "stages[0].tensor"


def test_all_of_a_group_do_what_its_first_gpu_does() -> None:
    actions = make_actions(step(PAIRS, FOUR), 4)
    assert [len({action.stage for action in rank}) for rank in actions.ranks] == [1, 1, 1]
    assert "0SEND_F0" in str(actions).splitlines()[0]


def test_engines_run_no_groups_of_unequal_size() -> None:
    stages = (replace(PAIRS, gpus=(0,)), FOUR)
    assert why_not_stages(chain_in_group(1), stages, "deepspeed") == (
        "stage 1 has 4 GPUs in each tensor group, and stage 0 has 2"
    )


def test_a_plan_file_holds_groups_and_what_layers_cost_in_them(tmp_path: Path) -> None:
    problem = training_step(chain_in_group(1), two_nodes(), 4, variants=variants())
    plan = replace(step(PAIRS, FOUR), scope=problem.scope)
    result = Result(problem=problem, status="feasible", plan=plan)
    result.save(tmp_path / "groups.plan.json")
    read = load_result(tmp_path / "groups.plan.json")
    assert read.plan == plan
    assert read.problem == problem
