from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from schedopt.chain import Chain, Layer
from schedopt.checking import Violation, check
from schedopt.plan import Plan
from schedopt.platform import Gpu, Platform
from schedopt.problem import Scope
from schedopt.solving import solve
from schedopt.stage import Stage
from tests.changes import (
    add_operation,
    add_transfer,
    change_operation,
    change_rule,
    change_scope,
    change_stage,
    change_transfer,
    drop_operation,
    with_pattern,
    with_platform,
)
from tests.checking.helpers import kinds, of_kind, places, words
from tests.examples import (
    contiguous,
    covering,
    cyclic,
    data_parallel,
    double_buffered,
    flushed,
    general,
    op,
    recomputed,
    send,
    split_backward,
    stages,
    two_periodic,
    unequal,
)


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        (Stage(layers=(2, 3), gpus=(2,)), "layer 3"),
        (Stage(layers=(-1, 2), gpus=(2,)), "layer -1"),
        (Stage(layers=(2, 2), gpus=(3,)), "GPU 3"),
        (Stage(layers=(2, 2), gpus=(2, -1)), "GPU -1"),
        (Stage(layers=(2, 2), gpus=(2,), recompute=((2, 9),)), "layer 9"),
    ],
)
def test_a_stage_names_what_does_not_exist(stage: Stage, named: str) -> None:
    plan = contiguous()
    (violation,) = check(replace(plan, stages=(*plan.stages[:2], stage)))
    assert (violation.kind, violation.place) == ("reference", "stage 2")
    assert violation.message.startswith(f"{named} does not exist")


def test_an_operation_names_a_stage_that_does_not_exist() -> None:
    (violation,) = check(change_operation(contiguous(), 3, stage=3))
    assert (violation.kind, violation.place) == ("reference", "operations[3]")


def test_a_transfer_names_a_stage_that_does_not_exist() -> None:
    (violation,) = check(change_transfer(contiguous(), 1, stage=7))
    assert (violation.kind, violation.place) == ("reference", "transfers[1]")


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        (((0, 0), (1, 1), (1, 2)), "stage 2"),
        (((0, 0), (2, 2), (1, 1)), "stage 1"),
        (((0, 0), (1, 1), (1, 1)), "stage 2"),
        (((1, 1), (1, 1), (2, 2)), "stage 0"),
        (((0, 0), (1, 0), (1, 2)), "stage 1"),
    ],
)
def test_layers_out_of_order_are_found(rows: tuple[tuple[int, int], ...], place: str) -> None:
    broken = stages(*((first, last, [gpu]) for gpu, (first, last) in enumerate(rows)))
    assert place in places(replace(contiguous(), stages=broken), "layers")


def test_a_chain_that_goes_on_behind_the_last_stage_is_found() -> None:
    plan = unequal()
    broken = replace(plan, stages=stages((0, 0, [0]), (1, 1, [1])))
    assert "goes on to layer 2" in words(of_kind(broken, "layers"))


@pytest.mark.parametrize("runs", [((2, 3),), ((1, 0),), ((0, 1), (1, 2)), ((2, 2), (0, 0))])
def test_a_recomputed_run_outside_its_stage_or_order_is_found(
    runs: tuple[tuple[int, int], ...],
) -> None:
    assert places(change_stage(recomputed(), 0, recompute=runs), "layers") == ["stage 0"]


def test_layers_that_must_share_a_gpu_may_be_two_stages_of_it() -> None:
    plan = general()
    assert check(replace(plan, chain=replace(plan.chain, same_gpu=((0, 2),)))) == ()


def test_layers_that_must_share_a_gpu_and_do_not_are_found() -> None:
    plan = general()
    tied = replace(plan, chain=replace(plan.chain, same_gpu=((0, 2),)))
    parted = change_stage(tied, 2, gpus=(1,))
    assert places(parted, "same_gpu") == ["same_gpu[0]"]


def test_tied_layers_share_a_gpu_only_if_they_do_so_for_each_micro_batch() -> None:
    plan = data_parallel()
    tied = replace(plan, chain=replace(plan.chain, same_gpu=((0, 1),)))
    assert check(tied) == ()
    assert "micro-batch 1" in words(of_kind(change_stage(tied, 1, gpus=(0,)), "same_gpu"))


def test_a_doubled_operation_is_found_at_the_second() -> None:
    doubled = add_operation(contiguous(), op("F", 1, 6, 0))
    assert places(doubled, "operations") == ["operations[6]"]


def test_a_missing_operation_is_named_with_its_micro_batch() -> None:
    (violation,) = check(drop_operation(two_periodic(), 7))
    assert violation.place == "stage 1, micro-batch 1, F"


def test_whole_and_split_backward_in_one_stage_are_found() -> None:
    mixed = add_operation(split_backward(), op("B", 0, -1, 2))
    assert "I as well as B in stage 0" in words(of_kind(mixed, "operations"))


