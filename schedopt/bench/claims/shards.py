"""Whether data parallelism gives the gradients of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt.bench.claims.claim import DATA_PARALLEL, Claim, Finding, Part, Reading, Step, Table
from schedopt.running.reference import difference

CLAIM: Final = Claim(
    id="B1",
    says="Data-parallel training is sequentially consistent: the mean of the gradients of the "
    "shards is the gradient of the whole mini-batch, up to the order of summation; batch norm is "
    "an exception.",
    sources=(
        f"{DATA_PARALLEL}, Data-Parallel Training",
        f"{DATA_PARALLEL}, notes on batch norm, on SGD and Adam, and on floating-point sums",
    ),
)
EQUAL: Final = "all shards have the same number of samples"
BATCH: Final = 64
NODES: Final = (2, 3, 4, 8)
CLOSE: Final = {torch.float64: 1e-12, torch.float32: 1e-4}
"""Relative differences that rounding may make here; one sample more or less makes 1e-2."""

Gradients = dict[str, Tensor]


def find_consistency(step: Step, nodes: Sequence[int] = NODES) -> Finding:
    """Add up the gradients of shards in two orders, and compare with those of the whole."""
    equal, unequal, norm = [], [], []
    for dtype in CLOSE:
        for count in nodes:
            step(f"{count} nodes, {_name(dtype)}")
            equal.append(compare(count, dtype))
            unequal.append(compare(count, dtype, uneven=True))
            norm.append(compare(count, dtype, batch_norm=True))
    step("weights instead of gradients")
    sgd, adam = _weights_instead("SGD"), _weights_instead("Adam")
    exact = [case for case in equal if case["bits"] == "equal" and case["orders"] == "equal"]
    tried = (
        f"{', '.join(map(str, nodes))} nodes, a mini-batch of {BATCH} or the next multiple of the "
        "nodes, float64 and float32, two orders of summation"
    )
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="the mean of the shards' gradients is the gradient of the whole, but for "
                "rounding",
                readings=[
                    Reading(tried=tried, counterexamples=_apart([*equal, *unequal])),
                    Reading(convention=EQUAL, tried=tried, counterexamples=_apart(equal)),
                ],
            ),
            Part(
                says="the bits differ from those of the whole or between orders",
                readings=[Reading(tried=tried, counterexamples=exact)],
            ),
            Part(
                says="with batch norm the gradients are others",
                readings=[
                    Reading(
                        tried=tried,
                        counterexamples=[case for case in norm if case not in _apart(norm)],
                    )
                ],
            ),
            Part(
                says="a step of SGD may average weights instead of gradients, one of Adam may not",
                readings=[
                    Reading(
                        tried="two steps on 4 nodes in float64",
                        counterexamples=[
                            {"optimizer": name, "difference": found}
                            for name, found, close in (("SGD", sgd, True), ("Adam", adam, False))
                            if (found <= CLOSE[torch.float64]) != close
                        ],
                    )
                ],
            ),
        ],
        figures={
            **{
                f"largest_difference_{_name(dtype)}": max(
                    case["difference"] for case in equal if case["dtype"] == _name(dtype)
                )
                for dtype in CLOSE
            },
            "smallest_difference_of_unequal_shards": min(
                (case["difference"] for case in unequal), default=None
            ),
            "smallest_difference_with_batch_norm": min(case["difference"] for case in norm),
            "weights_averaged_sgd": sgd,
            "weights_averaged_adam": adam,
        },
        tables=[
            Table(
                title="Relative difference from the gradient of the whole mini-batch",
                header=["nodes", "numbers", "equal shards", "bits", "two orders", "unequal shards",
                        "batch norm"],
                rows=[
                    (
                        one["nodes"], one["dtype"], f"{one['difference']:.1e}", one["bits"],
                        one["orders"], f"{two['difference']:.1e}", f"{three['difference']:.1e}",
                    )
                    for one, two, three in zip(equal, unequal, norm, strict=True)
                ],
            )
        ],
    )  # fmt: skip


def compare(
    nodes: int, dtype: torch.dtype, *, uneven: bool = False, batch_norm: bool = False
) -> dict[str, Any]:
    """Compare the mean of the shards' gradients with the gradient of the whole.

    Parameters
    ----------
    nodes : int
    dtype : torch.dtype
    uneven : bool
        Whether the last shard has half as many samples as the others, rounded up.
    batch_norm : bool
        Whether the model has such a layer.
    """
    model, (inputs, targets) = _model(dtype, batch_norm), _samples(nodes, dtype)
    each = len(inputs) // nodes
    sizes = [each] * nodes
    if uneven:
        sizes[-1] = (each + 1) // 2
        inputs, targets = inputs[: sum(sizes)], targets[: sum(sizes)]
    whole = _gradients(model, inputs, targets)
    parts = [
        _gradients(model, *pair)
        for pair in zip(torch.split(inputs, sizes), torch.split(targets, sizes), strict=True)
    ]
    one, other = _mean(parts), _mean(parts[::-1])
    return {
        "nodes": nodes,
        "dtype": _name(dtype),
        "shards": sizes,
        "batch_norm": batch_norm,
        "difference": difference([one], whole),
        "bits": "equal" if _same(one, whole) else "differ",
        "orders": "equal" if _same(one, other) else "differ",
    }


def _apart(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases that differ by more than rounding does."""
    limits = {_name(dtype): most for dtype, most in CLOSE.items()}
    return [case for case in cases if not case["difference"] <= limits[case["dtype"]]]


def _weights_instead(name: str) -> float:
    """Return how far two steps with averaged weights are from those with averaged gradients."""
    nodes, dtype = 4, torch.float64
    inputs, targets = _samples(nodes, dtype)
    shards = list(zip(inputs.chunk(nodes), targets.chunk(nodes), strict=True))
    make = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[name]
    whole = _model(dtype, batch_norm=False)
    optimizer = make(whole.parameters(), 0.1)
    copies = [_model(dtype, batch_norm=False) for _ in shards]
    optimizers = [make(copy.parameters(), 0.1) for copy in copies]
    for _ in range(2):
        _put(whole, _mean([_gradients(whole, *shard) for shard in shards]))
        optimizer.step()
        for copy, own, shard in zip(copies, optimizers, shards, strict=True):
            _put(copy, _gradients(copy, *shard))
            own.step()
        mean = _mean([_weights(copy) for copy in copies])
        for copy in copies:
            copy.load_state_dict(mean)
    return difference([_weights(copies[0])], _weights(whole))


def _model(dtype: torch.dtype, batch_norm: bool) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        middle = [nn.BatchNorm1d(32)] if batch_norm else []
        return nn.Sequential(nn.Linear(16, 32), *middle, nn.Tanh(), nn.Linear(32, 10)).to(dtype)


def _samples(nodes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    count = -(-BATCH // nodes) * nodes
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 16, generator=draw, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(10, (count,), generator=draw)


def _gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> Gradients:
    named = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(inputs), targets)
    found = torch.autograd.grad(loss, list(named.values()))
    return dict(zip(named, found, strict=True))


def _mean(parts: Sequence[Gradients]) -> Gradients:
    """Return the mean, added up from the first to the last."""
    total = dict(parts[0])
    for part in parts[1:]:
        total = {name: one + part[name] for name, one in total.items()}
    return {name: one / len(parts) for name, one in total.items()}


def _put(model: nn.Module, gradients: Gradients) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]


def _weights(model: nn.Module) -> Gradients:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def _same(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
