"""Data parallelism: every GPU has the whole chain, and gradients go round in rings.

Micro-batch i runs on GPU i mod P; each GPU adds the gradients of its m / P micro-batches up, and
one all-reduce a step adds those of the GPUs. What is sent together is a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.chain import Chain
from schedopt.plan import Kind, Plan
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.collectives import all_reduce_and_update
from schedopt.systems.config import SystemConfig
from schedopt.systems.list_scheduler import ListScheduler


def blocking(config: SystemConfig) -> Plan:
    """Return a step whose ring all-reduce begins after the last backward (Patarasuk and Yuan 2009).

    Raises
    ------
    InputError
        If a layer has no `gradient_bytes`, or m is no multiple of the number of GPUs.
    """
    return _plan(config, [(0, len(config.chain.layers) - 1)])


def overlapped(config: SystemConfig) -> Plan:
    """Return a step in which each layer's all-reduce begins when its last backward is done.

    Li et al. 2020, with a bucket for each layer. Refused as `blocking`.
    """
    return _plan(config, list_buckets(config.chain, 1))


def bucketed(config: SystemConfig) -> Plan:
    """Return a step whose layers share an all-reduce up to some bytes (Li et al. 2020; DDP).

    Refused as `blocking`.
    """
    return _plan(config, list_buckets(config.chain, config.bucket_bytes))


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


def lay_out(
    config: SystemConfig, rule: Rule, buckets: Sequence[tuple[int, int]], *, ordered: bool = True
) -> ListScheduler:
    """Return the empty scheduler of a step in which every GPU has all stages."""
    config.require_multiple("each GPU runs as many micro-batches")
    gpus = tuple(range(len(config.platform.gpus)))
    stages = [Stage(layers=layers, gpus=gpus) for layers in buckets]
    return config.scheduler(rule, stages, ordered=ordered)


def _plan(config: SystemConfig, buckets: Sequence[tuple[int, int]]) -> Plan:
    scheduler = lay_out(config, config.flush_rule(replicated=True), buckets)
    for i in range(config.microbatches):
        for kind, stage in course(len(buckets)):
            scheduler.run(kind, stage, i)
    for stage in reversed(range(len(buckets))):
        all_reduce_and_update(scheduler, stage, config.microbatches)
    return config.flushed(scheduler)
