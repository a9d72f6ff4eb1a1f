"""TiMePReSt (Dutta, Chaki and De): the forwards of a mini-batch one by one, one backward for all.

A backward that has arrived goes before forwards, and both read the newest weights. The source sets
no bound to the forwards that run ahead; once steady, each GPU alternates N of them and a backward
(section 4.2). Stages that differ need a bound: at stage s of P, P - s mini-batches in flight, as in
PipeDream. It changes nothing in the source's figures 7, 9 and 10.
"""

from __future__ import annotations

from typing import Literal

from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.list_scheduler import ListScheduler


def timeprest(config: SystemConfig) -> Plan:
    """Return TiMePReSt on balanced stages, one for each GPU, with P micro-batches a mini-batch.

    Fewer than P - 1 would let backwards of two mini-batches overlap (section 4.4).
    """
    return timeprest_plan(config, config.pipeline(), len(config.platform.gpus))


def timeprest_plan(
    config: SystemConfig,
    stages: list[Stage],
    count: int,
    *,
    bounded: bool = True,
    forward_reads: Literal["live", "entry"] = "live",
) -> Plan:
    """Return the steady state of TiMePReSt on stages, with N = `count` micro-batches a mini-batch.

    If it is not `bounded`, more than P - s mini-batches may be in flight at stage s, and there is
    no steady state where a stage is faster than one behind it. The source has the newest weights
    in each pass, and also vertical sync within a forward.
    """
    rule = Rule(update_every=count, forward_reads=forward_reads, backward_reads="live")
    return config.steady(lambda n: timeprest_run(config, rule, stages, n, bounded), count)


def timeprest_run(
    config: SystemConfig, rule: Rule, stages: list[Stage], microbatches: int, bounded: bool
) -> ListScheduler:
    """Return the run of `microbatches` micro-batches from an empty pipeline."""
    count = rule.update_every or 1
    scheduler = config.scheduler(rule, stages, ordered=False)
    for stage in range(len(stages)):
        ahead = count * (len(stages) - stage)
        for i in range(microbatches):
            behind = i - ahead
            freed = [("B", stage, behind)] if bounded and behind >= 0 else []
            scheduler.run("F", stage, i, after=freed, priority=2)
        for first in range(0, microbatches, count):
            scheduler.run("B", stage, first, covers=count, priority=1)
            scheduler.update(stage, first + count - 1, after=[("B", stage, first)])
    return scheduler
