"""The stages of a plan as a line of Mist's table of plans lists them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schedopt.bench.published.tables import Line
from schedopt.errors import InputError
from schedopt.importing.saved_activations import IN_LAYER, ORDER
from schedopt.validation import show

NEEDED = ("layers", "mbs", "microbatches", "gpus")
"""What a line must know besides its stages."""


@dataclass(frozen=True)
class StageLists:
    """What a stage lists for each operator from `first` on; `gpus` run it."""

    first: int
    gpus: int
    tensor: list[int]
    replicas: list[int]
    algorithm: list[int]
    again: list[bool]


def read_stages(line: Line) -> Iterator[StageLists]:
    """Yield the stages of a plan.

    Raises
    ------
    InputError
        Naming the place in the line, if a list is none or has another length, if stages leave
        operators or GPUs out, or if degrees fit neither the GPUs of a stage nor the samples.
    """
    for name in NEEDED:
        if line[name] is None:
            raise InputError("is not known", field=name, way_out="Give it, or take the plan out")
    behind = 0
    stages = _list(line["stages"], "stages")
    if not stages:
        raise InputError("there are none", field="stages", way_out="Is the table complete?")
    for number, stage in enumerate(stages):
        read = _read_stage(stage, f"stages[{number}]")
        if read.first != behind:
            raise InputError(
                f"begins with operator {read.first}, and the stage before ends at {behind - 1}",
                field=f"stages[{number}].ops",
                way_out="Give each operator one stage",
            )
        behind += len(read.tensor)
        for replicas in {*read.replicas}:
            if line["mbs"] % replicas:
                raise InputError(
                    f"{replicas} replicas cannot share {line['mbs']} samples",
                    field=f"stages[{number}].dp",
                    way_out="Give a number that divides mbs",
                )
        yield read
    _refuse_rest(line, behind, sum(stage["gpus"] for stage in stages))


def _refuse_rest(line: Line, operators: int, gpus: int) -> None:
    """Refuse a plan whose stages leave out what comes last, or some of its GPUs."""
    count = len(ORDER) + (line["layers"] - 1) * len(IN_LAYER)
    if operators < count:
        raise InputError(
            f"end with operator {operators - 1}, and {line['layers']} layers have {count}",
            field="stages",
            way_out="Give each operator one stage, or correct how many layers it has",
        )
    if gpus != line["gpus"]:
        raise InputError(
            f"is {line['gpus']}, and its stages have {gpus}",
            field="gpus",
            way_out="Correct it, or the GPUs of its stages",
        )


def _read_stage(stage: Any, field: str) -> StageLists:
    if not isinstance(stage, dict):
        raise InputError("is no stage", field=field, way_out="Give an object")
    first, end = _whole_numbers(stage.get("ops"), f"{field}.ops")
    lists = {}
    for name, low in (("tp", 1), ("dp", 1), ("algo", 0), ("recompute", 0)):
        values = lists[name] = _runs(stage.get(name), f"{field}.{name}", low)
        if len(values) != end - first or end == first:
            raise InputError(
                f"has {len(values)} values, and the stage operators {first} to {end - 1}",
                field=f"{field}.{name}",
                way_out="Give each operator its own",
            )
    gpus = _whole(stage.get("gpus"), f"{field}.gpus", 1)
    for tensor, replicas in {*zip(lists["tp"], lists["dp"], strict=True)}:
        if tensor * replicas != gpus:
            raise InputError(
                f"{gpus} GPUs are not {replicas} replicas of {tensor}",
                field=f"{field}.gpus",
                way_out="Give as many GPUs as replicas times the tensor degree",
            )
    again = [bool(value) for value in lists["recompute"]]
    return StageLists(first, gpus, lists["tp"], lists["dp"], lists["algo"], again)


def _runs(value: Any, field: str, low: int) -> list[int]:
    """Return the values of a list of runs: a value and how often it comes."""
    found: list[int] = []
    for number, run in enumerate(_list(value, field)):
        each, count = _whole_numbers(run, f"{field}[{number}]")
        found += [_whole(each, f"{field}[{number}]", low)] * count
    return found


def _whole_numbers(value: Any, field: str) -> tuple[int, int]:
    two = _list(value, field)
    if len(two) != 2:
        raise InputError(f"has {len(two)} values, not two", field=field, way_out="Give two")
    return _whole(two[0], field), _whole(two[1], field)


def _whole(value: Any, field: str, low: int = 0) -> int:
    if type(value) is not int or not low <= value < 2**20:
        raise InputError(
            f"{show(value)} is no whole number from {low}",
            field=field,
            way_out="Give one",
        )
    return value


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{show(value)} is not a list", field=field, way_out="Give a list")
    return value
