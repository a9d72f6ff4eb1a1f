"""Proofs that the memory is too small for any allocation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schedopt.bounds.load import layers_through_time, least_in_groups
from schedopt.bounds.scopes import widest
from schedopt.chain import Layer
from schedopt.problem import Problem, Scope
from schedopt.proofs import Proof, ProofKind, Suggestion
from schedopt.result import Infeasibility


def memory_proof(problem: Problem) -> Infeasibility | None:
    """Return a proof that no allocation at all fits the memory, if one of two applies.

    A layer needs its weights and what it saves for one micro-batch on one GPU, at the latest when
    its backward begins. In the reading *sum* each layer counts with its most, so that the totals
    must fit too. In the reading *peak* that needs an instant at which all of it is there. Let l be
    the last layer whose forward, or backward up to the gradient, takes time: at the start of the
    forward of l, or of the last forward, no layer up to l can be through. Layers behind l may
    begin and end at one instant, one after the other. With recompute all weights count, and what
    one layer saves.

    Replicas may share the optimizer state, of which each then keeps a part. Gradients and
    parameters are whole where a backward runs, and lie at home whatever is shared, so all replicas
    together have all of them; only the input half of a backward may run before there are gradients.
    A rule with updates keeps at least the last version of the weights. Of tensor groups the size
    counts in which a layer needs least, on a GPU or on all of a group.
    """
    gpus = problem.platform.gpus
    groups = [problem.in_group(tensor).layers for tensor in problem.degrees]
    needs = [
        min(
            layer.weight_bytes - _elsewhere(layer, problem.scope, len(gpus)) + layer.saved
            for layer in sizes
        )
        for sizes in zip(*groups, strict=True)
    ]
    roomiest = max(range(len(gpus)), key=lambda gpu: gpus[gpu].usable_bytes)
    wide = widest(problem.scope)
    largest = max(range(len(needs)), key=lambda layer: needs[layer])
    if needs[largest] > gpus[roomiest].usable_bytes:
        return Infeasibility(
            scope=wide,
            proof=Proof(
                ProofKind.LAYER_TOO_LARGE, layers=(largest, largest), memory_bytes=needs[largest]
            ),
            proven_memory_bytes=needs[largest] + gpus[roomiest].reserved_bytes,
            gpu=roomiest,
            wider=(Suggestion.FINER_CHAIN, Suggestion.SMALLER_MICROBATCH),
        )
    room = sum(gpu.usable_bytes for gpu in gpus)
    for scope, total in _totals(problem):
        if total > room:
            share = -(-(total - room) // len(gpus))
            return Infeasibility(
                scope=scope,
                proof=Proof(ProofKind.LAYERS_TOO_LARGE, memory_bytes=total, room_bytes=room),
                proven_memory_bytes=gpus[roomiest].memory_bytes + share,
                gpu=roomiest,
            )
    return None


def _elsewhere(layer: Layer, scope: Scope, gpus: int) -> int:
    """Return what one of some replicas leaves to the others, bytes."""
    if scope.shard == "none":
        return 0
    state = layer.shareable_bytes
    if scope.split_backward and scope.shard != "optimizer":
        state += layer.gradient_bytes or 0
    return state - -(-state // (scope.replicas or gpus))


def _totals(problem: Problem) -> Iterator[tuple[Scope, int]]:
    """Yield what all GPUs together hold at least, bytes, the widest scope first."""
    asked = problem.scope
    wide = widest(asked)
    weights = sum(least_in_groups(problem, lambda layer: layer.weight_bytes))
    saved = least_in_groups(problem, lambda layer: layer.saved)
    if asked.recompute:
        yield wide, weights + max(saved)
        return
    yield wide, weights + sum(saved[: layers_through_time(problem)])
    if asked.memory == "sum":
        yield replace(wide, memory="sum"), weights + sum(saved)
