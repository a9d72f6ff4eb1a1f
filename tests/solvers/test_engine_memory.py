"""Where no step of an engine fits: the least memory with which one does, or why none ever would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Problem, Scope
from schedopt.account import memory
from schedopt.engine import Engine
from schedopt.platform import Platform
from schedopt.problem import training_step
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.result import Infeasibility
from schedopt.solvers import engine_step
from schedopt.solving.clock import Clock
from schedopt.solving.engines.least_memory import FirstStep, find_least_memory
from schedopt.solving.portfolio import solve_problem
from schedopt.solving.run import Run
from tests.budgets import trials
from tests.solvers.test_engine_grids import every_plan, shared_by, steps
from tests.tensor_groups import chain_in_group

AMPLE = 10**6


def with_memory(problem: Problem, room: int) -> Problem:
    return problem.with_extra_memory(room - problem.platform.gpus[0].memory_bytes)


def why_not(problem: Problem) -> Infeasibility:
    result = solve_problem(problem, time_limit=None, gap=0, workers=1)
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    return result.infeasibility


def exists(problem: Problem, room: int) -> bool:
    return any(True for _ in every_plan(with_memory(problem, room)))


@trials(300, by_day=4)
@given(steps(), st.integers(0, 12))
def test_the_least_memory_is_that_of_all_grids_and_cuts(problem: Problem, room: int) -> None:
    problem = with_memory(problem, room)
    result = solve_problem(problem, time_limit=None, gap=0, workers=1)
    if result.infeasibility is None:
        return
    why = result.infeasibility
    if why.least_memory_bytes is None:
        assert not exists(problem, AMPLE)
        return
    assert why.proven_memory_bytes is not None
    assert room < why.proven_memory_bytes <= why.least_memory_bytes
    assert exists(problem, why.least_memory_bytes)
    assert not exists(problem, why.proven_memory_bytes - 1)


def small_step(engine: Engine, gpus: int, *, together: int = 1, layers: int = 1) -> Problem:
    """Return the question for a step of four micro-batches on GPUs without any memory."""
    chain = chain_in_group(1, layers + 2)
    names = ["embed", *(f"layers.{number}" for number in range(layers)), "head"]
    named = [replace(layer, name=name) for layer, name in zip(chain.layers, names, strict=True)]
    chain, _ = shared_by(1, together, replace(chain, layers=tuple(named)), ())
    scope = Scope.usual(max_k=None, replicas=None, shard="optimizer", engine=engine)
    return training_step(chain, Platform(gpus, 1), 4, scope)


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "deepspeed", "torch"])
def test_by_hand(engine: Engine) -> None:
    # One of two ranks holds at least two of the three layers, 3200 bytes, and the second rank 128
    # of each for the one micro-batch in flight. Two replicas would hold 3 (1600 - 400) and 384.
    why = why_not(small_step(engine, 2))
    assert (why.least_memory_bytes, why.proven_memory_bytes) == (3456, 3456)
    assert why.proof == Proof(ProofKind.NO_ENGINE_CUT, engine=engine)


def test_what_all_micro_batches_keep_may_be_more_than_a_gpu_can_have() -> None:
    problem = small_step("deepspeed", 2)
    layers = tuple(replace(layer, saved_bytes=2**48) for layer in problem.chain.layers)
    why = why_not(replace(problem, chain=replace(problem.chain, layers=layers)))
    # As above: two of the layers, for the one micro-batch in flight.
    assert why.least_memory_bytes == why.proven_memory_bytes == 3200 + 2 * 2**48


def test_where_no_grid_has_all_gpus_memory_is_not_the_reason() -> None:
    # Without a pipeline torchtitan adds up two replicas behind each of four micro-batches.
    why = why_not(small_step("torchtitan", 2, together=2))
    assert why.proof == Proof(ProofKind.NO_ENGINE_GRID, engine="torchtitan")
    assert (why.least_memory_bytes, why.proven_memory_bytes) == (None, None)
    assert why.wider == (
        Suggestion.ANOTHER_ORDER,
        Suggestion.OTHER_MICROBATCHES,
        Suggestion.OTHER_GPUS,
    )
    # Megatron-LM adds up once.
    assert why_not(small_step("megatron", 2, together=2)).least_memory_bytes is not None


def test_what_is_not_known_in_time_is_not_said() -> None:
    problem = small_step("megatron", 2)
    step = solve_problem(with_memory(problem, AMPLE), time_limit=None, workers=1).plan
    assert step is not None
    needed = max(need.peak_bytes for need in memory(step))

    def find_first(asked: Problem, share: float) -> FirstStep:
        room = asked.platform.gpus[0].memory_bytes
        return FirstStep(step if room >= needed else None, none_exists=False)

    nothing = FirstStep(None, none_exists=False)
    assert find_least_memory(problem, lambda asked, share: nothing) == (None, None)
    assert find_least_memory(problem, find_first) == (needed, None)


@pytest.mark.parametrize(("seconds", "least"), [(0.0, None), (9.0, 3456)])
def test_the_least_memory_is_looked_for_as_long_as_there_is_time(
    seconds: float, least: int | None
) -> None:
    problem = small_step("megatron", 2)
    run = Run(problem)
    run.clock = Clock(seconds, now=lambda: 0.0)
    engine_step.solve(problem, run)
    (why,) = run.events.proofs
    assert why.least_memory_bytes == least
