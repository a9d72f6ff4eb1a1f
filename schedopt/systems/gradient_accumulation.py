"""One GPU that adds the gradients of m micro-batches up: what the others are held against."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig


def plan(config: SystemConfig) -> Plan:
    """Return a step of the whole chain on GPU 0."""
    stages = [Stage(layers=(0, len(config.chain.layers) - 1), gpus=(0,))]
    scheduler = config.scheduler(config.flush_rule(replicated=False), stages)
    for i in range(config.microbatches):
        scheduler.run("F", 0, i)
        scheduler.run("B", 0, i)
    scheduler.update(0, config.microbatches - 1)
    return config.flushed(scheduler)
