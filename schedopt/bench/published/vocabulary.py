"""Uneven ends: large vocabularies on a pipeline of A100 (Yeung et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import linear_regression, mean, median
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted, unknown
from schedopt.bench.published.steps import blocked_ns, one_f_one_b_ns
from schedopt.bench.published.tables import Line, Tables
from schedopt.bench.published.transformer import LINK, MEMORY, UPDATE, Shape, read_shape

HOST: Final = "vocabulary/one_host"
PAPER: Final = "vocabulary/paper_tables"
HOST_COLUMNS: Final = (
    "name method sequence hidden vocabulary layers heads pp tp mbs microbatches layers_per_stage "
    "step_ns max_allocated_bytes forward_ns backward_ns output_layer_ns input_forward_ns "
    "input_backward_ns communication_ns"
)
PAPER_COLUMNS: Final = (
    "table schedule gpus sequence method vocabulary layers hidden heads mbs microbatches step_ns "
    "peak_bytes out_of_memory"
)
STATES: Final = 16
"""Bytes for a weight in half precision: itself, gradient, moments and copy."""
HALF: Final = 2
ROUNDS: Final = 5
"""Rounds after which a step agrees with what its passes take while GPUs wait less."""
PLAIN: Final = "1f1b"
EVEN: Final = "base"
MOVED: Final = "redis"


ALIKE: Final = ("sequence", "hidden", "layers", "heads", "mbs", "microbatches")
"""What runs have in common that differ in their vocabulary, or in the layers of their stages."""
NEEDED: Final = (
    "sequence hidden vocabulary layers heads pp mbs microbatches layers_per_stage step_ns "
    "forward_ns backward_ns output_layer_ns input_forward_ns input_backward_ns communication_ns"
)
OF_STAGES: Final = (
    *("layers_per_stage", "forward_ns", "backward_ns", "output_layer_ns"),
    *("input_forward_ns", "input_backward_ns"),
)
"""Lists with a value for each stage."""
PAPER_NEEDED: Final = "gpus sequence vocabulary layers hidden heads mbs microbatches step_ns"


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    for name in tables.lacking(HOST, PAPER):
        yield Unpredicted(row="every row", why=f"there is no table {name}")
    if not tables.lacking(HOST):
        lines = []
        for line in tables.lines(HOST, HOST_COLUMNS):
            if why := unknown(line, NEEDED) or _uneven(line):
                yield Unpredicted(row=line["name"], why=why)
            else:
                lines.append(line)
        host = _Host(lines)
        yield from _from_passes(host)
        yield from _from_even(host)
        yield from _spread(host)
        yield from _memory(lines, "c", "max_allocated_bytes", gradients=False)
        yield from _memory(lines, "c logits", "max_allocated_bytes", gradients=True)
        yield from _without_peak(lines, "max_allocated_bytes")
    if not tables.lacking(PAPER):
        yield from _of_paper(tables.lines(PAPER, PAPER_COLUMNS))


def _uneven(line: Line) -> str:
    """Return which list is not of all stages, as a reason; empty if each is."""
    for name in OF_STAGES:
        single = all(isinstance(value, (int, float)) for value in line[name])
        if len(line[name]) != line["pp"] or not single:
            return f"{name} has not one value for each of {line['pp']} stages"
    return ""


def _of_paper(lines: Sequence[Line]) -> Iterator[Prediction | Unpredicted]:
    plain = []
    for line in lines:
        why = "it ran out of memory" if line["out_of_memory"] else unknown(line, PAPER_NEEDED)
        if not why and line["schedule"] != PLAIN:
            why = f"the schedule {line['schedule']} is not modelled"
        elif not why and line["method"] not in (EVEN, MOVED):
            why = f"the passes of {line['method']} were not measured"
        if why:
            yield Unpredicted(row=_row(line), why=why)
        else:
            plain.append(line)
    yield from _from_shapes(plain)
    yield from _memory(plain, "e", "peak_bytes", gradients=False)
    yield from _without_peak(plain, "peak_bytes")


def _row(line: Line) -> str:
    """Return what a line is of; those of one host have names."""
    if "name" in line:
        return str(line["name"])
    words = "{gpus} GPUs, sequence {sequence}, {method}, vocabulary {vocabulary}"
    return words.format_map(line)


def _alike(line: Line, other: Line) -> bool:
    same = all(line[name] == other[name] for name in ALIKE)
    return same and _gpus(line) == _gpus(other)


def _shape(line: Line) -> Shape:
    return read_shape(line, vocabulary=line["vocabulary"])


class _Host:
    """The runs on one host, each of which may tell something of the others.

    Parameters
    ----------
    lines : sequence of Line
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    def even(self, line: Line) -> list[Line]:
        """Return the runs like one whose stages have as many layers, whatever the vocabulary."""
        return [one for one in self.lines if one["method"] == EVEN and _alike(line, one)]

    def step_ns(self, line: Line, forward: Sequence[float], backward: Sequence[float]) -> float:
        """Return a step of 1F1B with the update of its largest stage."""
        messages = [self._message_ns(line)] * (len(forward) - 1)
        passes = one_f_one_b_ns(*blocked_ns(forward, backward, messages), line["microbatches"])
        return passes + _update_ns(line)

    def _message_ns(self, line: Line) -> float:
        """Return how long a message takes: as measured in runs like this, or by the link."""
        alike = [one for one in self.lines if _alike(line, one)]
        measured = [time for one in alike for time in one["communication_ns"] if time]
        return median(measured) if measured else HALF * _shape(line).values / LINK * 1e9

    def moved_ns(self, even: Line, line: Line) -> float:
        """Return a step with layers moved, from the passes of the even pipeline.

        A GPU that waits less is slower (see `_slowing`).
        """
        columns = ("forward_ns", "backward_ns")
        before = [even[name] for name in columns]
        waits = _shares(even, self.step_ns(even, *before), *before)
        plain = [_moved(times, even, line) for times in before]
        slower = [self._slowing(line, name) for name in columns]
        after = plain
        for _ in range(ROUNDS):
            shares = _shares(line, self.step_ns(line, *after), *after)
            after = [
                [
                    time * (1 + slope * share) / (1 + slope * once)
                    for time, share, once in zip(times, shares, waits, strict=True)
                ]
                for times, slope in zip(plain, slower, strict=True)
            ]
        return self.step_ns(line, *after)

    def _slowing(self, line: Line, column: str) -> float:
        """Return how much longer a pass takes where a GPU always works than where it never does.

        Read off the inner stages of the even pipelines: they have the same layers, and wait the
        longer the larger the vocabulary is of which the last stage makes logits.
        """
        shares, layers = [], []
        for even in self.even(line):
            passes = even["forward_ns"], even["backward_ns"]
            busy = _shares(even, self.step_ns(even, *passes), *passes)
            shares.append(mean(busy[stage] for stage in _inside(busy)))
            layers.append(_layer_ns(even[column], even))
        if len({*shares}) < 2:
            return 0.0
        slope, idle = linear_regression(shares, layers)
        return max(0.0, slope / idle)


