"""Zero bubble: the halves of the backward apart, so that weight halves fill the bubbles."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.systems.setting import Setting


def h1(setting: Setting) -> Plan:
    """Return a step of ZB-H1 (Qi et al. 2023, section 2.1), a stage on each GPU.

    As 1F1B with a flush, but stage s runs W of each micro-batch s micro-batches after its I, so
    that every stage has at most P micro-batches between the start of F and the end of W, as many
    as the first stage of 1F1B. Equal stages leave a bubble of (P - 1) (F + I - W).

    Raises
    ------
    InputError
        If the chain does not say how long the halves of the backward take.
    """
    layers = range(len(setting.chain.layers))
    setting.chain.require("backward_input_ns", layers, needed_by="a backward in two halves")
    stages = setting.pipeline()
    timetable = setting.timetable(setting.flush_rule(replicated=False), stages)
    m = setting.microbatches
    for stage in range(len(stages)):
        ahead = min(m, len(stages) - stage)
        for i in range(ahead):
            timetable.run("F", stage, i)
        for i in range(m + stage):
            if i < m:
                timetable.run("I", stage, i)
            if 0 <= i - stage < m:
                timetable.run("W", stage, i - stage)
            if i + ahead < m:
                timetable.run("F", stage, i + ahead)
        timetable.update(stage, m - 1)
    return setting.flushed(timetable, split=True)
