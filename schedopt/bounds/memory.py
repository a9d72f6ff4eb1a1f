"""Proofs that the memory is too small for any allocation."""

from __future__ import annotations

from dataclasses import replace

from schedopt.bounds.scopes import widest
from schedopt.problem import Problem
from schedopt.result import Infeasibility


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