def _shares(
    line: Line, step: float, forward: Sequence[float], backward: Sequence[float]
) -> list[float]:
    """Return which part of a step each stage works."""
    passes = zip(forward, backward, strict=True)
    return [line["microbatches"] * (ahead + back) / step for ahead, back in passes]


def _update_ns(line: Line) -> float:
    """Return how long the first stage updates its weights, which has an embedding, ns."""
    layers = line["layers"] // _gpus(line) * _shape(line).layer_parameters
    return float(UPDATE * (layers + line["vocabulary"] * line["hidden"]) / MEMORY * 1e9)


def _from_passes(host: _Host) -> Iterator[Prediction]:
    """Yield the steps of plain pipelines from their own passes."""
    for line in host.lines:
        if line["method"] in (EVEN, MOVED):

            def step(line: Line = line) -> Predicted:
                return Predicted(host.step_ns(line, line["forward_ns"], line["backward_ns"]))

            yield Prediction(test="a", row=line["name"], measured=line["step_ns"], predict=step)


def _from_even(host: _Host) -> Iterator[Prediction | Unpredicted]:
    """Yield the steps of pipelines whose layers were moved, from the passes of the even one."""
    for line in host.lines:
        if line["method"] != MOVED:
            continue
        same = [one for one in host.even(line) if one["vocabulary"] == line["vocabulary"]]
        even = next(iter(same), None)
        if even is None:
            why = "from the even pipeline: it was not measured"
            yield Unpredicted(row=line["name"], why=why)
            continue

        def step(line: Line = line, even: Line = even) -> Predicted:
            return Predicted(host.moved_ns(even, line))

        yield Prediction(test="b", row=line["name"], measured=line["step_ns"], predict=step)


def _moved(times: Sequence[float], even: Line, line: Line) -> list[float]:
    """Return the passes of stages with other layers: a layer takes what it does inside."""
    layer = _layer_ns(times, even)
    counts = zip(even["layers_per_stage"], line["layers_per_stage"], strict=True)
    return [
        time + (after - before) * layer for time, (before, after) in zip(times, counts, strict=True)
    ]


def _layer_ns(times: Sequence[float], line: Line) -> float:
    """Return what a layer takes in the stages that have nothing else."""
    counts, inside = line["layers_per_stage"], _inside(times)
    return float(sum(times[stage] for stage in inside) / sum(counts[stage] for stage in inside))


def _inside(stages: Sequence[float]) -> range:
    return range(1, len(stages) - 1) if len(stages) > 2 else range(1)


