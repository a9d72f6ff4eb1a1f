"""Dutta, Chaki and De, TiMePReSt: which mini-batches the final weights go back to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt.bench.claims.result import Case, Computed, Step, Table, announced
from schedopt.bench.claims.training import Network, make_plan, train
from schedopt.rule import Rule
from schedopt.running.trained import difference

RATE: Final = 0.1

Batches = list[tuple[Tensor, Tensor]]


def find_influence(
    step: Step, differences: Sequence[int] = (1, 2, 3), mini_batches: int = 10
) -> Computed:
    """T4: disturb one mini-batch after the other, and see whether the final weights change.

    Version differences, the first as printed; and as if each update replaced the version read.
    """
    network, data = _network(), _data(mini_batches)
    changed = [_disturb(data, t) for t in range(mini_batches)]
    printed, old_base, apart = {}, {}, 0.0
    for v in announced(step, "v = {}", differences):
        final = train_by_rule(network, v, data)
        printed[v] = [difference([train_by_rule(network, v, one)], final) for one in changed]
        apart = max(apart, difference([train_written_out(network, v, data, newest=True)], final))
        old = train_written_out(network, v, data, newest=False)
        old_base[v] = [
            difference([train_written_out(network, v, one, newest=False)], old) for one in changed
        ]
    names = {"as_printed": printed, "with_the_old_base": old_base}
    return Computed(
        {
            "as printed": unlike_sequences(printed),
            "old base": unlike_sequences(old_base),
            "v = 1": unlike_sequences({1: printed.get(1, [])}),
        },
        {
            "tried": f"v = {', '.join(map(str, differences))}, {mini_batches} mini-batches, each "
            "disturbed, on 3 stages in double precision"
        },
        figures={
            **{
                f"influence_{name}": {str(v): found for v, found in rows.items()}
                for name, rows in names.items()
            },
            "two_ways_apart": apart,
        },
        tables=[
            _table("Influence of each mini-batch, the update as printed", printed),
            _table("The same, each update on the version that was read", old_base),
        ],
    )


def unlike_sequences(influence: Mapping[int, Sequence[float]]) -> list[Case]:
    """Return the mini-batches whose influence, or lack of it, contradicts the claim."""
    return [
        {"v": v, "mini_batch": t + 1, "influence": found}
        for v, row in influence.items()
        for t, found in enumerate(row)
        if (found > 0) != ((len(row) - 1 - t) % v == 0)
    ]


def train_by_rule(network: Network, v: int, data: Batches) -> dict[str, Tensor]:
    """Return the final weights of a run by the rule: gradients at W(t-v+1), on the newest."""
    rule = Rule(update_every=1, forward_reads="delay", delay=v - 1)
    plan = make_plan(network, rule, overlap=v >= len(network.layers))
    return train(network, plan, len(data), data.__getitem__, _sgd)


def train_written_out(
    network: Network, v: int, data: Batches, *, newest: bool
) -> dict[str, Tensor]:
    """Return the final weights of the written-out update, on the newest version or the one read."""
    model = nn.Sequential(*network.layers)
    history = [{name: value.detach() for name, value in model.named_parameters()}]
    for t, (inputs, targets) in enumerate(data):
        old = history[max(0, t - v + 1)]
        read = {name: value.clone().requires_grad_() for name, value in old.items()}
        loss = network.loss(torch.func.functional_call(model, read, (inputs,)), targets)
        gradients = torch.autograd.grad(loss, list(read.values()))
        base = history[t] if newest else old
        pairs = zip(read, gradients, strict=True)
        history.append({name: base[name] - RATE * gradient for name, gradient in pairs})
    return history[-1]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, RATE)


def _network() -> Network:
    draw = torch.Generator().manual_seed(0)
    layers = []
    for _ in range(3):
        layer = nn.Linear(4, 4, dtype=torch.float64)
        with torch.no_grad():
            for value in layer.parameters():
                value.copy_(torch.randn(value.shape, generator=draw, dtype=value.dtype) / 2)
        layers.append(nn.Sequential(layer, nn.Tanh()))
    return Network(layers, nn.functional.mse_loss)


def _data(count: int) -> Batches:
    draw = torch.Generator().manual_seed(1)

    def drawn() -> Tensor:
        return torch.randn(8, 4, generator=draw, dtype=torch.float64)

    return [(drawn(), drawn()) for _ in range(count)]


def _disturb(data: Batches, t: int) -> Batches:
    """Return the data with other targets in one mini-batch."""
    inputs, targets = data[t]
    return [*data[:t], (inputs, -targets), *data[t + 1 :]]


def _table(title: str, influence: Mapping[int, Sequence[float]]) -> Table:
    count = max(map(len, influence.values()))
    return Table(
        title,
        ["v", *(str(t + 1) for t in range(count))],
        [[v, *(f"{x:.1e}" if x else "0" for x in row)] for v, row in influence.items()],
    )