def test_one_half_of_a_backward_is_not_enough() -> None:
    assert places(drop_operation(split_backward(), 3), "operations") == [
        "stage 1, micro-batch 0, W"
    ]


def test_a_split_without_the_times_of_the_halves_is_found() -> None:
    plan = contiguous()
    split = with_pattern(
        plan,
        operations=(*plan.pattern.operations[:5], op("I", 0, -4, 2), op("W", 0, -4, 2)),
    )
    assert "layer 0 has no backward_input_ns" in words(of_kind(split, "operations"))


def test_a_recompute_of_nothing_is_found() -> None:
    assert places(add_operation(recomputed(), op("R", 1, 0, 0)), "operations") == ["operations[5]"]


def test_an_operation_that_covers_more_than_a_period_is_found() -> None:
    broken = change_operation(covering(), 4, covers=3)
    assert "operations[4]" in places(broken, "operations")


def test_an_update_under_a_given_rule_is_found() -> None:
    assert places(add_operation(contiguous(), op("U", 0, 0, 0)), "operations") == ["operations[6]"]


def test_an_update_in_a_period_that_is_no_multiple_is_found() -> None:
    assert places(add_operation(double_buffered(), op("U", 0, 0, 0)), "operations") == [
        "operations[6]"
    ]


def test_two_updates_of_one_micro_batch_are_found() -> None:
    assert places(add_operation(flushed(), op("U", 0, 1, 8)), "operations") == ["operations[10]"]


def test_an_update_that_covers_several_is_found() -> None:
    assert places(change_operation(flushed(), 9, covers=2), "operations") == ["operations[9]"]


def test_a_missing_update_that_takes_time_is_found() -> None:
    assert places(drop_operation(flushed(), 9), "operations") == ["stage 0, U"]


def test_a_missing_transfer_names_both_gpus() -> None:
    plan = contiguous()
    broken = with_pattern(plan, transfers=plan.pattern.transfers[:3])
    (violation,) = check(broken)
    assert violation == Violation(
        "transfer", "gradient of stage 0, micro-batch 0", "from GPU 1 to GPU 0 is missing"
    )


def test_without_links_transfers_may_be_left_out() -> None:
    free = with_platform(contiguous(), links=False)
    assert check(with_pattern(free, transfers=())) == ()


def test_a_listed_transfer_without_links_keeps_its_place_in_the_order() -> None:
    free = change_transfer(with_platform(contiguous(), links=False), 0, start_ns=1)
    assert places(free, "order") == ["activation of stage 0, micro-batch 0"]


def test_a_transfer_within_one_gpu_may_be_listed() -> None:
    assert check(add_transfer(data_parallel(), send("activation", 0, 0, 2))) == ()


def test_a_doubled_transfer_is_found_at_the_second() -> None:
    doubled = add_transfer(contiguous(), send("activation", 0, 5, 0))
    assert places(doubled, "transfer") == ["transfers[4]"]


def test_a_boundary_transfer_of_the_last_stage_is_found() -> None:
    assert places(add_transfer(contiguous(), send("gradient", 2, 0, 0)), "transfer") == [
        "transfers[4]"
    ]


def test_weights_that_move_under_a_given_rule_are_found() -> None:
    moving = add_transfer(contiguous(), send("weights", 0, 0, 0, source=0, target=1))
    assert places(moving, "transfer") == ["transfers[4]"]


def test_weights_that_move_in_a_period_that_is_no_multiple_are_found() -> None:
    assert "transfers[12]" in places(change_rule(cyclic(), update_every=2), "transfer")


def test_weights_sent_from_a_gpu_to_itself_are_found() -> None:
    assert places(change_transfer(cyclic(), 14, target=3), "transfer") == ["transfers[14]"]


def test_different_chunks_in_one_stage_are_found() -> None:
    assert places(change_transfer(data_parallel(), 1, chunks=3), "transfer") == ["transfers[1]"]


def test_an_operation_over_replicas_is_found() -> None:
    plan = covering()
    spread = change_scope(change_stage(plan, 0, gpus=(0, 1)), allocation="general")
    assert "operations[5]" in places(spread, "placement")


def test_a_transfer_over_replicas_is_found() -> None:
    plan = covering()
    spread = change_scope(change_stage(plan, 0, gpus=(0, 1)), allocation="general")
    assert "transfers[2]" in places(spread, "placement")


def test_a_table_of_another_width_is_found() -> None:
    narrow = change_rule(cyclic(), table=((1, 1), (1, 0), (0, 0)))
    assert places(narrow, "rule") == ["rule.table"]


def test_reading_what_is_not_recomputed_is_found() -> None:
    assert places(change_rule(double_buffered(), backward_reads="recomputed"), "rule") == [
        "stage 0",
        "stage 1",
        "stage 2",
    ]


