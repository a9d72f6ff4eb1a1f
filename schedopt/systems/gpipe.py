"""GPipe: all forwards, then all backwards, then an update (Huang et al. 2019)."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.systems.config import SystemConfig


def plan(config: SystemConfig) -> Plan:
    """Return a step of GPipe, a stage on each GPU.

    Backwards go in the order of the forwards, as Narayanan et al. 2021 draw it in figure 3 and
    PyTorch runs it; Huang et al. 2019 draw them the other way round, and stages that are alike
    take as long. Each stage keeps the activations of all m micro-batches.
    """
    stages = config.pipeline()
    scheduler = config.scheduler(config.flush_rule(replicated=False), stages)
    for kind in ("F", "B"):
        for stage in range(len(stages)):
            for i in range(config.microbatches):
                scheduler.run(kind, stage, i)
    for stage in range(len(stages)):
        scheduler.update(stage, config.microbatches - 1)
    return config.flushed(scheduler)
