"""Influence of mini-batches on final weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from schedopt.actions import make_actions
from schedopt.bench.claims import staleness
from schedopt.bench.claims.staleness import find_influence, unlike_sequences
from schedopt.bench.claims.training import Trainee, make_plan, train
from schedopt.rule import Rule
from tests.bench.claims.findings import nothing


def one_number(value: float) -> Trainee:
    """Return two stages, w x and nothing more, with the loss 0.5 (w x - y)^2."""
    layers = [nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()]
    with torch.no_grad():
        layers[0].weight.fill_(value)
        layers[1].weight.fill_(1.0)
    layers[1].weight.requires_grad_(False)
    return Trainee(layers, lambda found, wanted: 0.5 * ((found - wanted) ** 2).mean())


@pytest.mark.parametrize(("delay", "weights"), [(0, [3, 2, 1.5]), (1, [3, 2, 1])])
def test_a_training_reads_the_versions_of_its_rule(delay: int, weights: list[float]) -> None:
    # x = 1, y = 1, rate 0.5: w - 0.5 (r - 1), where r is w or the weight before.
    trainee = one_number(weights[0])
    data = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
    rule = Rule(update_every=1, forward_reads="delay", delay=delay)
    plan = make_plan(trainee, rule, overlap=bool(delay))
    for updates in (1, 2):
        actions = make_actions(plan, updates)
        found = train(trainee, plan, actions, lambda i: data, lambda p: torch.optim.SGD(p, 0.5))
        assert float(found.weights["0.weight"]) == weights[updates]
    (weight,) = trainee.layers[0].parameters()
    assert weight.item() == weights[0]


def test_sequences() -> None:
    assert unlike_sequences({2: [0, 1, 0, 1]}) == []
    assert [case["mini_batch"] for case in unlike_sequences({2: [1, 1, 0, 0]})] == [1, 4]
    assert unlike_sequences({1: [1, 1], 3: [1, 0, 0, 1]}) == []


def test_as_printed_all_have_a_say() -> None:
    found = find_influence(nothing, (1, 2), 4)
    assert found.verdict == "fails"
    assert [part.verdict for part in found.parts] == ["fails", "holds", "holds"]
    assert [case["mini_batch"] for case in found.counterexamples] == [1, 3]
    # By the plan and by the update written out, the weights are the same.
    assert found.figures["two_ways_apart"] < 1e-12


def test_were_the_update_another_the_claim_would_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def old_base(trainee: Any, v: int, data: Any) -> Any:
        return staleness._walk(trainee, v, data, newest=False)

    monkeypatch.setattr(staleness, "_train", old_base)
    assert find_influence(nothing, (1, 2), 4).verdict == "holds"
