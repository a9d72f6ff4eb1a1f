"""What the work alone takes."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from schedopt.bounds.scopes import widest
from schedopt.chain import Layer
from schedopt.problem import Problem
from schedopt.result import Bound, as_ratio


def load_bound(problem: Problem) -> Bound:
    """Return the bound that the work alone gives, for any allocation and any k.

    In T ns the GPUs do at most T times the sum of their speeds of work, and a pattern holds k
    times the work of all layers; one GPU runs each layer whole, so T / k is also at least the
    longest layer on the fastest GPU (Beaumont et al. 2021, proof of Theorem 5). Rounding each
    half of a split backward up takes at least as long as rounding their sum.
    """
    split = problem.scope.split_backward
    speeds = sum((gpu.speed for gpu in problem.platform.gpus), Decimal(0))
    work = [(layer.forward_ns, least_backward(layer, split)) for layer in problem.chain.layers]
    fastest = max(problem.platform.gpus, key=lambda gpu: gpu.speed)
    longest = max(
        fastest.duration_ns(forward) + fastest.duration_ns(backward) for forward, backward in work
    )
    total = sum(forward + backward for forward, backward in work)
    average = Fraction(total) / Fraction(speeds)
    if average >= longest:
        return Bound(
            exact=as_ratio(average),
            scope=widest(problem.scope),
            proof="all work, shared evenly by all GPUs",
        )
    return Bound(
        exact=as_ratio(Fraction(longest)),
        scope=widest(problem.scope),
        proof="the longest layer, on the fastest GPU",
    )


def least_backward(layer: Layer, split: bool) -> int:
    """Return how long the backward of a layer occupies its GPU at least, ns at speed 1."""
    halves = (layer.backward_input_ns or 0) + (layer.backward_weight_ns or 0)
    return min(layer.backward_ns, halves) if split else layer.backward_ns


def way_back(layer: Layer, split: bool) -> int:
    """Return how long the gradient takes through a layer at least, ns at speed 1.

    It leaves at the end of the backward, or of its input half.
    """
    return min(layer.backward_ns, layer.backward_input_ns or 0) if split else layer.backward_ns
