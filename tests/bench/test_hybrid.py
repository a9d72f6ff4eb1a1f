"""Training steps on stages with replicas: what others choose, how it is scored, and the suite."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, InputError, Layer, Platform, Scope, Stage, solve
from schedopt.account import memory
from schedopt.bench.hybrid import (
    LEVELS,
    ask,
    cube_root,
    hybrid_case,
    hybrid_cases,
    memory_at,
    near_s,
)
from schedopt.bench.hybrid_tables import SUITE, comparisons, misses, nearness, planners
from schedopt.bench.planners import (
    PLANNERS,
    Score,
    propose_grids,
    propose_replicas,
    score,
    score_all,
    search_uniform,
)
from schedopt.bench.records import Record
from schedopt.bench.suite import Effort
from schedopt.families import random_chain
from schedopt.problem import training_step, widest_step
from schedopt.solvers.uniform_grids import propose
from schedopt.solving.replicas.arrays import StepData
from schedopt.solving.replicas.search import StepSearch
from schedopt.solving.run import Run
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig
from tests.bench.suites import holds, made, measured, one_figure
from tests.budgets import trials
from tests.solvers.step_searches import step_data
from tests.solvers.test_replicated_partitions import trained

BARE: dict[str, Any] = {
    "forward_ns": 1, "backward_ns": 2, "weight_bytes": 8, "activation_bytes": 1
}  # fmt: skip
EFFORT = Effort(workers=1, time_limit=1.0)
LAYER = Layer(
    **BARE,
    saved_bytes=3,
    parameter_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=4,
)


def sized(chain: Chain) -> Chain:
    """Return a chain whose weights consist of parameters, gradients and optimizer state."""
    layers = []
    for layer in chain.layers:
        quarter = layer.weight_bytes // 4
        layers.append(
            replace(
                layer,
                parameter_bytes=quarter,
                gradient_bytes=quarter,
                optimizer_bytes=2 * quarter,
            )
        )
    return replace(chain, layers=tuple(layers))


SIX = replace(sized(random_chain(6, 1).chain), name="six")


def question(chain: Chain, platform: Platform, count: int, **scope: Any) -> StepData:
    given = Scope(max_k=None, memory="peak", replicas=None, **scope)
    return step_data(training_step(chain, platform, count, given))


def test_scores_by_hand() -> None:
    two = Chain(layers=(replace(LAYER, activation_bytes=0),) * 2)
    step = question(two, Platform(2, 100), 8)
    pipeline = [Stage(layers=(0, 0), gpus=(0,)), Stage(layers=(1, 1), gpus=(1,))]
    # 3 (m + S - 1); on one stage of two replicas four micro-batches of 6 ns each.
    assert score(step, pipeline) == Score(27, 27)
    assert score(step, [Stage(layers=(0, 1), gpus=(0, 1))]) == Score(24, 24)
    # Stage 0 has two micro-batches in flight and needs 8 + 2 x 3 bytes; one alone does not do.
    # With recompute of all it keeps nothing but its input, of 0 bytes, and saves 3 bytes again.
    again = [replace(stage, recompute=(stage.layers,)) for stage in pipeline]
    for room, fits, recomputed in ((14, True, True), (13, False, True), (10, False, False)):
        step = question(two, Platform(2, room), 8, recompute=True)
        assert (score(step, pipeline).best_ns is not None) == fits
        assert (score(step, again).best_ns is not None) == recomputed
    # F, R and B of each micro-batch: 4 ns. The last one recomputes right behind its forward.
    step = question(two, Platform(2, 13), 8, recompute=True)
    assert score(step, again) == Score(4 * 8 + 1 + 2, 4 * 8 + 1 + 2)


def test_replicas_share_the_optimizer_state_where_that_is_allowed() -> None:
    # Two layers: 16 bytes, 8 of which are optimizer state, and 6 saved.
    stages = [Stage(layers=(0, 1), gpus=(0, 1))]
    chain, platform = Chain(layers=(LAYER, LAYER)), Platform(2, 18)
    assert score(question(chain, platform, 4), stages) == Score(None, None)
    assert score(question(chain, platform, 4, shard="optimizer"), stages).best_ns == 12


@trials(60)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 3))
def test_a_grid_is_scored_as_the_system_is_laid_out(seed: int, gpus: int, times: int) -> None:
    chain = sized(random_chain(5, seed).chain)
    platform = Platform(gpus, "1T", bandwidth="12GB/s", duplex="full")
    config = SystemConfig(chain=chain, platform=platform, microbatches=times * gpus)
    step = question(chain, platform, times * gpus)
    laid_out = {len(stages): score(step, stages).rigid_ns for stages in propose_grids(step.problem)}
    pipeline = find_system("one_f_one_b_flush").plan(config).pattern
    assert laid_out[gpus] == pipeline.period_total_ns
    (whole,) = propose_replicas(step.problem)
    blocking = find_system("dp_blocking").plan(config).pattern
    assert laid_out[1] == score(step, whole).rigid_ns == blocking.period_total_ns


@trials(60)
@given(trained(), st.integers(1, 4), st.integers(4, 60), st.booleans())
def test_no_planner_has_a_shorter_step_than_ours(
    chain: Chain, gpus: int, room: int, recompute: bool
) -> None:
    platform = Platform(gpus, room, bandwidth=10**9, duplex="full")
    scope = replace(widest_step(chain), allocation="contiguous", recompute=recompute)
    result = solve(chain, platform, batch=12, scope=scope, time_limit=5, workers=1)
    problem = training_step(chain, platform, 12, scope)
    for choose in PLANNERS.values():
        best = score_all(step_data(problem), choose(problem)).best_ns
        if best is not None:
            assert result.plan is not None
            # A step takes a nanosecond at least.
            assert result.plan.pattern.period_total_ns <= max(1, best)
            assert result.lower_bound is not None
            assert result.lower_bound * 12 <= max(1, best)


def test_grids_are_those_whose_replicas_fill_the_gpus() -> None:
    problem = ask(Chain(layers=(LAYER,) * 6), 4, 1000)
    found = [
        ([stage.layers for stage in stages], len(stages[0].gpus), bool(stages[0].recompute))
        for stages in propose_grids(problem)
    ]
    cuts = {4: [(0, 1), (2, 3), (4, 4), (5, 5)], 2: [(0, 2), (3, 5)], 1: [(0, 5)]}
    assert sorted((len(layers), count, again) for layers, count, again in found) == sorted(
        (stages, 4 // stages, again) for stages in cuts for again in (False, True)
    )
    for layers, _, _ in found:
        sizes = [last - first + 1 for first, last in layers]
        assert max(sizes) == -(-6 // len(layers))


def test_searches_of_uniform_stages() -> None:
    # One GPU a stage is a pipeline of two: 3 ns for each micro-batch and 3 more. Replicas need
    # 16 bytes of weights on each GPU, less half the optimizer state, and 6 for a micro-batch.
    chain = Chain(layers=(replace(LAYER, activation_bytes=0),) * 2)
    for room, pipeline, replicas in ((18, 27, 24), (17, 27, None), (10, None, None)):
        step = step_data(training_step(chain, Platform(2, room), 8, widest_step(chain)))
        found = [search_uniform(step, [count], EFFORT) for count in (1, 2)]
        if pipeline is None:
            assert found == [None, None]
        else:
            assert found[1] == replicas
            assert found[0] is not None
            assert found[0] >= pipeline


@pytest.mark.parametrize(
    ("seed", "gpus"), [pytest.param(20, 8, marks=pytest.mark.nightly), (24, 4)]
)
def test_no_search_of_uniform_stages_is_shorter_than_ours(seed: int, gpus: int) -> None:
    chain = sized(random_chain(10, seed).chain)
    problem = ask(chain, gpus, memory_at(chain, gpus, "tight"))
    step, patient = step_data(problem), Effort(workers=1, time_limit=60.0)
    search = StepSearch(step, Run(problem))
    for stages in propose(problem):
        search.start(stages)
    ours = min(candidate.makespan_ns for candidate in search.improve())
    for count in step.replicas:
        if gpus % count == 0:
            alike = search_uniform(step, [count], patient)
            assert alike is None or alike >= ours


@given(st.integers(0, 10**40))
def test_cube_roots_are_rounded_down(number: int) -> None:
    root = cube_root(number)
    assert root**3 <= number < (root + 1) ** 3


@pytest.mark.parametrize("gpus", [2, 4])
def test_memory_levels_by_what_they_allow(gpus: int) -> None:
    levels = [memory_at(SIX, gpus, level) for level in LEVELS]
    assert levels == sorted(levels)
    least = levels[0] * 100 // 105

    def fits(room: int) -> bool:
        platform = Platform(gpus, room, bandwidth="12GB/s", duplex="full")
        scope = replace(widest_step(SIX), allocation="contiguous")
        return solve(SIX, platform, batch=4 * gpus, scope=scope, time_limit=3).plan is not None

    assert (fits(least - 1), fits(least + 1)) == (False, True)
    # With ample memory, and no less, all layers lie on each GPU without shards.
    for room, fit in ((levels[-1] - 1, False), (levels[-1], True)):
        step = question(SIX, Platform(gpus, room), 4 * gpus)
        (whole,) = propose_replicas(step.problem)
        assert (score(step, whole).best_ns is not None) == fit
    one, two = (level**3 for level in levels[1:3])
    assert one <= levels[0] ** 2 * levels[3] < (levels[1] + 1) ** 3
    assert two <= levels[0] * levels[3] ** 2 < (levels[2] + 1) ** 3


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return measured([hybrid_case(SIX, 2, level) for level in ("least", "ample")], EFFORT)


def test_a_case_measures_ours_and_all_others(records: list[Record]) -> None:
    for row in records:
        assert row["contiguous_bound_ns"] <= row["contiguous_ns"]
        assert row["anywhere_bound_ns"] <= row["anywhere_ns"]
        assert row["microbatches"] == 8
        for name in ("pipeline", "best_grid", *PLANNERS):
            assert row[f"{name}_ns"] is None or row[f"{name}_ns"] >= row["contiguous_bound_ns"]
        if row["pipeline_ns"] is not None:
            assert row["best_grid_ns"] <= row["pipeline_ns"]
    least, ample = records
    assert least["memory_bytes"] < ample["memory_bytes"]
    assert ample["data_parallel_ns"] is not None
    # What is found with so much memory fits with it.
    platform = Platform(2, ample["memory_bytes"], bandwidth="12GB/s", duplex="full")
    plan = solve(SIX, platform, batch=8, scope=replace(widest_step(SIX), allocation="contiguous"),
                 time_limit=3).plan  # fmt: skip
    assert plan is not None
    assert max(need.peak_bytes for need in memory(plan)) <= ample["memory_bytes"]


def test_tables_and_picture_hold_every_problem(records: list[Record], tmp_path: Any) -> None:
    assert {row["group"] for row in nearness(records)} == {"least", "ample", "2 GPUs", "all"}
    assert [row["planner"] for row in planners(records)][-1] == "Alpa-like"
    holds(SUITE, records, "## Planners", "| six | 2 | least |", "## Stages anywhere")
    SUITE.save_picture(records, tmp_path / "hybrid.svg")
    text = (tmp_path / "hybrid.svg").read_text()
    assert "Training steps on stages with replicas: 2 problems" in text
    lines = "\n".join(SUITE.summary(records))
    assert "2 steps: contiguous " in lines
    assert "contiguous, within 1% of the last step: after " in lines
    assert "PipeDream over ours: " in lines


@pytest.mark.parametrize(
    ("found", "near"),
    [([], None), ([(200, 0.1), (102, 0.2), (101, 0.3), (100, 9.0)], 0.3), ([(100, 0.1)], 0.1)],
)
def test_near_is_the_first_step_within_a_hundredth_of_the_last(
    found: list[tuple[int, float]], near: float | None
) -> None:
    assert near_s([(Fraction(period), seconds) for period, seconds in found]) == near


def step_row(**more: Any) -> Record:
    ours = {
        f"{name}_{what}": value
        for name, (what, value) in product(
            ("contiguous", "anywhere"),
            {"ns": 100, "bound_ns": 100, "status": "optimal", "seconds": 0.5, "cpu_seconds": 0.5,
             "best_s": 0.1}.items(),
        )
    }  # fmt: skip
    others = {f"{name}_ns": 200 for name in ("pipeline", "best_grid", *PLANNERS)}
    chosen = {f"{name}_rigid_ns": 400 for name in PLANNERS}
    spent = {f"{name}_cpu_s": 0.1 for name in PLANNERS}
    key = {"chain": "c", "gpus": 4, "level": "tight", "memory_bytes": 1, "microbatches": 16}
    return made("hybrid", **{**key, **ours, **others, **chosen, **spent, **more})


WHERE = "step, chain c, gpus 4, level tight: "


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ({}, []),
        ({"piper_ns": 100, "alpa_ns": None, "pipeline_ns": None}, []),
        ({"piper_ns": 99}, [f"{WHERE}Piper takes 0.9900 of our contiguous step"]),
        ({"anywhere_ns": 103},
         [f"{WHERE}with stages anywhere 1.0300 of the contiguous step"]),
        ({"contiguous_bound_ns": 101, "anywhere_bound_ns": 102},
         [f"{WHERE}the bound with stages contiguous lies above our step",
          f"{WHERE}the bound with stages anywhere lies above our step"]),
        ({"contiguous_bound_ns": 97}, []),
        ({"contiguous_bound_ns": 80, "contiguous_cpu_seconds": 21.0},
         ["gap 25.0 % in the mean, goal 4.0 %", "gap 25.0 % at most, goal 20.0 %",
          "median 21.0 CPU s, goal 1 s", "longest 21.0 CPU s, goal 20 s"]),
        ({"contiguous_ns": None},
         [*(f"{WHERE}{name} fits, and we have no contiguous step" for name in (
             "best pipeline", "data parallelism", "grid", "best grid", "Piper", "PipeDream",
             "Alpa-like")),
          "gap none in the mean, goal 4.0 %"]),
    ],
)  # fmt: skip
def test_what_is_not_as_it_should_be_is_named(figures: dict[str, Any], missed: list[str]) -> None:
    assert [*misses([one_figure(step_row(), **figures)])] == missed


def test_means_are_geometric_and_leave_out_what_does_not_fit() -> None:
    rows = [
        step_row(),
        step_row(level="ample", piper_ns=800, alpa_ns=None, contiguous_bound_ns=25),
    ]
    *_, everything = comparisons(rows)
    # 200 / 100 and 800 / 100; 100 / 100 and 100 / 25.
    assert everything["piper"] == "4.000 (8.00; 0)"
    assert everything["alpa"] == "2.000 (2.00; 1)"
    *_, near = nearness(rows)
    assert (near["contiguous_gap"], near["contiguous_near"]) == (pytest.approx(1.0), 1)
    alpa = planners(rows)[-1]
    assert (alpa["fits"], alpa["mean"], alpa["rigid_mean"]) == (
        "1 of 2",
        pytest.approx(2.0),
        pytest.approx(4.0),
    )


def test_a_chain_that_says_too_little_is_named() -> None:
    bare = replace(SIX, layers=(Layer(**BARE),), name="bare")
    with pytest.raises(InputError, match=r"layers\[0\].parameter_bytes: bare: "):
        hybrid_cases([SIX, bare], (2,))


def test_quick_takes_few_chains() -> None:
    chains = [SIX, replace(SIX, name="resnet50")]
    assert len(hybrid_cases(chains, (4, 8))) == 16
    quick = hybrid_cases(chains, (4,), quick=True)
    assert [(case.key["chain"], case.key["level"]) for case in quick] == [
        ("resnet50", level) for level in LEVELS
    ]
