"""Interleaved 1F1B: several stages a GPU, so that the pipeline fills sooner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schedopt.cuts import balanced_cuts
from schedopt.plan import Kind, Plan
from schedopt.stage import Stage
from schedopt.systems.setting import Setting

CHUNKS: Final = 2
"""v, the stages of each GPU."""


def plan(setting: Setting) -> Plan:
    """Return a step of interleaved 1F1B with two stages a GPU (Narayanan et al. 2021, figure 4).

    Stage s runs on GPU s mod P. Each GPU runs P micro-batches in its first stage, the same P in
    its second, then the next P, forwards in that order and backwards in the same order with the
    stages the other way round. GPU p runs 2 (P - p - 1) + (v - 1) P forwards, then a forward and a
    backward in turn. Equal stages leave a bubble of (P - 1) (F + B) / v for F and B of a GPU.
    """
    setting.require_multiple("micro-batches go through the stages of a GPU in groups of as many")
    gpus = len(setting.platform.gpus)
    cuts = balanced_cuts(setting.chain, CHUNKS * gpus)
    stages = [Stage(layers=cut, gpus=(s % gpus,)) for s, cut in enumerate(cuts)]
    timetable = setting.timetable(setting.flush_rule(replicated=False), stages)
    for kind, stage, i in order(gpus, CHUNKS, setting.microbatches):
        timetable.run(kind, stage, i)
    for stage in reversed(range(len(stages))):
        timetable.update(stage, setting.microbatches - 1)
    return setting.flushed(timetable)


def order(gpus: int, chunks: int, microbatches: int) -> Iterator[tuple[Kind, int, int]]:
    """Yield what each GPU runs in a step, one GPU after the other: kind, stage, micro-batch."""
    turns = _turns(microbatches, gpus, chunks)
    for gpu in range(gpus):
        ahead = min(len(turns), 2 * (gpus - gpu - 1) + (chunks - 1) * gpus)
        for number in range(-ahead, len(turns)):
            if number + ahead < len(turns):
                chunk, i = turns[number + ahead]
                yield "F", chunk * gpus + gpu, i
            if number >= 0:
                chunk, i = turns[number]
                yield "B", (chunks - 1 - chunk) * gpus + gpu, i


def _turns(microbatches: int, gpus: int, chunks: int) -> list[tuple[int, int]]:
    """Return the order of a GPU's stages, each with a micro-batch."""
    return [
        (chunk, i)
        for first in range(0, microbatches, gpus)
        for chunk in range(chunks)
        for i in range(first, first + gpus)
    ]
