"""Data parallelism: every GPU has the whole chain, and gradients go round in rings.

Micro-batch i runs on GPU i mod P; each GPU adds the gradients of its m / P micro-batches up, and
one all-reduce a step adds those of the GPUs. What is sent together is a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.chain import Chain
from schedopt.plan import Kind, Plan
from schedopt.stage import Shard, Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import flush_step


def blocking(config: SystemConfig) -> Plan:
    """Return a step whose ring all-reduce begins after the last backward (Patarasuk and Yuan 2009).

    Raises
    ------
    InputError
        If a layer has no `gradient_bytes`, or m is no multiple of the number of GPUs.
    """
    return replicated_step(config, [(0, len(config.chain.layers) - 1)])


def overlapped(config: SystemConfig) -> Plan:
    """Return a step in which each layer's all-reduce begins when its last backward is done.

    Li et al. 2020, with a bucket for each layer. Refused as `blocking`.
    """
    return replicated_step(config, list_buckets(config.chain, 1))


def bucketed(config: SystemConfig) -> Plan:
    """Return a step whose layers share an all-reduce up to some bytes (Li et al. 2020; DDP).

    Refused as `blocking`.
    """
    return replicated_step(config, list_buckets(config.chain, config.bucket_bytes))


def list_buckets(chain: Chain, bucket_bytes: int) -> list[tuple[int, int]]:
    """Return the first and last layers of buckets that are filled from the end of the chain.

    A bucket is closed by the layer with which its gradients reach `bucket_bytes`. Layers at the
    start of the chain that have no gradient belong to the bucket behind them.
    """
    chain.require("gradient_bytes", range(len(chain.layers)), needed_by="a bucket")
    closing, filled = [], 0
    for number, layer in reversed(list(enumerate(chain.layers))):
        filled += layer.gradient_bytes or 0
        if filled >= bucket_bytes:
            closing.append(number)
            filled = 0
    if filled or not closing:
        closing.append(0)
    firsts = [0, *closing[-2::-1]]
    lasts = [first - 1 for first in firsts[1:]] + [len(chain.layers) - 1]
    return list(zip(firsts, lasts, strict=True))


def course(stages: int) -> list[tuple[Kind, int]]:
    """Return the forwards and backwards of a micro-batch in order."""
    forwards: list[tuple[Kind, int]] = [("F", stage) for stage in range(stages)]
    return forwards + [("B", stage) for stage in reversed(range(stages))]


def on_all_gpus(
    config: SystemConfig, buckets: Sequence[tuple[int, int]], shard: Shard = "none"
) -> list[Stage]:
    """Return a stage for each bucket, on every GPU; refuse GPUs that would run more than others."""
    config.require_multiple("each GPU runs as many micro-batches")
    gpus = tuple(range(len(config.platform.gpus)))
    return [Stage(layers=layers, gpus=gpus, shard=shard) for layers in buckets]


def replicated_step(
    config: SystemConfig, buckets: Sequence[tuple[int, int]], shard: Shard = "none"
) -> Plan:
    """Return a step in which every GPU runs micro-batch after micro-batch in all stages."""
    stages = on_all_gpus(config, buckets, shard)
    turns = (
        (kind, stage, i) for i in range(config.microbatches) for kind, stage in course(len(buckets))
    )
    return flush_step(config, stages, turns)
