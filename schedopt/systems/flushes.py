"""Pipelines that drain at the end of each step, a flush, and apply all gradients there.

Each differs in its stages and in the order of operations on a GPU alone; `one_gpu` is what the
others are held against.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from schedopt.cuts import balanced_cuts
from schedopt.errors import InputError
from schedopt.plan import Kind, Plan
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig
from schedopt.systems.flush_step import Turn, flush_step

CHUNKS: Final = 2
"""v, the stages of each GPU in interleaved 1F1B."""


def one_gpu(config: SystemConfig) -> Plan:
    """Return gradient accumulation: the whole chain on GPU 0, m micro-batches an update."""
    stages = [Stage(layers=(0, len(config.chain.layers) - 1), gpus=(0,))]
    turns = ((kind, 0, i) for i in range(config.microbatches) for kind in _WHOLE)
    return flush_step(config, stages, turns)


def gpipe(config: SystemConfig) -> Plan:
    """Return a step of GPipe, a stage on each GPU: all forwards, then all backwards, an update.

    Backwards go in the order of the forwards, as Narayanan et al. 2021 draw it in figure 3 and
    PyTorch runs it; Huang et al. 2019 draw them the other way round, and stages that are alike
    take as long. Each stage keeps the activations of all m micro-batches.
    """
    stages = config.pipeline()
    turns = (
        (kind, stage, i)
        for kind in _WHOLE
        for stage in range(len(stages))
        for i in range(config.microbatches)
    )
    return flush_step(config, stages, turns)


def one_f_one_b(config: SystemConfig) -> Plan:
    """Return a step of 1F1B, a stage on each GPU.

    PipeDream-Flush (Narayanan et al. 2021, figure 3), which is the early backward of DAPPLE (Fan
    et al. 2021): stage s of P runs P - s forwards, then a backward and a forward in turn, and
    keeps the activations of at most P - s micro-batches.
    """
    stages = config.pipeline()
    return flush_step(config, stages, one_f_one_b_order(len(stages), config.microbatches))


def zero_bubble(config: SystemConfig) -> Plan:
    """Return a step of ZB-H1 (Qi et al. 2023, section 2.1), a stage on each GPU.

    As 1F1B, but stage s runs W of each micro-batch s micro-batches after its I, so that every
    stage has at most P micro-batches between the start of F and the end of W, as many as the first
    stage of 1F1B. Equal stages leave a bubble of (P - 1) (F + I - W).

    Raises
    ------
    InputError
        If the chain does not say how long the halves of the backward take.
    """
    layers = range(len(config.chain.layers))
    config.chain.require("backward_input_ns", layers, needed_by="a backward in two halves")
    stages = config.pipeline()
    order = _zero_bubble_order(len(stages), config.microbatches)
    return flush_step(config, stages, order, split=True)


def interleaved(config: SystemConfig) -> Plan:
    """Return a step of interleaved 1F1B with two stages a GPU (Narayanan et al. 2021, figure 4).

    Stage s runs on GPU s mod P. Each GPU runs P micro-batches in its first stage, the same P in
    its second, then the next P, forwards in that order and backwards in the same order with the
    stages the other way round. GPU p runs 2 (P - p - 1) + (v - 1) P forwards, then a forward and a
    backward in turn. Equal stages leave a bubble of (P - 1) (F + B) / v for F and B of a GPU.

    Raises
    ------
    InputError
        If m is no multiple of the number of GPUs, or there are fewer layers than stages.
    """
    config.require_multiple("micro-batches go through the stages of a GPU in groups of as many")
    gpus = len(config.platform.gpus)
    cuts = balanced_cuts(config.chain, CHUNKS * gpus)
    stages = [Stage(layers=cut, gpus=(s % gpus,)) for s, cut in enumerate(cuts)]
    return flush_step(config, stages, interleaved_order(gpus, CHUNKS, config.microbatches))


def chimera(config: SystemConfig) -> Plan:
    """Return a step of Chimera with one pair of pipelines (Li and Hoefler 2021).

    Two pipelines in opposite directions fill each other's bubbles: stage s lies on GPUs s and
    P - 1 - s; even micro-batches go down, odd ones up. A unit is P micro-batches, P / 2 each way,
    and units follow each other without a pause (direct concatenation). A GPU has at most P / 2 of
    them in flight in each of its stages. The two replicas of a stage add their gradients up as
    soon as both are whole.

    The order is that of figure 3, where all operations last one slot: micro-batch j of a unit in
    its direction runs F of stage s in slot s + 2j and B in slot 2P - 1 - s + 2j of the unit, and
    units begin 2P slots apart. For even P no two fall on the same slot of a GPU.

    Raises
    ------
    InputError
        If the number of GPUs is odd, or m no multiple of it.
    """
    gpus = len(config.platform.gpus)
    if gpus % 2:
        raise InputError(
            f"Chimera needs an even number of GPUs, and there {'are' if gpus > 1 else 'is'} {gpus}",
            field="gpus",
            way_out=f"Use {f'{gpus - 1} or ' if gpus > 1 else ''}{gpus + 1} GPUs",
        )
    config.require_multiple("Chimera runs units of as many micro-batches")
    cuts = balanced_cuts(config.chain, gpus)
    stages = [Stage(layers=cut, gpus=(s, gpus - 1 - s)) for s, cut in enumerate(cuts)]
    slots = sorted(_chimera_slots(config.microbatches, gpus))
    return flush_step(config, stages, (turn[1:] for turn in slots))


_WHOLE: Final[tuple[Kind, ...]] = ("F", "B")


def one_f_one_b_order(gpus: int, microbatches: int) -> Iterator[Turn]:
    """Yield what each GPU runs in a step of 1F1B, one GPU after the other."""
    for stage in range(gpus):
        ahead = min(microbatches, gpus - stage)
        for i in range(ahead):
            yield "F", stage, i
        for i in range(microbatches):
            yield "B", stage, i
            if i + ahead < microbatches:
                yield "F", stage, i + ahead


def _zero_bubble_order(gpus: int, microbatches: int) -> Iterator[Turn]:
    for stage in range(gpus):
        ahead = min(microbatches, gpus - stage)
        for i in range(ahead):
            yield "F", stage, i
        for i in range(microbatches + stage):
            if i < microbatches:
                yield "I", stage, i
            if 0 <= i - stage < microbatches:
                yield "W", stage, i - stage
            if i + ahead < microbatches:
                yield "F", stage, i + ahead


def interleaved_order(gpus: int, chunks: int, microbatches: int) -> Iterator[Turn]:
    """Yield what each GPU runs in a step of interleaved 1F1B, one GPU after the other."""
    turns = [
        (chunk, i)
        for first in range(0, microbatches, gpus)
        for chunk in range(chunks)
        for i in range(first, first + gpus)
    ]
    for gpu in range(gpus):
        ahead = min(len(turns), 2 * (gpus - gpu - 1) + (chunks - 1) * gpus)
        for number in range(-ahead, len(turns)):
            if number + ahead < len(turns):
                chunk, i = turns[number + ahead]
                yield "F", chunk * gpus + gpu, i
            if number >= 0:
                chunk, i = turns[number]
                yield "B", (chunks - 1 - chunk) * gpus + gpu, i


def _chimera_slots(microbatches: int, gpus: int) -> Iterator[tuple[int, Kind, int, int]]:
    """Yield the slot of every operation, its kind, stage and micro-batch."""
    for i in range(microbatches):
        unit, place = divmod(i, gpus)
        begin = 2 * gpus * unit + 2 * (place // 2)
        for stage in range(gpus):
            yield begin + stage, "F", stage, i
            yield begin + 2 * gpus - 1 - stage, "B", stage, i
