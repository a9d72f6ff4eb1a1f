"""Layers for problems that are worked out by hand."""

from __future__ import annotations

from schedopt import Layer


def layer(forward: int, backward: int, saved: int = 0, *, weight: int = 0, sent: int = 0) -> Layer:
    """Return a layer of so many ns that keeps, holds and sends so many bytes."""
    return Layer(
        forward_ns=forward,
        backward_ns=backward,
        weight_bytes=weight,
        activation_bytes=sent,
        saved_bytes=saved,
    )
