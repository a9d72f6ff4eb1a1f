"""Proofs that the memory is too small for any allocation."""

from __future__ import annotations

from dataclasses import replace

from schedopt.bounds.scopes import widest
from schedopt.problem import Problem
from schedopt.result import Infeasibility
from schedopt.units import format_bytes


def memory_proof(problem: Problem) -> Infeasibility | None:
    """Return a proof that no allocation at all fits the memory, if one of two is at hand.

    A layer needs its weights and what it saves for one micro-batch on one GPU, at the latest when
    its backward begins. Without recompute, all layers of a GPU hold what they save at once, between
    the last forward and the first backward of a micro-batch, so that the totals must fit too; with
    it, all weights and what one layer saves.
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
            proof=f"layer {largest} alone needs {format_bytes(needs[largest])}, "
            "more than any GPU has",
            proven_memory_bytes=needs[largest] + gpus[roomiest].reserved_bytes,
            gpu=roomiest,
            wider="a finer chain, or a smaller micro-batch",
        )
    room = sum(gpu.usable_bytes for gpu in gpus)
    total = sum(needs)
    if problem.scope.recompute:
        total = sum(layer.weight_bytes for layer in layers) + max(layer.saved for layer in layers)
    if total > room:
        share = -(-(total - room) // len(gpus))
        return Infeasibility(
            scope=replace(wide, recompute=problem.scope.recompute),
            proof=f"all layers together need {format_bytes(total)}, "
            f"the GPUs have {format_bytes(room)}",
            proven_memory_bytes=gpus[roomiest].memory_bytes + share,
            gpu=roomiest,
        )
    return None
