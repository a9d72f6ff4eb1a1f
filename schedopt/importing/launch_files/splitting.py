"""Stages as engines cut them, as layers of a chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from schedopt.chain import Chain
from schedopt.engine import Engine, may_be_empty
from schedopt.errors import InputError
from schedopt.importing.launch_files.launch import Layers
from schedopt.megatron_layout import LayoutChunk
from schedopt.transformer_blocks import EMBEDDING, find_blocks


def stages_of_chunks(
    chain: Chain, chunks: Sequence[LayoutChunk], engine: Engine
) -> tuple[Layers, ...]:
    """Return the layers of a chain on each chunk, in the order of the model.

    Raises
    ------
    InputError
        For chunks that hold nothing, or what the chain lacks, and for cuts inside of its layers;
        without a field, which the caller knows.
    """
    blocks = find_blocks(chain)
    count = sum(chunk.layers for chunk in chunks)
    if count != blocks.count:
        raise InputError(
            f"it has {count} transformer layers, and the chain {blocks.count}",
            way_out="Give the chain of the model that the file is for",
        )
    predicted = sum(chunk.mtp for chunk in chunks)
    if predicted != blocks.predictors:
        raise InputError(
            f"{predicted} layers predict a further token (m), and in the chain {blocks.predictors}",
            way_out="Give the chain of the model that the file is for",
        )
    first_of = {first: number for number, (first, _) in reversed([*enumerate(blocks.spans)])}
    begins, place = [], EMBEDDING
    for number, chunk in enumerate(chunks):
        size = chunk.embedding + chunk.layers + (chunk.mtp > 0) + chunk.loss
        if not size and not may_be_empty(engine):
            raise InputError(
                f"chunk {number} is empty, and a stage of a plan has at least one layer",
                way_out="Give each chunk a layer",
            )
        begin = first_of.get(place)
        if begin is None or begin not in blocks.begins:
            raise InputError(
                f"chunk {number} begins inside of a layer of the chain",
                way_out="Profile the model with a layer for each transformer layer at least",
            )
        begins.append(begin)
        place += size
    return spans(begins, len(chain.layers))


def spans(begins: Sequence[int], end: int) -> tuple[Layers, ...]:
    """Return first and last layers, given the first ones and what comes behind the last one."""
    return tuple((first, behind - 1) for first, behind in pairwise([*begins, end]))


def chunks_of(counts: Sequence[int], predictors: int) -> tuple[LayoutChunk, ...]:
    """Return chunks with numbers of transformer layers, the first and last with the ends.

    What predicts further tokens lies on the last one.
    """
    last = len(counts) - 1
    return tuple(
        LayoutChunk(
            embedding=number == 0,
            layers=count,
            mtp=predictors if number == last else 0,
            loss=number == last,
        )
        for number, count in enumerate(counts)
    )


def uniform(count: int, parts: int) -> list[int]:
    """Return where equal parts begin, of which the first have one more where it does not go up."""
    size, more = divmod(count, parts)
    sizes = [size + (part < more) for part in range(parts)]
    return [0, *accumulate(sizes[:-1])]


def balanced(weights: Sequence[int], parts: int) -> list[int]:
    """Return where parts begin whose heaviest and lightest differ least, cut from left to right.

    The best cut of the first i weights into j parts follows from those into j - 1: with each the
    heaviest and lightest part are kept, and of equally good ones the last part is the shortest.
    DeepSpeed's method *parameters* does so.
    """
    count = len(weights)
    if count <= parts:
        return uniform(count, parts)
    total = np.array([0, *accumulate(weights)], dtype=np.int64)
    heaviest = {0: 0}
    lightest = {0: int(total[-1]) + 1}
    choices: list[dict[int, int]] = []
    for part in range(1, parts + 1):
        chosen, next_heaviest, next_lightest = {}, {}, {}
        befores = np.array([*heaviest])
        high, low = np.array([*heaviest.values()]), np.array([*lightest.values()])
        for end in range(part, count + 1):
            known = befores < end
            size = total[end] - total[befores[known]]
            most, least = np.maximum(high[known], size), np.minimum(low[known], size)
            spread = most - least
            best = len(spread) - 1 - int(np.argmin(spread[::-1]))
            chosen[end] = int(befores[best])
            next_heaviest[end], next_lightest[end] = int(most[best]), int(least[best])
        choices.append(chosen)
        heaviest, lightest = next_heaviest, next_lightest
    begins, end = [], count
    for chosen in reversed(choices):
        end = chosen[end]
        begins.append(end)
    return begins[::-1]


def units_within(units: Sequence[Layers], stage: Layers) -> Iterator[Layers]:
    """Yield what is computed again as one inside of a stage."""
    for first, last in units:
        if stage[0] <= first and last <= stage[1]:
            yield first, last
