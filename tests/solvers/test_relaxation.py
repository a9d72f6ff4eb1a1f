"""The relaxation, against a search over all plans."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from schedopt import (
    Chain,
    Gpu,
    Link,
    Network,
    Node,
    NodeLink,
    Platform,
    Problem,
    Scope,
    Stage,
    solve,
)
from schedopt.bounds import lower_bounds, propagation_bound
from schedopt.bounds.amounts import Amounts
from schedopt.bounds.load import load_bound, one_after_the_other_ns
from schedopt.bounds.propagation import propagate
from schedopt.bounds.scopes import CLOSE
from schedopt.rule import Rule
from schedopt.solvers.relaxation import (
    FIRST_WORK,
    GROWTH,
    MOST_PLACES,
    PACK_WORK,
    ROUNDS,
    _Search,
    relaxed_allocations,
)
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.incumbent import find_infeasibility
from schedopt.solving.packing_columns import GpuLimits, PackingColumns
from schedopt.solving.relaxation import RelaxationModel, decide
from schedopt.solving.run import Run
from tests.bounds.every_plan import Memory, has_plan, tight_problems
from tests.bounds.linked import linked_problems
from tests.budgets import trials
from tests.layers import layer

GENERAL = Scope(allocation="general")


def relaxed(problem: Problem) -> tuple[Run, list[tuple[Stage, ...]]]:
    """Return the run of the relaxation alone, and the allocations that it finds."""
    run = Run(problem, time_limit=60)
    return run, [stages for stages in relaxed_allocations(problem, run) if stages]


def require_true_bound(problem: Problem) -> list[tuple[Stage, ...]]:
    """Require that no plan is below the bound of the relaxation; return its allocations."""
    run, found = relaxed(problem)
    bound = run.bound()
    if find_infeasibility(problem, run.incumbent) is not None:
        assert not has_plan(problem, one_after_the_other_ns(problem))
    elif bound is not None:
        assert not has_plan(problem, bound, below=True)
    return found


def test_a_start_takes_equal_gpus_in_the_order_of_the_model() -> None:
    layers = tuple(layer(work, 1) for work in (2, 1, 5, 4))
    platform = Platform(3, 99)
    problem = Problem(chain=Chain(layers=layers), platform=platform, scope=GENERAL)
    forced = propagate(Amounts(problem), Fraction(99))
    assert forced is not None
    model = RelaxationModel(forced)
    model.chosen.hint([Stage(layers=(n, n), gpus=(gpu,)) for n, gpu in enumerate((1, 2, 0, 1))])
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model.model) == cp_model.OPTIMAL
    stages = model.chosen.stages(solver)
    assert stages[0].gpus == stages[3].gpus
    assert len({stage.gpus for stage in stages}) == 3


@pytest.mark.parametrize("memory", ["sum", "peak"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@trials(40, by_day=3)
@given(data=st.data())
def test_no_plan_is_below(
    data: st.DataObject, split: bool, recompute: bool, memory: Memory
) -> None:
    problem = data.draw(tight_problems(split=split, recompute=recompute, memory=memory))
    for stages in require_true_bound(problem):
        layers = [one for stage in stages for one in range(stage.first, stage.last + 1)]
        assert layers == list(range(len(problem.chain.layers)))
        homes = {one: s.gpus[0] for s in stages for one in range(s.first, s.last + 1)}
        assert set(homes.values()) <= set(range(len(problem.platform.gpus)))
        assert all(homes[a] == homes[b] for a, *rest in problem.chain.same_gpu for b in rest)
        assert recompute or not any(stage.recompute for stage in stages)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("split", [False, True])
@trials(100, by_day=3)
@given(data=st.data())
def test_no_plan_is_below_what_instants_refute(
    data: st.DataObject, split: bool, recompute: bool, k: int
) -> None:
    longest = max(2, 5 - split - recompute - k)
    problem = data.draw(linked_problems(longest=longest, split=split, recompute=recompute))
    problem = replace(problem, scope=replace(problem.scope, max_k=k))
    require_true_bound(problem)


@trials(60)
@given(linked_problems(), st.sampled_from([2, None]))
def test_no_memory_for_one_is_proven_for_any_k(problem: Problem, max_k: int | None) -> None:
    # That question is one of 1-periodic patterns, in which all layers are counted at an instant.
    longer = replace(problem, scope=replace(problem.scope, max_k=max_k))
    found = find_infeasibility(longer, relaxed(longer)[0].incumbent)
    assert (found is None) == (find_infeasibility(problem, relaxed(problem)[0].incumbent) is None)
    if found is not None:
        assert found.scope.max_k is None
        assert not has_plan(problem, one_after_the_other_ns(problem))


def assert_exact(problem: Problem, period: int) -> None:
    """Require that the relaxation proves what a search over all plans finds."""
    run, _ = relaxed(problem)
    assert run.bound() == period
    assert max(bound.period for bound in lower_bounds(problem)) < period
    assert has_plan(replace(problem, scope=replace(problem.scope, grain="layer")), Fraction(period))


def test_work_that_cannot_be_shared_evenly() -> None:
    # 22 ns on two GPUs, but no layers of 10, 5, 3, 2 and 2 ns add up to 11.
    layers = (layer(5, 5), layer(2, 3), layer(1, 2), layer(1, 1), layer(1, 1))
    assert_exact(Problem(chain=Chain(layers=layers), platform=Platform(2, 0), scope=GENERAL), 12)


def test_where_there_are_too_many_limits_nothing_is_packed_nor_refuted_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[GpuLimits] = []

    def are_many(limits: GpuLimits) -> bool:
        asked.append(limits)
        return False

    monkeypatch.setattr(GpuLimits, "are_few", are_many)
    monkeypatch.setattr(PackingColumns, "may_hold_all", mock.Mock(side_effect=AssertionError))
    times = (1000, 500, 300, 200, 200)
    layers = tuple(layer(time // 2, time // 2) for time in times)
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 0), scope=GENERAL)
    run, _ = relaxed(problem)
    assert run.bound() == 1200
    # Once, and nothing shorter or longer is tried.
    assert len(asked) == 1


@pytest.mark.parametrize(("duplex", "period"), [("half", 20), ("full", 10)])
def test_a_hop_carries_what_goes_from_node_to_node(
    duplex: Literal["half", "full"], period: int
) -> None:
    # Each GPU has room for the weights of one layer: with three of them, two nodes are in use.
    # Inside transfers are free; between them they take 10 ns each way, which is more than all work.
    slow = NodeLink(between=("a", "b"), bandwidth_bytes_per_s=10**8, duplex=duplex)
    nodes = (Node(name="a", gpus=2), Node(name="b", gpus=2))
    problem = Problem(
        chain=Chain(layers=(layer(1, 1, weight=5, sent=1),) * 3),
        platform=Platform(4, 9, network=Network(nodes=nodes, links=(slow,))),
        scope=GENERAL,
    )
    assert_exact(problem, period)


def test_a_way_between_nodes_keeps_micro_batches_in_flight() -> None:
    # The heavy layer fits the third GPU alone. The other one waits 20 ns for transfers, and 4 go
    # with the work of both: with room for two micro-batches T is 12.
    fast = Link(bandwidth_bytes_per_s=10**9, latency_ns=0)
    slow = NodeLink(between=("a", "b"), bandwidth_bytes_per_s=10**8, duplex="full")
    nodes = (Node(name="a", gpus=2, link=fast), Node(name="b", gpus=1))
    layers = (layer(1, 1, 4, weight=1, sent=1), layer(1, 1, 1, weight=9))
    gpus = [Gpu(memory_bytes=9), Gpu(memory_bytes=9), Gpu(memory_bytes=12)]
    problem = Problem(
        chain=Chain(layers=layers),
        platform=Platform(gpus, network=Network(nodes=nodes, links=(slow,))),
        scope=GENERAL,
    )
    assert_exact(problem, 12)


WORK = [FIRST_WORK * GROWTH**number for number in range(ROUNDS)]
"""Of each round."""


def test_what_takes_long_is_asked_again_with_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []
    seeds: dict[float, set[int]] = {}

    def slow(
        model: cp_model.CpModel, run: Run, *, most_work: float, simplify: bool, seed: int
    ) -> tuple[int, cp_model.CpSolver]:
        patience.append(most_work)
        seeds.setdefault(most_work, set()).add(seed)
        if most_work < WORK[-1]:
            return int(cp_model.UNKNOWN), cp_model.CpSolver()
        return solve_model(model, run, most_work=most_work, simplify=simplify, seed=seed)

    monkeypatch.setattr("schedopt.solving.relaxation.solve_model", slow)
    layers = (layer(5, 5), layer(2, 3), layer(1, 2), layer(1, 1), layer(1, 1))
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 0), scope=GENERAL)
    run, found = relaxed(problem)
    assert run.bound() == 12
    assert found
    assert patience == sorted(patience)
    assert [*seeds] == WORK
    assert [*seeds.values()] == [{number} for number in range(ROUNDS)]


def test_instants_are_added_as_long_as_there_is_work_left(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []

    def solve_in_part(model: None, run: Run, *, most_work: float, **_: object) -> tuple[int, Any]:
        patience.append(most_work)
        return int(cp_model.FEASIBLE), SimpleNamespace(deterministic_time=0.25)

    monkeypatch.setattr("schedopt.solving.relaxation.solve_model", solve_in_part)
    chosen = SimpleNamespace(stages=lambda _: (Stage(layers=(0, 0), gpus=(0,)),), hint=mock.Mock())
    model: Any = SimpleNamespace(model=None, chosen=chosen, add_violated=lambda _: True)
    run = Run(Problem(chain=Chain(layers=(layer(1, 1),)), platform=Platform(1, 9), scope=GENERAL))
    status, found = decide(model, run, 1.0)
    assert patience == [1.0, 0.75, 0.5, 0.25]
    # Nothing is known of what was added last, and the last allocation is a start.
    assert (status, len(found), chosen.hint.call_count) == (int(cp_model.UNKNOWN), 1, 4)
    model.add_violated = lambda _: False
    assert decide(model, run, 1.0) == (int(cp_model.FEASIBLE), found)


def test_what_takes_long_is_packed_again_with_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[float] = []

    def slow(_columns: PackingColumns, most_work: float) -> bool | None:
        packed.append(most_work)
        return True if most_work == WORK[-1] else None

    def unknown(
        _model: RelaxationModel, _run: Run, _most_work: float, _seed: int
    ) -> tuple[int, tuple[Stage, ...]]:
        return int(cp_model.UNKNOWN), ()

    monkeypatch.setattr(PackingColumns, "may_hold_all", slow)
    monkeypatch.setattr("schedopt.solving.relaxation.decide", unknown)
    chain = Chain(layers=(layer(500, 500), layer(200, 300), layer(100, 200)))
    problem = Problem(chain=chain, platform=Platform(2, 0), scope=GENERAL)
    relaxed(problem)
    assert packed == sorted(packed)
    assert [*dict.fromkeys(packed)] == [PACK_WORK, *(work for work in WORK if work > PACK_WORK)]


def test_what_periods_force_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("climb", "halve"):
        monkeypatch.setattr(_Search, name, lambda *_, **__: iter(()))
    layers = tuple(layer(1000, 1000, 2) for _ in range(4))
    scope = Scope(allocation="general", memory="peak", max_k=1)
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 4), scope=scope)
    proven = propagation_bound(problem)
    run, _ = relaxed(problem)
    bound = run.bound()
    assert proven is not None
    assert bound is not None
    assert load_bound(problem).period < 5000 < proven.period
    assert abs(bound - proven.period) <= CLOSE * proven.period


def test_the_far_part_of_a_gap_waits_for_more_work(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[float, list[Fraction]] = {}
    chain = Chain(layers=(layer(500, 500), layer(400, 600), layer(300, 300)))
    problem = Problem(chain=chain, platform=Platform(3, 1), scope=GENERAL)
    here = tuple(Stage(layers=(one, one), gpus=(one,)) for one in range(3))

    def slow(
        model: RelaxationModel, run: Run, most_work: float, seed: int
    ) -> tuple[int, tuple[Stage, ...]]:
        asked.setdefault(most_work, []).append(model.scaled.period)
        return int(cp_model.UNKNOWN), here

    monkeypatch.setattr("schedopt.solving.relaxation.decide", slow)
    longest = one_after_the_other_ns(problem)
    relaxed(problem)
    *brief, last = asked.values()
    # From 999 ns, less than the first layer takes, to 3,800 ns. As there is an allocation, no
    # longer period is asked for; the gap is halved, until less than a third of it is left. Then
    # come 1 % above 999 ns, and half of that.
    assert longest == 3800
    assert brief == [[longest, 2399, 1699, 1008, 1003]] * (ROUNDS - 1)
    assert last[:5] == [longest, 2399, 1699, 1349, 1174]


def test_weights_that_cannot_be_shared_evenly() -> None:
    # The light layer takes as long as two others, and a heavy one fits no GPU with another.
    layers = (layer(1, 1, weight=5), layer(2, 2, weight=4), layer(1, 1, weight=5))
    problem = Problem(chain=Chain(layers=layers), platform=Platform(2, 9), scope=GENERAL)
    assert_exact(problem, 6)


def test_what_is_recomputed_works_longer() -> None:
    # All work and all bytes would fit two GPUs at T = 7, but no way of sharing the layers does.
    layers = (layer(2, 2, 5), layer(3, 2, 2), layer(2, 1, 3))
    chain = Chain(layers=layers, input_bytes=1)
    scope = replace(GENERAL, recompute=True)
    assert_exact(Problem(chain=chain, platform=Platform(2, 8), scope=scope), 8)


def test_a_workspace_is_not_there_all_the_time() -> None:
    # One GPU runs one micro-batch after the other in 16 ns. Most lies there in the operations of
    # the first layer: weights of 3, 8 and a workspace of 2. On average that of the second layer
    # would come on top of nearly as much.
    layers = (
        replace(layer(4, 4, 8, weight=3), workspace_bytes=2),
        replace(layer(2, 1, 1), workspace_bytes=1),
        layer(1, 4, 1),
    )
    scope = replace(GENERAL, memory="peak", grain="layer")
    problem = Problem(chain=Chain(layers=layers), platform=Platform(1, 13), scope=scope)
    assert has_plan(problem, Fraction(16))
    run, _ = relaxed(problem)
    assert find_infeasibility(problem, run.incumbent) is None
    assert (run.bound() or 0) <= 16


def test_memory_that_holds_no_allocation() -> None:
    # Three layers of 4 bytes on two GPUs of 7.
    chain = Chain(layers=(layer(1, 1, 4),) * 3)
    problem = Problem(chain=chain, platform=Platform(2, 7), scope=GENERAL)
    run, found = relaxed(problem)
    assert find_infeasibility(problem, run.incumbent) is not None
    assert not found
    assert not has_plan(problem, one_after_the_other_ns(problem))


def test_the_best_plan_is_proven_optimal() -> None:
    chain = Chain(layers=(layer(1, 1),) * 3)
    contiguous = solve(chain, Platform(2, 1), scope=Scope()).plan
    assert contiguous is not None
    result = solve(chain, Platform(2, 1), scope=GENERAL, solver="relaxation", initial=contiguous)
    assert result.status == "optimal"
    assert result.period == 4
    assert result.proof


def test_equal_gpus_are_used_in_order() -> None:
    chain = Chain(layers=(layer(1, 1),) * 4)
    problem = Problem(chain=chain, platform=Platform(4, 1), scope=GENERAL)
    _, found = relaxed(problem)
    assert found
    for stages in found:
        used = list(dict.fromkeys(stage.gpus[0] for stage in stages))
        assert used == list(range(len(used)))


def test_nothing_is_said_of_what_is_not_looked_at() -> None:
    long = Chain(layers=(layer(1, 1),) * (MOST_PLACES // 2 + 1))
    run, found = relaxed(Problem(chain=long, platform=Platform(2, 1), scope=GENERAL))
    assert not run.incumbent.bounds
    assert not found
    with_update = replace(layer(1, 1), parameter_bytes=0, gradient_bytes=0)
    problem = Problem(
        chain=Chain(layers=(with_update,) * 3),
        platform=Platform(2, 1),
        rule=Rule(update_every=1),
        scope=GENERAL,
    )
    run, found = relaxed(problem)
    assert not run.incumbent.bounds
    assert not found


def test_it_stops_when_asked() -> None:
    problem = Problem(
        chain=Chain(layers=(layer(1, 1),) * 3), platform=Platform(2, 0), scope=GENERAL
    )
    run = Run(problem)
    run.stop()
    assert not list(relaxed_allocations(problem, run))
    assert not run.incumbent.bounds
