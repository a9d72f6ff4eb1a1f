"""Boehm 2022: gradients of shards, and the bytes of a parameter in mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from schedopt.bench.claims.result import Case, Computed, Step, Table, announced, table_of
from schedopt.profiling.saved_tensors import storage_bytes, storage_key
from schedopt.profiling.states import measure_states
from schedopt.running.trained import difference

BATCH: Final = 64
CLOSE: Final = {torch.float64: 1e-12, torch.float32: 1e-4}
"""Relative differences that rounding may make here; one sample more or less makes 1e-2."""
NAMES: Final = {dtype: str(dtype).removeprefix("torch.") for dtype in CLOSE}

Gradients = dict[str, Tensor]


def find_consistency(step: Step, nodes: Sequence[int] = (2, 3, 4, 8)) -> Computed:
    """B1: add up the gradients of shards in two orders, and compare with those of the whole."""
    pairs = [(dtype, count) for dtype in CLOSE for count in nodes]
    equal, unequal, norm = [], [], []
    for dtype, count in announced(step, "{}, {} nodes", pairs):
        equal.append(compare_shards(count, dtype))
        unequal.append(compare_shards(count, dtype, uneven=True))
        norm.append(compare_shards(count, dtype, batch_norm=True))
    step("weights instead of gradients")
    limit = CLOSE[torch.float64]
    averaged = {name: _average_weights(name) for name in ("SGD", "Adam")}
    optimizers = [
        {"optimizer": name, "difference": apart}
        for name, apart in averaged.items()
        if (apart <= limit) != (name == "SGD")
    ]
    tried = (
        f"{', '.join(map(str, nodes))} nodes, a mini-batch of {BATCH} or the next multiple of the "
        "nodes, float64 and float32, two orders of summation"
    )
    return Computed(
        {
            "apart": [*filter(_is_apart, equal), *filter(_is_apart, unequal)],
            "equal shards apart": [*filter(_is_apart, equal)],
            "same bits": [case for case in equal if case["bits"] == case["orders"] == "equal"],
            "batch norm alike": [case for case in norm if not _is_apart(case)],
            "optimizers": optimizers,
        },
        {"tried": tried},
        figures={
            **{
                f"largest_difference_{name}": max(
                    case["difference"] for case in equal if case["dtype"] == name
                )
                for name in NAMES.values()
            },
            "smallest_difference_of_unequal_shards": min(case["difference"] for case in unequal),
            "smallest_difference_with_batch_norm": min(case["difference"] for case in norm),
            "weights_averaged_sgd": averaged["SGD"],
            "weights_averaged_adam": averaged["Adam"],
        },
        tables=[
            table_of(
                "Relative difference from the gradient of the whole mini-batch",
                [
                    {**one, "uneven": two["difference"], "norm": three["difference"]}
                    for one, two, three in zip(equal, unequal, norm, strict=True)
                ],
                {
                    "nodes": "nodes",
                    "numbers": "dtype",
                    "equal shards": lambda case: f"{case['difference']:.1e}",
                    "bits": "bits",
                    "two orders": "orders",
                    "unequal shards": lambda case: f"{case['uneven']:.1e}",
                    "batch norm": lambda case: f"{case['norm']:.1e}",
                },
            )
        ],
    )


def compare_shards(
    nodes: int, dtype: torch.dtype, *, uneven: bool = False, batch_norm: bool = False
) -> Case:
    """Compare the mean of the shards' gradients with the gradient of the whole.

    The last one of uneven shards has half as many samples as the others, rounded up.
    """
    model, (inputs, targets) = _model(dtype, batch_norm), _samples(nodes, dtype)
    sizes = [len(inputs) // nodes] * nodes
    if uneven:
        sizes[-1] = (sizes[0] + 1) // 2
        inputs, targets = inputs[: sum(sizes)], targets[: sum(sizes)]
    whole = _gradients(model, inputs, targets)
    shards = zip(torch.split(inputs, sizes), torch.split(targets, sizes), strict=True)
    parts = [_gradients(model, *shard) for shard in shards]
    mean, reverse_mean = _mean(parts), _mean(parts[::-1])
    return {
        "nodes": nodes,
        "dtype": NAMES[dtype],
        "shards": sizes,
        "batch_norm": batch_norm,
        "difference": difference([mean], whole),
        "bits": _compare_bits(mean, whole),
        "orders": _compare_bits(mean, reverse_mean),
    }


def _is_apart(case: Case) -> bool:
    """Whether a case differs by more than rounding does."""
    limit = next(CLOSE[dtype] for dtype, name in NAMES.items() if name == case["dtype"])
    return not case["difference"] <= limit


def _average_weights(name: str) -> float:
    """Return how far two steps with averaged weights are from those with averaged gradients."""
    nodes, dtype = 4, torch.float64
    inputs, targets = _samples(nodes, dtype)
    shards = list(zip(inputs.chunk(nodes), targets.chunk(nodes), strict=True))
    make = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[name]
    whole, *copies = [_model(dtype, batch_norm=False) for _ in range(1 + nodes)]
    optimizer, *own = [make(model.parameters(), 0.1) for model in (whole, *copies)]
    for _ in range(2):
        _set_gradients(whole, _mean([_gradients(whole, *shard) for shard in shards]))
        optimizer.step()
        for copy, copy_optimizer, shard in zip(copies, own, shards, strict=True):
            _set_gradients(copy, _gradients(copy, *shard))
            copy_optimizer.step()
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
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def _mean(parts: Sequence[Gradients]) -> Gradients:
    """Return the mean, added up from the first to the last."""
    total = dict(parts[0])
    for part in parts[1:]:
        total = {name: value + part[name] for name, value in total.items()}
    return {name: value / len(parts) for name, value in total.items()}


def _set_gradients(model: nn.Module, gradients: Gradients) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]


def _weights(model: nn.Module) -> Gradients:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _compare_bits(first: Gradients, second: Gradients) -> str:
    same = all(torch.equal(first[name], second[name]) for name in first)
    return "equal" if same else "differ"


PRINTED: Final = 16
MOMENTS: Final = ("parameter", "gradient", "master", "moments", "between", "step")
"""What is measured: parts, their sum between steps, and their sum within a step."""


def find_bytes_per_parameter(step: Step, widths: Sequence[int] = (64, 256, 1024)) -> Computed:
    """B3: train real models for two steps and add up the storages of everything that is kept."""
    cases = [measure_mixed_adam(width) for width in announced(step, "width {}", widths)]
    step("other precisions")
    plain = {name: _measure_plain_adam(getattr(torch, name)) for name in ("float32", "bfloat16")}
    return Computed(
        {
            "all moments": _unlike(cases, "step", "between"),
            "between steps": _unlike(cases, "between"),
        },
        {"widths": ", ".join(map(str, widths))},
        figures={
            "bytes_a_parameter": {name: cases[-1][name] for name in MOMENTS},
            "bytes_of_step_counts": cases[-1]["counts"],
            **{f"adam_all_in_{name}": found for name, found in plain.items()},
        },
        tables=[
            Table(
                "Bytes for each parameter",
                ["width", "parameters", *MOMENTS],
                [
                    (case["width"], case["parameters"], *(f"{case[name]:g}" for name in MOMENTS))
                    for case in cases
                ],
            )
        ],
    )


def measure_mixed_adam(width: int) -> Case:
    """Return the bytes for each parameter of a model in bfloat16 with a float32 master copy."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model.to(torch.bfloat16)
    parameters = list(model.parameters())
    masters = [nn.Parameter(parameter.detach().float()) for parameter in parameters]
    optimizer = torch.optim.Adam(masters)
    inputs = torch.ones(4, width, dtype=torch.bfloat16)
    within_step = 0
    for _ in range(2):
        model.zero_grad()
        model(inputs).square().mean().backward()
        for master, parameter in zip(masters, parameters, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        moments = _states(optimizer, lambda state: state.dim() > 0)
        within_step = _bytes([*_with_gradients(parameters), *_with_gradients(masters), *moments])
        optimizer.zero_grad()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters, strict=True):
                parameter.copy_(master)
    count = sum(parameter.numel() for parameter in parameters)
    parts = {
        "parameter": _bytes(parameters),
        "gradient": _bytes([p.grad for p in parameters if p.grad is not None]),
        "master": _bytes(_with_gradients(masters)),
        "moments": _bytes(_states(optimizer, lambda state: state.dim() > 0)),
    }
    return {
        "width": width,
        "parameters": count,
        **{name: size / count for name, size in parts.items()},
        "between": sum(parts.values()) / count,
        "step": within_step / count,
        "counts": _bytes(_states(optimizer, lambda state: state.dim() == 0)),
    }


