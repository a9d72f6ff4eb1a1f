"""Submodules whose way depends on values stay whole, and compute what they computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from schedopt import InputError
from schedopt.profiling import Estimator, Model, Profiler
from schedopt.profiling.fake_tensors import without_memory
from schedopt.profiling.segmenting import find_cuts
from schedopt.profiling.tracing import trace
from tests.profiling.test_segmenting import differences, segments_of

DOUBLE = torch.float64


class Experts(nn.Module):
    """Each row goes to the expert that its router likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor, *, scale: float = 1.0, out: Tensor | None = None) -> Tensor:
        chosen = self.router(x).argmax(-1)
        out = torch.zeros_like(x) if out is None else out
        for number, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == number).flatten()
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * scale)
        return out


class Rows(nn.Module):
    """Returns as many rows as there are positive sums."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row for row in x if bool(row.sum() > 0)])


class Picked(nn.Module):
    """Of one shape, of a part that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.scale = Rows(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        picked: Tensor = self.scale(self.rows(x))
        return x + picked.sum()


class Pair(nn.Module):
    """Returns two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x, x) if bool(x.sum() > 0) else (x, -x)


class Blocks(nn.Module):
    def __init__(self, middle: nn.Module, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.dropout, self.middle, self.way = nn.Dropout(0.5), middle, way

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def through(self: Blocks, x: Tensor) -> Any:
    return self.last(self.middle(self.first(x)).tanh())


def twice(self: Blocks, x: Tensor) -> Any:
    y = self.first(x)
    return self.last(self.middle(self.middle(y, out=y, scale=0.5)))


def added(self: Blocks, x: Tensor) -> Any:
    y = self.dropout(self.first(x))
    z = self.middle(y)
    z += y
    return self.last(z)


def split(self: Blocks, x: Tensor) -> Any:
    one, other = self.middle(self.first(x))
    return self.last(one + other)


def blocks(middle: nn.Module, way: Callable[[Any, Tensor], Tensor] = through) -> Model:
    torch.manual_seed(1)
    module = Blocks(middle, way).double()
    return Model(module=module, inputs=torch.randn(8, 4, dtype=DOUBLE))


@pytest.mark.parametrize("way", [through, twice, added])
def test_experts_compute_in_segments_what_they_compute_in_the_whole(
    way: Callable[[Any, Tensor], Tensor],
) -> None:
    model = blocks(Experts(), way)
    assert differences(model) == {}
    names = [segment.name for segment in segments_of(model)]
    assert "middle" in names
    assert names.index("first") < names.index("middle") < names.index("last")


def test_what_has_no_shape_of_its_own_stays_in_what_has_one() -> None:
    model = blocks(Picked())
    assert differences(model) == {}
    kept = [node for node in trace(model).graph.nodes if node.op == "call_module"]
    assert [(node.target, node.name) for node in kept] == [("module.middle", "middle")]


def test_a_trace_leaves_the_model_and_its_random_numbers_as_they_were() -> None:
    model = blocks(Experts(), added)
    names = [*vars(model.module)["_modules"]]
    state = torch.random.get_rng_state()
    assert find_cuts(trace(model)) == find_cuts(trace(model))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [*vars(model.module)["_modules"]] == names
    middle = model.module.get_submodule("middle")
    assert "forward" not in vars(middle)
    assert not middle._forward_hooks


@pytest.mark.parametrize("model", [blocks(Rows()), blocks(Pair(), split)])
def test_what_returns_no_tensor_of_one_shape_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match=r"cannot be traced at .* Move control flow .* submodule"):
        trace(model)


def test_a_profile_counts_what_experts_hold_and_save() -> None:
    profiler = Profiler(warmup=1, repeats=2, min_share=0.0, whole=True)
    chain = profiler.chain(blocks(Experts()))
    (layer,) = (layer for layer in chain.layers if layer.name == "middle")
    assert layer.parameter_bytes == 8 * (4 * 2 + 2 + 2 * (4 * 4 + 4))
    assert layer.saved_bytes is not None
    assert layer.saved_bytes > 0
    assert layer.backward_weight_ns is not None


def test_without_values_nothing_is_kept_whole() -> None:
    with (
        without_memory(),
        pytest.raises(InputError, match=r"cannot be traced at .* Move control flow"),
    ):
        Estimator(flops=10**12).chain(blocks(Experts()))
