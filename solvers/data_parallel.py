"""Data parallelism: every GPU has the whole chain, and gradients go round in rings.

Micro-batch i runs on GPU i mod P; each GPU adds the gradients of its m / P micro-batches up, and
one all-reduce a step adds those of the GPUs. What is sent together is a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from schedopt.chain import Chain
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.collectives import all_reduce_and_update
from schedopt.systems.setting import Setting
from schedopt.systems.timetable import Timetable


def blocking(setting: Setting) -> Plan:
    """Return a step whose all-reduce begins after the last backward."""
    return _plan(setting, [(0, len(setting.chain.layers) - 1)])


def overlapped(setting: Setting) -> Plan:
    """Return a step in which each layer's all-reduce begins when its last backward is done."""
    return _plan(setting, [(layer, layer) for layer in range(len(setting.chain.layers))])


def bucketed(setting: Setting) -> Plan:
    """Return a step whose layers share an all-reduce up to some bytes (Li et al. 2020)."""
    return _plan(setting, list_buckets(setting.chain, setting.bucket_bytes))


def list_buckets(chain: Chain, bucket_bytes: int) -> list[tuple[int, int]]:
    """Return the first and last layers of buckets that are filled from the end of the chain.

    A bucket is closed by the layer with which its gradients reach `bucket_bytes`.
    """
    chain.require("gradient_bytes", range(len(chain.layers)), needed_by="a bucket")
    found = []
    last, filled = len(chain.layers) - 1, 0
    for first in reversed(range(len(chain.layers))):
        filled += chain.layers[first].gradient_bytes or 0
        if filled >= bucket_bytes or not first:
            found.append((first, last))
            last, filled = first - 1, 0
    return found[::-1]


def lay_out(setting: Setting, rule: Rule, buckets: Sequence[tuple[int, int]]) -> Timetable:
    """Return the forwards and backwards of a step, all GPUs alike."""
    setting.require_multiple("each GPU runs as many micro-batches")
    gpus = tuple(range(len(setting.platform.gpus)))
    stages = [Stage(layers=layers, gpus=gpus) for layers in buckets]
    timetable = setting.timetable(rule, stages)
    for i in range(setting.microbatches):
        for stage in range(len(stages)):
            timetable.run("F", stage, i)
        for stage in reversed(range(len(stages))):
            timetable.run("B", stage, i)
    return timetable


def _plan(setting: Setting, buckets: Sequence[tuple[int, int]]) -> Plan:
    timetable = lay_out(setting, setting.flush_rule(replicated=True), buckets)
    for stage in reversed(range(len(buckets))):
        all_reduce_and_update(timetable, stage, setting.microbatches)
    return setting.flushed(timetable)
