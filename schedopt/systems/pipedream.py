"""Pipelines that never drain: 1F1B in its steady state, under four rules of the weights.

At stage s of P at most P - s micro-batches are in flight: after P - s forwards each GPU runs a
backward and a forward in turn (Narayanan et al. 2019, section 3.2).
"""

from __future__ import annotations

from schedopt.account import versions
from schedopt.plan import Plan
from schedopt.rule import Rule
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flushes import one_f_one_b_order
from schedopt.systems.list_scheduler import ListScheduler


def pipedream(config: SystemConfig) -> Plan:
    """Return PipeDream (Narayanan et al. 2019): weight stashing, an update each micro-batch.

    A backward reads the version that its forward read; stage s of P holds P - s versions.
    """
    return one_f_one_b(config, Rule(update_every=1))


def pipedream_vertical(config: SystemConfig) -> Plan:
    """Return PipeDream with vertical sync (Narayanan et al. 2019, section 3.3).

    All stages read the version that the first one read for the micro-batch.
    """
    return one_f_one_b(config, Rule(update_every=1, forward_reads="entry"))


def pipedream_2bw(config: SystemConfig) -> Plan:
    """Return PipeDream-2BW (Narayanan et al. 2021): a delay of one update, two versions.

    An update comes every m micro-batches of the step, or as soon after as that allows: all that
    is in flight began at most one update ago. The source has m >= P.
    """
    m = config.microbatches
    while True:
        newest = one_f_one_b(config, Rule(update_every=m))
        if max(versions(newest).forward_staleness.values()) <= 1:
            return one_f_one_b(config, Rule(update_every=m, forward_reads="delay", delay=1))
        m += 1


def pipemare(config: SystemConfig) -> Plan:
    """Return the pipeline of PipeMare (Yang et al. 2021): all read the newest weights.

    What it does to the learning rate and to the weights of the backward is not in the plan.
    """
    m = config.microbatches
    return one_f_one_b(config, Rule(update_every=m, backward_reads="live"))


def one_f_one_b(config: SystemConfig, rule: Rule, stages: list[Stage] | None = None) -> Plan:
    """Return 1F1B without a flush on stages, one for each GPU, under a rule.

    Updates come right behind the last backward of a mini-batch. If they take time, the pattern is
    one of whole mini-batches. Stages are balanced if none are given.
    """
    gpus = len(config.platform.gpus)
    stages = stages or config.pipeline()
    every = rule.update_every or 1

    def follow(count: int) -> ListScheduler:
        scheduler = config.scheduler(rule, stages)
        for kind, stage, i in one_f_one_b_order(gpus, count):
            scheduler.run(kind, stage, i)
            if kind == "B" and (i + 1) % every == 0:
                scheduler.update(stage, i)
        return scheduler

    return config.steady(follow, every if config.updated else 1)
