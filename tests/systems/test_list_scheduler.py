"""List scheduling, the steady state that comes of it, rings of transfers, and balanced cuts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Platform, Problem, Rule, Scope, Stage, check
from schedopt.account import concurrent_activations, traffic
from schedopt.cuts import balanced_cuts
from schedopt.errors import InputError
from schedopt.network import Duplex
from schedopt.plan import Kind, Transfer
from schedopt.systems.collectives import all_gather, all_reduce, reduce_scatter
from schedopt.systems.config import SystemConfig
from schedopt.systems.dispatcher import Dispatcher
from schedopt.systems.flush_step import Turn
from schedopt.systems.flushes import one_f_one_b_order
from schedopt.systems.list_scheduler import ListScheduler
from schedopt.systems.steady_state import Task
from tests.examples import layer, op
from tests.systems.configs import AMPLE, equal, with_layers

BOTH: tuple[Kind, ...] = ("F", "B")


def empty(config: SystemConfig, stages: int, *, ordered: bool = True) -> ListScheduler:
    rows = [Stage(layers=(s, s), gpus=(s,)) for s in range(stages)]
    problem = Problem(chain=config.chain, platform=config.platform)
    return ListScheduler(problem, rows, ordered=ordered)


def run(scheduler: ListScheduler, *turns: Turn, **more: Any) -> None:
    for kind, stage, i in turns:
        scheduler.run(kind, stage, i, **more)


def there_and_back(i: int) -> list[Turn]:
    """Return what a micro-batch does on two stages."""
    return [("F", 0, i), ("F", 1, i), ("B", 1, i), ("B", 0, i)]


def starts(scheduler: ListScheduler, microbatches: int) -> dict[tuple[str, int, int], int]:
    pattern = scheduler.step(microbatches)
    return {(o.kind, o.stage, o.shift): o.start_ns for o in pattern.operations}


def test_everything_starts_as_soon_as_what_it_needs_is_there() -> None:
    # F 1, B 2: F0 0-1, F1 1-2, B1 2-4, B0 4-6; the second micro-batch behind it.
    scheduler = empty(equal(2, 2), 2)
    run(scheduler, *there_and_back(0), *there_and_back(1))
    scheduler.settle()
    # GPU 0 runs F0(0), B0(0), F0(1) in the order that was told, though it is idle over 1-4.
    assert starts(scheduler, 2) == {
        ("F", 0, 0): 0,
        ("F", 1, 0): 1,
        ("B", 1, 0): 2,
        ("B", 0, 0): 4,
        ("F", 0, 1): 6,
        ("F", 1, 1): 7,
        ("B", 1, 1): 8,
        ("B", 0, 1): 10,
    }
    assert scheduler.step(2).period_total_ns == 12


def test_without_an_order_the_least_priority_of_what_is_ready_goes_first() -> None:
    scheduler = empty(equal(1, 3), 1, ordered=False)
    for i, priority in enumerate((5, 7, 6)):
        scheduler.run("F", 0, i, priority=priority)
        scheduler.run("B", 0, i, priority=0)
    scheduler.settle()
    # F0, then its backward, which goes first as soon as it can; then F2 before F1.
    assert starts(scheduler, 3) == {
        ("F", 0, 0): 0,
        ("B", 0, 0): 1,
        ("F", 0, 2): 3,
        ("B", 0, 2): 4,
        ("F", 0, 1): 6,
        ("B", 0, 1): 7,
    }


def test_what_takes_no_resources_waits_for_nothing_of_its_kind() -> None:
    tasks = [Task(op("F", 0, i, 0), 0, (), 3, [], 0, 0) for i in range(3)]
    Dispatcher(tasks, [0] * len(tasks)).run()
    assert [task.start_ns for task in tasks] == [0, 0, 0]


def test_nothing_starts_before_the_earliest_instant_or_what_it_is_told_to_wait_for() -> None:
    scheduler = empty(equal(2, 2), 2, ordered=False)
    for i in (0, 1):
        first, *middle, last = there_and_back(i)
        run(scheduler, first, earliest_ns=3, after=[("B", 1, 0)] if i else [])
        run(scheduler, *middle)
        run(scheduler, last, priority=-1)
    scheduler.settle()
    found = starts(scheduler, 2)
    # F0 3-4, F1 4-5, B1 5-7; then both B0 and the second F0 could start, and B0 does.
    assert (found["F", 0, 0], found["B", 0, 0], found["F", 0, 1]) == (3, 7, 9)


@pytest.mark.parametrize(("duplex", "gradient"), [("half", 10), ("full", 7)])
def test_transfers_take_their_links_one_at_a_time(duplex: Duplex, gradient: int) -> None:
    # F0 0-1, 1-2 and 2-3 reach GPU 1 at 4, 7 and 10, where F and B last to 7, 10 and 13. The
    # first gradient leaves at 7; over a link for both ways it waits for the third activation.
    config = equal(2, 3, activation_bytes=3)
    platform = Platform(gpus=2, memory=AMPLE, bandwidth=10**9, duplex=duplex)
    scheduler = empty(replace(config, platform=platform), 2)
    for i in range(3):
        run(scheduler, *there_and_back(i)[:-1])
    run(scheduler, *(("B", 0, i) for i in range(3)))
    scheduler.settle()
    pattern = scheduler.step(3)
    sent = {(t.tensor, t.shift): t.start_ns for t in pattern.transfers}
    assert [sent["activation", i] for i in range(3)] == [1, 4, 7]
    assert [sent["gradient", i] for i in range(3)] == [gradient, gradient + 3, gradient + 6]
    assert pattern.period_total_ns == gradient + 9 + 2


def test_what_waits_in_a_circle_or_for_nothing_is_a_mistake() -> None:
    scheduler = empty(equal(2, 1), 2)
    run(scheduler, ("B", 0, 0), ("F", 0, 0), ("F", 1, 0), ("B", 1, 0))
    with pytest.raises(ValueError, match="waits in a circle"):
        scheduler.settle()
    scheduler = empty(equal(2, 1), 2)
    scheduler.run("F", 1, 0)
    with pytest.raises(ValueError, match="never comes"):
        scheduler.settle()
    with pytest.raises(ValueError, match="added twice"):
        scheduler.run("F", 1, 0)


def one_f_one_b(config: SystemConfig, rounds: int) -> ListScheduler:
    """Return the order of 1F1B without a flush."""
    gpus = len(config.platform.gpus)
    scheduler = empty(config, gpus)
    run(scheduler, *one_f_one_b_order(gpus, rounds))
    return scheduler


def test_an_endless_run_settles_to_the_work_of_a_gpu() -> None:
    config = equal(3, 1)
    plan = config.steady(partial(one_f_one_b, config), 1)
    assert (plan.pattern.k, plan.pattern.period_total_ns) == (1, 3)
    assert concurrent_activations(plan) == {(0, 0): 3, (1, 1): 2, (2, 2): 1}
    assert check(plan) == ()


def test_a_slow_stage_in_the_middle_sets_the_period() -> None:
    config = equal(3, 1)
    one = config.chain.layers[0]
    config = with_layers(config, one, layer(4, 5, 1, 0), one)
    plan = config.steady(partial(one_f_one_b, config), 1)
    # Two in flight on the slow stage are enough to keep it busy: 4 + 5.
    assert plan.pattern.period_total_ns == 9
    assert check(plan) == ()


def test_a_run_that_is_too_short_has_no_steady_state() -> None:
    config = equal(3, 1)
    scheduler = one_f_one_b(config, 4)
    scheduler.settle()
    with pytest.raises(InputError, match="has not become periodic"):
        scheduler.steady(1)


def ring(gpus: int) -> ListScheduler:
    """Return a run of one micro-batch a GPU; 12 bytes of weights at 1 byte a ns."""
    only = layer(1, 2, 60, 0, parameter_bytes=12, gradient_bytes=12, optimizer_bytes=12)
    problem = Problem(
        chain=Chain(layers=(only,)),
        platform=Platform(gpus=gpus, memory=AMPLE, bandwidth=10**9, duplex="full"),
        rule=Rule(update_every=gpus, forward_reads="delay"),
    )
    scheduler = ListScheduler(problem, [Stage(layers=(0, 0), gpus=tuple(range(gpus)))])
    run(scheduler, *((kind, 0, i) for i in range(gpus) for kind in BOTH))
    return scheduler


def own(replica: int) -> list[tuple[str, int, int]]:
    return [("B", 0, replica)]


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_a_ring_reduces_and_gathers_in_2_r_less_1_steps(gpus: int) -> None:
    scheduler = ring(gpus)
    whole = all_reduce(scheduler, 0, 0, own)
    scheduler.settle()
    plan = scheduler.plan(scheduler.step(gpus), Scope(allocation="general", max_k=None))
    assert check(plan) == ()
    assert plan.pattern.period_total_ns == 3 + 2 * (gpus - 1) * (12 // gpus)
    # Each GPU sends 2 (R - 1) / R of the gradient to the next one (Patarasuk and Yuan 2009).
    sent = {(n, (n + 1) % gpus): 2 * (gpus - 1) * 12 // gpus for n in range(gpus)}
    assert {ends: count * gpus for ends, count in traffic(plan).items()} == sent
    # A replica's own chunk arrives reduced, the others when they are whole.
    assert [sorted(item.chunk for item in items) for items in whole] == [list(range(gpus))] * gpus


def test_a_reduce_scatter_ends_at_the_homes_and_an_all_gather_begins_there() -> None:
    scheduler = ring(3)
    added = reduce_scatter(scheduler, 0, 0, own)
    assert [(item.chunk, item.target) for item in added] == [(0, 0), (1, 1), (2, 2)]

    def made(chunk: int) -> list[Transfer]:
        return [added[chunk]]

    gathered = all_gather(scheduler, 0, 0, made, "weights")
    first = [(item.chunk, item.source) for item in gathered[::2]]
    assert first == [(0, 0), (1, 1), (2, 2)]
    assert {(item.chunk, item.target) for item in gathered} == {
        (chunk, target) for chunk in range(3) for target in range(3) if target != chunk
    }


def test_one_replica_sends_nothing() -> None:
    assert all_reduce(ring(1), 0, 0, own) == [[]]


@given(st.data())
def test_cuts_are_balanced(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    times = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    tied: list[tuple[int, ...]] = []
    if count > 1 and data.draw(st.booleans()):
        first = data.draw(st.integers(0, count - 2))
        tied = [(first, data.draw(st.integers(first + 1, count - 1)))]
    layers = tuple(layer(time // 2, time - time // 2, 0, 0) for time in times)
    parts = data.draw(st.integers(1, count))
    chain = Chain(layers=layers, same_gpu=tuple(tied))
    possible = [
        (0, *cuts, count)
        for cuts in combinations(range(1, count), parts - 1)
        if not any(a < cut <= b for cut in cuts for a, b in tied)
    ]
    if not possible:
        with pytest.raises(InputError, match="share a GPU, cannot be cut"):
            balanced_cuts(chain, parts)
        return
    best = min(max(sum(times[a:b]) for a, b in pairwise(c)) for c in possible)
    found = balanced_cuts(chain, parts)
    bounds = (0, *(last + 1 for _, last in found))
    assert [first for first, _ in found] == list(bounds[:-1])
    assert bounds in possible
    assert max(sum(times[first : last + 1]) for first, last in found) == best


def test_an_operation_covers_micro_batches_and_runs_elsewhere() -> None:
    scheduler = empty(equal(2, 2), 2)
    run(scheduler, ("F", 0, 0), ("F", 0, 1))
    run(scheduler, ("F", 1, 0), ("B", 1, 0), covers=2)
    run(scheduler, ("B", 0, 1), ("B", 0, 0))
    scheduler.settle()
    pattern = scheduler.step(2)
    # F0 0-1 and 1-2, F1 of both 2-4, B1 of both 4-8, then both B0.
    assert starts(scheduler, 2)["B", 0, 1] == 8
    assert pattern.period_total_ns == 12
    assert op("B", 1, 0, 4, covers=2) in pattern.operations
