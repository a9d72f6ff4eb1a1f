"""Steps on eight B200, as the repository of SimuMax has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction
from schedopt.bench.published.simumax_memory import Model, peak_bytes, read_models
from schedopt.bench.published.tables import Line, Tables

COLUMNS: Final = (
    "case model layers dense_layers tp cp ep pp dp sequence mbs microbatches step_ns "
    "allocated_by_rank_bytes"
)
SAME: Final = ("model", "layers", "tp", "cp", "ep", "pp", "dp", "sequence", "mbs")
"""What tells apart configurations that were run with several numbers of micro-batches."""


def predict_all(tables: Tables) -> Iterator[Prediction]:
    """Yield the predictions of the package."""
    for name in tables.named("simumax", COLUMNS):
        groups: dict[tuple[object, ...], list[Line]] = {}
        for line in tables.lines(name, COLUMNS):
            groups.setdefault(tuple(line[column] for column in SAME), []).append(line)
        models = read_models(tables.notes(name))
        for lines in groups.values():
            # Memory is that of the run with the fewest micro-batches.
            yield from _of_stages(min(lines, key=lambda line: float(line["microbatches"])), models)
            if len({line["microbatches"] for line in lines}) > 2:
                yield _longest(sorted(lines, key=lambda line: float(line["microbatches"])))


def _of_stages(line: Line, models: Mapping[str, Model]) -> Iterator[Prediction]:
    """Yield the peak of the ranks of each stage, the largest of them."""
    ranks, stages = line["allocated_by_rank_bytes"], line["pp"]
    for stage in range(stages):
        own = [size for rank, size in ranks.items() if int(rank) * stages // len(ranks) == stage]

        def peak(stage: int = stage) -> Predicted:
            return Predicted(peak_bytes(line, models, stage))

        if own:
            row = f"{line['case']}, stage {stage}"
            yield Prediction(test="b", row=row, measured=max(own), predict=peak)


def _longest(lines: list[Line]) -> Prediction:
    """Return the step with the most micro-batches: a step is a line over their number.

    It is the one through the two steps with the fewest.
    """
    first, second, *_, last = lines

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
