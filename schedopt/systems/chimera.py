"""Chimera: two pipelines in opposite directions fill each other's bubbles (Li and Hoefler 2021)."""

from __future__ import annotations

from collections.abc import Iterator

from schedopt.cuts import balanced_cuts
from schedopt.errors import InputError
from schedopt.plan import Kind, Plan
from schedopt.stage import Stage
from schedopt.systems.collectives import all_reduce_and_update
from schedopt.systems.setting import Setting


def plan(setting: Setting) -> Plan:
    """Return a step of Chimera with one pair of pipelines.

    Stage s lies on GPUs s and P - 1 - s; even micro-batches go down, odd ones up. A unit is P
    micro-batches, P / 2 each way, and units follow each other without a pause (direct
    concatenation). A GPU has at most P / 2 of them in flight in each of its stages. The two
    replicas of a stage add their gradients up as soon as both are whole.

    The order is that of figure 3, where all operations last one slot: micro-batch j of a unit in
    its direction runs F of stage s in slot s + 2j and B in slot 2P - 1 - s + 2j of the unit, and
    units begin 2P slots apart. For even P no two fall on the same slot of a GPU.
    """
    gpus = len(setting.platform.gpus)
    if gpus % 2:
        raise InputError(
            f"Chimera needs an even number of GPUs, and there {'are' if gpus > 1 else 'is'} {gpus}",
            field="gpus",
            way_out=f"Use {f'{gpus - 1} or ' if gpus > 1 else ''}{gpus + 1} GPUs",
        )
    setting.require_multiple("Chimera runs units of as many micro-batches")
    cuts = balanced_cuts(setting.chain, gpus)
    stages = [Stage(layers=cut, gpus=(s, gpus - 1 - s)) for s, cut in enumerate(cuts)]
    timetable = setting.timetable(setting.flush_rule(replicated=True), stages)
    for _, kind, stage, i in sorted(_slots(setting.microbatches, gpus)):
        timetable.run(kind, stage, i)
    for stage in reversed(range(gpus)):
        all_reduce_and_update(timetable, stage, setting.microbatches)
    return setting.flushed(timetable)


def _slots(microbatches: int, gpus: int) -> Iterator[tuple[int, Kind, int, int]]:
    """Yield the slot of every operation, its kind, stage and micro-batch."""
    for i in range(microbatches):
        unit, place = divmod(i, gpus)
        begin = 2 * gpus * unit + 2 * (place // 2)
        for stage in range(gpus):
            yield begin + stage, "F", stage, i
            yield begin + 2 * gpus - 1 - stage, "B", stage, i
