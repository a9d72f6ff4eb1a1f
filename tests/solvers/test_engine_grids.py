"""Training steps as engines run them, against every grid, cut and recompute of small problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope, Stage, check
from schedopt.engine import (
    ENGINES,
    Engine,
    may_recompute_modules,
    recomputable_units,
    stage_begins,
    why_not_stages,
    why_not_together,
)
from schedopt.plan import Plan
from schedopt.problem import training_step
from schedopt.profile import Variant
from schedopt.solvers import engine_steps
from schedopt.solvers.engine_steps import report_engine_steps
from schedopt.solving.engines import table as engine_table
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import lay_out_step, lay_out_without_empty
from schedopt.solving.engines.order import ROUNDS, EngineOrder
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.run import Run
from schedopt.stage import Shard
from tests.budgets import trials
from tests.tensor_groups import two_nodes

SMALL = st.integers(0, 6)


@st.composite
def trained(draw: st.DrawFn, *, most: int = 3) -> tuple[Chain, tuple[Variant, ...]]:
    """Draw a transformer with all that an update needs, perhaps in tensor groups of two too."""
    names = ["embed", *(f"layers.{n}" for n in range(draw(st.integers(1, most)))), "head"]
    alike = draw(st.booleans())
    rows = [draw(st.tuples(*[SMALL] * 7)) for _ in names]

    def chain(tensor: int) -> Chain:
        layers = []
        for number, name in enumerate(names):
            inner = 1 if alike and 0 < number < len(names) - 1 else number
            forward, backward, weight, optimizer, sent, saved, update = rows[inner]
            layers.append(
                Layer(
                    name=name,
                    forward_ns=1 + forward,
                    backward_ns=1 + backward,
                    weight_bytes=2 * weight + optimizer,
                    parameter_bytes=weight,
                    gradient_bytes=weight,
                    optimizer_bytes=optimizer,
                    activation_bytes=sent,
                    saved_bytes=saved // tensor,
                    workspace_bytes=1,
                    update_ns=update,
                )
            )
        return Chain(layers=tuple(layers), input_bytes=1)

    variants = (Variant(tensor=2, chain=chain(2)),) if draw(st.booleans()) else ()
    return chain(1), variants


def shared_by(
    context: int,
    expert: int,
    chain: Chain,
    variants: tuple[Variant, ...],
    experts: Sequence[tuple[int, int]] = (),
) -> tuple[Chain, tuple[Variant, ...]]:
    """Return chains as they are on one of the GPUs that share each sequence, and the experts.

    `experts` has for each layer the bytes of parameters, and of optimizer states.
    """

    def on_one(chain: Chain) -> Chain:
        layers = [
            replace(
                layer,
                weight_bytes=layer.weight_bytes + 2 * weight + optimizer,
                expert_parameter_bytes=weight,
                expert_gradient_bytes=weight,
                expert_optimizer_bytes=optimizer,
            )
            for layer, (weight, optimizer) in zip(chain.layers, experts, strict=bool(experts))
        ]
        layers = layers or [*chain.layers]
        return replace(chain, layers=tuple(layers), context=context, expert=expert)

    return on_one(chain), tuple(replace(one, chain=on_one(one.chain)) for one in variants)


def computing_again(
    modules: tuple[str, ...], chain: Chain, variants: tuple[Variant, ...]
) -> tuple[Chain, tuple[Variant, ...]]:
    """Return chains as those of layers that compute modules again."""

    def of(chain: Chain) -> Chain:
        return replace(chain, recomputed_modules=modules)

    return of(chain), tuple(replace(one, chain=of(one.chain)) for one in variants)


def can_share(chain: Chain, platform: Platform, scope: Scope) -> bool:
    """Whether an engine can have its GPUs share sequences or experts as the chain says."""
    nodes = [] if platform.network is None else [node.gpus for node in platform.network.nodes]
    shared = scope.shard != "none"
    return not any(gpus % chain.together for gpus in (len(platform.gpus), *nodes)) and not any(
        why_not_together(chain, scope.engine or "torch", shared=shared, tensor=1)
    )


@st.composite
def steps(draw: st.DrawFn, engine: Engine | None = None) -> Problem:
    """Draw the question for a training step that an engine runs."""
    chain, variants = draw(trained())
    if draw(st.booleans()):
        platform = Platform(
            draw(st.integers(1, 4)),
            draw(st.integers(10, 120)),
            bandwidth=draw(st.sampled_from([None, 10**9, 3 * 10**8])),
            duplex=draw(st.sampled_from(["half", "full"])),
        )
    else:
        platform = two_nodes(draw(st.integers(1, 2)), draw(st.integers(10, 120)))
    scope = Scope(
        allocation=draw(st.sampled_from(["general", "general", "contiguous"])),
        max_k=None,
        memory="peak",
        recompute=draw(st.booleans()),
        replicas=draw(st.sampled_from([None, None, 1, 2])),
        engine=engine or draw(st.sampled_from(ENGINES)),
        tensor=None if variants else 1,
    )
    if scope.replicas != 1:
        shards: list[Shard] = ["none", "optimizer"]
        scope = replace(scope, shard=draw(st.sampled_from(shards)))
        context, expert = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)]))
        experts: list[tuple[int, int]] = []
        if expert > 1 and draw(st.booleans()):
            experts = [draw(st.tuples(SMALL, SMALL)) for _ in chain.layers]
        together, others = shared_by(context, expert, chain, variants, experts)
        if can_share(together, platform, scope):
            chain, variants = together, others
    assert scope.engine is not None
    if may_recompute_modules(scope.engine, ["mlp"]) and draw(st.booleans()):
        chain, variants = computing_again(("mlp",), chain, variants)
    count = draw(st.sampled_from([1, 2, 3, 4, 6]))
    # Each replica that shares experts has a micro-batch.
    batch = count * (chain.together // chain.context)
    return training_step(chain, platform, batch, scope, variants)


def every_plan(problem: Problem) -> Iterator[tuple[Grid, Plan]]:
    """Yield the step of each grid, cut and number of recomputed layers that an engine runs.

    Of each grid the shortest comes last.
    """
    scope, gpus = problem.scope, len(problem.platform.gpus)
    assert scope.engine is not None
    places = sorted(stage_begins(problem.chain, scope.engine))
    units = recomputable_units(problem.chain, scope.engine)
    shards: list[Shard] = ["none", "optimizer"]
    for tensor in problem.degrees:
        for replicas in problem.replica_counts:
            ranks, rest = divmod(gpus, tensor * replicas)
            if rest or not ranks:
                continue
            for chunks in range(1, len(places) // ranks + 1):
                for recomputed in range(len(units) + 1) if scope.recompute else [0]:
                    levels = shards[: 1 + (scope.shard != "none" and replicas > 1)]
                    groups = range(2, replicas + 1) if scope.hybrid else ()
                    shared: list[tuple[Shard, int]] = [
                        ("optimizer", n) for n in groups if replicas % n == 0
                    ]
                    for shard, copies in [*((level, 1) for level in levels), *shared]:
                        grid = Grid(
                            ranks=ranks,
                            chunks=chunks,
                            replicas=replicas,
                            tensor=tensor,
                            shard=shard,
                            copies=copies,
                            recomputed=recomputed,
                        )
                        plans = [
                            plan
                            for begins in combinations_with_replacement(places[1:], grid.parts - 1)
                            for plan in laid_out(problem, grid, (0, *begins))
                        ]
                        plans.sort(key=lambda plan: -plan.pattern.period_total_ns)
                        yield from ((grid, plan) for plan in plans)


def laid_out(problem: Problem, grid: Grid, begins: tuple[int, ...]) -> Iterator[Plan]:
    """Yield the step of a cut if the check takes it."""
    scope, layers = problem.scope, len(problem.chain.layers)
    assert scope.engine is not None
    units = recomputable_units(problem.chain, scope.engine)
    stages = [
        Stage(
            layers=(begin, end - 1),
            gpus=tuple(grid.gpu(number % grid.ranks, n) for n in range(grid.replicas)),
            recompute=tuple(u for u in units if begin <= u[0] and u[1] < end)[: grid.recomputed],
            shard=grid.shard,
            shard_copies=grid.copies,
            tensor=grid.tensor,
        )
        for number, (begin, end) in enumerate(zip(begins, (*begins[1:], layers), strict=True))
    ]
    count = (scope.microbatches or 1) // grid.replicas
    several = grid.chunks > 1
    if why_not_stages(problem.chain, stages, scope.engine) or (several and count % grid.ranks):
        return
    if several and scope.allocation == "contiguous":
        return
    plan = lay_out_step(problem, grid, stages)
    if not check(plan):
        yield plan


@trials(1000, by_day=5)
@given(steps())
def test_equal_to_trying_every_grid_and_cut(problem: Problem) -> None:
    compare_with_the_answer(problem, every_plan(problem))


@trials(100)
@given(steps())
def test_no_engine_is_ahead_of_steps_of_any_kind(problem: Problem) -> None:
    compare_with_steps_of_any_kind(problem)


def compare_with_steps_of_any_kind(problem: Problem) -> None:
    asked = solve_problem(problem, time_limit=None, gap=0, workers=1)
    free = replace(problem, scope=replace(problem.scope, engine=None))
    run = Run(free)
    run.begin("training_step")
    with pytest.MonkeyPatch.context() as patch:
        # Steps are found as well on a machine that is busy.
        patch.setattr(engine_steps, "LEAST_S", 600.0)
        report_engine_steps(free, run)
    if asked.plan is None:
        return
    best = run.best()
    assert best is not None
    assert check(best) == ()
    assert best.scope == free.scope
    assert best.pattern.period <= asked.plan.pattern.period


@trials(200, by_day=15)
@given(steps(), st.sampled_from([0, engine_table.MOST_SPLITS]))
def test_no_plan_beats_what_is_said_of_its_grid(problem: Problem, most: int) -> None:
    """The tables of ranks, what links carry, and the longest path of a cut.

    Also where a table leaves out, stage by stage, what does not fit.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_table, "MOST_SPLITS", most)
        compare_with_bounds(problem, every_plan(problem))


