"""Orders of torch's pipeline runtime that torchtitan names, and rows of a CSV file.

References
----------
``torch.distributed.pipelining.schedules`` of torch 2.13: GPipe, 1F1B, LoopedBFS, Interleaved1F1B,
and the compute-only rows of ``_load_csv``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from schedopt.errors import InputError
from schedopt.plan import KINDS
from schedopt.systems.flush_step import Turn
from schedopt.validation import show

Rows = tuple[tuple[Turn, ...], ...]
"""What each rank runs, in order: kind, stage and micro-batch."""

SINGLE: Final = ("1F1B", "GPipe")
"""Schedules with one stage on each rank."""
LOOPED: Final = ("Interleaved1F1B", "LoopedBFS")
"""Schedules with several, stage s on rank s mod p."""
FROM_CSV: Final = ("PipelineScheduleSingle", "PipelineScheduleMulti", "_PipelineScheduleRuntime")
"""Names beside which torchtitan reads a CSV file; with others it does not."""
_ACTION: Final = re.compile(r"([0-9]{1,6})(F|B|I|W)([0-9]{1,6})")


def rows_of(schedule: str, ranks: int, chunks: int, count: int) -> Rows | None:
    """Return the rows of a schedule; None where they are those of `engine_order`.

    Raises
    ------
    InputError
        For a number of micro-batches that the schedule does not take.
    """
    if schedule == "1F1B":
        return None
    if schedule == "GPipe":
        return tuple(
            tuple((kind, rank, i) for kind in ("F", "B") for i in range(count))
            for rank in range(ranks)
        )
    if schedule == "LoopedBFS":
        return tuple(tuple(_breadth_first(rank, ranks, chunks, count)) for rank in range(ranks))
    rounds = max(1, count // ranks)
    size, rest = divmod(count, rounds)
    if rest:
        raise InputError(
            f"{count} micro-batches are no multiple of {rounds} rounds, the number of whole "
            f"groups of {ranks} in them",
            way_out=f"Give a multiple of {ranks}",
        )
    if size == ranks:
        return None
    return tuple(tuple(_interleaved(rank, ranks, chunks, count, size)) for rank in range(ranks))


def _breadth_first(rank: int, ranks: int, chunks: int, count: int) -> Iterator[Turn]:
    """Yield all forwards of a stage, then of the next one; backwards the other way round."""
    for chunk in range(chunks):
        yield from (("F", chunk * ranks + rank, i) for i in range(count))
    for chunk in reversed(range(chunks)):
        yield from (("B", chunk * ranks + rank, i) for i in reversed(range(count)))


def _interleaved(rank: int, ranks: int, chunks: int, count: int, size: int) -> Iterator[Turn]:
    """Yield interleaved 1F1B in groups of another size than the ranks."""
    places = [
        (chunk, i)
        for first in range(0, count, size)
        for chunk in range(chunks)
        for i in range(first, first + size)
    ]
    ahead = min(len(places), (chunks - 1) * size + 2 * (ranks - 1 - rank))
    for number in range(-ahead, len(places)):
        if number + ahead < len(places):
            chunk, i = places[number + ahead]
            yield "F", chunk * ranks + rank, i
        if number >= 0:
            chunk, i = places[number]
            yield "B", (chunks - 1 - chunk) * ranks + rank, i


def read_csv(text: str, ranks: int, stages: int, count: int) -> tuple[Rows, tuple[int, ...]]:
    """Return the compute-only rows of a CSV file, and the rank of each stage.

    Raises
    ------
    InputError
        Naming the line, unless each stage runs each micro-batch once, forward and backward or its
        halves, all of them on one rank.
    """
    lines = text.splitlines()
    if len(lines) != ranks:
        raise InputError(
            f"it has {len(lines)} rows, and there are {ranks} pipeline ranks",
            way_out="Give a row for each rank",
        )
    rows = tuple(tuple(_read_row(line, rank + 1)) for rank, line in enumerate(lines))
    homes: dict[int, int] = {}
    for rank, row in enumerate(rows):
        for _, stage, _ in row:
            if homes.setdefault(stage, rank) != rank:
                raise InputError(
                    f"stage {stage} runs on rank {homes[stage]} too",
                    field=f"line {rank + 1}",
                    way_out="Run each stage on one rank",
                )
    kinds: dict[tuple[int, int], list[str]] = defaultdict(list)
    for row in rows:
        for kind, stage, i in row:
            kinds[stage, i].append(kind)
    if not {*kinds} <= {(stage, i) for stage in range(stages) for i in range(count)}:
        stage, i = max(kinds)
        raise InputError(
            f"it names stage {stage} and micro-batch {i}, and there are {stages} stages and "
            f"{count} micro-batches",
            way_out="Give the rows of this configuration",
        )
    for stage in range(stages):
        for i in range(count):
            own = "".join(sorted(kinds[stage, i]))
            if own not in ("BF", "FIW"):
                raise InputError(
                    f"stage {stage} runs {own or 'nothing'} for micro-batch {i}",
                    field=f"line {homes.get(stage, 0) + 1}",
                    way_out="Run F and B, or F, I and W, of each once",
                )
    return rows, tuple(homes[stage] for stage in range(stages))


def _read_row(line: str, number: int) -> Iterator[Turn]:
    for word in line.split(","):
        if not (text := word.strip()):
            continue
        match = _ACTION.fullmatch(text)
        if match is None:
            raise InputError(
                f"{show(text)} is no operation",
                field=f"line {number}",
                way_out="Give compute-only rows: 0F0,0B0, with I and W for halves of a backward",
            )
        kind = KINDS[KINDS.index(match[2])]
        yield kind, int(match[1]), int(match[3])


def repeated(rows: Rows, times: int, count: int) -> Rows:
    """Return rows of several passes through the pipeline, each with as many micro-batches."""
    return tuple(
        tuple((kind, stage, i + turn * count) for turn in range(times) for kind, stage, i in row)
        for row in rows
    )


def engine_rows(ranks: int, turns: Sequence[Turn]) -> Rows:
    """Return turns of all ranks, one rank after the other, as rows."""
    rows: list[list[Turn]] = [[] for _ in range(ranks)]
    for turn in turns:
        rows[turn[1] % ranks].append(turn)
    return tuple(map(tuple, rows))
