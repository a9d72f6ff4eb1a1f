"""Zero bubble: the halves of the backward apart, so that weight halves fill the bubbles."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.systems.config import SystemConfig


def h1(config: SystemConfig) -> Plan:
    """Return a step of ZB-H1 (Qi et al. 2023, section 2.1), a stage on each GPU.

    As 1F1B with a flush, but stage s runs W of each micro-batch s micro-batches after its I, so
    that every stage has at most P micro-batches between the start of F and the end of W, as many
    as the first stage of 1F1B. Equal stages leave a bubble of (P - 1) (F + I - W).

    Raises
    ------
    InputError
        If the chain does not say how long the halves of the backward take.
    """
    layers = range(len(config.chain.layers))
    config.chain.require("backward_input_ns", layers, needed_by="a backward in two halves")
    stages = config.pipeline()
    scheduler = config.scheduler(config.flush_rule(replicated=False), stages)
    m = config.microbatches
    for stage in range(len(stages)):
        ahead = min(m, len(stages) - stage)
        for i in range(ahead):
            scheduler.run("F", stage, i)
        for i in range(m + stage):
            if i < m:
                scheduler.run("I", stage, i)
            if 0 <= i - stage < m:
                scheduler.run("W", stage, i - stage)
            if i + ahead < m:
                scheduler.run("F", stage, i + ahead)
        scheduler.update(stage, m - 1)
    return config.flushed(scheduler, split=True)
