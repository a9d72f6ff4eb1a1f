"""Grids of GPUs as engines use them: pipeline ranks, replicas and tensor groups of equal size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from schedopt.chain import Layer
from schedopt.engine import adds_up_once, may_copy_shards, may_interleave, may_recompute_layers
from schedopt.problem import Problem
from schedopt.stage import Shard

MOST_CHUNKS: Final = 5
"""Stages of a rank that are tried where replicas, tensor groups and recompute are free too."""
ALL: Final = 1 << 20
"""More layers than a stage has: all of them are recomputed."""
LEAST_SHARED: Final = 4
"""ns of an update, and bytes, of which each share takes less, also where it is rounded up."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """How an engine uses P = p d t GPUs.

    Parameters
    ----------
    ranks : int
        p, of the pipeline: stage s is on rank s mod p.
    chunks : int
        v, the stages of each rank.
    replicas : int
        d, of each stage. Replica j of rank r has the GPUs from t (d r + j) on.
    tensor : int
        t, the GPUs of a tensor group, which a replica is.
    shard : {"none", "optimizer"}
        What replicas share.
    copies : int
        g, of each shard: replicas share in groups of d / g.
    recomputed : int
        How many layers are recomputed in each stage at most, the first ones.
    """

    ranks: int
    chunks: int
    replicas: int = 1
    tensor: int = 1
    shard: Shard = "none"
    copies: int = 1
    recomputed: int = 0

    @property
    def parts(self) -> int:
        """How many stages there are."""
        return self.ranks * self.chunks

    @property
    def group(self) -> int:
        """How many replicas share a state: h = d / g."""
        return self.replicas // self.copies

    def gpu(self, rank: int, replica: int = 0) -> int:
        """Return the first GPU of a replica."""
        return self.tensor * (self.replicas * rank + replica)


def grids_of(problem: Problem, units: int) -> Iterator[Grid]:
    """Yield the grids on which an engine may run the steps of a problem.

    `units` is how many parts of the chain the engine does not cut. A training step takes all GPUs;
    one without updates has a stage for each GPU, or several, and those with most GPUs come first.
    """
    if problem.is_training_step:
        yield from _training_grids(problem, units)
        return
    for ranks in range(min(units, len(problem.platform.gpus)), 0, -1):
        most = units // ranks if _interleaves(problem, ranks, 1) else 1
        for chunks in range(1, most + 1):
            for recomputed in _recompute(problem, units, ranks * chunks):
                yield Grid(ranks=ranks, chunks=chunks, recomputed=recomputed)


def _training_grids(problem: Problem, units: int) -> Iterator[Grid]:
    gpus = len(problem.platform.gpus)
    for tensor in problem.degrees:
        for replicas in problem.replica_counts:
            ranks, rest = divmod(gpus, tensor * replicas)
            if rest or ranks == 0 or ranks > units or not _lies_in_nodes(problem, tensor):
                continue
            if ranks == 1 and not _accumulates(problem, replicas):
                continue
            if problem.scope.engine == "torchtitan" and tensor > 1 < problem.chain.expert:
                continue
            for chunks in range(1, MOST_CHUNKS + 1):
                parts = ranks * chunks
                several = chunks > 1
                if parts > units or (several and not _interleaves(problem, ranks, replicas)):
                    break
                for recomputed in _recompute(problem, units, parts):
                    for shard, copies in _shards(problem, replicas, chunks):
                        yield Grid(
                            ranks=ranks,
                            chunks=chunks,
                            replicas=replicas,
                            tensor=tensor,
                            shard=shard,
                            copies=copies,
                            recomputed=recomputed,
                        )


def _lies_in_nodes(problem: Problem, tensor: int) -> bool:
    """Whether tensor groups one behind the other lie inside nodes.

    And replicas that run together, as far as they fit into one.
    """
    network, width = problem.platform.network, tensor * problem.chain.together
    return network is None or all(
        node.gpus % tensor == 0 and (node.gpus < width or node.gpus % width == 0)
        for node in network.nodes
    )


def _interleaves(problem: Problem, ranks: int, replicas: int) -> bool:
    """Whether GPUs may have several stages."""
    scope = problem.scope
    assert scope.microbatches is not None
    assert scope.engine is not None
    return (
        may_interleave(scope.engine)
        and scope.allocation == "general"
        and ranks > 1
        and scope.microbatches // replicas % ranks == 0
    )


def _accumulates(problem: Problem, replicas: int) -> bool:
    """Whether replicas may have their micro-batches without a pipeline."""
    scope = problem.scope
    assert scope.engine is not None
    return replicas in (1, scope.microbatches) or adds_up_once(scope.engine)


def _recompute(problem: Problem, units: int, parts: int) -> list[int]:
    """Return how many layers of a stage to recompute: in Megatron-LM some, else all or none."""
    engine = problem.scope.engine
    assert engine is not None
    if not problem.scope.recompute or not may_recompute_layers(problem.chain, engine):
        return [0]
    if engine != "megatron":
        return [0, ALL]
    each = -(-units // parts)
    return sorted({0, 1, 2, -(-each // 2), each, ALL} - {each + 1})


def _shards(problem: Problem, replicas: int, chunks: int) -> Iterator[tuple[Shard, int]]:
    """Yield what replicas may share, and how many copies there are of each shard.

    As many copies as replicas are what shares nothing has too, which sends no more.
    """
    yield from ((shard, 1) for shard in _levels(problem, replicas, chunks))
    scope, chain = problem.scope, problem.chain
    assert scope.engine is not None
    if scope.hybrid and may_copy_shards(scope.engine) and chain.expert == 1:
        for copies in range(2, replicas):
            if replicas % copies == 0 and replicas // copies % chain.context == 0:
                yield "optimizer", copies


def _levels(problem: Problem, replicas: int, chunks: int) -> tuple[Shard, ...]:
    """Return what replicas may share, less what is never better.

    The shares of an optimizer state are smaller, and updated sooner; in place of summed gradients
    weights go round. With several stages on a GPU the gradients of one may go round while another
    one is updated, and need not wait for its own update.
    """
    if replicas == 1 or problem.scope.shard == "none":
        return ("none",)
    if problem.chain.together > 1 and problem.scope.engine == "torchtitan":
        return ("optimizer",)
    if 1 < problem.chain.expert < replicas:
        return ("none", "optimizer")
    chains = (problem.in_group(tensor) for tensor in problem.degrees)
    if chunks > 1 or any(
        (layer.parameter_bytes or 0) > (layer.gradient_bytes or 0) or _is_hardly_shared(layer)
        for chain in chains
        for layer in chain.layers
    ):
        return ("none", "optimizer")
    return ("optimizer",)


def _is_hardly_shared(layer: Layer) -> bool:
    """Whether the largest share of an update may take as long as the whole, rounded up.

    Of P bytes it has at most (P + 1) / 2: of four or more it takes 5/8 of the time. Of u ns for
    them and E bytes of experts, which it updates alone, it saves 3/8 u P / (P + E) at least.
    """
    update, parameter = layer.update_ns or 0, layer.parameter_bytes or 0
    every = parameter + (layer.expert_parameter_bytes or 0)
    few = min(update, parameter) < LEAST_SHARED
    return update > 0 and (few or 3 * update * parameter < 8 * every)
