"""One GPU that adds the gradients of m micro-batches up: what the others are held against."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.stage import Stage
from schedopt.systems.setting import Setting


def plan(setting: Setting) -> Plan:
    """Return a step of the whole chain on GPU 0."""
    stages = [Stage(layers=(0, len(setting.chain.layers) - 1), gpus=(0,))]
    timetable = setting.timetable(setting.flush_rule(replicated=False), stages)
    for i in range(setting.microbatches):
        timetable.run("F", 0, i)
        timetable.run("B", 0, i)
    timetable.update(0, setting.microbatches - 1)
    return setting.flushed(timetable)
