"""What a GPU leaves free at every moment, so that its next operation has its workspace.

An operation takes its workspace on top of all that its GPU holds while it runs. What a GPU holds
between two operations it held during the first of them, too: what its layers keep comes when an
operation starts, and goes when one ends. So at every moment a GPU has the least workspace of its
layers free, also while it idles.

Which layers share a GPU is not known. So let w[m] be the workspace of layer m, take any v, and
look at what each GPU holds at some moment with

- v bytes less of memory,
- weights W[m] - max(0, v - w[m]), which must not be below 0,
- workspaces of max(0, w[m] - v).

All that fitted fits. If no layer of the GPU has w[m] < v, workspaces became less by v, and v bytes
are free between them. If some have, the weights of the one that has the least are less by v - w[m],
and w[m] bytes are free. A GPU without layers must have v bytes.

An operation that takes no time takes no workspace, and what it brings may be gone before the next
one: w[m] is 0 for its layer. Buffers for what is received are counted by no bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from schedopt.layer import Layer
    from schedopt.problem import Problem, Scope

FEW: Final = 16
"""At most one layer in 16 has less workspace than is reserved, and at most one for two GPUs."""


def reserve_workspace(problem: Problem) -> Problem:
    """Return a problem in which all fits that fits in this one, with less workspace to count.

    What is free at every moment is reserved. In the reading *sum*, and where copies of weights or
    experts have to be a part of the weights, it is the same problem.

    Parameters
    ----------
    problem : Problem
        Without updates.
    """
    chain, gpus = problem.chain, problem.platform.gpus
    if problem.scope.memory != "peak" or chain.copied or chain.expert > 1:
        return problem
    layers = chain.layers
    needed = [_workspace(layer, problem.scope) for layer in layers]
    # The more layers have less, the more weights are given up for what GPUs gain.
    below = min((len(gpus) - 1) // 2, len(layers) // FEW)
    most = min(own + layer.weight_bytes for own, layer in zip(needed, layers, strict=True))
    free = min(sorted(needed)[below], most, *(gpu.usable_bytes for gpu in gpus))
    if not free:
        return problem
    reduced = [
        replace(
            layer,
            weight_bytes=layer.weight_bytes - max(0, free - own),
            workspace_bytes=max(0, (layer.workspace_bytes or 0) - free),
            parameter_bytes=None,
            gradient_bytes=None,
            optimizer_bytes=None,
        )
        for layer, own in zip(layers, needed, strict=True)
    ]
    left = [replace(gpu, reserved_bytes=gpu.reserved_bytes + free) for gpu in gpus]
    return replace(
        problem,
        chain=replace(chain, layers=tuple(reduced)),
        platform=problem.platform.with_gpus(left),
    )


def _workspace(layer: Layer, scope: Scope) -> int:
    """Return what each operation of a layer takes while it runs; 0 if one may take no time."""
    times = [layer.forward_ns, layer.backward_ns]
    if scope.split_backward:
        times += [layer.backward_input_ns or 0, layer.backward_weight_ns or 0]
    return (layer.workspace_bytes or 0) if all(times) else 0
