"""1F1B: each GPU runs forwards and backwards in turn."""

from __future__ import annotations

from schedopt.plan import Plan
from schedopt.systems.setting import Setting


def flush(setting: Setting) -> Plan:
    """Return a step of 1F1B with a flush, a stage on each GPU.

    PipeDream-Flush (Narayanan et al. 2021, figure 3), which is the early backward of DAPPLE (Fan
    et al. 2021): stage s of P runs P - s forwards, then a backward and a forward in turn, and
    keeps the activations of at most P - s micro-batches.
    """
    stages = setting.pipeline()
    timetable = setting.timetable(setting.flush_rule(replicated=False), stages)
    m = setting.microbatches
    for stage in range(len(stages)):
        ahead = min(m, len(stages) - stage)
        for i in range(ahead):
            timetable.run("F", stage, i)
        for i in range(m):
            timetable.run("B", stage, i)
            if i + ahead < m:
                timetable.run("F", stage, i + ahead)
        timetable.update(stage, m - 1)
    return setting.flushed(timetable)
