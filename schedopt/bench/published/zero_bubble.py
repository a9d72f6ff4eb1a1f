"""1F1B and zero-bubble schedules on A100, as Qi et al. 2024 measured them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from schedopt.bench.published.prediction import Predicted, Prediction, Unpredicted, unknown
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
NEEDED: Final = "layers heads hidden sequence stages microbatches mbs step_ns"
RATES: Final = "table model stages microbatches schedule bubble_rate"
EXCHANGES: Final[Mapping[str, int]] = {"1f1b": 1, "1f1b-i": 1, "zb-1p": 2, "zb-2p": 2}
"""How often a GPU stops behind a pass: Megatron-LM sends and receives at once, zero-bubble
schedules by themselves."""
RATED: Final = ("1f1b", "1f1b-i", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
"""Schedules whose bubble rates follow from the passes."""
ROOM: Final[Mapping[str, int]] = {"zb-1p": 1, "zb-2p": 2}
"""Micro-batches that fit, over the stages."""
GIGA: Final = 10**9


def predict_all(tables: Tables) -> Iterator[Prediction | Unpredicted]:
    """Yield the predictions of the package."""
    if lacking := tables.lacking("zero_bubble/passes", "zero_bubble/measured"):
        yield Unpredicted(row="every row", why=f"there is no table {', '.join(lacking)}")
        return
    lines = tables.lines("zero_bubble/measured", MEASURED)
    measured = [line for line in lines if not unknown(line, NEEDED)]
    for line in lines:
        if why := unknown(line, NEEDED):
            yield Unpredicted(row=_row(line), why=why)
    passes = tables.lines("zero_bubble/passes", PASSES)
    profiles = [_Profile(line, measured) for line in passes if not unknown(line, PASSES)]
    rates = []
    if not tables.lacking("zero_bubble/bubble_rates"):
        rates = tables.lines("zero_bubble/bubble_rates", RATES)
    for profile in profiles:
        yield from _of_rates(profile, rates)
        yield from _of_steps(profile, measured)
    yield from _of_memory(measured)
    for line in rates:
        if why := _not_rated(line, profiles):
            yield Unpredicted(row=f"bubble rate, {_row(line)}", why=why)
    for line in measured:
        if why := _not_timed(line, profiles):
            yield Unpredicted(row=f"step, {_row(line)}", why=why)


def _row(line: Line) -> str:
    words = "{schedule}, {model}, {stages} stages, {microbatches} micro-batches, table {table}"
    return words.format_map(line)


def _not_rated(line: Line, profiles: Sequence[_Profile]) -> str:
    if line["schedule"] not in RATED:
        return f"the schedule {line['schedule']} is not modelled"
    if not line["bubble_rate"]:
        return "bubble_rate not stated"
    return "" if any(one.is_of(line) for one in profiles) else "its passes were not measured"


def _not_timed(line: Line, profiles: Sequence[_Profile]) -> str:
    if line["schedule"] not in EXCHANGES:
        return f"the schedule {line['schedule']} is not modelled"
    return "" if any(one.is_run_of(line) for one in profiles) else "its passes were not measured"


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
        return max(1, (self.model["layers"] + 2) // self.stages) if self.model else 1

    def is_of(self, row: Line) -> bool:
        """Whether a row of a table is of this run."""
        return all(row[name] == self.line[name] for name in ("model", "stages", "microbatches"))

    def is_run_of(self, row: Line) -> bool:
        """Whether a row of a table is of this run, with as many samples."""
        return self.is_of(row) and bool(row["mbs"] == self.line["mbs"])

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
        if not profile.is_of(row) or _not_rated(row, [profile]):
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
    rows = [row for row in measured if profile.is_run_of(row)]
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
