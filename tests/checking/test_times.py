from __future__ import annotations

from decimal import Decimal

import pytest

from schedopt.chain import Chain
from schedopt.checking import Violation, check
from schedopt.plan import Pattern, Plan
from schedopt.platform import Platform
from schedopt.problem import Scope
from tests.changes import (
    change_gpu,
    change_layer,
    change_operation,
    change_transfer,
    with_pattern,
    with_platform,
)
from tests.checking.helpers import kinds, of_kind, places, words
from tests.examples import (
    contiguous,
    covering,
    cyclic,
    general,
    layer,
    op,
    recomputed,
    split_backward,
    stages,
    two_periodic,
    unequal,
    zero_length,
)


def test_a_broken_order_tells_by_how_much() -> None:
    early = change_operation(contiguous(), 1, start_ns=2)
    assert of_kind(early, "order") == [
        Violation(
            "order",
            "stage 1, micro-batch 0, F",
            "starts at 2 ns, 1 ns before activation of stage 0 ends",
        )
    ]


def test_a_backward_that_covers_two_waits_for_the_second_forward() -> None:
    early = change_operation(covering(), 4, shift=0, start_ns=3)
    assert "1 ns before F of stage 1 ends" in words(of_kind(early, "order"))


def test_a_backward_waits_for_what_is_recomputed() -> None:
    late = change_operation(recomputed(), 3, start_ns=4)
    assert "1 ns before R of stage 0 ends" in words(of_kind(late, "order"))


def test_a_weight_half_waits_for_its_input_half() -> None:
    early = change_operation(split_backward(), 3, start_ns=0)
    assert "1 ns before I of stage 1 ends" in words(of_kind(early, "order"))


def test_a_transfer_that_covers_two_takes_both_their_bytes() -> None:
    # The gradient lasts from 7 to 9.
    early = change_operation(covering(), 5, start_ns=0)
    assert "1 ns before gradient of stage 0 ends" in words(of_kind(early, "order"))


def test_a_backward_that_covers_two_lasts_twice_as_long() -> None:
    # From 11 to 13, where the next F starts at 12.
    assert places(change_operation(covering(), 5, start_ns=3), "overlap") == ["GPU 0"]


def test_a_broken_order_that_can_still_be_run_is_no_deadlock() -> None:
    assert "deadlock" not in kinds(change_operation(contiguous(), 1, start_ns=2))


def test_a_backward_before_its_forward_is_a_deadlock() -> None:
    early = change_operation(contiguous(), 3, shift=1)
    (violation,) = of_kind(early, "deadlock")
    assert "B of stage 2" in violation.message
    assert "F of stage 2" in violation.message


def crossed() -> Plan:
    """Return a plan in which each GPU first does what needs the other."""
    plan = with_pattern(general(), period_total_ns=20)
    for number, start in enumerate((2, 4, 0, 7, 10, 13)):
        plan = change_operation(plan, number, shift=0, start_ns=start)
    return plan


def test_gpus_that_wait_for_each_other_are_a_deadlock() -> None:
    (violation,) = of_kind(crossed(), "deadlock")
    assert all(f"F of stage {stage}" in violation.message for stage in range(3))


def test_the_circle_names_no_operation_outside_of_it() -> None:
    (violation,) = of_kind(crossed(), "deadlock")
    assert "B of" not in violation.message


def test_two_operations_at_a_time_on_a_gpu_are_found() -> None:
    crowded = change_operation(two_periodic(), 11, start_ns=2)
    assert places(crowded, "overlap") == ["GPU 0"]


def test_an_overlap_across_the_end_of_the_period_is_found() -> None:
    assert places(change_operation(contiguous(), 5, start_ns=3), "overlap") == ["GPU 0"]


def test_an_overlap_tells_by_how_much() -> None:
    message = of_kind(change_operation(contiguous(), 5, start_ns=3), "overlap")[0].message
    assert message == (
        "F of stage 0, micro-batch 0 (operations[0]) starts at 0 ns, 1 ns before "
        "B of stage 0, micro-batch -5 (operations[5]) ends"
    )


