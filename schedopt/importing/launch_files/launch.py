"""What a launch file says of a step, whichever engine reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from schedopt.engine import Engine
from schedopt.stage import Shard
from schedopt.systems.flush_step import Turn

Layers = tuple[int, int]
"""First and last layer, or what is computed again as one."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A step of an engine on p pipeline ranks of d replicas, which are tensor groups of t GPUs.

    Parameters
    ----------
    engine : {"megatron", "torchtitan", "deepspeed"}
    stages : tuple of (int, int)
        First and last layer of each.
    ranks, replicas, tensor : int
        p, d and t. Stage s lies on rank s mod p, or where `homes` says.
    context : int
        c, the GPUs that share each sequence, which are c replicas of a rank in a row.
    expert : int
        e, the GPUs that share the experts of a layer, which are e replicas of a rank in a row.
    samples : int
        Of a micro-batch.
    microbatches : int
        Of a step, for each replica.
    shard : {"none", "optimizer", "gradient", "parameter"}
    shard_copies : int
        Groups of replicas, each of which has all shards (HSDP).
    recompute : tuple of tuple of (int, int)
        For each stage the runs of layers that are computed again.
    recomputed_modules : tuple of str
        Modules of all layers that are computed again.
    rows : tuple of tuple of Turn, optional
        What each rank runs, in order, for each replica. None: as the engine does by itself.
    homes : tuple of int, optional
        The rank of each stage.
    notes : tuple of str
        What was left out or assumed.
    """

    engine: Engine
    stages: tuple[Layers, ...]
    ranks: int
    replicas: int
    tensor: int
    samples: int
    microbatches: int
    context: int = 1
    expert: int = 1
    shard: Shard = "none"
    shard_copies: int = 1
    recompute: tuple[tuple[Layers, ...], ...] = ()
    recomputed_modules: tuple[str, ...] = ()
    rows: tuple[tuple[Turn, ...], ...] | None = None
    homes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = field(default=())

    def home(self, stage: int) -> int:
        """Return the rank of a stage."""
        return stage % self.ranks if self.homes is None else self.homes[stage]
