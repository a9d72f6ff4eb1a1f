"""Runs of sweeps, in threads where only the order counts, and in processes that may be lost."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from schedopt import InputError, Scope, check, solve
from schedopt.problem import widest_step
from schedopt.sweeping import (
    Cell,
    Options,
    Point,
    ProcessPool,
    Sweep,
    propagate_monotone,
    run_sweep,
)
from schedopt.sweeping.worker import Task, solve_point
from tests.sweeping.helpers import (
    CHAIN,
    FAST,
    INFEASIBLE,
    SLOW,
    Recorder,
    ThreadPool,
    cells,
    die_always,
    die_once,
    empty,
)


def periods(sweep: Sweep) -> dict[tuple[int, int], int | None]:
    return {
        (point.gpus, point.memory_bytes): None if point.period is None else int(point.period)
        for point in sweep.points
    }


def test_points_are_what_solve_answers() -> None:
    asked = cells([1, 2, 4], [INFEASIBLE, SLOW, 11, FAST, 20])
    outcome = run_sweep(empty(), CHAIN, asked, ThreadPool())
    assert (outcome.interrupted, outcome.given_up) == (False, ())
    assert [point.cell for point in outcome.sweep.points] == sorted(asked, key=lambda one: one.key)
    for point in outcome.sweep.points:
        alone = solve(CHAIN, point.platform(Options()), scope=Scope())
        assert (point.status, point.period, point.bound) == (
            alone.status,
            alone.period,
            None if alone.status == "infeasible" else alone.lower_bound,
        )
    assert [periods(outcome.sweep)[2, memory] for memory in (INFEASIBLE, SLOW, 11, FAST, 20)] == [
        None, 12, 12, 6, 6
    ]  # fmt: skip
    none = outcome.sweep.points[0]
    assert none.least_memory_bytes == none.proven_memory_bytes == 20


def test_small_memories_come_first_and_large_ones_start_from_them() -> None:
    record = Recorder()
    asked = cells([2, 4], [FAST, INFEASIBLE, SLOW])
    run_sweep(empty(), CHAIN, asked, ThreadPool(), work=record)
    assert [task.cell.memory_bytes for task in record.tasks] == [9, 9, 10, 10, 12, 12]
    starts = {
        (task.cell.gpus, task.cell.memory_bytes): task.start and task.start.memory_bytes
        for task in record.tasks
    }
    # On four GPUs 9 bytes are as good as more.
    assert starts == {
        (2, 9): None,
        (2, 10): None,
        (2, 12): 10,
        (4, 9): None,
        (4, 10): 9,
        (4, 12): 9,
    }


def test_no_more_points_run_at_a_time_than_there_is_room_for() -> None:
    record = Recorder()
    asked = cells([1, 2, 3, 4], [10, 20])
    outcome = run_sweep(empty(), CHAIN, asked, ThreadPool(3), work=record)
    assert len(outcome.sweep.points) == 8
    assert record.most <= 3


def test_each_point_is_saved_at_once_and_done_ones_are_passed_over() -> None:
    saved: list[Sweep] = []
    first = run_sweep(empty(), CHAIN, cells([2], [SLOW, FAST]), ThreadPool(), save=saved.append)
    assert [len(sweep.points) for sweep in saved] == [1, 2]
    assert saved[-1] == first.sweep
    record = Recorder()
    again = run_sweep(first.sweep, CHAIN, cells([2], [SLOW, 11, FAST]), ThreadPool(), work=record)
    assert [task.cell.memory_bytes for task in record.tasks] == [11]
    assert periods(again.sweep) == {(2, SLOW): 12, (2, 11): 12, (2, FAST): 6}
    # Nothing is missing: not even a process is started.
    same = run_sweep(again.sweep, CHAIN, cells([2], [SLOW]), ThreadPool(), work=None)  # type: ignore[arg-type]
    assert same.sweep == again.sweep


def _find_nothing(task: Task) -> Point:
    if task.cell.memory_bytes == FAST:
        return Point(gpus=2, memory_bytes=FAST, status="unknown")
    return solve_point(task)


def test_more_memory_never_makes_a_period_longer() -> None:
    outcome = run_sweep(empty(), CHAIN, cells([2], [SLOW, FAST]), ThreadPool(), work=_find_nothing)
    last = outcome.sweep.points[-1]
    assert last.status == "feasible"
    assert last.period == 12
    assert last.plan_memory_bytes == SLOW
    assert last.solver == outcome.sweep.points[0].solver != ""


def test_a_plan_that_is_not_improved_keeps_its_origin() -> None:
    outcome = run_sweep(empty(), CHAIN, cells([2], [FAST, 13, 14]), ThreadPool())
    found = outcome.sweep.points
    assert [one.plan_memory_bytes for one in found] == [None, FAST, FAST]
    assert len({one.solver for one in found}) == 1
    assert "initial" not in {one.solver for one in found}


def test_what_cannot_be_asked_names_the_point() -> None:
    options = Options(scope=Scope(split_backward=True))
    with pytest.raises(InputError, match=r"backward.*2 GPUs of 10 B, free transfers"):
        run_sweep(empty(options), CHAIN, cells([2], [SLOW]), ThreadPool())


def test_too_many_points_are_refused_before_any_is_solved() -> None:
    with pytest.raises(InputError, match="1001 points are too many"):
        run_sweep(empty(), CHAIN, cells([2], list(range(1001))), ThreadPool())


def test_a_cluster_that_is_gone_is_one_clear_error() -> None:
    def gone(task: Task) -> Point:
        raise CancelledError

    with pytest.raises(InputError, match="connection to the cluster is lost"):
        run_sweep(empty(), CHAIN, cells([2], [SLOW]), ThreadPool(), work=gone)


def test_bystanders_of_a_loss_are_not_blamed() -> None:
    """One point breaks whatever runs beside it; each other one is answered."""
    culprit = Cell(gpus=2, memory_bytes=11)

    class Fragile(ThreadPool):
        lost = (ConnectionError,)

    record = Recorder()
    broken = itertools.count()

    def work(task: Task) -> Point:
        if task.cell == culprit:
            next(broken)
            raise ConnectionError
        return record(task)

    asked = cells([1, 2, 4], [SLOW, 11, FAST])
    outcome = run_sweep(empty(), CHAIN, asked, Fragile(3), work=work)
    assert outcome.given_up == (culprit,)
    assert len(outcome.sweep.points) == 8
    # Once among others, and twice alone.
    assert next(broken) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_done(number: int) -> None:
    saved: list[Sweep] = []

    def save(sweep: Sweep) -> None:
        saved.append(sweep)
        if len(saved) == 2:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    outcome = run_sweep(empty(), CHAIN, cells([2], [9, 10, 11, 12]), ThreadPool(), save=save)
    assert outcome.interrupted
    assert outcome.sweep == saved[-1]
    assert len(saved) == 2
    assert signal.getsignal(number) == before


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no such signal")
def test_the_pipe_of_a_process_that_is_lost_does_not_end_this_one() -> None:
    seen = []
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        run_sweep(
            empty(), CHAIN, cells([2], [SLOW]), ThreadPool(),
            save=lambda sweep: seen.append(signal.getsignal(signal.SIGPIPE)),
        )  # fmt: skip
        assert signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert seen == [signal.SIG_IGN]


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    asked = cells([2, 4], [INFEASIBLE, SLOW, FAST])
    work = partial(die_once, tmp_path / "died", SLOW)
    before = {*multiprocessing.active_children()}
    outcome = run_sweep(empty(), CHAIN, asked, ProcessPool(2), work=work)
    assert (tmp_path / "died").exists()
    assert outcome.given_up == ()
    assert periods(outcome.sweep) == {
        (2, INFEASIBLE): None, (2, SLOW): 12, (2, FAST): 6,
        (4, INFEASIBLE): 3, (4, SLOW): 3, (4, FAST): 3,
    }  # fmt: skip
    assert {*multiprocessing.active_children()} <= before


def test_a_point_that_always_ends_its_process_is_given_up_alone() -> None:
    asked = cells([2], [INFEASIBLE, SLOW, FAST])
    saved: list[Sweep] = []
    outcome = run_sweep(
        empty(), CHAIN, asked, ProcessPool(2), work=partial(die_always, SLOW), save=saved.append
    )
    assert outcome.given_up == (Cell(gpus=2, memory_bytes=SLOW),)
    assert periods(outcome.sweep) == {(2, INFEASIBLE): None, (2, FAST): 6}
    assert outcome.sweep == saved[-1]
    assert propagate_monotone(outcome.sweep.points) == outcome.sweep.points


def test_points_of_a_batch_are_training_steps() -> None:
    layers = tuple(
        replace(layer, parameter_bytes=1, gradient_bytes=1, optimizer_bytes=1)
        for layer in CHAIN.layers
    )
    chain = replace(CHAIN, layers=layers, samples=2)
    scope = replace(widest_step(chain), allocation="contiguous")
    options = Options(scope=scope, batch=8, time_limit_s=5)
    sweep = run_sweep(empty(options, chain), chain, cells([2], [FAST, 99]), ThreadPool()).sweep
    for point in sweep.points:
        alone = solve(chain, point.platform(options), batch=8, scope=scope, time_limit=5)
        assert point.period == alone.period
        result = point.result(chain, options)
        assert result.problem == alone.problem
        assert check(result) == ()
    # With room for all of it each GPU runs two of the four micro-batches.
    assert sweep.points[-1].period is not None
    assert len(sweep.points[-1].stages) == 1
