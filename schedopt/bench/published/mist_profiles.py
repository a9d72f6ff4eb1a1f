"""The profiles of operators of the Mist package, with the all-reduces of its collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np

from schedopt.bench.published.prediction import unknown
from schedopt.bench.published.tables import Line
from schedopt.importing.profiles import DID_NOT_RUN
from schedopt.importing.saved_activations import IN_LAYER, misplaced

MIB: Final = 2**20
OPS: Final = (
    "set model mbs tp algo op forward_ns backward_ns input_mib output_mib weights_mib "
    "activations_mib"
)
LAYER: Final = slice(1, 1 + len(IN_LAYER))
"""The operators of one layer, of the list that a profile has."""
COLUMN_THEN_ROW: Final = 0
"""The way of Megatron-LM to split the products of a layer, among the `algo` of a profile."""
REDUCED: Final = {
    "encoder-embedding": "forward_ns",
    "enc-attention-dense": "forward_ns",
    "enc-MLP-GEMM-2": "forward_ns",
    "enc-attention-qkv": "backward_ns",
    "enc-MLP-GEMM-1": "backward_ns",
}
"""Operators that end with one all-reduce where they are split so, and in which pass. The loss
behind the output layer has several: that operator stays as profiled."""

Op: TypeAlias = Mapping[str, Any]
Profiles: TypeAlias = Mapping[tuple[object, ...], Sequence[Op]]
"""Operators by set, model, samples, tensor degree and the way to split."""
Curve: TypeAlias = tuple[Sequence[float], Sequence[float]]
"""Sizes, ascending, and their times, ns."""
Curves: TypeAlias = Mapping[tuple[object, ...], Curve]


def read_profiles(lines: Sequence[Line], collectives: Curves) -> Profiles:
    """Return the profiles of a table, with the all-reduces of a table of collectives."""
    found: dict[tuple[object, ...], list[Op]] = {}
    for op in lines:
        key = tuple(op[name] for name in ("set", "model", "mbs", "tp", "algo"))
        found.setdefault(key, []).append(op)
    return {key: _reduce_by_table(found, key, collectives) for key in found}


def unusable(profile: Sequence[Op]) -> str:
    """Return in words why a profile is none: operators out of order, or that were not measured."""
    if wrong := misplaced([op["op"] for op in profile]):
        return wrong
    for op in profile:
        if why := unknown(op, OPS):
            return f"{op['op']}: {why}"
    return ""


def ran(op: Op) -> bool:
    """Whether an operator was measured: where it ran out of memory, its profile says so."""
    return bool(max(op["forward_ns"], op["backward_ns"]) < DID_NOT_RUN)


def _reduce_by_table(
    profiles: Profiles, key: tuple[object, ...], collectives: Curves
) -> Sequence[Op]:
    """Return a profile whose all-reduces take as long as the table of collectives says.

    An operator of t GPUs takes a t-th of its time on one, and the all-reduce. The two sources may
    differ: the A10G groups of four were profiled on links twice as fast as the table's.
    """
    name, model, samples, tensor, algorithm = key
    profile = profiles[key]
    alone = profiles.get((name, model, samples, 1, algorithm), ())
    measured = collectives.get((name, "all_reduce", tensor))
    split = (
        algorithm == COLUMN_THEN_ROW and tensor != 1 and not (unusable(profile) or unusable(alone))
    )
    found: list[Op] = []
    for number, op in enumerate(profile):
        times = {}
        if split and measured and op["op"] in REDUCED and ran(op) and ran(alone[number]):
            column = REDUCED[op["op"]]
            hidden_state = MIB * profile[0]["output_mib"]
            compute = alone[number][column] / op["tp"]
            times = {column: compute + read_off(*measured, hidden_state)}
        found.append({**op, **times, "profiled": op})
    return found


def by_size(lines: Sequence[Line], names: Sequence[str]) -> Curves:
    """Return sizes and the medians of their times, by the values of some columns."""
    found: dict[tuple[object, ...], dict[float, list[float]]] = {}
    for line in lines:
        if line["bytes"] and line["time_ns"] is not None:
            key = tuple(line[name] for name in names)
            found.setdefault(key, {}).setdefault(line["bytes"], []).append(line["time_ns"])
    return {
        key: (sorted(times), [median(times[size]) for size in sorted(times)])
        for key, times in found.items()
    }


def read_off(sizes: Sequence[float], times: Sequence[float], count: float) -> float:
    """Return the time for some bytes, interpolated; beyond the largest size at its rate."""
    if count > sizes[-1]:
        return times[-1] * count / sizes[-1]
    return float(np.interp(count, sizes, times))
