"""Whether the layers of a stage add up to what a run of the stage holds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from schedopt import Chain
from schedopt.profiling import Model, profile
from schedopt.profiling.outline import Outline, on_device
from schedopt.profiling.pieces import Piece
from tests.budgets import nightly_but
from tests.profiling.networks import TINY, held_bytes, profiled_tiny, tiny


def handed_on(pieces: list[Piece], inputs: dict[str, Tensor]) -> list[Tensor | None]:
    """Return what each layer takes, the last for nobody."""
    values: list[Tensor | None] = [None]
    with torch.no_grad():
        for piece in pieces:
            value = values[-1]
            values.append(piece.run(None if value is None else value.clone(), inputs).clone())
    return values


def run_stage(stage: list[Piece], received: Tensor | None, inputs: dict[str, Tensor]) -> None:
    """Run a stage from a tensor that it received."""
    value = received
    if value is not None:
        # Not a leaf, so that the first layer may write over it.
        value = value.clone().requires_grad_().view_as(value)
    for piece in stage:
        value = piece.run(value, inputs)


FAMILIES = [name for name in TINY if name != "gpt2-dropout"]


@pytest.mark.parametrize("family", nightly_but("llama", FAMILIES))
def test_every_stage_adds_up(family: str) -> None:
    assert_stages_add_up(tiny(family), profiled_tiny(family))


@pytest.mark.parametrize("family", nightly_but("resnet18", FAMILIES))
def test_every_stage_of_merged_layers_adds_up(family: str) -> None:
    chain = profile(tiny(family), warmup=0, repeats=2, min_share=0.02)
    assert len(chain.layers) < len(profiled_tiny(family).layers)
    assert_stages_add_up(tiny(family), chain)


def assert_stages_add_up(given: Model, chain: Chain) -> None:
    assert chain.recipe is not None
    model = on_device(given, torch.device("cpu"))
    pieces = Outline(model).pieces(chain.recipe.cuts)
    inputs = model.tensors
    received = handed_on(pieces, inputs)
    wrong = {}
    for first in range(len(pieces)):
        for end in range(first + 1, len(pieces) + 1):
            layers = chain.layers[first:end]
            predicted = sum(layer.saved for layer in layers) + (layers[0].saved_input_bytes or 0)
            run = partial(run_stage, pieces[first:end], received[first], inputs)
            found = held_bytes(run, model.module)
            # What is received is only the part of a tensor that its layer selected of it; within a
            # stage the whole of it is held. The chain knows one figure, the larger.
            least = predicted if first and pieces[first - 1].cut.startswith("select") else 0
            if abs(predicted - found) > 0.01 * found and not found < least:
                wrong[first, end - 1] = (predicted, found)
    assert wrong == {}
