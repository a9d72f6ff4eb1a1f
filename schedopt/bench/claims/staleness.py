"""Which mini-batches weights go back to, where gradients are taken at older weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt.actions import make_actions
from schedopt.bench.claims.claim import TIMEPREST, Claim, Finding, Part, Reading, Step, Table
from schedopt.bench.claims.training import Trainee, make_plan, train
from schedopt.rule import Rule
from schedopt.running.reference import difference

CLAIM: Final = Claim(
    id="T4",
    says="With version difference v = 2 the weights that are learnt in the end are the effort of "
    "a few mini-batches only: the sequences 1, 3, 5, ... and 2, 4, 6, ... do not interact.",
    sources=(
        f"{TIMEPREST}, section 4.4 and Fig. 7(a)",
        f"{TIMEPREST}, equation 2: W(t+1) = W(t) - eta grad f(W(t-v+1))",
    ),
)
OTHER: Final = (
    "an update replaced the version that its gradient was taken at, W(t+1) = W(t-v+1) - eta grad "
    "f(W(t-v+1)), which is not what is printed"
)
RATE: Final = 0.1
MINI_BATCHES: Final = 10
DIFFERENCES: Final = (1, 2, 3)


def find_influence(
    step: Step, differences: Sequence[int] = DIFFERENCES, mini_batches: int = MINI_BATCHES
) -> Finding:
    """Disturb one mini-batch after the other, and see whether the final weights change."""
    trainee, data = _trainee(), _data(mini_batches)
    printed, old_base, apart = {}, {}, 0.0
    for v in differences:
        step(f"v = {v}, the update that is printed")
        printed[v] = [
            _influence(trainee, v, data, _disturbed(data, t)) for t in range(mini_batches)
        ]
        apart = max(
            apart, difference([_walk(trainee, v, data, newest=True)], _train(trainee, v, data))
        )
        step(f"v = {v}, updates of the version that was read")
        whole = _walk(trainee, v, data, newest=False)
        old_base[v] = [
            difference([_walk(trainee, v, _disturbed(data, t), newest=False)], whole)
            for t in range(mini_batches)
        ]
    tried = (
        f"v = {', '.join(map(str, differences))}, {mini_batches} mini-batches, each disturbed, on "
        "3 stages in double precision"
    )
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="with v > 1 only every v-th mini-batch has a say in the final weights",
                readings=[Reading(tried=tried, counterexamples=unlike_sequences(printed))],
            ),
            Part(
                says=f"it were so if {OTHER}",
                readings=[Reading(tried=tried, counterexamples=unlike_sequences(old_base))],
            ),
            Part(
                says="with v = 1 all of them have",
                readings=[
                    Reading(
                        tried=tried,
                        counterexamples=unlike_sequences({1: printed.get(1, [])}),
                    )
                ],
            ),
        ],
        figures={
            "influence_as_printed": {str(v): found for v, found in printed.items()},
            "influence_with_the_old_base": {str(v): found for v, found in old_base.items()},
            "two_ways_apart": apart,
        },
        notes=[
            "Influence: the largest change of a final weight over the largest weight, when the "
            "targets of one mini-batch change their sign. Under the printed update every gradient "
            "is added to the newest weights, so that all stay in; two sequences that never meet "
            "need another update."
        ],
        tables=[
            _table("Influence of each mini-batch, the update as printed", printed),
            _table("The same, each update on the version that was read", old_base),
        ],
    )


def unlike_sequences(influence: dict[int, list[float]]) -> list[dict[str, Any]]:
    """Return the mini-batches that have a say though the claim denies it, or none though not."""
    wrong = []
    for v, found in influence.items():
        for t, one in enumerate(found):
            in_sequence = (len(found) - 1 - t) % v == 0
            if (one > 0) != in_sequence:
                wrong.append({"v": v, "mini_batch": t + 1, "influence": one})
    return wrong


Batches = list[tuple[Tensor, Tensor]]


def _influence(trainee: Trainee, v: int, data: Batches, disturbed: Batches) -> float:
    return difference([_train(trainee, v, disturbed)], _train(trainee, v, data))


def _train(trainee: Trainee, v: int, data: Batches) -> dict[str, Tensor]:
    """Return the final weights of a run by the rule: gradients at W(t-v+1), on the newest."""
    rule = Rule(update_every=1, forward_reads="delay", delay=v - 1)
    plan = make_plan(trainee, rule, overlap=v >= len(trainee.layers))
    actions = make_actions(plan, len(data))
    return train(trainee, plan, actions, data.__getitem__, _sgd).weights


def _walk(trainee: Trainee, v: int, data: Batches, *, newest: bool) -> dict[str, Tensor]:
    """Return the final weights of the written-out update, on the newest version or the one read."""
    model = nn.Sequential(*trainee.layers)
    names = [name for name, _ in model.named_parameters()]
    history = [{name: one.detach() for name, one in model.named_parameters()}]
    for t, (inputs, targets) in enumerate(data):
        read = {
            name: one.clone().requires_grad_() for name, one in history[max(0, t - v + 1)].items()
        }
        loss = trainee.loss(torch.func.functional_call(model, read, (inputs,)), targets)
        gradients = torch.autograd.grad(loss, [read[name] for name in names])
        base = history[t if newest else max(0, t - v + 1)]
        history.append(
            {
                name: base[name] - RATE * gradient
                for name, gradient in zip(names, gradients, strict=True)
            }
        )
    return history[-1]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE)


def _trainee() -> Trainee:
    draw = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(3):
        layer = nn.Linear(4, 4, dtype=torch.float64)
        with torch.no_grad():
            for one in layer.parameters():
                one.copy_(torch.randn(one.shape, generator=draw, dtype=one.dtype) / 2)
        layers.append(nn.Sequential(layer, nn.Tanh()))
    return Trainee(layers, nn.functional.mse_loss)


def _data(count: int) -> Batches:
    draw = torch.Generator().manual_seed(1)

    def drawn() -> Tensor:
        return torch.randn(8, 4, generator=draw, dtype=torch.float64)

    return [(drawn(), drawn()) for _ in range(count)]


def _disturbed(data: Batches, t: int) -> Batches:
    """Return the data with other targets in one mini-batch."""
    inputs, targets = data[t]
    return [*data[:t], (inputs, -targets), *data[t + 1 :]]


def _table(title: str, influence: dict[int, list[float]]) -> Table:
    count = max(map(len, influence.values()))
    return Table(
        title=title,
        header=["v", *(str(t + 1) for t in range(count))],
        rows=[[v, *(f"{one:.1e}" if one else "0" for one in found)]
              for v, found in influence.items()],
    )  # fmt: skip
