from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest

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
    planned,
    recomputed,
    split_backward,
    stages,
    timed,
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


def renamed(plan: Plan, later: int) -> Plan:
    """Return the same plan whose micro-batches have other numbers."""
    operations = (replace(one, shift=one.shift + later) for one in plan.pattern.operations)
    return with_pattern(plan, operations=tuple(operations))


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        # B of stage 1 starts at 9 for micro-batch 0; its gradient comes over 10-11.
        (
            change_operation(contiguous(), 4, shift=-2),
            "stage 1, micro-batch -2, B: starts at 1 ns, 2 ns before gradient of stage 1 ends",
        ),
        (
            change_operation(two_periodic(), 1, start_ns=0),
            "stage 1, micro-batch 0, F: starts at 0 ns, 1 ns before F of stage 0 ends",
        ),
        (
            renamed(change_operation(two_periodic(), 1, start_ns=0), 6),
            "stage 1, micro-batch 6, F: starts at 0 ns, 1 ns before F of stage 0 ends",
        ),
        (
            change_operation(cyclic(), 11, start_ns=5),
            "stage 0, micro-batch 1, B: starts at 65 ns, 4 ns before gradient of stage 0 ends",
        ),
    ],
)
def test_a_broken_order_is_named_where_it_lies_in_its_period(plan: Plan, found: str) -> None:
    assert words(of_kind(plan, "order")) == f"order: {found}"


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


def crossed() -> Plan:
    """Return a plan in which each GPU first does what needs the other."""
    plan = with_pattern(general(), period_total_ns=20)
    for number, start in enumerate((2, 4, 0, 7, 10, 13)):
        plan = change_operation(plan, number, shift=0, start_ns=start)
    return plan


def on_three_replicas() -> Plan:
    """Return a stage with a B before the F of its micro-batch, which is every third of a GPU."""
    row = {"F0": 0, "B0": -7}
    three = stages((0, 0, [0, 1, 2]))
    general = Scope(allocation="general")
    platform = Platform(3, 100)
    return planned([layer(2, 2, 0)], platform, timed(4, row), stages=three, scope=general)


CIRCLES = {
    "a backward before its forward": (
        change_operation(contiguous(), 3, shift=1),
        {"F of stage 2", "B of stage 2"},
    ),
    "the shortest of two": (
        change_operation(crossed(), 4, shift=1),
        {"F of stage 1", "B of stage 1"},
    ),
    "the same of two micro-batches": (
        change_operation(two_periodic(), 3, shift=2),
        {"F of stage 2", "B of stage 2"},
    ),
    "the same of three replicas": (on_three_replicas(), {"F of stage 0", "B of stage 0"}),
    "two GPUs that wait for each other": (crossed(), {f"F of stage {stage}" for stage in range(3)}),
}


@pytest.mark.parametrize(("plan", "named"), CIRCLES.values(), ids=CIRCLES.keys())
def test_what_waits_for_itself_is_a_deadlock(plan: Plan, named: set[str]) -> None:
    (violation,) = of_kind(plan, "deadlock")
    told = violation.message.removeprefix("no times can run this: ")
    # "B comes before F on GPU 2; B needs F": from the first to the second, and from F to B.
    edges = []
    for clause in told.split("; "):
        first, _, rest = clause.partition(" comes before ")
        if rest:
            following, _, resource = rest.partition(" on ")
        else:
            following, _, first = clause.partition(" needs ")
            resource = ""
        edges.append((first, following, resource))
    assert {first.partition(",")[0] for first, _, _ in edges} == named
    for (_, end, here), (begin, _, there) in pairwise([*edges, edges[0]]):
        assert end == begin
        # Of what comes one after the other on a GPU only the first and the last are named.
        assert not here or here != there
    kind, stage = edges[0][0].split(" of stage ")
    stage, _, micro_batch = stage.partition(", ")
    assert violation.place == f"stage {stage}, {micro_batch}, {kind}"


def test_at_one_instant_an_order_is_free() -> None:
    # Nothing takes time. F2 comes before F1, but B1 need not come before F1 on their GPU.
    at_once = [op(kind, stage, 0, 0) for kind, stage in (("B", 0), ("B", 1), ("F", 1), ("F", 0))]
    plan = planned(
        [layer(0, 0, 0)] * 3,
        Platform(2, 99),
        Pattern(
            k=1,
            period_total_ns=4,
            operations=(*at_once, op("F", 2, 1, 3), op("B", 2, 1, 3)),
        ),
        stages=stages((0, 0, [0]), (1, 1, [0]), (2, 2, [1])),
        scope=Scope(allocation="general"),
    )
    assert kinds(plan) == {"order"}