def test_two_transfers_at_a_time_on_a_link_are_found() -> None:
    assert places(change_transfer(contiguous(), 0, start_ns=3), "overlap") == ["link 0-1"]


def test_directions_share_a_half_duplex_link() -> None:
    assert places(with_platform(split_backward(), duplex="half"), "overlap") == ["link 0-1"]


def test_one_direction_of_a_full_duplex_link_is_named() -> None:
    crowded = change_transfer(with_platform(covering(), duplex="full"), 1, start_ns=1)
    assert "link 0 to 1" in places(crowded, "overlap")


def test_what_is_longer_than_the_period_overlaps_itself() -> None:
    longer = change_layer(contiguous(), 0, forward_ns=5)
    assert "comes again after 4 ns" in words(of_kind(longer, "overlap"))


def test_what_is_as_long_as_the_period_may_fill_it() -> None:
    full = change_layer(zero_length(6), 1, forward_ns=6)
    assert "overlap" not in kinds(full)


def test_replicas_run_beside_each_other() -> None:
    # Every 20 ns a micro-batch of 8 + 8 ns starts on stage 0, each 58 ns from end to end.
    assert "overlap" not in kinds(cyclic())


def test_a_replica_that_comes_again_too_soon_is_found() -> None:
    # F of micro-batches 0 and 3 lie 60 ns apart on GPU 0, B of 0 ends at 58.
    assert places(change_operation(cyclic(), 5, start_ns=55), "overlap") == ["GPU 0"]


def test_nothing_of_no_length_lies_inside_another() -> None:
    (violation,) = check(zero_length(5))
    assert (violation.kind, violation.place) == ("overlap", "GPU 1")


def test_what_has_no_length_may_lie_at_a_boundary() -> None:
    assert check(zero_length(6)) == ()


def test_durations_are_rounded_up_layer_by_layer() -> None:
    # F of stage 1 lasts ceil(2/1.5) twice: 4 to 8, where ceil(4/1.5) would end at 7.
    early = change_operation(unequal(), 2, shift=0, start_ns=7)
    assert "starts at 7 ns, 1 ns before F of stage 1 ends" in words(of_kind(early, "order"))


def test_a_slower_gpu_does_not_keep_the_times() -> None:
    # At 1.4, F of stage 1 lasts 2 * ceil(2/1.4) = 4 and B 2 * ceil(3/1.4) = 6: 10 ns in 8.
    slower = change_gpu(unequal(), 1, speed=Decimal("1.4"))
    assert "2 ns before" in words(of_kind(slower, "overlap"))


@pytest.mark.parametrize(
    ("homes", "lengths", "starts", "late"),
    [
        # F0, F1, B1, B0: the replica at half speed is late for B of stage 0, or F of stage 1.
        (([0], [1, 2]), ((2, 2), (0, 2)), (0, 2, 2, 4), "stage 0, micro-batch 1, B"),
        (([1, 2], [0]), ((2, 0), (2, 2)), (0, 2, 4, 6), "stage 1, micro-batch 1, F"),
    ],
)
def test_a_slower_replica_of_a_neighbour_is_waited_for(
    homes: tuple[list[int], list[int]],
    lengths: tuple[tuple[int, int], ...],
    starts: tuple[int, ...],
    late: str,
) -> None:
    names = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
    plan = Plan(
        chain=Chain(layers=tuple(layer(*both, 0) for both in lengths)),
        platform=Platform(3, 100, speed=["1", "1", "0.5"]),
        scope=Scope(allocation="general", max_k=1),
        stages=stages((0, 0, homes[0]), (1, 1, homes[1])),
        pattern=Pattern(
            k=1,
            period_total_ns=20,
            operations=tuple(
                op(kind, stage, 0, start)
                for (kind, stage), start in zip(names, starts, strict=True)
            ),
        ),
    )
    assert places(plan, "order") == [late]
