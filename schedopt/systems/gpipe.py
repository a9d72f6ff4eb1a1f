"""GPipe: all forwards, then all backwards, then an update (Huang et al. 2019)."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.systems.setting import Setting


def plan(setting: Setting) -> Plan:
    """Return a step of GPipe, a stage on each GPU.

    Backwards go in the order of the forwards, as Narayanan et al. 2021 draw it in figure 3 and
    PyTorch runs it; Huang et al. 2019 draw them the other way round, and stages that are alike
    take as long. Each stage keeps the activations of all m micro-batches.
    """
    stages = setting.pipeline()
    timetable = setting.timetable(setting.flush_rule(replicated=False), stages)
    for kind in ("F", "B"):
        for stage in range(len(stages)):
            for i in range(setting.microbatches):
                timetable.run(kind, stage, i)
    for stage in range(len(stages)):
        timetable.update(stage, setting.microbatches - 1)
    return setting.flushed(timetable)
