from __future__ import annotations

import pytest
import torch
from torch import nn

from schedopt import Chain, Layer
from schedopt.profiling import Deviation, Model, profile, verify_chain
from schedopt.profiling.devices import CpuClock
from schedopt.profiling.measuring import WholeRun
from tests.budgets import nightly_but
from tests.profiling.networks import BATCH, tiny

WHOLE = {
    "forward_ns": 40,
    "forward_spread": 0.1,
    "backward_ns": 50,
    "backward_spread": 0.2,
    "step_ns": 100,
    "step_spread": 0.3,
    "saved_bytes": 1000,
    "step_bytes": 1500,
}


def layer(forward: int, backward: int, saved: int, workspace: int | None) -> Layer:
    return Layer(
        forward_ns=forward,
        backward_ns=backward,
        weight_bytes=250,
        activation_bytes=8,
        saved_bytes=saved,
        workspace_bytes=workspace,
    )


def test_sums_are_beside_the_whole() -> None:
    layers = (layer(10, 20, 300, 100), layer(20, 40, 600, None))
    found = verify_chain(Chain(layers=layers, provenance={"whole": WHOLE}))
    assert found == [
        Deviation("forward", 30, 40, 0.1),
        Deviation("backward", 60, 50, 0.2),
        Deviation("step", 90, 100, 0.3),
        Deviation("saved", 900, 1000),
        # Two layers weigh 250 each. The most is not 300 and a workspace of 100, but 300 and 600.
        Deviation("peak memory", 500 + 900, 500 + 1500),
    ]
    assert [one.error for one in found] == pytest.approx([-0.25, 0.2, -0.1, -0.1, -0.3])
    assert verify_chain(Chain(layers=layers)) == []


@pytest.mark.parametrize(("chain", "error"), [(0, 0.0), (3, 1.0)])
def test_a_whole_of_nothing_gives_no_division(chain: int, error: float) -> None:
    assert Deviation("saved", chain, 0).error == error


@pytest.mark.parametrize(
    "family",
    nightly_but(
        ("gpt2-tied", "resnet18"), ["gpt2", "gpt2-tied", "llama", "bert", "vit", "resnet18"]
    ),
)
def test_layers_save_and_take_what_the_whole_does(family: str) -> None:
    model = tiny(family)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    chain = profile(model, warmup=0, repeats=2, min_share=0, whole=True)
    found = {one.name: one for one in verify_chain(chain)}
    # Each of the two blocks of Llama makes its own cosines and sines, of 8 tokens and heads of 4.
    again = 2 * 8 * 4 * 4 if family == "llama" else 0
    assert found["saved"].chain == found["saved"].whole + again > 0
    assert abs(found["peak memory"].error) < (0.03 if family == "gpt2" else 0.05)
    assert all(found[name].whole > 0 for name in ("forward", "backward", "step"))
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_memory_of_a_linear_layer_by_hand() -> None:
    run = WholeRun(Model(module=nn.Linear(4, 6), inputs=torch.randn(BATCH, 4)), CpuClock())
    run.step()
    run.step()
    found = run.to_json()
    assert found["saved_bytes"] == BATCH * 4 * 4
    # Input, output, its sum; then input, sum, the one of which all gradients are views, and the
    # gradients of the weights, while the output, which nobody saved, has gone.
    forward = BATCH * 4 * 4 + BATCH * 6 * 4 + 4
    backward = BATCH * 4 * 4 + 4 + 4 + (4 * 6 + 6) * 4
    assert found["step_bytes"] == max(forward, backward)