def test_in_a_very_wide_window_no_circle_is_looked_for() -> None:
    assert "deadlock" not in kinds(change_operation(contiguous(), 3, shift=10**6))


def test_two_operations_at_a_time_on_a_gpu_are_found() -> None:
    crowded = change_operation(two_periodic(), 11, start_ns=2)
    assert places(crowded, "overlap") == ["GPU 0"]


def test_an_overlap_across_the_end_of_the_period_is_found() -> None:
    assert places(change_operation(contiguous(), 5, start_ns=3), "overlap") == ["GPU 0"]


def beside_replicas(**changes: int) -> Plan:
    """Return stage 0 on GPU 0 and stage 1 on GPUs 0 and 1, T = 10.

    Micro-batch 0: F0 0-2, F1 2-4, B1 6-8, B0 14-16.
    """
    return planned(
        [layer(2, 2, 0, saved_bytes=0)] * 2,
        Platform(2, 100),
        timed(10, {"F0": 0, "F1": 2, "B1": 6, "B0": 14} | changes),
        scope=Scope(allocation="general"),
        stages=stages((0, 0, [0]), (1, 1, [0, 1])),
    )


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        (
            change_operation(contiguous(), 5, start_ns=3),
            ["F of stage 0, micro-batch 0 (operations[0]) starts at 0 ns, 1 ns before "
            "B of stage 0, micro-batch -5 (operations[5]) ends"],
        ),
        (
            change_layer(contiguous(), 0, forward_ns=5),
            ["F of stage 0, micro-batch 0 (operations[0]) lasts 5 ns and comes again after 4 ns"],
        ),
        # B of stage 0 at 5-7 and 7-9, F again from 6 and 8 on.
        (
            change_layer(two_periodic(), 0, backward_ns=2),
            [
                "F of stage 0, micro-batch 0 (operations[0]) starts at 0 ns, 1 ns before "
                "B of stage 0, micro-batch -2 (operations[5]) ends",
                "F of stage 0, micro-batch 1 (operations[6]) starts at 2 ns, 1 ns before "
                "B of stage 0, micro-batch -1 (operations[11]) ends",
            ],
        ),
        (
            change_operation(covering(), 5, start_ns=3),
            [
                "F of stage 0, micro-batch 0 (operations[0]) starts at 0 ns, 1 ns before "
                "B of stage 0, micro-batches -6 to -5 (operations[5]) ends",
            ],
        ),
        (beside_replicas(), []),
        # Of stage 1 GPU 0 has every second micro-batch.
        (
            beside_replicas(B1=11),
            [
                "B of stage 1, micro-batch 0 (operations[2]) starts at 11 ns, 1 ns before "
                "F of stage 0, micro-batch 1 (operations[0]) ends",
            ],
        ),
        # Both come twice until all repeats.
        (
            beside_replicas(B0=11),
            [
                "B of stage 0, micro-batch -1 (operations[3]) starts at 1 ns, 1 ns before "
                "F of stage 0, micro-batch 0 (operations[0]) ends",
                "F of stage 1, micro-batch 0 (operations[1]) starts at 2 ns, 1 ns before "
                "B of stage 0, micro-batch -1 (operations[3]) ends",
            ],
        ),
    ],
)  # fmt: skip
def test_an_overlap_tells_what_it_is_and_by_how_much(plan: Plan, found: list[str]) -> None:
    assert [one.message for one in of_kind(plan, "overlap")] == found


def test_two_transfers_at_a_time_on_a_link_are_found() -> None:
    assert places(change_transfer(contiguous(), 0, start_ns=3), "overlap") == ["link 0-1"]


def test_directions_share_a_half_duplex_link() -> None:
    assert places(with_platform(split_backward(), duplex="half"), "overlap") == ["link 0-1"]


def test_one_direction_of_a_full_duplex_link_is_named() -> None:
    crowded = change_transfer(with_platform(covering(), duplex="full"), 1, start_ns=1)
    assert "link 0 to 1" in places(crowded, "overlap")


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
    plan = planned(
        [layer(*both, 0) for both in lengths],
        Platform(3, 100, speed=["1", "1", "0.5"]),
        timed(20, dict(zip(("F0", "F1", "B1", "B0"), starts, strict=True))),
        scope=Scope(allocation="general"),
        stages=stages((0, 0, homes[0]), (1, 1, homes[1])),
    )
    assert places(plan, "order") == [late]
