"""What ends a question to CP-SAT: the clock of its run."""

from __future__ import annotations

import pytest
from ortools.sat.python import cp_model

from schedopt import Chain, Platform, Problem, Scope
from schedopt.solving.clock import Clock
from schedopt.solving.cp_sat import solve_model
from schedopt.solving.run import Run
from tests.layers import layer

PROBLEM = Problem(chain=Chain(layers=(layer(1, 1),)), platform=Platform(1, 9), scope=Scope())


def pigeons(holes: int) -> cp_model.CpModel:
    """Return the model that one more pigeon than holes have a hole each: none have."""
    model = cp_model.CpModel()
    rows = [[model.new_bool_var("") for _ in range(holes)] for _ in range(holes + 1)]
    for number, row in enumerate(rows):
        model.add_bool_or(row)
        for other in rows[:number]:
            for one, two in zip(row, other, strict=True):
                model.add_bool_or(~one, ~two)
    return model


def test_the_clock_of_the_run_counts_and_not_what_it_said_at_first() -> None:
    run = Run(PROBLEM)
    # A hundredth of a second is left, and no time passes.
    run.clock = Clock(0.01, now=lambda: 0.0)
    assert solve_model(pigeons(7), run)[0] == cp_model.INFEASIBLE


@pytest.mark.parametrize("time_limit", [None, 0.2])
def test_a_question_ends_with_its_run(time_limit: float | None) -> None:
    run = Run(PROBLEM, time_limit=time_limit)
    if time_limit is None:
        run.stop()
    assert solve_model(pigeons(14), run)[0] == cp_model.UNKNOWN
    assert run.stopped()


def test_a_run_that_is_over_has_no_answer_and_its_work_is_known() -> None:
    run = Run(PROBLEM)
    run.stop()
    status, solver = solve_model(pigeons(2), run)
    assert status == cp_model.UNKNOWN
    assert solver.deterministic_time < 0.01
