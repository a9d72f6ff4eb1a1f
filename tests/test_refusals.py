"""What says nothing is refused where it is given: by field, and by the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from schedopt import (
    Chain,
    Gpu,
    InputError,
    Layer,
    Operation,
    Pattern,
    Platform,
    Problem,
    Recipe,
    Result,
    Rule,
    Scope,
    Stage,
    Transfer,
    check,
    compare,
    solve,
)
from schedopt.account import find_binding, load, memory, versions
from schedopt.drawing import chart_plan, chart_simulation, picture_suffix, render_chart
from schedopt.drawing.picture import draw_picture
from schedopt.problem import training_step
from schedopt.simulation import simulate
from schedopt.sweeping import Options, ProcessPool, run_sweep
from tests.refusals import assert_refused

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=30, activation_bytes=4)
GPU = Gpu(memory_bytes=10)
PROBLEM = Problem(chain=Chain(layers=(LAYER,)), platform=Platform(1, 100))
FORWARD = Operation(kind="F", stage=0, shift=0, start_ns=0)
BACKWARD = Operation(kind="B", stage=0, shift=-3, start_ns=1)
DIGITS = 10**5000
FAST: dict[str, Any] = {"gpus": 2, "memory": 1}

Case = tuple[dict[str, Any], str, str]
"""Arguments, the field that is named, and some of the rule."""

REFUSED: dict[Callable[..., object], list[Case]] = {
    partial(Chain, layers=(LAYER, LAYER)): [
        ({"layers": ()}, "layers", "at least one layer"),
        ({"layers": 3}, "layers", "3 is not a sequence"),
        ({"layers": [LAYER, 3]}, "layers[1]", "3 is not a Layer"),
        ({"layers": (LAYER,) * 4097}, "layers", ""),
        ({"name": 3}, "name", "3 is not text"),
        ({"provenance": [1]}, "provenance", "not a mapping"),
        ({"input_bytes": -1}, "input_bytes", "-1 is out of range"),
        ({"input_bytes": 2**50 + 1}, "input_bytes", "out of range"),
        ({"input_bytes": True}, "input_bytes", "True is not a whole number"),
        ({"input_bytes": DIGITS}, "input_bytes", "a number of 5001 digits is out of range"),
        ({"input_bytes": -DIGITS}, "input_bytes", "a number of 5001 digits is out of range"),
        ({"same_gpu": 3}, "same_gpu", "3 is not a sequence"),
        ({"same_gpu": [3]}, "same_gpu[0]", "3 is not a sequence"),
        ({"same_gpu": [["a", "b"]]}, "same_gpu[0][0]", "'a' is not a whole"),
        ({"same_gpu": [[0, 1.0]]}, "same_gpu[0][1]", "1.0 is not a whole"),
        ({"same_gpu": [[0, True]]}, "same_gpu[0][1]", "True is not a whole"),
        ({"same_gpu": [[-1, 0]]}, "same_gpu[0][0]", "-1 is out of range"),
        *(
            ({"same_gpu": groups}, f"same_gpu[{len(groups) - 1}]", "")
            for groups in ([[0]], [[1, 0]], [[0, 0]], [[0, 2]], [[0, 1], [0, 1]])
        ),
        ({"copied": [[0]]}, "copied[0]", "[0] is not a group of layers"),
        ({"same_gpu": [[0, 1]], "copied": [[0, 1]]}, "copied[0]", "layer 0 is in two groups"),
        ({"copied": [[0, 1]]}, "layers[1].tied_parameter_bytes", "absent, and a copy of tied"),
    ],
    partial(Recipe, factory="a:b"): [
        ({"arguments": 3}, "arguments", ""),
        ({"cuts": 3}, "cuts", ""),
    ],
    partial(Platform): [
        ({"gpus": "8", "memory": 1}, "gpus", "neither a number nor a list"),
        ({"gpus": 2.5, "memory": 1}, "gpus", "neither a number nor a list"),
        ({"gpus": None}, "gpus", "neither a number nor a list"),
        ({"gpus": []}, "gpus", "0 GPUs are out of range"),
        ({"gpus": [GPU, "x"]}, "gpus[1]", "'x' is not a Gpu"),
        ({"gpus": 0, "memory": 1}, "gpus", ""),
        ({"gpus": -1, "memory": 1}, "gpus", "-1 is out of range"),
        ({"gpus": 10**9, "memory": 1}, "gpus", "out of range"),
        ({"gpus": DIGITS, "memory": 1}, "gpus", "5001 digits"),
        ({"gpus": True, "memory": 1}, "gpus", "True is not a whole number"),
        ({"gpus": [GPU], "memory": 1}, "memory", "given with a list"),
        ({"gpus": 2}, "memory", "not given"),
        ({"gpus": 1, "memory": 1.5e9}, "memory", "1500000000.0 is not a size"),
        ({"gpus": 2, "memory": []}, "memory", "0 entries for 2 GPUs"),
        ({"gpus": 3, "memory": ["1G", "2G"]}, "memory", "2 entries for 3"),
        ({"gpus": 1, "memory": ["1G", "2G"]}, "memory", "2 entries for 1 GPU"),
        ({"gpus": 1, "memory": DIGITS}, "memory_bytes", "5001 digits"),
        (FAST | {"speed": [1, 1, 1]}, "speed", "3 entries for 2"),
        (FAST | {"speed": 0.5}, "speed", ""),
        (FAST | {"speed": 0}, "speed", ""),
        (FAST | {"speed": DIGITS}, "speed", "5001 digits"),
        (FAST | {"speed": "0.0009"}, "speed", "out of range"),
        (FAST | {"speed": "1000.1"}, "speed", "out of range"),
        (FAST | {"speed": True}, "speed", "not an exact decimal"),
        (FAST | {"bandwidth": 0}, "bandwidth", "0 is not a rate"),
        (FAST | {"latency": "5us"}, "latency", ""),
        (FAST | {"bandwidth": 1, "duplex": "both"}, "duplex", ""),
        (FAST | {"reserved": 2}, "reserved_bytes", ""),
    ],
    partial(Rule): [
        ({"delay": 1, "update_every": 2}, "delay", ""),
        ({"forward_reads": "table", "update_every": 2}, "table", ""),
        ({"table": [[0]], "update_every": 2}, "table", ""),
        ({"forward_reads": "entry"}, "update_every", ""),
        ({"update_every": 0}, "update_every", ""),
        ({"backward_reads": "old", "update_every": 1}, "backward_reads", ""),
    ],
    partial(Rule, update_every=1, forward_reads="table"): [
        ({"table": 3}, "table", ""),
        ({"table": [1]}, "table[0]", ""),
        ({"table": [[]]}, "table[0]", ""),
        ({"table": [[0, 1], [0]]}, "table[1]", ""),
        ({"table": [["a"]]}, "table[0][0]", ""),
        ({"table": [[0, 1.5]]}, "table[0][1]", ""),
        ({"table": [[0], [True]]}, "table[1][0]", ""),
        ({"table": [[-1]]}, "table[0][0]", ""),
        ({"table": [[2**20 + 1]]}, "table[0][0]", ""),
    ],
    partial(Problem, chain=Chain(layers=(LAYER, LAYER)), platform=Platform(2, "1G")): [
        ({"chain": "chain.json"}, "chain", "is not a Chain"),
        ({"scope": Scope(split_backward=True)}, "layers[0].backward_input_ns", ""),
        ({"rule": Rule(update_every=2)}, "layers[0].parameter_bytes", ""),
        ({"scope": Scope(allocation="fixed")}, "stages", ""),
        ({"stages": [Stage(layers=(0, 1), gpus=(0,))]}, "stages", ""),
        ({"platform": Platform(2, 1, bandwidth=1, latency="100000s")}, "latency", "take 4000"),
    ],
    partial(Stage, layers=(0, 1), gpus=(0,)): [
        ({"layers": (0,)}, "layers", ""),
        ({"layers": (0, 1, 2)}, "layers", ""),
        ({"layers": 3}, "layers", ""),
        ({"layers": (0.5, 1)}, "layers[0]", ""),
        ({"gpus": ()}, "gpus", ""),
        ({"gpus": ["a"]}, "gpus[0]", ""),
        ({"gpus": [0, True]}, "gpus[1]", ""),
        ({"recompute": [0]}, "recompute[0]", ""),
        ({"recompute": [(0, 1), (0,)]}, "recompute[1]", ""),
        ({"recompute": [(0, 1, 2)]}, "recompute[0]", ""),
        ({"recompute": [(0, "1")]}, "recompute[0][1]", ""),
        ({"shard": "weights"}, "shard", "not known"),
    ],
    partial(Operation, kind="F", stage=0, shift=0, start_ns=0): [
        ({"kind": "X"}, "kind", ""),
        ({"kind": ["F"]}, "kind", ""),
        ({"stage": -1}, "stage", ""),
        ({"shift": 0.5}, "shift", ""),
        ({"start_ns": -1}, "start_ns", ""),
        ({"covers": 0}, "covers", ""),
        ({"replica": 1}, "replica", ""),
        ({"kind": "I", "replica": -1}, "replica", ""),
        ({"kind": "W", "replica": 0.5}, "replica", ""),
    ],
    partial(Transfer, stage=0, shift=0, start_ns=0): [
        ({"tensor": "activation", "source": 0, "target": 1}, "source", ""),
        ({"tensor": "weights"}, "source", ""),
        ({"tensor": "weights", "source": 0, "target": 1, "mode": "reduce"}, "mode", ""),
        ({"tensor": "weights", "source": 0, "target": 1, "covers": 2}, "covers", ""),
        ({"tensor": "gradient", "chunks": 2}, "mode", ""),
        ({"tensor": "weights", "source": 0, "target": 1, "chunk": 2, "chunks": 2}, "chunk", ""),
    ],
    partial(Transfer, tensor="weight_half", stage=0, shift=0, start_ns=0, source=0, target=1): [
        ({"source": None}, "source", ""),
        ({"target": None}, "target", ""),
        ({"chunks": 2}, "mode", ""),
        ({"mode": "reduce"}, "mode", ""),
        ({"covers": 2}, "covers", ""),
    ],
    partial(Pattern, k=1, period_total_ns=3, operations=(FORWARD, BACKWARD)): [
        ({"k": 0}, "k", ""),
        ({"period_total_ns": 0}, "period_total_ns", ""),
        ({"period_total_ns": 1}, "operations[1].start_ns", ""),
        ({"operations": [FORWARD, 1]}, "operations[1]", ""),
        ({"transfers": [FORWARD]}, "transfers[0]", ""),
    ],
}


@pytest.mark.parametrize(
    ("make", "arguments", "field", "rule"),
    [
        pytest.param(make, *case, id=f"{make.func.__name__}-{number}")  # type: ignore[attr-defined]
        for make, cases in REFUSED.items()
        for number, case in enumerate(cases)
    ],
)
def test_what_says_nothing_is_refused_by_field(
    make: Callable[..., object], arguments: dict[str, Any], field: str, rule: str
) -> None:
    with pytest.raises(InputError) as caught:
        make(**arguments)
    assert caught.value.field == field
    assert rule in caught.value.rule


@pytest.mark.parametrize("subject", [None, "plan.json", 3, float("nan"), [1]])
def test_what_is_no_plan_is_not_checked(subject: Any) -> None:
    with pytest.raises(InputError, match="neither a Plan nor a Result") as caught:
        check(subject)
    assert caught.value.field == "subject"


@pytest.mark.parametrize(
    "use", [memory, load, versions, find_binding, partial(simulate, microbatches=1)]
)
@pytest.mark.parametrize("subject", [None, "plan.json", Result(problem=PROBLEM, status="unknown")])
def test_what_is_no_plan_costs_nothing(use: Callable[[Any], object], subject: Any) -> None:
    assert_refused(lambda: use(subject), "plan", "is not a Plan", way_out="the `plan` of a result")


@pytest.mark.parametrize("value", [None, "plan.json", PROBLEM, [1]])
@pytest.mark.parametrize(
    ("use", "field", "kind"),
    [
        (chart_plan, "result", "Result"),
        (chart_simulation, "simulation", "Simulation"),
        (partial(render_chart, width=80), "chart", "Chart"),
        (draw_picture, "chart", "Chart"),
        (lambda it: training_step(it, PROBLEM.platform, 4), "chain", "Chain"),
        (lambda it: solve(it, PROBLEM.platform, batch=4), "chain", "Chain"),
        (lambda it: run_sweep(it, PROBLEM.chain, [], ProcessPool(1)), "sweep", "Sweep"),
        (lambda it: Options(scope=it), "scope", "Scope"),
    ],
)
def test_what_is_of_another_kind_is_refused_by_name(
    use: Callable[[Any], object], field: str, kind: str, value: Any
) -> None:
    assert_refused(lambda: use(value), field, f"is not a {kind}", way_out="Give ")


@pytest.mark.parametrize("value", ["5", [5], float("nan"), 0, -1, True, {}])
def test_what_is_no_time_limit_is_refused_everywhere(value: Any) -> None:
    ask = (PROBLEM.chain, PROBLEM.platform)
    uses: list[tuple[Callable[[], object], str]] = [
        (lambda: solve(*ask, time_limit=value), "time_limit"),
        (lambda: compare(*ask, systems=["gpipe"], time_limit=value), "time_limit"),
        (lambda: Options(time_limit_s=value), "time_limit_s"),
    ]
    for use, field in uses:
        assert_refused(use, field, "is not a time limit", way_out="Give seconds > 0")


@pytest.mark.parametrize("plans", [3, "plan.json", [PROBLEM]])
def test_plans_to_compare_with_are_a_mapping(plans: Any) -> None:
    ask = partial(compare, PROBLEM.chain, PROBLEM.platform, systems=["gpipe"], plans=plans)
    assert_refused(ask, "plans", "is not a mapping", way_out="Give a dict")


def test_what_is_compared_with_is_a_plan() -> None:
    plans: Any = {"now": PROBLEM}
    ask = partial(compare, PROBLEM.chain, PROBLEM.platform, plans=plans)
    assert_refused(ask, "plan", "is not a Plan")


@pytest.mark.parametrize("words", [np.array(["sum", "peak"]), np.array(["sum"]), {}, None])
def test_a_word_that_is_none_is_not_known(words: Any) -> None:
    assert_refused(lambda: Scope(memory=words), "memory", "is not known")


@pytest.mark.parametrize("stages", [3, "even"])
def test_stages_that_are_none_are_refused(stages: Any) -> None:
    chain, platform = PROBLEM.chain, PROBLEM.platform
    assert_refused(lambda: solve(chain, platform, stages=stages), "stages", "is not a sequence")


@pytest.mark.parametrize("path", [None, 3, 3.5, [1]])
def test_what_is_no_path_is_neither_read_nor_written(path: Any) -> None:
    chain = Chain(layers=(LAYER,))
    for use in (Chain.load, Platform.load, Result.load, chain.save, picture_suffix):
        with pytest.raises(InputError, match=r"^[^:]* is not a path"):
            use(path)
