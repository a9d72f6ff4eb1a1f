from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from schedopt.chain import Chain, Layer
from schedopt.checking import Violation, check
from schedopt.checking.structure import MOST_MICRO_BATCHES, find_endless
from schedopt.plan import Pattern, Plan
from schedopt.platform import Gpu, Platform
from schedopt.problem import Scope
from schedopt.solving import solve
from schedopt.stage import Stage
from tests.changes import (
    add_transfer,
    change_layer,
    change_operation,
    change_rule,
    change_scope,
    change_stage,
    change_transfer,
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
    timed,
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
    assert violation.message == (f"{named} does not exist; {named.split()[0]}s go from 0 to 2")


@pytest.mark.parametrize(
    ("plan", "place", "stage"),
    [
        (change_operation(contiguous(), 3, stage=3), "operations[3]", 3),
        (change_transfer(contiguous(), 1, stage=7), "transfers[1]", 7),
    ],
)
def test_an_item_names_a_stage_that_does_not_exist(plan: Plan, place: str, stage: int) -> None:
    message = f"stage {stage} does not exist; stages go from 0 to 2"
    assert check(plan) == (Violation("reference", place, message),)


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


@pytest.mark.parametrize(
    ("rows", "messages"),
    [
        (
            ((0, 0), (1, 1)),
            ["stage 1: it ends at layer 1, but the chain goes on to layer 2"],
        ),
        (
            ((0, 0), (2, 2)),
            ["stage 1: it starts at layer 2, but layer 1 is next"],
        ),
        (
            ((0, 1), (2, 1)),
            [
                "stage 1: its last layer 1 lies before its first 2",
                "stage 1: it ends at layer 1, but the chain goes on to layer 2",
            ],
        ),
    ],
)
def test_what_is_wrong_with_layers_is_told(
    rows: tuple[tuple[int, int], ...], messages: list[str]
) -> None:
    broken = stages(*((first, last, [gpu]) for gpu, (first, last) in enumerate(rows)))
    found = of_kind(replace(unequal(), stages=broken), "layers")
    assert [f"{one.place}: {one.message}" for one in found] == messages


@pytest.mark.parametrize(
    ("runs", "wrong"),
    [
        (((2, 3),), 1),
        (((1, 0),), 1),
        (((0, 1), (1, 2)), 1),
        (((2, 2), (0, 0)), 1),
        # Both are inside the first.
        (((0, 2), (1, 1), (2, 2)), 2),
        (((0, 0), (1, 1), (2, 2)), 0),
    ],
)
def test_a_recomputed_run_outside_its_stage_or_order_is_found(
    runs: tuple[tuple[int, int], ...], wrong: int
) -> None:
    assert places(change_stage(recomputed(), 0, recompute=runs), "layers") == ["stage 0"] * wrong


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


@pytest.mark.parametrize(("number", "found"), [(0, False), (1, True), (2, True)])
def test_each_layer_of_a_split_stage_has_the_times_of_its_halves(number: int, found: bool) -> None:
    # Stage 1 holds layers 1 and 2.
    plan = change_scope(split_backward(), split_backward=False)
    absent = {"saved_weight_bytes": None, "backward_input_ns": None, "backward_weight_ns": None}
    told = words(check(change_layer(plan, number, **absent)))
    assert (f"stage 1: its backward is split, but layer {number} has no" in told) is found
    assert ("stage 0: its backward is split" in told) is not found


def test_an_operation_that_covers_more_than_a_period_is_found() -> None:
    broken = change_operation(covering(), 4, covers=3)
    assert "operations[4]" in places(broken, "operations")


@pytest.mark.parametrize(("number", "place"), [(2, "stage 0, U"), (3, "stage 1, U")])
def test_an_update_takes_the_time_of_all_layers_of_its_stage(number: int, place: str) -> None:
    # Stage 0 holds layers 0 to 2.
    plan = recomputed()
    for layer in range(4):
        plan = change_layer(plan, layer, parameter_bytes=0, gradient_bytes=0)
    plan = change_rule(change_layer(plan, number, update_ns=5), update_every=1)
    assert [one.place for one in check(plan)] == [place]


def test_without_links_transfers_may_be_left_out() -> None:
    free = with_platform(contiguous(), links=False)
    assert check(with_pattern(free, transfers=())) == ()


def test_a_listed_transfer_without_links_keeps_its_place_in_the_order() -> None:
    free = change_transfer(with_platform(contiguous(), links=False), 0, start_ns=1)
    assert places(free, "order") == ["activation of stage 0, micro-batch 0"]


def test_a_transfer_within_one_gpu_may_be_listed() -> None:
    assert check(add_transfer(data_parallel(), send("activation", 0, 0, 2))) == ()


def test_weights_that_move_in_a_period_that_is_no_multiple_are_found() -> None:
    assert "transfers[12]" in places(change_rule(cyclic(), update_every=2), "transfer")


def test_what_covers_micro_batches_of_several_gpus_is_found() -> None:
    plan = change_scope(change_stage(covering(), 0, gpus=(0, 1)), allocation="general")
    assert [f"{one.place} {one.message}" for one in of_kind(plan, "placement")] == [
        f"{place} covers micro-batches of stage 0 on different GPUs: {named}"
        for place, named in (
            ("operations[5]", "-4 on GPU 0, -3 on GPU 1"),
            ("transfers[2]", "-2 on GPU 0, -1 on GPU 1"),
        )
    ]


def test_a_transfer_to_several_replicas_of_the_next_stage_is_found() -> None:
    computed = {"F0": 0, "F1": 1, "F2": 2, "B2": 3, "B1": 4, "B0": 5}
    plan = replace(
        contiguous(),
        pattern=timed(20, computed, computed, also=[send("activation", 1, 0, 2, covers=2)]),
        stages=stages((0, 0, [0]), (1, 1, [0]), (2, 2, [1, 2])),
    )
    assert places(plan, "placement") == ["transfers[0]"]


def test_reading_what_is_not_recomputed_is_found() -> None:
    everywhere = ["stage 0", "stage 1", "stage 2"]
    assert places(change_rule(double_buffered(), backward_reads="recomputed"), "rule") == everywhere


@pytest.mark.parametrize(
    ("replicas", "endless"),
    [
        # More than 2**20 micro-batches at each of two boundaries.
        ((range(1021), range(1021, 2052), range(2052, 3085)), True),
        # 900 * 899 at the boundary, and their squares on the GPUs.
        ((range(900), range(900, 1799)), True),
        # 128 * 127 * 131 are more than 2**21, but only neighbours meet,
        ((range(128), range(128, 255), range(255, 386)), False),
        # and stages of one GPU.
        ((range(128), range(127, 254), range(254, 384)), False),
        ((range(128), range(127), range(131)), True),
    ],
)
def test_replicas_that_never_meet_again_are_refused(
    replicas: tuple[range, ...], endless: bool
) -> None:
    many = with_platform(contiguous(), [Gpu(memory_bytes=1000)] * 4095)
    spread = replace(many, stages=stages(*((i, i, gpus) for i, gpus in enumerate(replicas))))
    assert [one.place for one in find_endless(spread)] == ["stages"] * endless


@pytest.mark.parametrize(("count", "endless"), [(1, False), (2, True)])
def test_exactly_so_many_micro_batches_are_looked_at(count: int, endless: bool) -> None:
    # Those of a stage count at its boundary, and those of a GPU on it.
    pattern = Pattern(k=MOST_MICRO_BATCHES // 2, period_total_ns=1, operations=())
    one = replace(contiguous(), pattern=pattern, stages=stages(*[(0, 2, [0])] * count))
    assert bool(list(find_endless(one))) is endless


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        (change_scope(general(), allocation="contiguous"), "GPU 0"),
        (change_scope(two_periodic(), max_k=1), "pattern.k"),
        (change_scope(flushed(), microbatches=4), "pattern.k"),
        (change_scope(split_backward(), split_backward=False), "operations[2]"),
        (change_scope(recomputed(), recompute=False), "stage 0"),
        (change_scope(contiguous(), period_ns=3), "pattern.period_total_ns"),
        (change_scope(two_periodic(), period_ns=2), "pattern.period_total_ns"),
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


def test_an_operation_that_goes_on_after_the_step_is_found() -> None:
    late = change_operation(flushed(), 9, start_ns=9)
    assert [f"{one.place}: {one.message}" for one in of_kind(late, "scope")] == [
        "operations[9]: U of stage 0, micro-batch 1 ends at 11 ns, 1 ns after the step"
    ]
