"""Closed forms that nothing can beat, each with the scope in which it holds and its proof."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from schedopt.chain import Layer
from schedopt.problem import Problem, Scope
from schedopt.result import Bound, Infeasibility, as_ratio


def widest(scope: Scope) -> Scope:
    """Return the scope of all plans with the same kinds of operations: any allocation, any k."""
    return Scope(
        allocation="general",
        max_k=None,
        grain="layer",
        memory="peak",
        split_backward=scope.split_backward,
        recompute=scope.recompute,
        gpu_order="any",
    )


def load_bound(problem: Problem) -> Bound:
    """Return the bound that the work alone gives, for any allocation and any k.

    In T ns the GPUs do at most T times the sum of their speeds of work, and a pattern holds k
    times the work of all layers; one GPU runs each layer whole, so T / k is also at least the
    longest layer on the fastest GPU (Beaumont et al. 2021, proof of Theorem 5). Rounding each
    half of a split backward up takes at least as long as rounding their sum.
    """
    split = problem.scope.split_backward
    speeds = sum((gpu.speed for gpu in problem.platform.gpus), Decimal(0))
    work = [_least_work(layer, split) for layer in problem.chain.layers]
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


def _least_work(layer: Layer, split: bool) -> tuple[int, int]:
    halves = (layer.backward_input_ns or 0) + (layer.backward_weight_ns or 0)
    return layer.forward_ns, min(layer.backward_ns, halves) if split else layer.backward_ns


def memory_proof(problem: Problem) -> Infeasibility | None:
    """Return a proof that no allocation at all fits the memory, if one of two is at hand.

    A layer needs its weights and what it saves for one micro-batch on one GPU. Without
    recompute, all layers of a GPU hold what they save at once, between the last forward and the
    first backward of a micro-batch, so that the totals must fit too.
    """
    if not problem.rule.is_given:
        return None
    gpus = problem.platform.gpus
    layers = problem.chain.layers
    needs = [layer.weight_bytes + layer.saved for layer in layers]
    roomiest = max(range(len(gpus)), key=lambda gpu: gpus[gpu].usable_bytes)
    wide = widest(problem.scope)
    largest = max(range(len(layers)), key=lambda layer: needs[layer])
    if needs[largest] > gpus[roomiest].usable_bytes:
        return Infeasibility(
            scope=wide,
            proof=f"layer {largest} alone needs {needs[largest]} bytes, more than any GPU has",
            proven_memory_bytes=needs[largest] + gpus[roomiest].reserved_bytes,
            gpu=roomiest,
            wider="a finer chain, or a smaller micro-batch",
        )
    room = sum(gpu.usable_bytes for gpu in gpus)
    if not problem.scope.recompute and sum(needs) > room:
        share = -(-(sum(needs) - room) // len(gpus))
        return Infeasibility(
            scope=replace(wide, recompute=False),
            proof=f"all layers together need {sum(needs)} bytes, the GPUs have {room}",
            proven_memory_bytes=gpus[roomiest].memory_bytes + share,
            gpu=roomiest,
            wider="more GPUs, or a smaller micro-batch",
        )
    return None
