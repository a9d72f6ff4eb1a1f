"""What a parameter takes in mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from schedopt.bench.claims.claim import DATA_PARALLEL, Claim, Finding, Part, Reading, Step, Table
from schedopt.profiling.saved_tensors import storage_bytes, storage_key
from schedopt.profiling.states import measure_states

CLAIM: Final = Claim(
    id="B3",
    says="Mixed-precision training (bfloat16) with Adam stores 16 bytes for each parameter, the "
    "activations left out.",
    sources=(f"{DATA_PARALLEL}, Memory Demand of DNN Training",),
)
PRINTED: Final = 16
BETWEEN: Final = (
    "between steps: the float32 gradient that the master copy takes (4 bytes more) lies there "
    "during the step only"
)
WIDTHS: Final = (64, 256, 1024)


def find_bytes_a_parameter(step: Step, widths: Sequence[int] = WIDTHS) -> Finding:
    """Train real models for two steps and add up the storages of everything that is kept."""
    cases = []
    for width in widths:
        step(f"width {width}")
        cases.append(measure_mixed_adam(width))
    step("other precisions")
    plain = {str(dtype).removeprefix("torch."): _plain(dtype) for dtype in
             (torch.float32, torch.bfloat16)}  # fmt: skip
    tried = f"torch.optim.Adam on models of width {', '.join(map(str, widths))}, two steps"
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="parameters, gradients, master copy and Adam's state take 16 bytes",
                readings=[
                    Reading(tried=tried, counterexamples=_unlike(cases, "step", "between")),
                    Reading(
                        convention=BETWEEN, tried=tried, counterexamples=_unlike(cases, "between")
                    ),
                ],
            )
        ],
        figures={
            "bytes_a_parameter": {name: cases[-1][name] for name in NAMES},
            "bytes_of_step_counts": cases[-1]["counts"],
            **{f"adam_all_in_{name}": found for name, found in plain.items()},
        },
        notes=[
            "Adam also keeps a number of 4 bytes for each tensor, the count of its steps, which is "
            "left out."
        ],
        tables=[
            Table(
                title="Bytes for each parameter",
                header=["width", "parameters", *NAMES],
                rows=[
                    (case["width"], case["parameters"], *(f"{case[name]:g}" for name in NAMES))
                    for case in cases
                ],
            )
        ],
    )


NAMES: Final = ("parameter", "gradient", "master", "moments", "between", "step")
"""What is measured: parts, their sum between steps, and their sum within a step."""


def measure_mixed_adam(width: int) -> dict[str, Any]:
    """Return the bytes for each parameter of a model in bfloat16 with a float32 master copy."""
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    model.to(torch.bfloat16)
    parameters = list(model.parameters())
    masters = [nn.Parameter(one.detach().float()) for one in parameters]
    optimizer = torch.optim.Adam(masters)
    inputs = torch.ones(4, width, dtype=torch.bfloat16)
    most = 0
    for _ in range(2):
        model.zero_grad()
        model(inputs).square().mean().backward()
        for master, one in zip(masters, parameters, strict=True):
            assert one.grad is not None
            master.grad = one.grad.float()
        optimizer.step()
        most = _bytes(
            [*_kept(parameters), *_kept(masters), *_states(optimizer, lambda one: one.dim() > 0)]
        )
        optimizer.zero_grad()
        with torch.no_grad():
            for master, one in zip(masters, parameters, strict=True):
                one.copy_(master)
    count = sum(one.numel() for one in parameters)
    gradients = [one.grad for one in parameters if one.grad is not None]
    parts = {
        "parameter": _bytes(parameters),
        "gradient": _bytes(gradients),
        "master": _bytes(_kept(masters)),
        "moments": _bytes(_states(optimizer, lambda one: one.dim() > 0)),
    }
    return {
        "width": width,
        "parameters": count,
        **{name: found / count for name, found in parts.items()},
        "between": sum(parts.values()) / count,
        "step": most / count,
        "counts": _bytes(_states(optimizer, lambda one: one.dim() == 0)),
    }


def _plain(dtype: torch.dtype) -> float:
    """Return the bytes for each parameter where everything has one precision."""
    layer = nn.Linear(64, 64).to(dtype)
    layer(torch.ones(2, 64, dtype=dtype)).sum().backward()
    parameters = list(layer.parameters())
    states = measure_states(layer, parameters, torch.optim.Adam)
    counts = 4 * len(parameters)
    return (states.weight_bytes - counts) / sum(one.numel() for one in parameters)


def _unlike(cases: Iterable[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Return where more or less is kept than is printed, at one of some moments."""
    return [
        {"width": case["width"], "moment": name, "bytes": case[name], "printed": PRINTED}
        for case in cases
        for name in names
        if case[name] != PRINTED
    ]


def _kept(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return parameters and their gradients."""
    found: list[Tensor] = []
    for one in parameters:
        found += [one] if one.grad is None else [one, one.grad]
    return found


def _states(optimizer: torch.optim.Optimizer, wanted: Callable[[Tensor], bool]) -> list[Tensor]:
    return [one for state in optimizer.state.values() for one in state.values() if wanted(one)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages, each counted once."""
    return sum({storage_key(one): storage_bytes(one) for one in tensors}.values())
