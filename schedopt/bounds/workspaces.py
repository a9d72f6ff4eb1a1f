"""What a GPU leaves free at every moment, so that its next operation has its workspace.

An operation takes its workspace on top of all that its GPU holds while it runs. What a GPU holds
between two operations it held during the first of them, too: what its layers keep comes when an
operation starts, and goes when one ends. So at every moment a GPU has the least workspace of its
layers free, also while it idles. Which layers these are is not known: the least of all layers is
reserved, and each workspace is reduced by it. All that fitted fits.

An operation that takes no time takes no workspace, and what it brings may be gone before the next
one. So of layers without any time all sizes are reduced by what is reserved, down to 0 at most.
Between two operations that take time, what is there at a moment is there during the second one, but
for what ends with operations without time before it. Of all that ends so, as of a GPU without other
operations, either something is reduced by all that is reserved, or all of it to 0. So again there
is room. That needs sizes that are of one layer alone, which inputs of recomputed layers are not:
with recompute nothing is reserved where a layer takes no time. Nor is anything where a layer has
operations of both kinds. Buffers for what is received are counted by no bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from schedopt.layer import LAYER_BYTES

if TYPE_CHECKING:
    from schedopt.layer import Layer
    from schedopt.problem import Problem, Scope


def reserve_workspace(problem: Problem) -> Problem:
    """Return a problem in which all fits that fits in this one, with less workspace to count.

    What is free at every moment is reserved. In the reading *sum* it is the same problem.

    Parameters
    ----------
    problem : Problem
        Without updates.
    """
    layers, scope, gpus = problem.chain.layers, problem.scope, problem.platform.gpus
    if scope.memory != "peak":
        return problem
    counted = [layer for layer in layers if scope.recompute or any(_times(layer, scope))]
    least = min((_workspace(layer, scope) for layer in counted), default=0)
    # A GPU without layers leaves free what it has.
    free = min(least, *(gpu.usable_bytes for gpu in gpus))
    if not free:
        return problem
    reduced = [_reduced(layer, scope, free) for layer in layers]
    left = [replace(gpu, reserved_bytes=gpu.reserved_bytes + free) for gpu in gpus]
    return replace(
        problem,
        chain=replace(problem.chain, layers=tuple(reduced)),
        platform=problem.platform.with_gpus(left),
    )


def _reduced(layer: Layer, scope: Scope, free: int) -> Layer:
    """Return a layer of which what is reserved is not counted again."""
    sizes = {name: getattr(layer, name) for name in LAYER_BYTES} | {"saved_bytes": layer.saved}
    if any(_times(layer, scope)):
        sizes = {"workspace_bytes": layer.workspace_bytes}
    sizes.pop("activation_bytes", None)
    return replace(
        layer, **{name: max(0, size - free) for name, size in sizes.items() if size is not None}
    )


def _workspace(layer: Layer, scope: Scope) -> int:
    """Return what each operation of a layer takes while it runs; 0 if one may take no time."""
    return (layer.workspace_bytes or 0) if all(_times(layer, scope)) else 0


def _times(layer: Layer, scope: Scope) -> list[int]:
    """Return how long each operation of a layer takes, ns."""
    times = [layer.forward_ns, layer.backward_ns]
    if scope.split_backward:
        times += [layer.backward_input_ns or 0, layer.backward_weight_ns or 0]
    return times
