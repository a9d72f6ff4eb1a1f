"""The points of sweeps as choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schedopt.chain import Chain
from schedopt.errors import InputError, naming_file
from schedopt.profile import Profile
from schedopt.reporting.choices import sweep_table
from schedopt.reporting.exploration import Axis, Entry, Exploration, refuse_invalid
from schedopt.reporting.tables import Table
from schedopt.result import Result
from schedopt.simulation import usual_micro_batches
from schedopt.sweeping import Row, Sweep, compare_points
from schedopt.units import counted, format_bandwidth, format_bytes, printable, readable


@dataclass(frozen=True)
class _Found:
    row: Row
    batch: int | None
    cells: tuple[str, ...]
    result: Result

    @property
    def line(self) -> tuple[int, int, int]:
        """GPUs, bandwidth and batch; those that differ in memory alone are one line."""
        gpus, rate, _ = self.row.point.key
        return gpus, -rate, self.batch or 0

    @property
    def key(self) -> tuple[int, int, int, int]:
        gpus, rate, memory = self.row.point.key
        # Free transfers are those of the fastest link.
        return gpus, memory, -rate or 2**62, self.batch or 0


def explore_sweeps(
    sweeps: Sequence[tuple[str, Sweep]], microbatches: int | None = None
) -> Exploration:
    """Return the points of sweeps, each given with the name of its file.

    Parameters
    ----------
    sweeps : sequence of (str, Sweep)
        Of one chain.
    microbatches : int, optional
        Of the step that is drawn of plans that run on forever. Default: 4 for each GPU of the one
        that has most.

    Raises
    ------
    InputError
        If a file lacks its chain or has no point, if there are several chains, if two files have
        the same point, or if a plan is not valid.
    """
    model = _one_model(sweeps)
    found: dict[tuple[int, int, int, int], _Found] = {}
    for file, sweep in sweeps:
        for point in _points_of(file, sweep, model):
            if point.key in found:
                raise InputError(
                    f"has a point for {point.row.point.cell}, and a file before it has, too",
                    way_out="Give sweeps that differ in GPUs, memory, bandwidth or --batch",
                    source=file,
                )
            found[point.key] = point
    several = len({point.batch for point in found.values()}) > 1
    axes = [sorted({key[axis] for key in found}) for axis in range(4)]
    lines = sorted({point.line for point in found.values()})
    count = microbatches or max(map(_usual, found.values()), default=1)
    entries = tuple(
        Entry(
            at=tuple(values.index(value) for values, value in zip(axes, key, strict=True)),
            name=_name(point, several),
            cells=(*((_say_batch(point.batch),) if several else ()), *point.cells),
            memory_bytes=point.row.point.memory_bytes,
            time=point.row.point.period,
            bound=point.row.point.bound,
            line=lines.index(point.line),
            filled=point.row.pareto,
            result=point.result,
            microbatches=point.result.problem.scope.microbatches or count,
            lacking="" if point.result.plan is not None else f"No plan: {_why_none(point)}.",
        )
        for key, point in sorted(found.items())
    )
    first = sweep_table(sweeps[0][1])
    columns = (
        tuple(map(str, axes[0])),
        tuple(map(format_bytes, axes[1])),
        tuple("free" if rate == 2**62 else format_bandwidth(rate) for rate in axes[2]),
        tuple(_say_batch(batch or None) for batch in axes[3]),
    )
    names = ("GPUs", "Memory of a GPU", "Links", "Batch")
    scope = readable(str(sweeps[0][1].options.scope))
    return Exploration(
        title=f"What memory, GPUs and links buy: {printable(model.name) or 'unnamed model'}",
        lead=f"{counted(len(entries), 'point')}, each with its plan and its bound. Scope: {scope}.",
        axes=tuple(
            Axis(name=name, values=column) for name, column in zip(names, columns, strict=True)
        ),
        table=Table(
            title="Every point",
            columns=(*(("Batch",) if several else ()), *first.columns),
            rows=tuple(entry.cells for entry in entries),
            keys=first.keys + several,
            words=first.words,
        ),
        entries=entries,
        lines=tuple(_name_line(found, line, several) for line in lines),
        joined=True,
        across="memory of a GPU",
        up="period",
        filled="no point of the same links is as good or better in memory of all GPUs, number of "
        "GPUs and period",
    )


def _one_model(sweeps: Sequence[tuple[str, Sweep]]) -> Chain | Profile:
    models: list[Chain | Profile] = []
    for file, sweep in sweeps:
        if sweep.model is None:
            raise InputError(
                "is missing: an older version wrote the file",
                field="chain",
                way_out="Start the same sweep once more: it goes on with the file, and adds it",
                source=file,
            )
        if not sweep.points:
            raise InputError("has no point yet", way_out="Let the sweep run", source=file)
        if models and models[0].sha256 != sweep.chain_sha256:
            raise InputError(
                f"is of another chain than {sweeps[0][0]}",
                way_out="Give sweeps of one chain",
                source=file,
            )
        models.append(sweep.model)
    return models[0]


def _points_of(file: str, sweep: Sweep, model: Chain | Profile) -> list[_Found]:
    found = []
    rows = compare_points(sweep.points)
    for row, cells in zip(rows, sweep_table(sweep).rows, strict=True):
        result = row.point.result(model, sweep.options)
        with naming_file(file):
            refuse_invalid(result, str(row.point.cell))
        found.append(_Found(row, sweep.options.batch, cells, result))
    return found


def _usual(found: _Found) -> int:
    """Return the micro-batches of a usual step of a plan that runs on forever; else 1."""
    plan = found.result.plan
    return 1 if plan is None or plan.scope.microbatches else usual_micro_batches(plan)


def _why_none(found: _Found) -> str:
    """Say why a point has no plan, with the memory that would do."""
    note = found.cells[-1]
    if note == found.row.point.status or not note:
        return found.row.point.status
    return f"{found.row.point.status}, {note}"


def _name(found: _Found, several: bool) -> str:
    batch = f", {_say_batch(found.batch)}" if several else ""
    return f"{found.row.point.cell}{batch}"


def _name_line(
    found: dict[tuple[int, int, int, int], _Found], line: tuple[int, int, int], several: bool
) -> str:
    point = next(candidate for candidate in found.values() if candidate.line == line)
    rate = point.row.point.bandwidth_bytes_per_s
    links = "free transfers" if rate is None else format_bandwidth(rate)
    batch = f", {_say_batch(point.batch)}" if several else ""
    return f"{counted(point.row.point.gpus, 'GPU')}, {links}{batch}"


def _say_batch(batch: int | None) -> str:
    return "steady state" if batch is None else counted(batch, "sample")