def _spread(host: _Host) -> Iterator[Prediction]:
    """Yield steps where every GPU has a share of the vocabulary: its passes come on top."""
    for line in host.lines:
        if line["method"] in (EVEN, MOVED):
            continue

        def step(line: Line = line) -> Predicted:
            ends = zip(line["forward_ns"], line["input_forward_ns"], strict=True)
            forward = [time + first for time, first in ends]
            parts = ("backward_ns", "input_backward_ns", "output_layer_ns")
            backward = [sum(times) for times in zip(*(line[name] for name in parts), strict=True)]
            return Predicted(host.step_ns(line, forward, backward))

        yield Prediction(test="f", row=line["name"], measured=line["step_ns"], predict=step)


def _memory(
    lines: Sequence[Line], test: str, column: str, *, gradients: bool
) -> Iterator[Prediction]:
    """Yield peaks from that of the smallest vocabulary: more weights on the first stage.

    When a micro-batch leaves, its activations are gone, and the gradient of the embedding lies
    there whole for a while: that is more where the vocabulary is large enough.
    """
    for line in _even(lines):
        shape = _shape(line)
        least = _least(lines, line, column)
        if line is least or not line[column]:
            continue

        def peak(line: Line = line, least: Line = least, shape: Shape = shape) -> Predicted:
            more = (line["vocabulary"] - least["vocabulary"]) * line["hidden"]
            saved = line["layers"] / _gpus(line) * shape.activation_bytes("selective")
            dense = HALF * line["vocabulary"] * line["hidden"] - saved
            extra = max(0.0, dense) if gradients else 0
            return Predicted(least[column] + STATES * more + extra)

        row = f"{_gpus(line)} GPUs, sequence {line['sequence']}, vocabulary {line['vocabulary']}"
        yield Prediction(test=test, row=row, measured=line[column], predict=peak)


def _even(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["method"] == EVEN]


def _least(lines: Sequence[Line], line: Line, column: str) -> Line:
    """Return the line of the smallest vocabulary of those like one whose peak was measured."""
    same = [other for other in _even(lines) if _alike(line, other) and other[column]]
    return min(same, key=lambda other: float(other["vocabulary"]), default=line)


def _without_peak(lines: Sequence[Line], column: str) -> Iterator[Unpredicted]:
    """Yield the even pipelines whose peaks are not predicted."""
    for line in _even(lines):
        if not line[column]:
            yield Unpredicted(row=_row(line), why="peak: not measured")
        elif line is _least(lines, line, column):
            why = "peak: those of larger vocabularies are predicted from it"
            yield Unpredicted(row=_row(line), why=why)


def _gpus(line: Line) -> int:
    return int(line["gpus"] if "gpus" in line else line["pp"])


def _from_shapes(plain: Sequence[Line]) -> Iterator[Prediction | Unpredicted]:
    """Yield steps from the work of each stage and the efficiency of the smallest vocabulary."""
    for line in plain:
        even = [other for other in plain if other["method"] == EVEN]
        same = [other for other in even if other["sequence"] == line["sequence"]]
        same = [other for other in same if other["gpus"] == line["gpus"]]
        least = min(same, key=lambda other: float(other["vocabulary"]), default=None)
        if least is None or line is least:
            what = "the efficiency is fitted on it" if least else "no efficiency was measured"
            yield Unpredicted(row=_row(line), why=f"step: {what}")
            continue

        def step(line: Line = line, least: Line = least) -> Predicted:
            rate = _flop(least) / (least["step_ns"] - _update_ns(least))
            name = f"TFLOP/s of a GPU, {line['gpus']} GPUs, sequence {line['sequence']}"
            return Predicted(_flop(line) / rate + _update_ns(line), {name: rate / 1000})

        yield Prediction(test="d", row=_row(line), measured=line["step_ns"], predict=step)


def _flop(line: Line) -> float:
    """Return the step of a pipeline, in the work that one GPU does meanwhile."""
    shape, stages = _shape(line), line["gpus"]
    head = shape.head_flop / shape.layer_flop
    layers = [line["layers"] // stages] * stages
    if line["method"] == MOVED:
        layers = _evened(line["layers"], stages, head)
    work = [count * shape.layer_flop for count in layers]
    work[-1] += shape.head_flop
    unit = 1e6
    forward, backward = [flop / unit for flop in work], [2 * flop / unit for flop in work]
    return unit * one_f_one_b_ns(forward, backward, line["microbatches"])


def _evened(layers: int, stages: int, head: float) -> list[int]:
    """Return whole layers of each stage where the last one has the head, as the source moves them.

    The last stage is filled up to the mean; of the others the later ones have one more.
    """
    each_stage = (layers + head) / stages
    last = min(layers, max(0, ceil(each_stage - head)))
    each, more = divmod(layers - last, stages - 1)
    return [*([each] * (stages - 1 - more)), *([each + 1] * more), last]
