"""1F1B and zero-bubble schedules on A100, as Qi et al. 2024 measured them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
BUBBLE_RATES: Final = "zero_bubble/bubble_rates"
PLAIN: Final = "1f1b"
INTERLEAVED: Final = "1f1b-i"
TIMED: Final = (PLAIN, INTERLEAVED, "zb-1p", "zb-2p")
"""Schedules that were run, and whose steps follow from the passes."""
RATED: Final = (*TIMED, "zb-h1", "zb-h2")
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
    profiles = []
    for line in passes:
        profile = _Profile(line, measured)
        why = unknown(line, PASSES)
        if not why and not profile.passes().work:
            why = "they take no time"
        if why:
            yield Unpredicted(row=f"passes, {profile.name}", why=why)
        else:
            profiles.append(profile)
    rates, rated = [], set()
    if not tables.lacking(BUBBLE_RATES):
        rates = tables.lines(BUBBLE_RATES, RATES)
        rated = _tables_of_passes(tables.notes(BUBBLE_RATES))
    for profile in profiles:
        yield from _of_rates(profile, [row for row in rates if not _not_rated(row, rated)])
        yield from _of_steps(profile, measured)
    yield from _of_memory(measured)
    for line in rates:
        if why := _not_rated(line, rated) or _not_profiled(line, profiles):
            yield Unpredicted(row=f"bubble rate, {_row(line)}", why=why)
    for line in measured:
        if why := _not_timed(line, profiles):
            yield Unpredicted(row=f"step, {_row(line)}", why=why)


def _row(line: Line) -> str:
    words = "{schedule}, {model}, {stages} stages, {microbatches} micro-batches, table {table}"
    return words.format_map(line)


def _tables_of_passes(notes: Sequence[str]) -> set[str]:
    """Return the tables whose rates follow from the passes, if notes say it of some."""
    return {*re.findall(r"Table (\d+) follows from passes", " ".join(notes))}


def _not_rated(line: Line, rated: Collection[str]) -> str:
    if line["schedule"] not in RATED:
        return f"the schedule {line['schedule']} is not modelled"
    if rated and str(line["table"]) not in rated:
        return "it follows from passes that were not printed"
    return "" if line["bubble_rate"] else "bubble_rate not stated"


def _not_profiled(line: Line, profiles: Sequence[_Profile]) -> str:
    return "" if any(one.is_of(line) for one in profiles) else "its passes were not measured"


def _not_timed(line: Line, profiles: Sequence[_Profile]) -> str:
    if line["schedule"] not in TIMED:
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

    def passes(self, *, blocked: bool = False) -> Passes:
        """Return the passes; messages that block a GPU make them longer, and none waits then."""
        line, message = self.line, self.line["communication_ns"]
        longer = message if blocked else 0
        return Passes(
            forward=line["forward_ns"] + longer,
            input_half=line["backward_input_ns"] + longer,
            weight_half=line["backward_weight_ns"],
            message=message - longer,
        )

    def span_ns(self, schedule: str, *, blocked: bool = False) -> float:
        """Return the longest time of a stage from its first to its last pass."""
        return float(self.spans(schedule, blocked))

    def bubble_rate(self, schedule: str) -> float:
        """Return the share of the longest span that is no work.

        Of interleaved 1F1B the authors count a message a stage less than a micro-batch waits for.
        """
        span = self.span_ns(schedule)
        if schedule == INTERLEAVED:
            span -= self.stages * self.passes().message
        return max(0.0, 1 - self.microbatches * self.passes().work / span)

    def _span_ns(self, schedule: str, blocked: bool) -> float:
        passes, stages = self.passes(blocked=blocked), self.stages
        count = self.microbatches
        if schedule == PLAIN:
            forward = [passes.forward] * stages
            backward = [passes.input_half + passes.weight_half] * stages
            return one_f_one_b_ns(forward, backward, count, passes.message)
        if schedule == INTERLEAVED:
            return self._interleaved_ns(passes, blocked=blocked)
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

    def _interleaved_ns(self, passes: Passes, *, blocked: bool) -> float:
        """Return the span of interleaved 1F1B, in closed form."""
        stages, chunks, work = self.stages, self.chunks, passes.work
        if blocked:
            # Each chunk has messages of its own.
            work += 2 * (chunks - 1) * self.line["communication_ns"]
        messages = 2 * (stages * chunks - 1) * passes.message
        return self.microbatches * work + (stages - 1) * work / chunks + messages


def _weight_part(model: Line) -> float:
    """Return what the weight halves need of the activations (Qi et al. 2024, table 1)."""
    return float(32 / (34 + 5 * model["heads"] * model["sequence"] / model["hidden"]))


def _of_rates(profile: _Profile, rates: list[Line]) -> Iterator[Prediction]:
    """Yield the bubble rates that the authors computed."""
    for row in rates:
        if not profile.is_of(row):
            continue
        schedule = row["schedule"]

        def rate(schedule: str = schedule) -> Predicted:
            return Predicted(profile.bubble_rate(schedule))

        mark = "a" if schedule in (PLAIN, INTERLEAVED) else "a'"
        yield Prediction(
            test=f"{mark} {schedule}",
            row=profile.name,
            measured=row["bubble_rate"],
            predict=rate,
        )


def _of_steps(profile: _Profile, measured: list[Line]) -> Iterator[Prediction | Unpredicted]:
    """Yield steps from the passes alone, and with what 1F1B takes besides.

    Whatever the schedule, a GPU stops for its message behind each pass: also the runtime of zero
    bubble sends and receives in one batch, for which the next pass waits. What 1F1B takes besides
    is that of the same table, where this has it.
    """
    rows = [row for row in measured if profile.is_run_of(row)]
    for row in rows:
        schedule = row["schedule"]
        if schedule not in TIMED:
            continue
        plain = min(
            (other for other in rows if other["schedule"] == PLAIN and not other["flag"]),
            key=lambda other: other["table"] != row["table"],
            default=None,
        )

        def alone(schedule: str = schedule) -> Predicted:
            return Predicted(profile.span_ns(schedule))

        yield Prediction(
            test=f"b {schedule}",
            row=f"{profile.name}, table {row['table']}",
            measured=row["step_ns"],
            predict=alone,
            doubt=row["flag"] or "",
        )
        if schedule == PLAIN:
            continue
        if plain is None:
            why = "from the step of 1F1B: it was not measured"
            yield Unpredicted(row=f"step, {_row(row)}", why=why)
            continue

        def besides(schedule: str = schedule, plain: Line = plain) -> Predicted:
            outside = plain["step_ns"] - profile.span_ns(PLAIN, blocked=True)
            constants = {f"ns outside the passes, {profile.name}": outside}
            return Predicted(profile.span_ns(schedule, blocked=True) + outside, constants)

        yield Prediction(
            test=f"c {schedule}",
            row=f"{profile.name}, table {row['table']}",
            measured=row["step_ns"],
            predict=besides,
            doubt=row["flag"] or "",
        )


def _of_memory(measured: list[Line]) -> Iterator[Prediction | Unpredicted]:
    """Yield the memory of ZB-2p from that of 1F1B: as many micro-batches more as stages."""
    names = ("model", "stages", "microbatches", "mbs", "table")
    seen = set()
    for row in measured:
        case = (row["model"], row["stages"], row["mbs"], row["memory_gb"])
        if row["schedule"] != "zb-2p" or not row["memory_gb"] or case in seen:
            continue
        plain = next(
            (
                other
                for other in measured
                if other["schedule"] == PLAIN and all(other[name] == row[name] for name in names)
            ),
            None,
        )
        why = ""
        if plain is None or not plain["memory_gb"]:
            why = "peak: that of 1F1B was not measured"
        elif row["microbatches"] < 2 * row["stages"]:
            why = "peak: too few micro-batches to fill it"
        if plain is None or why:
            yield Unpredicted(row=_row(row), why=why)
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