@trials(100, by_day=5)
@given(steps("megatron"))
def test_stages_of_no_layers_only_hand_on(problem: Problem) -> None:
    free = replace(problem, scope=replace(problem.scope, engine=None))
    for _, plan in every_plan(problem):
        if not any(stage.is_empty for stage in plan.stages):
            continue
        left = lay_out_without_empty(free, plan)
        assert {violation.kind for violation in check(left)} <= {"memory"}
        assert [stage.layers for stage in left.stages] == [
            stage.layers for stage in plan.stages if not stage.is_empty
        ]
        link = problem.platform.link
        if link is not None and link.duplex == "full":
            assert left.pattern.period_total_ns <= plan.pattern.period_total_ns


def compare_with_the_answer(problem: Problem, plans: Iterable[tuple[Grid, Plan]]) -> None:
    result = solve_problem(problem, time_limit=None, gap=0, workers=1)
    assert check(result) == ()
    lengths = {grid: plan.pattern.period_total_ns for grid, plan in plans}
    count = problem.scope.microbatches or 1
    if not lengths:
        assert result.plan is None
        return
    assert result.lower_bound is not None
    assert result.lower_bound * count <= min(lengths.values())
    assert result.plan is not None
    assert result.plan.pattern.period_total_ns == min(lengths.values())


