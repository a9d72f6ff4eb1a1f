from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

from schedopt.profiling import Model
from schedopt.profiling.devices import CpuClock
from schedopt.profiling.layer_sweeps import Peaks, metered_halves, metered_sweep, split_sweep, sweep
from schedopt.profiling.memory_meter import Meter
from schedopt.profiling.outline import Outline
from schedopt.profiling.pieces import Piece, try_out
from schedopt.profiling.rates import Roofline
from schedopt.profiling.roofline import FlopClock
from tests.budgets import nightly_but
from tests.profiling.networks import BATCH, TINY, mixed, tiny

FLOAT = 4
NANO = 10**9


def pieces_of(model: Model) -> list[Piece]:
    outline = Outline(model)
    return try_out(outline.pieces(outline.cuts), model.tensors)


def sequence(*layers: nn.Module) -> Model:
    return Model(module=nn.Sequential(*layers), inputs=torch.randn(BATCH, 4))


def layered() -> Model:
    """Return layers of widths 4, 6, 10, 10 and 3."""
    return sequence(nn.Linear(4, 6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3))


def doubled() -> Model:
    return Model(module=mixed().double(), inputs=torch.randn(BATCH, 4, dtype=torch.float64))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Take the gradients of a module away."""
    found = {
        name: parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    module.zero_grad(set_to_none=True)
    return found


def permanent(model: Model) -> Meter:
    return Meter([*model.module.parameters(), *model.module.buffers(), *model.tensors.values()])


@pytest.mark.parametrize("name", [*nightly_but("gpt2-tied", TINY), "mixed"])
def test_a_sweep_whole_or_in_halves_makes_the_gradients_of_the_whole_model(name: str) -> None:
    model = doubled() if name == "mixed" else tiny(name, "float64")
    whole = copy.deepcopy(model.module)
    torch.manual_seed(0)
    output = whole(*model.args, **model.kwargs)
    (output.sum() if isinstance(output, Tensor) else output.loss).backward()
    expected, pieces = gradients(whole), pieces_of(model)
    for run, most in ((sweep, 1e-13), (split_sweep, 1e-12)):
        torch.manual_seed(0)
        run(pieces, model.tensors, CpuClock())
        found = gradients(model.module)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=most)


@pytest.mark.parametrize("run", [sweep, split_sweep])
def test_gradients_add_up_over_sweeps(run: object) -> None:
    assert callable(run)
    model = layered()
    pieces = pieces_of(model)
    run(pieces, model.tensors, CpuClock())
    once = {name: value.clone() for name, value in gradients(model.module).items()}
    run(pieces, model.tensors, CpuClock())
    run(pieces, model.tensors, CpuClock())
    for name, value in gradients(model.module).items():
        torch.testing.assert_close(value, 2 * once[name])


def test_metered_runs_make_the_same_gradients() -> None:
    model = layered()
    pieces = pieces_of(model)
    sweep(pieces, model.tensors, CpuClock())
    expected = gradients(model.module)
    metered_sweep(pieces, model.tensors, permanent(model))
    first = gradients(model.module)
    metered_halves(pieces, model.tensors, permanent(model))
    second = gradients(model.module)
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value)
        torch.testing.assert_close(second[name], value)


def test_halves_are_one_product_each_but_the_first_layer_has_none_for_its_input() -> None:
    model = layered()
    with FlopClock(Roofline(flops=NANO)) as clock:
        halves = split_sweep(pieces_of(model), model.tensors, clock)
    first, second = 2 * BATCH * 4 * 6, 2 * BATCH * 6 * 10
    assert (halves.input_ns[:2], halves.weight_ns[:2]) == ([0, second], [first, second])


def test_behind_a_detached_tensor_there_is_no_backward() -> None:
    class Detached(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.detach()

    model = sequence(nn.Linear(4, 6), Detached(), nn.Linear(6, 3))
    pieces = pieces_of(model)
    with FlopClock(Roofline(flops=NANO)) as clock:
        seen = sweep(pieces, model.tensors, clock)
        halves = split_sweep(pieces, model.tensors, clock)
    product = 2 * BATCH * 6 * 3
    assert seen.backward_ns == [0, 0, product]
    assert (halves.input_ns, halves.weight_ns) == ([0, 0, 0], [0, 0, product])


def swept(model: Model) -> list[Piece]:
    """Return the layers after a sweep, so that there are gradients to add to."""
    pieces = pieces_of(model)
    sweep(pieces, model.tensors, CpuClock())
    return pieces


def test_what_forwards_and_backwards_take() -> None:
    model = layered()
    pieces = swept(model)
    seen = sweep(pieces, model.tensors, CpuClock())
    assert seen.activation_bytes == [BATCH * 6 * 4, BATCH * 10 * 4, BATCH * 10 * 4, 4]
    peaks = metered_sweep(pieces, model.tensors, permanent(model))
    loss = 1
    # A forward its output; a backward the gradients of output, input and weights.
    forward = [BATCH * 6, BATCH * 10, BATCH * 10, BATCH * 3 + loss]
    backward = [
        BATCH * 6 + (4 * 6 + 6),
        BATCH * 10 + BATCH * 6 + (6 * 10 + 10),
        BATCH * 10 + BATCH * 10,
        # The gradient of a sum is one number, seen as many.
        1 + BATCH * 10 + (10 * 3 + 3),
    ]
    assert peaks.forward == [FLOAT * count for count in forward]
    assert peaks.backward == [FLOAT * count for count in backward]


def test_gradients_to_which_is_added_are_not_counted() -> None:
    model = layered()
    pieces = swept(model)
    weights_only = Meter(model.module.parameters())
    first = metered_sweep(pieces, model.tensors, permanent(model))
    again = metered_sweep(pieces, model.tensors, weights_only)
    assert (again, weights_only.now) == (first, 0)


def test_what_the_second_half_holds() -> None:
    model = layered()
    held = metered_halves(swept(model), model.tensors, permanent(model))
    expected = [
        BATCH * 4 + BATCH * 6,
        BATCH * 6 + BATCH * 10,
        # It has no weights.
        0,
        BATCH * 10 + 1,
    ]
    assert held == [FLOAT * count for count in expected]


def test_a_stack_of_operators_holds_inputs_and_gradients_of_outputs_of_all_its_weights() -> None:
    block = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))
    model = sequence(nn.Linear(4, 6), block, nn.Linear(6, 3))
    held = metered_halves(swept(model), model.tensors, permanent(model))
    inputs, gradients_of_outputs = BATCH * (6 + 24), BATCH * (24 + 6)
    assert held[1] == FLOAT * (inputs + gradients_of_outputs)


@pytest.mark.parametrize("name", nightly_but("resnet18", TINY))
def test_all_that_was_taken_is_given_back(name: str) -> None:
    model = tiny(name)
    pieces = swept(model)
    meter = permanent(model)
    metered_sweep(pieces, model.tensors, meter)
    metered_halves(pieces, model.tensors, meter)
    assert gc.isenabled()
    gc.collect()
    assert meter.now == 0


def test_the_median_of_sweeps_leaves_out_what_one_of_them_saw() -> None:
    sweeps = [
        Peaks(forward=[10, 20], backward=[30, 46]),
        Peaks(forward=[14, 20], backward=[26, 40]),
        Peaks(forward=[10, 18], backward=[30, 40]),
    ]
    assert Peaks.median(sweeps) == Peaks(forward=[10, 20], backward=[30, 40])
