from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from schedopt import Chain, Layer, Platform, Result, Scope, Stage, solve
from schedopt.cli.fixed_plan import say_what_it_has
from tests.cli.commands import printed, run


def one_after_two(scope: Scope, room: int = 2) -> Result:
    """Return the best plan for three layers of 1 and 2 ns that save a byte each."""
    layer = Layer(
        forward_ns=1,
        backward_ns=2,
        weight_bytes=0,
        activation_bytes=1,
        backward_input_ns=1,
        backward_weight_ns=1,
    )
    return solve(Chain(layers=(layer,) * 3), Platform(3, room), scope=scope)


def again(result: Result, scope: Scope) -> tuple[Result, str | None]:
    """Return what is found for the stages in a scope, and what is said of the plan."""
    assert result.plan is not None
    problem = result.problem
    found = solve(problem.chain, problem.platform, scope=scope, stages=result.plan.stages)
    return found, say_what_it_has(result.plan, found, "p.json")


def test_a_plan_beyond_the_scope_is_named_with_what_would_allow_it() -> None:
    # Room for 2 of 3 GPUs: two micro-batches in 9 ns, or one in 6.
    result = one_after_two(Scope(max_k=2))
    found, said = again(result, Scope(allocation="fixed"))
    assert (result.period, found.period) == (Fraction(9, 2), Fraction(6))
    assert said == (
        "The plan in p.json has 4.5 ns, with k = 2, which the scope asked does not allow "
        "(--max-k 2)"
    )
    assert again(result, Scope(allocation="fixed", max_k=2))[1] is None
    assert again(one_after_two(Scope()), Scope(allocation="fixed"))[1] is None


def test_all_that_is_beyond_is_named() -> None:
    result = one_after_two(Scope(max_k=2, split_backward=True))
    assert result.plan is not None
    kinds = {operation.kind for operation in result.plan.pattern.operations}
    assert "I" in kinds
    said = again(result, Scope(allocation="fixed"))[1]
    assert said is not None
    assert "split backwards" in said
    assert "--split-backward)" in said


def test_nothing_is_said_where_the_memory_is_in_the_way() -> None:
    result = one_after_two(Scope(max_k=2))
    assert result.plan is not None
    problem = result.problem
    less = Platform(3, 1)
    found = solve(problem.chain, less, stages=result.plan.stages)
    assert say_what_it_has(result.plan, found, "p.json") is None


@pytest.mark.parametrize("as_json", [False, True])
def test_solve_prints_it(tmp_path: Path, as_json: bool) -> None:
    path = tmp_path / "plan.json"
    one_after_two(Scope(max_k=2)).save(path)
    done = run("solve", "--fix", path, *(["--json"] if as_json else []))
    assert done.returncode == 0
    assert "with k = 2, which" in (done.stderr if as_json else done.stdout)
    assert "with k = 2, which" not in (done.stdout if as_json else done.stderr)


def test_a_plan_that_only_some_solvers_take_is_still_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=0, activation_bytes=1)
    uneven = (((0, 0), 0), ((1, 1), 1), ((2, 3), 0))
    stages = [Stage(layers=layers, gpus=(gpu,)) for layers, gpu in uneven]
    solve(Chain(layers=(layer,) * 4), Platform(2, 100), stages=stages).save(path)
    shown = printed("solve", "--fix", path, "--mem", "200")
    assert "proven optimal" in shown
