"""1F1B: each GPU runs forwards and backwards in turn."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.plan import Kind, Plan
from schedopt.systems.setting import Setting


def flush(setting: Setting) -> Plan:
    """Return a step of 1F1B with a flush, a stage on each GPU.

    PipeDream-Flush (Narayanan et al. 2021, figure 3), which is the early backward of DAPPLE (Fan
    et al. 2021): stage s of P runs P - s forwards, then a backward and a forward in turn, and
    keeps the activations of at most P - s micro-batches.
    """
    timetable = setting.timetable(setting.flush_rule(replicated=False), setting.pipeline())
    for kind, stage, i in order(len(timetable.stages), setting.microbatches):
        timetable.run(kind, stage, i)
    for stage in range(len(timetable.stages)):
        timetable.update(stage, setting.microbatches - 1)
    return setting.flushed(timetable)


def order(gpus: int, microbatches: int) -> Iterator[tuple[Kind, int, int]]:
    """Yield what each GPU runs in a step, one GPU after the other: kind, stage, micro-batch."""
    for stage in range(gpus):
        ahead = min(microbatches, gpus - stage)
        for i in range(ahead):
            yield "F", stage, i
        for i in range(microbatches):
            yield "B", stage, i
            if i + ahead < microbatches:
                yield "F", stage, i + ahead