def test_replicas_that_never_meet_again_are_refused() -> None:
    plan = contiguous()
    many = with_platform(plan, [Gpu(memory_bytes=1000)] * 4095)
    spread = replace(
        many,
        stages=stages((0, 0, range(1021)), (1, 1, range(1021, 2052)), (2, 2, range(2052, 3085))),
    )
    assert places(spread, "rule") == ["stages"]


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        (change_scope(general(), allocation="contiguous"), "GPU 0"),
        (change_scope(two_periodic(), max_k=1), "pattern.k"),
        (change_scope(flushed(), microbatches=4), "pattern.k"),
        (change_scope(split_backward(), split_backward=False), "operations[2]"),
        (change_scope(recomputed(), recompute=False), "stage 0"),
        (change_scope(contiguous(), period_ns=3), "pattern.period_total_ns"),
        (replace(unequal(), stages=stages((0, 0, [1]), (1, 2, [0]))), "stage 1"),
    ],
)
def test_a_plan_that_was_not_asked_for_is_found(plan: Plan, place: str) -> None:
    assert place in places(plan, "scope")


def test_a_period_that_was_asked_for_may_be_met_exactly() -> None:
    assert check(change_scope(two_periodic(), period_ns=3)) == ()


def test_unequal_gpus_may_come_in_any_order_where_it_is_free() -> None:
    swapped = replace(unequal(), stages=stages((0, 0, [1]), (1, 2, [0])))
    assert "scope" not in kinds(change_scope(swapped, gpu_order="any"))


@pytest.mark.parametrize("shift", [2, -2])
def test_a_step_in_which_micro_batches_cross_is_found(shift: int) -> None:
    assert places(change_operation(flushed(), 0, shift=shift), "scope") == ["operations[0]"]


def test_an_operation_that_goes_on_after_the_step_is_found() -> None:
    assert places(change_operation(flushed(), 9, start_ns=9), "scope") == ["operations[9]"]


def test_many_violations_of_a_kind_are_cut_short() -> None:
    plan = contiguous()
    longer = with_pattern(plan, transfers=plan.pattern.transfers[:2] * 13)
    found = of_kind(longer, "transfer")
    # 24 are doubled, and the gradients of 2 boundaries are missing.
    assert (len(found), found[-1].message) == (21, "6 more")


def test_missing_operations_of_a_kind_are_told_at_once() -> None:
    (violation,) = of_kind(
        with_pattern(
            two_periodic(),
            operations=tuple(
                operation
                for operation in two_periodic().pattern.operations
                if (operation.kind, operation.stage) != ("B", 1)
            ),
        ),
        "operations",
    )
    assert "2 of every 2 micro-batches" in violation.message


def test_layers_apart_may_be_neighbours_on_a_gpu_but_not_come_back_to_it() -> None:
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    chain = Chain(layers=(layer,) * 3)
    for gpus, allowed in (((0, 0, 1), True), ((0, 1, 1), True), ((0, 1, 0), False)):
        stages = tuple(Stage(layers=(i, i), gpus=(gpu,)) for i, gpu in enumerate(gpus))
        plan = solve(chain, Platform(2, 99), stages=stages).plan
        assert plan is not None
        contiguous = change_scope(plan, allocation="contiguous", grain="layer")
        assert (check(contiguous) == ()) is allowed
        assert "scope" in kinds(change_scope(plan, allocation="contiguous"))


def replicated(first: tuple[int, ...], second: tuple[int, ...], *, speed: str) -> Plan:
    """Return two stages of two replicas each, without any transfer, whose period is of one."""
    plan = contiguous()
    operations = [op(kind, stage, 0, 0) for kind in "FB" for stage in (0, 1)]
    gpus = [Gpu(memory_bytes=10**6), *[Gpu(memory_bytes=10**6, speed=Decimal(speed))] * 3]
    return replace(
        with_pattern(plan, k=1, operations=tuple(operations), transfers=()),
        platform=Platform(4, 10**6, speed=[gpu.speed for gpu in gpus], bandwidth=10**9),
        scope=Scope(max_k=1),
        stages=stages((0, 0, first), (1, len(plan.chain.layers) - 1, second)),
    )


@pytest.mark.parametrize(
    ("first", "second", "speed", "found"),
    [
        ((0, 1), (2, 3), "2", False),
        ((0, 2), (1, 3), "2", True),
        ((0, 1), (3, 1), "2", True),
        ((2, 3), (0, 1), "2", True),
        ((0, 2), (1, 3), "1", False),
    ],
)
def test_replicas_of_unequal_gpus_stay_in_the_given_order(
    first: tuple[int, ...], second: tuple[int, ...], speed: str, found: bool
) -> None:
    told = words(of_kind(replicated(first, second, speed=speed), "scope"))
    assert ("keep the GPUs in order" in told) is found


def test_what_is_missing_between_replicas_is_named_once_for_each_micro_batch() -> None:
    missing = of_kind(replicated((0, 1), (2, 3), speed="1"), "transfer")
    assert [violation.place for violation in missing] == [
        "activation of stage 0, micro-batch 0",
        "gradient of stage 0, micro-batch 0",
    ]
