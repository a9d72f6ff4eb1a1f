"""Moving a layer of a model to another device than the one that it was traced on."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from schedopt.profiling.pieces import Piece


def move_piece(piece: Piece, device: torch.device) -> None:
    """Move a layer: parameters, buffers, and the tensors that a traced graph makes itself."""
    with torch.no_grad():
        piece.module.to(device)

    def moved(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for part in piece.module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.args = fx.node.map_aggregate(node.args, moved)
                node.kwargs = fx.node.map_aggregate(node.kwargs, moved)
            part.recompile()
