"""Layers that were traced on one device run on another: here without values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from schedopt.profiling.pieces import Outline
from schedopt.running.moving import move_piece
from tests.profiling.networks import TINY, tiny

META = torch.device("meta")


@pytest.mark.parametrize("family", [name for name in TINY if name != "gpt2-tied"])
def test_a_layer_that_is_moved_makes_all_its_tensors_there(family: str) -> None:
    model = tiny(family)
    outline = Outline(model)
    pieces = outline.pieces(outline.cuts)
    inputs = {name: tensor.to(META) for name, tensor in model.tensors.items()}
    value: Tensor | None = None
    for piece in pieces:
        move_piece(piece, META)
        value = piece.run(value, inputs)
        assert value.device == META
    assert value is not None
    value.backward()  # type: ignore[no-untyped-call]
