"""Sequence parallelism and selective recompute, as Korthikanti et al. 2022 measured them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted, unknown
from schedopt.bench.published.tables import Line, Tables
from schedopt.bench.published.transformer import LINK, MEMORY, UPDATE, Mode, Shape, read_shape

COLUMNS: Final = (
    "model layers hidden heads sequence tp pp chunks_per_stage mbs microbatches mode step_ns "
    "activations_gib activations_percent"
)
VOCABULARY: Final = 51200
GIB: Final = 2**30
HALF: Final = 2
CARD: Final = 25e9
"""Bytes per second of the network card of each GPU (InfiniBand HDR, 8 cards a node of 8)."""
FULL: Final[Mode] = "full"
SELECTIVE: Final[Mode] = "sequence+selective"


NEEDED: Final = "layers hidden heads sequence tp pp chunks_per_stage mbs microbatches mode"


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    lines = []
    for name in tables.named("korthikanti", COLUMNS):
        for line in tables.lines(name, COLUMNS):
            why = unknown(line, NEEDED)
            if not why and line["mode"] not in get_args(Mode):
                why = f"{line['mode']} is no mode of which it is known what a layer keeps"
            if why:
                yield Unpredicted(row=_row(line), why=why)
            else:
                lines.append(line)
    timed = [line for line in lines if line["step_ns"]]
    yield from _by_efficiency(timed)
    yield from _by_recompute(timed)
    for line in lines:
        yield from _of_activations(line)


def _of_activations(line: Line) -> Iterator[Prediction | Unpredicted]:
    """Yield what a layer keeps, and the first stage."""
    shape, mode = _shape(line), line["mode"]
    if line["activations_percent"]:

        def relative() -> Predicted:
            of_none = shape.activation_bytes("none")
            return Predicted(100 * shape.activation_bytes(mode) / of_none)

        measured = line["activations_percent"]
        yield Prediction(test="c", row=_row(line), measured=measured, predict=relative)
    if line["activations_gib"]:

        def first_stage() -> Predicted:
            return Predicted(_in_flight_layers(line) * shape.activation_bytes(mode))

        measured = line["activations_gib"] * GIB
        yield Prediction(test="d", row=_row(line), measured=measured, predict=first_stage)
    figures = ("step_ns", "activations_percent", "activations_gib")
    if not any(line[name] for name in figures):
        yield Unpredicted(row=_row(line), why="nothing was measured")


def _row(line: Line) -> str:
    return f"{line['model']}, {line['mode']}"


def _in_flight_layers(line: Line) -> float:
    """Return layers times micro-batches of the first stage (section 4.2.3).

    As many as the whole model has, and with v chunks a stage (p - 1) / (p v) more.
    """
    stages, chunks = line["pp"], line["chunks_per_stage"]
    more = (stages - 1) / (stages * chunks) if chunks > 1 else 0
    return float(line["layers"] * (1 + more))


def _shape(line: Line) -> Shape:
    return read_shape(line, vocabulary=VOCABULARY, tensor=line["tp"])


def _flop(shape: Shape, mode: Mode) -> float:
    """Return the work of a micro-batch: the backward is two forwards and what is recomputed."""
    again = 0
    if mode == FULL:
        again = shape.layer_flop
    elif "selective" in mode:
        again = shape.attention_flop
    return shape.layers * (3 * shape.layer_flop + again) + 3 * shape.head_flop


def _outside_ns(line: Line) -> tuple[float, float]:
    """Return what messages add to the passes of a micro-batch, and the update, ns.

    Behind each pass of a chunk a GPU stops for an exchange. Each GPU of a tensor group sends its
    part of what leaves a stage, and the group gathers the parts (Narayanan et al. 2021, 4.1).
    """
    shape, tensor = _shape(line), line["tp"]
    size = HALF * shape.values
    message = size / tensor / CARD + size * (tensor - 1) / tensor / LINK
    exchanges = 2 * line["chunks_per_stage"] if line["pp"] > 1 else 0
    ends = VOCABULARY * line["hidden"]
    weights = (shape.layer_parameters * line["layers"] / line["pp"] + ends) / tensor
    return 1e9 * exchanges * message, 1e9 * UPDATE * weights / MEMORY


def _rounds(line: Line) -> float:
    """Return how often a stage could run a micro-batch in a step of an even pipeline.

    With v chunks a stage the pipeline fills v times as fast (Narayanan et al. 2021).
    """
    return float(line["microbatches"] + (line["pp"] - 1) / line["chunks_per_stage"])


def _work(line: Line) -> float:
    """Return the work of a GPU for a micro-batch."""
    return float(_flop(_shape(line), line["mode"]) / line["tp"] / line["pp"])


def _step_ns(line: Line, rate: float) -> float:
    """Return the step of an even pipeline at a rate of floating-point operations a ns."""
    messages, update = _outside_ns(line)
    return float((_work(line) / rate + messages) * _rounds(line) + update)


def _rate(line: Line) -> float:
    """Return how many floating-point operations a ns a GPU does in a measured step."""
    messages, update = _outside_ns(line)
    return float(_work(line) / ((line["step_ns"] - update) / _rounds(line) - messages))


def _by_efficiency(timed: Sequence[Line]) -> Iterator[Prediction | Unpredicted]:
    """Yield the steps of large models from the smallest one of each mode."""
    modes: Mapping[str, list[Line]] = {line["mode"]: [] for line in timed}
    for line in timed:
        modes[line["mode"]].append(line)
    for mode, lines in modes.items():
        first = min(lines, key=lambda line: line["layers"] * line["hidden"] ** 2)
        why = "step: the efficiency of its mode is fitted on it"
        yield Unpredicted(row=_row(first), why=why)
        for line in lines:
            if line is first:
                continue

            def scaled(line: Line = line, first: Line = first, mode: str = mode) -> Predicted:
                rate = _rate(first)
                return Predicted(_step_ns(line, rate), {f"TFLOP/s of a GPU, {mode}": rate / 1000})

            yield Prediction(test="a", row=_row(line), measured=line["step_ns"], predict=scaled)


def _by_recompute(timed: Sequence[Line]) -> Iterator[Prediction | Unpredicted]:
    """Yield steps with selective recompute from those with full recompute."""
    names = ("model", "layers", "hidden", "sequence", "tp", "pp", "mbs", "microbatches")
    for line in timed:
        if line["mode"] != SELECTIVE:
            continue
        same = [other for other in timed if all(other[name] == line[name] for name in names)]
        full = next((other for other in same if other["mode"] == FULL), None)
        if full is None:
            why = "step: no step with full recompute was measured"
            yield Unpredicted(row=_row(line), why=why)
            continue

        def less(line: Line = line, full: Line = full) -> Predicted:
            rate = _rate(full)
            constants = {f"TFLOP/s of a GPU, {full['model']}": rate / 1000}
            return Predicted(_step_ns(line, rate), constants)

        yield Prediction(test="b", row=line["model"], measured=line["step_ns"], predict=less)
