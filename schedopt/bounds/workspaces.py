"""What a GPU leaves free at every moment, so that its next operation has its workspace.

An operation takes its workspace on top of all that its GPU holds while it runs. What a GPU holds
between two operations it held during the first of them, too: what its layers keep comes when an
operation starts, and goes when one ends. So at every moment a GPU has the least workspace of its
layers free, also while it idles. Which layers these are is not known: the least of all layers is
reserved, and each workspace is reduced by it. All that fitted fits.

An operation that takes no time takes no workspace, and what it brings may be gone before the next
one: with such a layer nothing is reserved. Buffers for what is received are counted by no bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

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
    layers, gpus = problem.chain.layers, problem.platform.gpus
    if problem.scope.memory != "peak":
        return problem
    least = min(_workspace(layer, problem.scope) for layer in layers)
    # A GPU without layers leaves free what it has.
    free = min(least, *(gpu.usable_bytes for gpu in gpus))
    if not free:
        return problem
    reduced = [
        replace(layer, workspace_bytes=(layer.workspace_bytes or 0) - free) for layer in layers
    ]
    left = [replace(gpu, reserved_bytes=gpu.reserved_bytes + free) for gpu in gpus]
    return replace(
        problem,
        chain=replace(problem.chain, layers=tuple(reduced)),
        platform=problem.platform.with_gpus(left),
    )


def _workspace(layer: Layer, scope: Scope) -> int:
    """Return what each operation of a layer takes while it runs; 0 if one may take no time."""
    times = [layer.forward_ns, layer.backward_ns]
    if scope.split_backward:
        times += [layer.backward_input_ns or 0, layer.backward_weight_ns or 0]
    return (layer.workspace_bytes or 0) if all(times) else 0
