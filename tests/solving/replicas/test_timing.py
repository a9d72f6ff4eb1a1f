"""Simulated steps that can be followed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import lcm

import numpy as np
import pytest

from schedopt.solving.replicas.arrays import NEVER
from schedopt.solving.replicas.timing import EAGER, FORWARDS, ORDERS, STRICT, Simulation


def simulate(
    stages: Sequence[tuple[int, int, int, int]],
    count: int,
    order: int,
    *,
    again: Sequence[int] = (),
    sync: Sequence[int] = (),
    begin: Sequence[int] = (),
    trip: int = 0,
    full: bool = False,
    limit: int = NEVER,
    copies: Sequence[tuple[int, int, int]] = (),
) -> tuple[int, list[str]]:
    """Simulate stages of (replicas, F, B, most in flight); an order is written ``F0 F1 B0 B1``."""

    def padded(values: Sequence[int]) -> list[int]:
        return [*values, *[0] * (len(stages) - len(values))]

    replicas, forward, backward, depth = zip(*stages, strict=True)
    simulation = Simulation(len(stages), sum(replicas), count)
    simulation.load(
        replicas=replicas,
        forward=forward,
        backward=backward,
        again=padded(again),
        depth=depth,
        sync=padded(sync),
        begin=padded(begin),
        trip=padded([trip] * (len(stages) - 1)),
        links=padded([lcm(one[0], other[0]) for one, other in pairwise(stages)]),
        full=int(full),
        copies=np.array(copies, dtype=np.int64).reshape(-1, 3),
    )
    makespan = simulation.run(order, limit)
    return makespan, [
        " ".join(f"{'FBR'[code // count]}{code % count}" for code in row)
        for row in simulation.orders()
    ]


@pytest.mark.parametrize(
    ("order", "depth", "does"),
    [
        (EAGER, 3, "F0 B0 F1 B1 F2 B2"),
        (STRICT, 1, "F0 B0 F1 B1 F2 B2"),
        (STRICT, 2, "F0 F1 B0 F2 B1 B2"),
        (FORWARDS, 2, "F0 F1 B0 F2 B1 B2"),
        (FORWARDS, 3, "F0 F1 F2 B0 B1 B2"),
    ],
)
def test_a_gpu_alone(order: int, depth: int, does: str) -> None:
    assert simulate([(1, 1, 2, depth)], 3, order, sync=[5]) == (3 * 3 + 5, [does])


@pytest.mark.parametrize("order", [EAGER, STRICT])
@pytest.mark.parametrize("count", [2, 4, 7])
def test_equal_stages_take_the_textbook_time(order: int, count: int) -> None:
    """F = 1, B = 2, one stage more in flight the more stages are to come: 3 (m + S - 1)."""
    stages = [(1, 1, 2, 3), (1, 1, 2, 2), (1, 1, 2, 1)]
    makespan, orders = simulate(stages, count, order)
    assert makespan == 3 * (count + 2)
    assert orders[2] == " ".join(f"F{i} B{i}" for i in range(count))


def test_what_strictly_waits_for_more_than_is_sent_waits_for_ever() -> None:
    # Stage 0 holds one micro-batch. Stage 1 waits for a second one before its first backward.
    stages = [(1, 1, 1, 1), (1, 1, 1, 2)]
    assert simulate(stages, 2, STRICT)[0] == NEVER
    assert [simulate(stages, 2, order)[0] for order in (EAGER, FORWARDS)] == [8, 8]


@pytest.mark.parametrize(("full", "makespan"), [(False, 14), (True, 13)])
def test_both_directions_share_a_half_duplex_link(full: bool, makespan: int) -> None:
    # Activations arrive at 4 and 7. The first gradient is ready at 6, when the second activation
    # is on its way until 7; gradients arrive at 10 and 13, or at 9 and 12.
    stages = [(1, 1, 1, 2)] * 2
    assert simulate(stages, 2, EAGER, trip=3, full=full)[0] == makespan


@pytest.mark.parametrize(("replicas", "makespan"), [((1, 1), 14), ((2, 2), 10), ((1, 2), 11)])
def test_each_pair_of_gpus_has_a_link(replicas: tuple[int, int], makespan: int) -> None:
    # F = B = 1 and 3 ns for a transfer: alone a micro-batch takes 10 ns. Where only the first stage
    # is one GPU, its second one begins 1 ns later.
    stages = [(number, 1, 1, 2) for number in replicas]
    assert simulate(stages, 2, EAGER, trip=3)[0] == makespan


@pytest.mark.parametrize(("sync", "makespan"), [((0, 0), 15), ((0, 7), 21), ((9, 7), 24)])
def test_micro_batches_are_dealt_to_replicas_in_turn(sync: tuple[int, int], makespan: int) -> None:
    # The replicas of stage 1 begin at 1 and 2 and take 6 ns for each of two micro-batches. Its last
    # backwards end at 13 and 14, that of stage 0 at 15.
    found, orders = simulate([(1, 1, 1, 4), (2, 2, 4, 1)], 4, EAGER, sync=sync)
    assert found == makespan
    assert orders[1:] == ["F0 B0 F2 B2", "F1 B1 F3 B3"]


def test_layers_are_recomputed_while_the_gradient_is_on_its_way() -> None:
    stages = [(1, 1, 1, 1), (1, 3, 3, 1)]
    for order in ORDERS:
        assert simulate(stages, 1, order, again=[2]) == (8, ["F0 R0 B0", "F0 B0"])
        # What takes longer than stage 1 does is waited for.
        assert simulate(stages, 1, order, again=[7])[0] == 1 + 7 + 1


def test_a_run_ends_where_it_is_longer_than_asked() -> None:
    stages = [(1, 1, 2, 3)]
    assert simulate(stages, 3, EAGER, limit=9)[0] == 9
    assert 5 < simulate(stages, 3, EAGER, limit=5)[0] <= 9


def test_what_takes_no_time() -> None:
    for order in ORDERS:
        assert simulate([(1, 0, 0, 1), (2, 0, 0, 1), (1, 0, 2, 1)], 4, order)[0] == 8


def test_a_gpu_that_waits_for_its_weights_begins_later() -> None:
    # Its first stage begins at 5; the second one, on its own, would wait no longer.
    stages = [(1, 1, 1, 1), (1, 1, 1, 1)]
    assert simulate(stages, 2, EAGER)[0] == 2 * 4
    assert simulate(stages, 2, EAGER, begin=[5, 6])[0] == 5 + 2 * 4
    assert simulate(stages, 2, EAGER, begin=[5, 9])[0] == 9 + 2 + 4 + 1


def test_room_for_more_serves_one_step_after_the_other() -> None:
    simulation = Simulation(4, 9, 6)
    for replicas in ((1, 2, 3), (3, 1), (2, 2, 2, 3)):
        ones = [1] * len(replicas)
        for room in (simulation, Simulation(len(ones), sum(replicas), 6)):
            room.load(
                replicas=replicas, forward=ones, backward=ones, depth=ones, links=ones, full=ones
            )
        alone = room
        assert simulation.run(EAGER) == alone.run(EAGER)
        assert simulation.orders() == alone.orders()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [2, 3])
def test_one_of_parts_that_are_alike_takes_as_long_as_all(order: int, parts: int) -> None:
    """In the room of the whole, with links that replicas of unequal numbers take in turn."""
    rng = np.random.default_rng(parts)
    for _ in range(20):
        own = rng.integers(1, 4, size=3)
        replicas, count = parts * own, parts * 12
        times = {
            name: rng.integers(0, 9, size=3)
            for name in ("forward", "backward", "again", "sync", "trip")
        }
        depth, links = rng.integers(1, 5, size=3), np.append(np.lcm(own[:-1], own[1:]), 1)
        simulation = Simulation(3, int(replicas.sum()), count)
        found = []
        for width in (parts, 1):
            simulation.load(
                replicas=(width * own).tolist(),
                depth=depth,
                links=width * links,
                full=1,
                count=count if width == parts else count // parts,
                **times,
            )
            found.append(simulation.run(order))
        assert found[0] == found[1]
