"""How the search for the shortest step of an engine goes on, and when it ends."""

from __future__ import annotations

from fractions import Fraction

import pytest

from schedopt import Chain, Layer, Platform, Problem, check
from schedopt.problem import training_step
from schedopt.solvers import engine_step as engine_step_solver
from schedopt.solving.engines.cuts import EngineCuts
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.engines.table import make_table
from schedopt.solving.run import Hopes, Run
from tests.solvers.test_engine_step import asked, named, shortest, transformer
from tests.tensor_groups import two_nodes


def test_plain_torch_begins_from_cuts_between_whole_layers() -> None:
    names = [f"layers.{n}.{half}" for n in range(4) for half in ("attention", "mlp")]
    chain = named("embed", *names, "head")
    problem = Problem(chain=chain, platform=Platform(2, 10**6), scope=asked("torch", 4))
    run = Run(problem)
    shapes = engine_step_solver.best_between_whole_layers(problem, run)
    assert shapes
    assert all({*shape.best[1]} <= {0, 1, 3, 5, 7, 9} for shape in shapes)
    best = run.best()
    assert best is not None
    assert best.scope == problem.scope
    assert best.pattern.period == shortest(problem, "torchtitan")[0]
    assert check(best) == ()


@pytest.mark.parametrize("names", [("a", "b", "c"), ("embed", "layers.0", "layers.1", "head")])
def test_no_cuts_are_looked_for_twice_where_all_are_between_whole_layers(names: list[str]) -> None:
    problem = Problem(chain=named(*names), platform=Platform(2, 10**6), scope=asked("torch", 4))
    assert engine_step_solver.best_between_whole_layers(problem, Run(problem)) == []


def test_a_search_that_is_of_no_use_beside_another_one_tells_its_bound() -> None:
    problem = Problem(chain=transformer(4), platform=Platform(2, 10**6), scope=asked("megatron", 4))
    run = Run(problem, hopes=Hopes({"other": 1}, "own"))
    engine_step_solver.solve(problem, run)
    bound, least = run.bound(problem.scope), shortest(problem, "megatron")[0]
    assert bound is not None
    assert least is not None
    # Half of the work of a micro-batch, of six layers of 3 ns each.
    assert 9 <= bound <= least


def test_a_table_that_is_stopped_has_a_bound_of_all_ranks_together() -> None:
    problem = Problem(
        chain=transformer(12), platform=Platform(2, 10**6), scope=asked("megatron", 4)
    )
    cuts = EngineCuts(problem, Grid(ranks=2, chunks=1))
    stops = iter([False, True])
    stopped, whole = make_table(cuts, stopped=lambda: next(stops)), make_table(cuts)
    assert (stopped.splits, stopped.begins) == ((), None)
    assert whole.splits
    assert next(stops, None) is None
    assert stopped.bound_ns is not None
    assert whole.bound_ns is not None
    work = sum(layer.forward_ns + layer.backward_ns for layer in problem.chain.layers)
    assert 4 * work // 2 == stopped.bound_ns <= whole.bound_ns


def test_no_further_shape_is_looked_at_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: set[tuple[int, int]] = set()
    schedule_bound = EngineCuts.schedule_bound

    def counted(cuts: EngineCuts, begins: tuple[int, ...]) -> int:
        looked.add((cuts.ranks, cuts.chunks))
        return schedule_bound(cuts, begins)

    monkeypatch.setattr(EngineCuts, "schedule_bound", counted)
    # Without what says that the first shape has the shortest steps.
    monkeypatch.setattr(EngineShape, "tabulate", lambda shape, limit, stopped: None)
    scope = asked("megatron", 8)
    problem = Problem(chain=transformer(8), platform=Platform(gpus=4, memory=1000), scope=scope)
    engine_step_solver.solve(problem, Run(problem))
    assert len(looked) > 1
    looked.clear()
    monkeypatch.setattr(Run, "stopped", lambda run: run.best() is not None)
    run = Run(problem)
    engine_step_solver.solve(problem, run)
    # The first gives a plan.
    assert len(looked) == 1
    assert run.best() is not None
    assert run.events.left_out


def test_where_another_order_might_be_shorter_the_search_ends_as_well() -> None:
    # The best cut takes 183 ns, and 172 if the one link took its transfers in another order: so it
    # stays open, and nothing else is left below 183.
    def each(name: str, forward: int, state: int, sent: int, saved: int, update: int) -> Layer:
        return Layer(
            name=name,
            forward_ns=forward,
            backward_ns=2,
            weight_bytes=2 * state + 5,
            parameter_bytes=state,
            gradient_bytes=state,
            optimizer_bytes=5,
            activation_bytes=sent,
            saved_bytes=saved,
            workspace_bytes=1,
            update_ns=update,
        )

    inner = (each(f"layers.{n}", 5, 3, 2, 3, 6) for n in range(3))
    ends = each("embed", 1, 0, 3, 4, 4), each("head", 2, 0, 1, 1, 4)
    chain = Chain(layers=(ends[0], *inner, ends[1]), input_bytes=1)
    problem = training_step(chain, two_nodes(1, 62), 6, asked("torchtitan", None))
    run = Run(problem, time_limit=60)
    engine_step_solver.EngineSearch(problem, run).run_all()
    assert not run.stopped()
    assert run.period() == Fraction(183, 6)
    assert run.bound(problem.scope) == Fraction(172, 6)