def _measure_plain_adam(dtype: torch.dtype) -> float:
    """Return the bytes for each parameter where everything has one precision."""
    layer = nn.Linear(64, 64).to(dtype)
    layer(torch.ones(2, 64, dtype=dtype)).sum().backward()
    parameters = list(layer.parameters())
    states = measure_states(layer, parameters, torch.optim.Adam)
    counts = 4 * len(parameters)
    return (states.weight_bytes - counts) / sum(parameter.numel() for parameter in parameters)


def _unlike(cases: Iterable[Case], *moments: str) -> list[Case]:
    """Return where more or less is kept than is printed, at one of some moments."""
    return [
        {"width": case["width"], "moment": name, "bytes": case[name], "printed": PRINTED}
        for case in cases
        for name in moments
        if case[name] != PRINTED
    ]


def _with_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    pairs = [(parameter, parameter.grad) for parameter in parameters]
    return [tensor for pair in pairs for tensor in pair if tensor is not None]


def _states(optimizer: torch.optim.Optimizer, wanted: Callable[[Tensor], bool]) -> list[Tensor]:
    return [one for state in optimizer.state.values() for one in state.values() if wanted(one)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages, each counted once."""
    return sum({storage_key(tensor): storage_bytes(tensor) for tensor in tensors}.values())
