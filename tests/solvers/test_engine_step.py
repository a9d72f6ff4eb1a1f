"""The shortest steps that engines can run, against all of their cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import (
    Chain,
    InputError,
    Plan,
    Platform,
    Problem,
    Rule,
    Scope,
    Stage,
    check,
    solve,
)
from schedopt.account import fits
from schedopt.engine import Engine, why_not_stages
from schedopt.proofs import Suggestion
from schedopt.solvers import engine_step as engine_step_solver
from schedopt.solving.clock import Clock
from schedopt.solving.engines import answers as engine_answers
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.late_sending import check_sent_late
from schedopt.solving.replicas.layout import LayoutTime
from schedopt.solving.run import Run
from schedopt.systems.steps import engine_step
from tests.budgets import trials
from tests.layers import layer
from tests.solvers.asking import ask, plan_of, prove, why
from tests.strategies import platforms
from tests.transformers import transformers

LAYER = layer(1, 2, 1, weight=4, sent=1)
ENGINES: list[Engine] = ["megatron", "deepspeed", "torch"]


def asked(engine: Engine, count: int | None, **more: Any) -> Scope:
    return Scope(
        **{"allocation": "general", "max_k": None} | more, engine=engine, microbatches=count
    )


def named(*names: str) -> Chain:
    return Chain(layers=tuple(replace(LAYER, name=name) for name in names))


def transformer(count: int) -> Chain:
    return named("embed", *(f"layers.{n}" for n in range(count)), "head")


@cache
def stage(first: int, last: int, gpu: int) -> Stage:
    """Return a stage, of which millions are asked for, and few differ."""
    return Stage(layers=(first, last), gpus=(gpu,))


def every_stages(chain: Chain, ranks: int, parts: int) -> Iterator[tuple[Stage, ...]]:
    """Yield all ways to cut a chain, with stages inside that have no layers, whoever runs them."""
    layers = len(chain.layers)
    for cuts in combinations_with_replacement(range(1, layers), parts - 1):
        ends = (0, *cuts, layers)
        yield tuple(stage(ends[i], ends[i + 1] - 1, i % ranks) for i in range(parts))


def shortest(problem: Problem, engine: Engine) -> tuple[Fraction | None, Fraction | None]:
    """Return the period of the best plan that the check takes, over all cuts.

    And that of the best one as if nothing came before it is read.
    """
    count = problem.scope.microbatches or 1
    best: Fraction | None = None
    just_in_time: Fraction | None = None
    for ranks in range(1, len(problem.platform.gpus) + 1):
        for parts in range(ranks, len(problem.chain.layers) + 1, ranks):
            for stages in every_stages(problem.chain, ranks, parts):
                if why_not_stages(problem.chain, stages, engine) or (
                    parts > ranks and count % ranks
                ):
                    continue
                plan = engine_step(problem, stages)
                period = Fraction(plan.pattern.period_total_ns, count)
                if not fits(plan, buffers=False) or (best is not None and best <= period):
                    continue
                just_in_time = min(period, just_in_time or period)
                if not check_sent_late(plan)[1]:
                    best = period
    return best, just_in_time


@pytest.mark.parametrize("engine", ENGINES)
@trials(60)
@given(
    chain=transformers(most=3, predictors=1),
    platform=platforms(most=3),
    count=st.sampled_from([1, 2, 3, 4, 6]),
    reading=st.sampled_from(["sum", "peak"]),
)
def test_equal_to_trying_every_cut(
    engine: Engine, chain: Chain, platform: Platform, count: int, reading: Any
) -> None:
    scope = asked(engine, count, memory=reading)
    result = ask(chain, platform, scope=scope, time_limit=None)
    least, just_in_time = shortest(Problem(chain=chain, platform=platform, scope=scope), engine)
    assert result.period == least
    if least is None:
        assert result.status == ("infeasible" if just_in_time is None else "unknown")
        return
    assert result.lower_bound is not None
    assert result.lower_bound <= least
    # Both directions of a link may be in each other's way, and another order of them shorter.
    one_way = platform.link is not None and platform.link.duplex == "full"
    if just_in_time == least and (platform.link is None or (one_way and engine == "deepspeed")):
        assert result.status == "optimal"


@pytest.mark.parametrize("engine", ENGINES)
@trials(60, by_day=3)
@given(
    chain=transformers(most=4, predictors=1),
    platform=platforms(most=3),
    count=st.sampled_from([1, 2, 3, 4, 6]),
    alike=st.booleans(),
    parted=st.booleans(),
)
def test_cp_sat_and_parting_prove_the_best_of_all_cuts(
    engine: Engine, chain: Chain, platform: Platform, count: int, alike: bool, parted: bool
) -> None:
    if alike:
        named = [layer for layer in chain.layers if ".layers." in layer.name]
        chain = replace(
            chain,
            layers=tuple(
                replace(named[0], name=layer.name) if layer in named else layer
                for layer in chain.layers
            ),
        )
    problem = Problem(chain=chain, platform=platform, scope=asked(engine, count))
    run = Run(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_step_solver, "MOST_CUTS", 0)
        if not parted:
            patch.setattr(EngineShape, "grows_below", lambda shape, limit: False)
        engine_step_solver.solve(problem, run)
    best, least = run.best(), shortest(problem, engine)[0]
    assert (None if best is None else best.pattern.period) == least
    bound = run.bound(problem.scope)
    if least is not None:
        assert bound is not None
        assert bound <= least
        if platform.link is None:
            assert bound == least


def test_steps_that_take_too_long_to_be_laid_out_are_not_said_to_be_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = (layer(1, 3, 0), layer(2, 1, 0), layer(2, 2, 0), layer(2, 3, 0))
    problem = Problem(
        chain=Chain(layers=layers), platform=Platform(2, 100), scope=asked("torch", 2)
    )
    # There is time for the first one alone.
    monkeypatch.setattr(engine_answers, "QUICK_S", -1)
    monkeypatch.setattr(LayoutTime, "needed_s", lambda *_: 1e9)
    run = Run(problem, time_limit=60)
    search = engine_step_solver.EngineSearch(problem, run)
    alone = next(shape for shape in search.shapes if shape.cuts.ranks == 1)
    search.answers.offer(alone.cuts, alone.balanced)
    search.answers.lay_out_pending(1)
    search.run_all()
    bound, least = run.bound(problem.scope), shortest(problem, "torch")[0]
    assert bound is not None
    assert least is not None
    assert bound <= least < (run.period() or 0)
    # Nothing is parted again and again that is parted as far as is of use.
    assert not run.stopped()


def test_one_that_is_asked_to_stop_makes_no_more_tables_and_proves_nothing_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(
        chain=Chain(layers=(layer(1, 3, 0),) * 4),
        platform=Platform(2, 100),
        scope=asked("torch", 2),
    )
    run = Run(problem)
    run.must_answer = False
    run.stop()
    monkeypatch.setattr(engine_step_solver, "EngineCuts", None)
    search = engine_step_solver.EngineSearch(problem, run)
    search.run_all()
    assert search.impossible is None
    bound, least = run.bound(problem.scope), shortest(problem, "torch")[0]
    assert least is not None
    assert bound is not None
    assert bound <= least


def test_without_time_the_grid_is_looked_at_that_takes_least_to_lay_out() -> None:
    problem = Problem(
        chain=Chain(layers=(layer(1, 3, 0),) * 4),
        platform=Platform(2, 100),
        scope=asked("torch", 2),
    )
    run = Run(problem)
    run.clock = Clock(0.0, now=lambda: 0.0)
    search = engine_step_solver.EngineSearch(problem, run)
    assert [shape.cuts.parts for shape in search.shapes] == [1]
    search.run_all()
    best, bound, least = run.period(), run.bound(problem.scope), shortest(problem, "torch")[0]
    # Two micro-batches of four layers on one GPU.
    assert best == 16
    assert least is not None
    assert bound is not None
    assert bound <= least < best


def test_no_step_is_longer_than_one_thing_at_a_time() -> None:
    """A stage without layers sends on what it gets; each stage recomputes its first layer."""
    layers = [layer(1, 2, 1, weight=1, sent=sent) for sent in (50, 1, 1, 1, 0)]
    names = ["embed", "layers.0", "layers.1", "layers.2", "head"]
    chain = Chain(
        layers=tuple(replace(one, name=name) for one, name in zip(layers, names, strict=True))
    )
    platform = Platform(4, 10**6, bandwidth=10**9)
    scope = replace(asked("megatron", 1), recompute=True)
    cuts = EngineCuts(
        Problem(chain=chain, platform=platform, scope=scope), Grid(ranks=4, chunks=1, recomputed=1)
    )
    for begins in ((0, 1, 1, 1), (0, 1, 2, 3)):
        assert cuts.schedule_bound(begins) <= cuts.longest_step()


def test_where_directions_meet_on_a_link_the_bound_is_that_of_two_links() -> None:
    chain = Chain(layers=(layer(5, 1, 1, sent=3), layer(1, 4, 1, sent=4)))
    scope = asked("deepspeed", 6, allocation="contiguous")
    one, two = (
        solve(chain, Platform(gpus=2, memory=7, bandwidth=10**9, duplex=duplex), scope=scope)
        for duplex in ("half", "full")
    )
    assert two.status == "optimal"
    assert one.status == "feasible"
    assert one.period is not None
    assert two.period is not None
    assert one.lower_bound == two.period < one.period


def test_interleaving_shortens_the_step_where_it_may() -> None:
    chain, platform = transformer(6), Platform(gpus=2, memory=1000)
    both = prove(chain, platform, scope=asked("megatron", 4))
    # 4 layers each: (4 + 1) F + B of 4 layers, or with 2 stages of 2 layers half the bubble.
    assert len(plan_of(both).stages) > 2
    one = prove(chain, platform, scope=asked("megatron", 4, allocation="contiguous"))
    assert len(plan_of(one).stages) == 2
    assert one.period == Fraction(60, 4)
    assert both.period is not None
    assert both.period < 15


def solved(engine: Engine = "megatron") -> Plan:
    parts = (f"layers.{number}: {part}" for number in (0, 1) for part in "ab")
    scope = asked(engine, 4, allocation="contiguous")
    platform = Platform(gpus=2, memory=1000)
    return plan_of(solve(named("embed", *parts, "head", "loss"), platform, scope=scope))


def test_the_check_refuses_stages_that_the_engine_cannot_run() -> None:
    plan = solved()
    cut = replace(plan, stages=(Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 6), gpus=(1,))))
    told = [str(one) for one in check(cut)]
    assert any("layer 2, which parts the embedding, a transformer layer or" in one for one in told)
    as_deepspeed = replace(cut, scope=replace(plan.scope, engine="deepspeed"))
    assert not any("cannot run" in str(one) for one in check(as_deepspeed))
    lossy = replace(
        as_deepspeed, stages=(Stage(layers=(0, 5), gpus=(0,)), Stage(layers=(6, 6), gpus=(1,)))
    )
    assert any("belongs to the loss" in str(one) for one in check(lossy))


def test_the_check_refuses_another_order() -> None:
    plan = solved("deepspeed")
    swapped = {("F", 0, 1): ("F", 0, 2), ("F", 0, 2): ("F", 0, 1)}
    operations = tuple(
        replace(
            operation,
            shift=swapped.get(
                (operation.kind, operation.stage, operation.shift), ("", 0, operation.shift)
            )[2],
        )
        for operation in plan.pattern.operations
    )
    other = replace(plan, pattern=replace(plan.pattern, operations=operations))
    told = [one for one in check(other) if one.kind == "scope"]
    assert any("which DeepSpeed does not" in str(one) for one in told)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "split": ({"split_backward": True}, "split_backward"),
    "gradients shared": ({"replicas": 2, "shard": "gradient"}, "shard"),
    "layers apart": ({"grain": "layer"}, "grain"),
    "unknown": ({"engine": "slurm"}, "engine"),
}


@pytest.mark.parametrize("case", BAD)
def test_scopes_without_sense_are_refused(case: str) -> None:
    change, field = BAD[case]
    given: dict[str, Any] = {
        "allocation": "general",
        "microbatches": 4,
        "max_k": None,
        "engine": "megatron",
    }
    with pytest.raises(InputError) as caught:
        Scope(**given | change)
    assert caught.value.field == field


def test_a_scope_of_an_engine_is_covered_by_all_and_covers_no_other() -> None:
    megatron, deepspeed = asked("megatron", 4), asked("deepspeed", 4)
    free = replace(megatron, engine=None)
    assert free.covers(megatron)
    assert megatron.covers(megatron)
    assert not megatron.covers(free)
    assert not megatron.covers(deepspeed)
    assert str(megatron).endswith("as Megatron-LM runs it")


def test_other_solvers_do_not_look_at_engines() -> None:
    plan = solved()
    with pytest.raises(InputError, match="step does not look at what an engine can run"):
        solve(plan.chain, plan.platform, scope=plan.scope, solver="step")
    with pytest.raises(InputError, match="engine_step needs an engine"):
        solve(plan.chain, plan.platform, solver="engine_step")
    with pytest.raises(InputError, match="so a step needs a length"):
        Problem(chain=plan.chain, platform=plan.platform, scope=asked("deepspeed", None))
    rule = Rule(update_every=4, forward_reads="delay", delay=1)
    known = replace(LAYER, parameter_bytes=1, gradient_bytes=1)
    chain = Chain(layers=(known,) * 3)
    with pytest.raises(InputError, match="takes weight_bytes as all"):
        solve(chain, plan.platform, rule=rule, scope=asked("deepspeed", 4))


def test_too_little_memory_is_proven() -> None:
    plan = solved()
    result = solve(plan.chain, Platform(gpus=2, memory=13), scope=plan.scope)
    ways = (Suggestion.ANOTHER_ORDER, Suggestion.SMALLER_MICROBATCH, Suggestion.MORE_GPUS)
    assert why(result).wider == ways
