"""Steps on eight B200, as the repository of SimuMax has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted, unknown
from schedopt.bench.published.simumax_memory import Model, find_model, peak_bytes, read_models
from schedopt.bench.published.tables import Line, Tables
from schedopt.errors import InputError

COLUMNS: Final = (
    "case model layers dense_layers tp cp ep pp dp sequence mbs microbatches step_ns "
    "allocated_by_rank_bytes"
)
SAME: Final = ("model", "layers", "tp", "cp", "ep", "pp", "dp", "sequence", "mbs")
"""What tells apart configurations that were run with several numbers of micro-batches."""
NEEDED: Final = "layers tp cp ep pp dp sequence mbs microbatches step_ns"


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    for name in tables.named("simumax", COLUMNS):
        groups: dict[tuple[object, ...], list[Line]] = {}
        for line in tables.lines(name, COLUMNS):
            if why := unknown(line, NEEDED):
                yield Unpredicted(row=line["case"], why=why)
            else:
                groups.setdefault(tuple(line[column] for column in SAME), []).append(line)
        models = read_models(tables.notes(name))
        for lines in groups.values():
            yield from _of_configuration(
                sorted(lines, key=lambda line: float(line["microbatches"])), models
            )


def _of_configuration(
    lines: Sequence[Line], models: Mapping[str, Model]
) -> Iterator[Prediction | Unpredicted]:
    """Yield what is predicted of one configuration, its runs in order of their micro-batches."""
    fewest, *others = lines
    # Memory is that of the run with the fewest micro-batches.
    yield from _of_stages(fewest, models)
    counts = len({line["microbatches"] for line in lines})
    for line in others:
        if counts < 3:
            why = "a step needs the steps of two other numbers of micro-batches"
            yield Unpredicted(row=line["case"], why=why)
        elif line is not lines[-1]:
            why = "the step with the most micro-batches is predicted from it"
            yield Unpredicted(row=line["case"], why=why)
    if counts > 2 and _second(lines)["step_ns"] > fewest["step_ns"]:
        yield _longest(lines)
    elif counts > 2:
        why = "a step with more micro-batches took no longer"
        yield Unpredicted(row=lines[-1]["case"], why=why)


def _second(lines: Sequence[Line]) -> Line:
    """Return the first run with more micro-batches than the fewest."""
    return next(line for line in lines if line["microbatches"] != lines[0]["microbatches"])


def _of_stages(line: Line, models: Mapping[str, Model]) -> Iterator[Prediction | Unpredicted]:
    """Yield the peak of the ranks of each stage, the largest of them."""
    ranks, stages = line["allocated_by_rank_bytes"] or {}, line["pp"]
    why = ""
    try:
        find_model(line, models)
    except InputError as error:
        why = f"peak: {error}"
    if not ranks:
        why = "peak: not measured"
    elif {*map(int, ranks)} != {*range(len(ranks))}:
        why = "peak: not of all ranks, so that their stages are not known"
    elif line["layers"] % stages or len(ranks) % stages:
        why = f"peak: {line['layers']} layers and {len(ranks)} ranks do not make {stages} stages"
    if why:
        yield Unpredicted(row=line["case"], why=why)
        return
    for stage in range(stages):
        own = [
            size
            for rank, size in ranks.items()
            if int(rank) * stages // len(ranks) == stage and size is not None
        ]

        def peak(stage: int = stage) -> Predicted:
            return Predicted(peak_bytes(line, models, stage))

        row = f"{line['case']}, stage {stage}"
        if own:
            yield Prediction(test="b", row=row, measured=max(own), predict=peak)
        else:
            yield Unpredicted(row=row, why="peak: not measured")


def _longest(lines: Sequence[Line]) -> Prediction:
    """Return the step with the most micro-batches: a step is a line over their number.

    It is the one through the two steps with the fewest.
    """
    first, second, last = lines[0], _second(lines), lines[-1]

    def step() -> Predicted:
        more = second["microbatches"] - first["microbatches"]
        slope = (second["step_ns"] - first["step_ns"]) / more
        intercept = first["step_ns"] - slope * first["microbatches"]
        constants = {
            f"ns of a micro-batch, {first['case']}": slope,
            f"ns besides, {first['case']}": intercept,
        }
        return Predicted(intercept + slope * last["microbatches"], constants)

    return Prediction(test="a", row=last["case"], measured=last["step_ns"], predict=step)
