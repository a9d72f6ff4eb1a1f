from __future__ import annotations

import pytest

from schedopt import InputError, Stage
from schedopt.account import versions
from schedopt.account.timeline import Timeline
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.systems.config import SystemConfig
from schedopt.systems.timeprest import timeprest_plan, timeprest_run
from tests.systems.configs import assert_sound, unit_config, unit_layer, with_layers


def figure(gpus: int, count: int) -> tuple[SystemConfig, list[Stage]]:
    """Return stages whose backward for all N micro-batches is as long as one forward: N ns."""
    config = unit_config(gpus, count, forward=count, backward=1)
    return config, config.pipeline()


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(
    ("gpus", "count", "entries", "ends"),
    [
        # Figure 7a: mini-batches 3 and 4 have entered before any update, and mini-batch 5 right
        # behind that of mini-batch 1.
        (4, 2, [[0, 1], [2, 3], [4, 5], [6, 7], [9, 10], [12, 13]], [9, 12, 15, 18, 21, 24]),
        # Figure 7b: C and D of mini-batch 3 start right behind the update of mini-batch 1.
        (4, 4, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 11, 12], [13, 14, 16, 17]], [11, 16, 21, 26]),
    ],
)
def test_the_runs_of_figure_7(
    gpus: int, count: int, entries: list[list[int]], ends: list[int], bounded: bool
) -> None:
    config, stages = figure(gpus, count)
    rule = Rule(update_every=count, backward_reads="live")
    scheduler = timeprest_run(config, rule, stages, 40, bounded)
    scheduler.settle()
    starts = {
        (o.kind, o.stage, o.shift): o.start_ns // count for o in scheduler.step(40).operations
    }
    for mini_batch, (entered, end) in enumerate(zip(entries, ends, strict=True)):
        first = mini_batch * count
        assert [starts["F", 0, first + i] for i in range(count)] == entered
        assert starts["B", 0, first] + 1 == end
        # A backward follows the last forward at once, and takes W points.
        assert starts["B", gpus - 1, first] == end - gpus


def difference(plan: Plan, count: int) -> int:
    """Return how far back the last mini-batch is that is through when a backward begins."""
    timeline, last = Timeline(plan), len(plan.stages) - 1
    begin = timeline.at("B", last, 0).start_ns
    return next(v for v in range(1, 99) if timeline.at("B", 0, -v * count).end_ns <= begin)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize(
    ("gpus", "count", "expected"), [(4, 2, 2), (4, 4, 1), (3, 3, 1), (5, 3, 2), (2, 2, 1)]
)
def test_the_version_differences_of_the_figures(
    gpus: int, count: int, expected: int, bounded: bool
) -> None:
    plan = timeprest_plan(*figure(gpus, count), count, bounded=bounded)
    assert_sound(plan)
    assert (plan.pattern.k, plan.pattern.period_total_ns) == (count, (count + 1) * count)
    assert difference(plan, count) == expected
    assert set(versions(plan).held.values()) == {1}
    assert set(versions(plan).backward_staleness.values()) == {0}


def test_without_a_bound_a_fast_first_stage_runs_away() -> None:
    config = with_layers(unit_config(2, microbatches=2), unit_layer(), unit_layer(forward=9))
    stages = config.pipeline()
    with pytest.raises(InputError, match="has not become periodic"):
        timeprest_plan(config, stages, 2, bounded=False)
    assert_sound(timeprest_plan(config, stages, 2))
