"""Steps on up to 512 A100, as the repository of vTrain has them (Bang et al. 2024).

Messages between stages are left out. At the rate of the card, divided by the tensor group, they
change the largest error by half a point (22.5 to 22.1 %) and the mean by a tenth (5.79 to 5.93 %):
rows scatter by more, and not with the number of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import gcd
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted, unknown
from schedopt.bench.published.steps import one_f_one_b_ns
from schedopt.bench.published.tables import Line, Tables
from schedopt.bench.published.transformer import LINK, UPDATE, Shape, read_shape

COLUMNS: Final = "parameters_billion mbs hidden heads layers sequence tp dp pp microbatches step_ns"
NODE: Final = "node"
"""GPUs of a node, which the table says of all lines."""
SAME: Final = ("parameters_billion", "hidden", "heads", "layers", "sequence", "tp", "mbs", NODE)
"""Of rows on which a layer takes as long: the size, the tensor degree and the micro-batch."""
VOCABULARY: Final = 51200
CARD: Final = 12.5e9
"""Bytes per second: InfiniBand HDR, taken as 800 Gb/s of a node, for each of its 8 GPUs."""
MEMORY: Final = 1.555e12
"""Bytes per second of the memory of an A100 (40 GB)."""
GRADIENT: Final = 4
"""Bytes of a gradient that replicas add up: Megatron-LM does so in single precision."""
BACKWARD: Final = 3
"""Of a forward, with everything computed again."""
SHARDED: Final = 8
"""The tensor degree whose rows scatter little."""


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for table in tables.named("vtrain", COLUMNS):
        node = {NODE: tables.gpus_of_node(table)}
        for run in ({**line, **node} for line in tables.lines(table, COLUMNS)):
            if why := unknown(run, COLUMNS):
                yield Unpredicted(row=_row(run), why=why)
            else:
                groups.setdefault(tuple(run[name] for name in SAME), []).append(run)
    for lines in groups.values():
        fitted = min(lines, key=lambda line: (line["pp"], -line["dp"]))
        yield Unpredicted(row=_row(fitted), why="the time of a layer is fitted on it")
        for line in lines:
            if line is fitted:
                continue

            def scaled(line: Line = line, fitted: Line = fitted) -> Predicted:
                forward = _layer_ns(fitted)
                size = f"{line['parameters_billion']}B, tp {line['tp']}, mbs {line['mbs']}"
                constants = {f"ns of a layer, {size}": forward}
                return Predicted(_passes(line) * forward + _behind_ns(line), constants)

            for test in ("a", "a tp 8") if line["tp"] == SHARDED else ("a",):
                yield Prediction(
                    test=test, row=_row(line), measured=line["step_ns"], predict=scaled
                )
            yield Prediction(
                test="a layer",
                row=_row(line),
                measured=_layer_ns(line),
                predict=partial(Predicted, _layer_ns(fitted)),
            )


def _row(line: Line) -> str:
    return "{parameters_billion}B, tp {tp}, dp {dp}, pp {pp}, mbs {mbs}".format_map(line)


def _layer_ns(line: Line) -> float:
    """Return the forward of a layer with which the step would be as measured."""
    return float((line["step_ns"] - _behind_ns(line)) / _passes(line))


def _shape(line: Line) -> Shape:
    return read_shape(line, vocabulary=VOCABULARY, tensor=line["tp"])


def _passes(line: Line) -> float:
    """Return the step without its end, in forwards of a layer; the last stage has the head."""
    stages, unit = line["pp"], 10**6
    layers = [line["layers"] / stages] * stages
    layers[-1] += _shape(line).head_layers
    forward = [unit * count for count in layers]
    backward = [BACKWARD * time for time in forward]
    return one_f_one_b_ns(forward, backward, line["microbatches"]) / unit


def _behind_ns(line: Line) -> float:
    """Return what follows the last backward: gradients in a ring, and the update."""
    shape, replicas = _shape(line), line["dp"]
    ends = VOCABULARY * line["hidden"]
    weights = (shape.layer_parameters * line["layers"] / line["pp"] + ends) / line["tp"]
    ring = 2 * (replicas - 1) / replicas * GRADIENT * weights / _ring_rate(line)
    return float((ring + UPDATE * weights / MEMORY) * 1e9)


def _ring_rate(line: Line) -> float:
    """Return the rate at which a ring of replicas sends, bytes per second.

    In the order of Megatron-LM the replicas of a tensor group are next to it, so that several lie
    in one node, and a ring leaves the node over the network cards of them all. Where replicas of
    a ring are not as many in all nodes, the fewest count.
    """
    replicas = line["dp"]
    inside = gcd(replicas, max(1, line[NODE] // line["tp"]))
    return LINK if inside == replicas else min(LINK, inside * CARD)
