"""1F1B and zero-bubble schedules on A100, as Qi et al. 2024 measured them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction
from schedopt.bench.published.steps import one_f_one_b_ns
from schedopt.bench.published.tables import Line, Tables
from schedopt.bench.published.zero_bubble_orders import (
    Passes,
    RoomyOrders,
    longest_span_ns,
)

PASSES: Final = (
    "model stages microbatches mbs forward_ns backward_input_ns backward_weight_ns communication_ns"
)
MEASURED: Final = (
    "table model layers heads hidden sequence schedule stages microbatches mbs step_ns memory_gb "
    "flag"
)
RATES: Final = "table model stages microbatches schedule bubble_rate"
EXCHANGES: Final[Mapping[str, int]] = {"1f1b": 1, "1f1b-i": 1, "zb-1p": 2, "zb-2p": 2}
"""How often a GPU stops behind a pass: Megatron-LM sends and receives at once, zero-bubble
schedules by themselves."""
ROOM: Final[Mapping[str, int]] = {"zb-1p": 1, "zb-2p": 2}
"""Micro-batches that fit, over the stages."""
GIGA: Final = 10**9


def predict_all(tables: Tables) -> Iterator[Prediction]:
    """Yield the predictions of the package."""
    if not tables.has("zero_bubble/passes", "zero_bubble/measured"):
        return
    measured = tables.lines("zero_bubble/measured", MEASURED)
    profiles = [_Profile(line, measured) for line in tables.lines("zero_bubble/passes", PASSES)]
    for profile in profiles:
        if tables.has("zero_bubble/bubble_rates"):
            rates = tables.lines("zero_bubble/bubble_rates", RATES)
            yield from _of_rates(profile, rates)
        yield from _of_steps(profile, measured)
    yield from _of_memory(measured)


class _Profile:
    """Measured passes of a model, with what the shape of the model says."""

    def __init__(self, line: Line, measured: list[Line]) -> None:
        self.line = line
        self.stages: int = line["stages"]
        self.microbatches: int = line["microbatches"]
        self.model = next((other for other in measured if other["model"] == line["model"]), None)
        self.spans = cache(self._span_ns)

    @property
    def name(self) -> str:
        """The model and its micro-batches."""
        return f"{self.line['model']}, {self.microbatches} micro-batches"

    @property
    def chunks(self) -> int:
        """Layers of a stage, one a chunk; the ends count as a layer each."""
        return int((self.model["layers"] + 2) // self.stages) if self.model else 1

    def is_of(self, row: Line) -> bool:
        """Whether a row of a table is of this run."""
        return all(row[name] == self.line[name] for name in ("model", "stages", "microbatches"))

    def passes(self, exchanges: int = 0) -> Passes:
        """Return the passes; exchanges that block a GPU make them longer, and none waits then."""
        line, message = self.line, self.line["communication_ns"]
        return Passes(
            forward=line["forward_ns"] + exchanges * message,
            input_half=line["backward_input_ns"] + exchanges * message,
            weight_half=line["backward_weight_ns"],
            message=0 if exchanges else message,
        )

    def span_ns(self, schedule: str, exchanges: int = 0) -> float:
        """Return the longest time of a stage from its first to its last pass."""
        return float(self.spans(schedule, exchanges))

    def _span_ns(self, schedule: str, exchanges: int) -> float:
        passes, stages = self.passes(exchanges), self.stages
        count = self.microbatches
        if schedule == "1f1b":
            forward = [passes.forward] * stages
            backward = [passes.input_half + passes.weight_half] * stages
            return one_f_one_b_ns(forward, backward, count, passes.message)
        if schedule == "1f1b-i":
            return self._interleaved_ns(passes, exchanges)
        if schedule in ROOM and self.model:
            fixed = self._fixed_ns(passes, 1)
            room = ROOM[schedule] * stages
            part = _weight_part(self.model)
            orders = RoomyOrders(passes, stages, count, room=room, weight_part=part)
            return min(fixed, orders.shortest_ns())
        return self._fixed_ns(passes, 2 if schedule == "zb-h2" else 1)

    def _fixed_ns(self, passes: Passes, times: int) -> float:
        """Return the span of ZB-H1, or of ZB-H2 with twice as many micro-batches."""
        pairs = [
            (times * (self.stages - stage) - times + 1, times * stage)
            for stage in range(self.stages)
        ]
        return longest_span_ns(pairs, self.microbatches, passes)

    def _interleaved_ns(self, passes: Passes, exchanges: int) -> float:
        """Return the span of interleaved 1F1B, in closed form, as the authors have it."""
        stages, chunks, work = self.stages, self.chunks, passes.work
        if exchanges:
            # Each chunk has exchanges of its own.
            work += 2 * (chunks - 1) * exchanges * self.line["communication_ns"]
        messages = (2 * stages * chunks - stages - 2) * passes.message
        return self.microbatches * work + (stages - 1) * work / chunks + messages


def _weight_part(model: Line) -> float:
    """Return what the weight halves need of the activations (Qi et al. 2024, table 1)."""
    return float(32 / (34 + 5 * model["heads"] * model["sequence"] / model["hidden"]))


def _of_rates(profile: _Profile, rates: list[Line]) -> Iterator[Prediction]:
    """Yield the bubble rates that the authors computed."""
    for row in rates:
        if not profile.is_of(row) or row["schedule"] == "zb-v" or not row["bubble_rate"]:
            continue
        schedule = row["schedule"]

        def rate(schedule: str = schedule) -> Predicted:
            work = profile.microbatches * profile.passes().work
            return Predicted(1 - work / profile.span_ns(schedule))

        mark = "a" if schedule in ("1f1b", "1f1b-i") else "a'"
        yield Prediction(
            test=f"{mark} {schedule}",
            row=profile.name,
            measured=row["bubble_rate"],
            predict=rate,
        )


def _of_steps(profile: _Profile, measured: list[Line]) -> Iterator[Prediction]:
    """Yield steps from the passes alone, and with what 1F1B takes besides."""
    rows = [row for row in measured if profile.is_of(row) and row["mbs"] == profile.line["mbs"]]
    plain = [row for row in rows if row["schedule"] == "1f1b" and not row["flag"]]
    for row in rows:
        schedule = row["schedule"]
        if schedule not in EXCHANGES:
            continue

        def alone(schedule: str = schedule) -> Predicted:
            return Predicted(profile.span_ns(schedule))

        yield Prediction(
            test=f"b {schedule}",
            row=f"{profile.name}, table {row['table']}",
            measured=row["step_ns"],
            predict=alone,
            doubt=row["flag"] or "",
        )
        if schedule == "1f1b" or not plain:
            continue

        def besides(schedule: str = schedule) -> Predicted:
            outside = plain[0]["step_ns"] - profile.span_ns("1f1b", EXCHANGES["1f1b"])
            constants = {f"ns outside the passes, {profile.name}": outside}
            return Predicted(profile.span_ns(schedule, EXCHANGES[schedule]) + outside, constants)

        yield Prediction(
            test=f"c {schedule}",
            row=f"{profile.name}, table {row['table']}",
            measured=row["step_ns"],
            predict=besides,
            doubt=row["flag"] or "",
        )


def _of_memory(measured: list[Line]) -> Iterator[Prediction]:
    """Yield the memory of ZB-2p from that of 1F1B: as many micro-batches more as stages."""
    names = ("model", "stages", "microbatches", "mbs", "table")
    seen = set()
    for row in measured:
        if row["schedule"] != "zb-2p" or not row["memory_gb"]:
            continue
        for plain in measured:
            same = all(plain[name] == row[name] for name in names)
            case = (row["model"], row["stages"], row["mbs"], row["memory_gb"])
            enough = row["microbatches"] >= 2 * row["stages"]
            if plain["schedule"] != "1f1b" or not same or not enough or case in seen:
                continue
            seen.add(case)

            def more(row: Line = row, plain: Line = plain) -> Predicted:
                each = 34 * row["hidden"] + 5 * row["heads"] * row["sequence"]
                layers = (row["layers"] + 2) / row["stages"]
                saved = layers * row["sequence"] * row["mbs"] * each
                return Predicted(plain["memory_gb"] * GIGA + row["stages"] * saved)

            yield Prediction(
                test="d",
                row=f"{row['model']}, table {row['table']}",
                measured=row["memory_gb"] * GIGA,
                predict=more,
                doubt=row["flag"] or "",
            )
