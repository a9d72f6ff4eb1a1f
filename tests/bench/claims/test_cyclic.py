"""Cyclic data parallelism: plans, costs, Algorithm 1 and cuts, N = 2 and 3 by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from schedopt import Chain, Platform
from schedopt.bench.claims import cyclic, cyclic_algorithm, cyclic_cuts
from schedopt.bench.claims.cyclic import computing, cyclic_plan, draw_timeline, kept_spans, slack
from schedopt.bench.claims.cyclic_algorithm import (
    CORRECTIONS,
    PRIME,
    Process,
    Receive,
    Send,
    Training,
    Where,
    run,
    train_by_rule,
    try_out,
)
from schedopt.bench.claims.cyclic_costs import PARALLELISMS, fits, measure_costs, sum_first
from schedopt.bench.claims.cyclic_cuts import best_bottleneck, compare_cuts, module_flops, share_out
from schedopt.bench.claims.cyclic_gpus import colour_circle, colour_line
from schedopt.bench.claims.plans import equal_stages, plain_layer
from schedopt.checking import check
from schedopt.profiling import Model
from schedopt.systems import data_parallel
from tests.bench.claims.results import compute, small, verdicts
from tests.budgets import trials
from tests.solvers.brute_force import all_allocations


def test_two_stages_by_hand() -> None:
    # F1 F2 B2 B1 from 0 on and from 2 on; stage 1 keeps for 4 steps, stage 2 for 2.
    plan = cyclic_plan("v2", 2)
    first, second = kept_spans(plan)
    assert {end - start for _, start, end in first} == {4}
    assert {end - start for _, start, end in second} == {2}
    assert sorted(start % 4 for _, start, _ in second) == [1, 3]
    assert computing(plan) == [1]
    # Stage 2 is updated at 5, stage 1 at 6. Worker 1 reads at 4 (of stage 1 the version before,
    # made at 2) and 5; worker 2 at 6 and 7.
    assert slack(plan) == [[2, 0], [0, 2]]


def test_counterexamples_tell_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(name: str, count: int, times: tuple[int, int] = (1, 1)) -> Any:
        return data_parallel.overlapped(equal_stages(count, count, times))

    monkeypatch.setattr(cyclic, "cyclic_plan", plain)
    # All begin at 0.
    assert compute("C1", largest=2).counterexamples[0]["starts"] == [0, 0]
    monkeypatch.setattr(cyclic, "kept_spans", lambda plan: [[(1, 0, 9)]])
    assert compute("C2", largest=2).counterexamples[0]["steps"] == [9]


@pytest.mark.parametrize("name", ["dp", "v1", "v2"])
def test_timelines_are_drawn(name: str) -> None:
    texts = [text.get_text() for text in draw_timeline(name).findobj() if hasattr(text, "get_text")]
    assert any("GPU 2" in text for text in texts)


def test_activations_of_three_stages() -> None:
    rows = {row[0]: row[1:] for row in small("C3").computed.tables[0].rows}
    # 3 + 2 + 1 thirds in a cycle; without those that run F just now, one less.
    assert rows[3][:4] == ["3", "3", "2", "2"]
    assert rows[3][6] == "5/3"


def test_shares_that_are_delayed_and_slack() -> None:
    figures: Any = small("C4").computed.figures
    assert figures["delayed"][0] == {"N": 2, "v1": "1", "v2": "1/4", "left": "1/4"}
    assert figures["pairs_without_slack"] == {"2": 2, "3": 3, "4": 4}
    assert [case["periods"][0] for case in figures["periods_with_transfers"]] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("spans", "length", "line", "circle"),
    [
        ([(0, 4), (4, 8)], 8, 1, 1),
        ([(0, 4), (2, 6), (4, 8)], 12, 2, 2),
        # Arcs of 4 on a circle of 6: no two fit on a GPU, though no instant sees more than 2.
        ([(0, 4), (2, 6), (4, 8)], 6, 2, 3),
    ],
)
def test_colours(spans: list[tuple[int, int]], length: int, line: int, circle: int) -> None:
    assert colour_line(spans) == line
    assert colour_circle(spans, length) == circle


def test_a_moving_assignment_needs_fewer_gpus_than_a_pinned_one() -> None:
    found = small("C5")
    assert [text.partition(" runs on ")[2][:11] for text in found.conventions] == ["another GPU"]
    # Three micro-batches in stage 2 of 3, each for 4 of 6 steps.
    assert found.computed.figures["gpus"][1] == {"N": 3, "pinned": 7, "all": 6, "printed": 6}
    repeats = found.computed.figures["training_steps_until_the_moving_assignment_repeats"]
    assert repeats == {"2": 1, "3": 2}


def test_a_ring_of_three() -> None:
    found = measure_costs(PARALLELISMS["Multi-GPU DP"].plan(3))
    # 2 (N - 1) / N of all parameters for each GPU; 4 rounds, in each a message comes and one goes.
    names = ("weights_sent", "messages", "activations", "parameters", "gpus", "delay")
    assert [int(found[name]) for name in names] == [1, 8, 1, 1, 3, 0]


def test_a_pyramid_of_three() -> None:
    plan = PARALLELISMS["DP with MP, cyclic"].plan(3)
    found = measure_costs(plan)
    # Parameters go to 2 and 1 more GPUs; gradients pass two hops in the first two stages, where a
    # sum for each GPU would take 2 and 1. All of 2 x 2 x 3 hops of the ring.
    assert found["weights_sent"] == Fraction(3 + 4, 12)
    assert found["gpus"] == 6
    assert found["activations"] == Fraction(1, 3)
    other = sum_first(plan)
    assert check(other) == ()
    assert measure_costs(other)["weights_sent"] == Fraction(3 + 3, 12)
    # Two boundaries, both ways, for outputs of three stages.
    assert found["activations_sent"] == Fraction(4, 3)


def test_two_versions_and_one() -> None:
    found = measure_costs(PARALLELISMS["PP"].plan(2))
    # Parameters, gradients and states of a stage of two, and another version of the parameters.
    assert found["parameters"] == Fraction(4, 6)
    assert found["parameters_once"] == Fraction(1, 2)
    assert found["activations"] == 1


def test_orders_of_growth() -> None:
    assert [fits(Fraction(messages), "O(1)", 100) for messages in (6, 7)] == [True, False]
    assert [fits(Fraction(messages), "O(log N)", 8) for messages in (12, 13)] == [True, False]


def test_what_is_wrong_as_printed_is_named() -> None:
    rows: Any = small("C6").computed.figures["rows"]
    assert rows["Multi-GPU DP, cyclic"]["wrong_as_printed"] == ["parameters"]
    names = ["activations_sent", "parameters", "weights_sent"]
    assert rows["DP with MP, cyclic"]["wrong_as_printed"] == names


ONE, TWO, THREE = (1, 0), (2, 0), (3, 0)


def talk(*script: Send | Receive, got: list[object] | None = None) -> Process:
    for action in script:
        content = yield action
        if isinstance(action, Receive) and got is not None:
            got.append(content)


def test_messages_come_in_the_order_in_which_they_are_sent() -> None:
    got: list[object] = []
    receiver = talk(Receive(ONE, "x"), Receive(ONE, "y"), Receive(ONE, "x"), got=got)
    sender = talk(Send(TWO, "x", 1), Send(TWO, "x", 2), Send(TWO, "y", 3))
    outcome = run({TWO: receiver, ONE: sender}, 100)
    assert got == [1, 3, 2]
    assert outcome.completes
    assert outcome.unmatched == []


def test_who_waits_in_a_circle_is_named() -> None:
    processes: dict[Where, Process] = {
        ONE: talk(Receive(TWO, "x")),
        TWO: talk(Send(THREE, "y", 0), Receive(THREE, "x"), Send(ONE, "x", 0)),
        THREE: talk(Receive(TWO, "x")),
    }
    outcome = run(processes, 100)
    assert outcome.circle == (TWO, THREE)
    assert outcome.waiting[ONE] == Receive(TWO, "x")
    assert outcome.unmatched == [(TWO, THREE, "y")]


def test_an_endless_run_is_cut_off() -> None:
    def forever() -> Process:
        while True:
            yield Send(ONE, "x", 0)

    assert run({ONE: forever()}, 50).endless


def test_as_printed_all_wait_for_parameters() -> None:
    case = try_out(2, 3, ())
    # Stage 1: worker 2 waits for itself. Stage 2: 1 for 2, and 2 for 1.
    assert not case["ends"]
    assert case["waits"] == "circle (1, 2) waits for (2, 2) waits for (1, 2)"
    assert case["unmatched"] == []


def test_the_rule_begins_as_plain_gradient_descent() -> None:
    training = Training(2, 1)
    a, b = training.initial(1), training.initial(2)
    half = pow(2, -1, PRIME)
    errors = {n: training.error(0, n, a * b * training.sample(0, n)) for n in (1, 2)}
    inputs = {n: training.sample(0, n) for n in (1, 2)}
    assert train_by_rule(training) == {
        1: (a - half * sum(b * inputs[n] * errors[n] for n in (1, 2))) % PRIME,
        2: (b - half * sum(a * inputs[n] * errors[n] for n in (1, 2))) % PRIME,
    }


def test_each_correction_is_needed() -> None:
    found = small("C7")
    assert found.computed.figures["needed"] == dict.fromkeys(CORRECTIONS, True)
    # A kind reader still has nobody who sends the first parameters: in stage 1 worker 2 receives
    # them from worker N = 2.
    kind = found.sections[0].readings[1].counterexamples
    assert kind[0]["waits"] == "circle (2, 1) waits for (2, 1)"


@pytest.mark.parametrize("name", CORRECTIONS)
def test_without_a_correction_it_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {key: text for key, text in CORRECTIONS.items() if key != name}
    monkeypatch.setattr(cyclic_algorithm, "CORRECTIONS", rest)
    assert verdicts("C7", largest=2, steps=3)[-1] == "no"


@pytest.mark.parametrize(
    ("costs", "stages", "side", "parts"),
    [
        ([1, 1, 1, 1], 2, "left", [[1, 1], [1, 1]]),
        # The share 2 is reached by the second; it goes behind the cut.
        ([1, 1, 1, 1], 2, "right", [[1], [1, 1, 1]]),
        ([1, 5, 1, 1], 2, "left", [[1, 5], [1, 1]]),
        ([1, 5, 1, 1], 2, "right", [[1], [5, 1, 1]]),
        ([9, 1, 1], 3, "left", [[9], [], [1, 1]]),
        ([0, 6, 0, 3], 3, "left", [[0, 6], [], [0, 3]]),
    ],
)
def test_shares_by_hand(costs: list[int], stages: int, side: str, parts: list[list[int]]) -> None:
    assert share_out(costs, stages, side) == parts


@trials(100)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 4))
def test_the_best_by_trying_all_cuts(costs: list[int], stages: int) -> None:
    chain = Chain(layers=tuple(plain_layer(cost, 0) for cost in costs))
    best = min(
        max(sum(costs[first : last + 1]) for first, last, _ in cuts)
        for cuts in all_allocations(chain, Platform(stages, 1))
    )
    assert best_bottleneck(costs, stages) == best
    assert best <= compare_cuts(costs, stages)["largest"] <= 2 * best
    assert [one for part in share_out(costs, stages, "left") for one in part] == costs


def test_modules_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = self.one(value)
            # No module does this: it goes to the next one.
            value = value @ value.T @ value
            out: torch.Tensor = self.two(value)
            return out

    def load(name: str) -> Model:
        return Model(module=Net(), inputs=torch.ones(2, 8))

    monkeypatch.setattr(cyclic_cuts, "load_model", load)
    # Two products of 64 outside of any module, and 128 of the second.
    assert module_flops("net") == [2 * 2 * 8 * 8, 16, 256, 16]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([1] * 8, ["yes", "yes"]),
        # The first share of 9.25 is reached by the second 7: 7 7, where 7 | 7 1 5 | 9 | 8 is best.
        ([7, 7, 1, 5, 9, 8], ["if", "if"]),
    ],
)
def test_verdicts_on_cuts(
    costs: list[int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cyclic_cuts, "module_flops", lambda name: costs)
    monkeypatch.setattr(cyclic_cuts, "cut_flops", lambda name: costs)
    small: dict[str, Any] = {"models": ["resnet18"], "stages": [2, 4]}
    assert verdicts("C9", **small) == expected
    monkeypatch.setattr(cyclic_cuts, "share_out", lambda costs, stages, side: [costs, []])
    assert verdicts("C9", **small) == ["no", "no"]
