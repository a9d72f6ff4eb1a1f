from __future__ import annotations

import pytest
import torch
from torch import nn

from schedopt import Chain, Layer
from schedopt.profiling import Deviation, Model, profile, verify_chain
from schedopt.profiling.devices import CpuClock
from schedopt.profiling.whole_run import WholeRun
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


def made() -> dict[str, Deviation]:
    layers = (layer(10, 20, 300, 100), layer(20, 40, 600, None))
    figures = verify_chain(Chain(layers=layers, provenance={"whole": WHOLE}))
    return {figure.name: figure for figure in figures}


def test_a_chain_that_knows_no_whole_run_is_compared_with_nothing() -> None:
    assert verify_chain(Chain(layers=(layer(1, 1, 1, 1),))) == []


@pytest.mark.parametrize(
    ("name", "chain", "whole", "error", "spread"),
    [
        ("forward", 30, 40, -0.25, 0.1),
        ("backward", 60, 50, 0.2, 0.2),
        ("step", 90, 100, -0.1, 0.3),
        ("saved", 900, 1000, -0.1, None),
        # Two layers weigh 250 each. The most is not 300 and a workspace of 100, but 300 and 600.
        ("peak memory", 500 + 900, 500 + 1500, -0.3, None),
    ],
)
def test_sums_are_beside_the_whole(
    name: str, chain: int, whole: int, error: float, spread: float | None
) -> None:
    one = made()[name]
    assert (one.chain, one.whole, one.spread) == (chain, whole, spread)
    assert one.error == pytest.approx(error)


def test_the_comparisons_are_in_order() -> None:
    assert list(made()) == ["forward", "backward", "step", "saved", "peak memory"]


@pytest.mark.parametrize(("chain", "error"), [(0, 0.0), (3, 1.0)])
def test_a_whole_of_nothing_gives_no_division(chain: int, error: float) -> None:
    assert Deviation("saved", chain, 0).error == error


@pytest.fixture(scope="module")
def whole_gpt2() -> Chain:
    return profile(tiny("gpt2"), warmup=0, repeats=2, min_share=0, whole=True)


def test_the_layers_save_what_the_whole_saves(whole_gpt2: Chain) -> None:
    saved = next(one for one in verify_chain(whole_gpt2) if one.name == "saved")
    assert saved.chain == saved.whole > 0


def test_the_peak_of_memory_is_near_that_of_the_whole(whole_gpt2: Chain) -> None:
    peak = next(one for one in verify_chain(whole_gpt2) if one.name == "peak memory")
    assert abs(peak.error) < 0.03


@pytest.mark.parametrize("family", ["gpt2-tied", "llama", "bert", "vit", "resnet18"])
def test_other_models_save_what_the_whole_saves(family: str) -> None:
    chain = profile(tiny(family), warmup=0, repeats=2, min_share=0, whole=True)
    found = {one.name: one for one in verify_chain(chain)}
    # Each of the two blocks of Llama makes its own cosines and sines, of 8 tokens and heads of 4.
    again = 2 * 8 * 4 * 4 if family == "llama" else 0
    assert found["saved"].chain == found["saved"].whole + again
    assert abs(found["peak memory"].error) < 0.05


def test_times_of_the_whole_are_there(whole_gpt2: Chain) -> None:
    whole = whole_gpt2.provenance["whole"]
    assert all(whole[f"{name}_ns"] > 0 for name in ("forward", "backward", "step"))


def linear_run() -> WholeRun:
    module = nn.Linear(4, 6)
    return WholeRun(Model(module=module, inputs=torch.randn(BATCH, 4)), CpuClock())


def test_the_memory_of_a_linear_layer_by_hand() -> None:
    run = linear_run()
    run.step()
    run.step()
    found = run.to_json()
    assert found["saved_bytes"] == BATCH * 4 * 4
    # Input, output, its sum; then input, sum, the one of which all gradients are views, and the
    # gradients of the weights, while the output, which nobody saved, has gone.
    forward = BATCH * 4 * 4 + BATCH * 6 * 4 + 4
    backward = BATCH * 4 * 4 + 4 + 4 + (4 * 6 + 6) * 4
    assert found["step_bytes"] == max(forward, backward)


def test_a_whole_run_changes_no_weights() -> None:
    model = tiny("gpt2")
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    profile(model, warmup=0, repeats=2, whole=True)
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name])