def compare_with_bounds(problem: Problem, plans: Iterable[tuple[Grid, Plan]]) -> None:
    lows: dict[Grid, int | None] = {}
    for grid, plan in plans:
        if 1 < grid.copies == grid.replicas:
            # Nothing is shared, which the solver looks at as such.
            continue
        cuts = EngineCuts(problem, grid)
        begins = tuple(stage.first for stage in plan.stages)
        length = plan.pattern.period_total_ns
        assert cuts.may_fit(begins)
        assert cuts.schedule_bound(begins) <= min(length, cuts.longest_step())
        if grid not in lows:
            shape = EngineShape(cuts)
            shape.tabulate()
            lows[grid] = shape.low if shape.is_open else None
        low = lows[grid]
        assert low is not None
        assert low <= length


@trials(100)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_what_ranks_hold_is_known_from_the_first_rounds(
    ranks: int, chunks: int, rounds: int
) -> None:
    assume(chunks == 1 or ranks > 1)
    count = ranks * (ROUNDS + rounds)
    order = EngineOrder(ranks, chunks, count)
    whole = [[0] * chunks for _ in range(ranks)]
    for rank, turns in enumerate(order.turns):
        for kind, stage, _ in turns:
            if kind == "B":
                held = whole[rank]
                assert any(
                    place == stage // ranks
                    and all(a <= b for a, b in zip(held, vector, strict=True))
                    for vector, place in order.held_at_backwards[rank]
                )
            whole[rank][stage // ranks] += 1 if kind == "F" else -1
