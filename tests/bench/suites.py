"""Small suites that tests measure in this process, and records made up by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from schedopt import Chain, Platform
from schedopt.bench.best_known_file import BestKnownFile
from schedopt.bench.cases import SolverInstance
from schedopt.bench.records import Record, RecordFile, load_records
from schedopt.bench.solvers import execute_runs, find_method, plan_runs
from schedopt.bench.suite import Case, Effort, Suite, measure
from schedopt.sweeping import Pool
from tests.examples import layer
from tests.sweeping.helpers import ThreadPool

RESULTS = Path(__file__).parents[2] / "results"
LAYER = layer(1, 2, 10, saved_bytes=5)
CHAIN = Chain(layers=(LAYER,) * 4, name="four")
CONDITIONS = {
    "schedopt": "0.1.0",
    "python": "3.12",
    "machine": "m",
    "date": "2026-01-01",
    "workers": 1,
    "time_limit_s": 60.0,
    "seed": 0,
}


def made(family: str, **row: Any) -> Record:
    """Return a record made up by hand."""
    return Record(family, row, CONDITIONS)


def measured(cases: Sequence[Case], effort: Effort) -> list[Record]:
    """Measure cases, and return their records."""
    file = RecordFile(None)
    assert measure([cases], effort, file)
    return file.records


def one_figure(record: Record, **row: Any) -> Record:
    """Return a record with other figures."""
    return Record(record.family, {**record.row, **row}, record.conditions)


def holds(suite: Suite, records: Sequence[Record], *parts: str) -> None:
    """Require that tables name the circumstances, each goal that is missed, and some lines."""
    text = suite.to_markdown(records)
    missed = [f"- {missed}" for missed in suite.misses(records)]
    conditions = records[0].conditions
    for part in (conditions["machine"], conditions["date"], *missed, *parts):
        assert part in text
    assert ("Not as it should be" in text) == bool(missed)


def instance(gpus: int, memory: int, chain: Chain = CHAIN) -> SolverInstance:
    return SolverInstance(chain, Platform(gpus, memory), "own")


def run(
    instances: Sequence[SolverInstance],
    path: Path,
    solvers: Sequence[str] = ("contiguous",),
    pool: Pool | None = None,
    *,
    time_limit: float = 60,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
    **more: Any,
) -> tuple[bool, tuple[str, ...]]:
    """Run methods as the command does, next to a list of best-known plans."""
    runs = plan_runs(instances, [find_method(name) for name in solvers], Effort(1, time_limit))
    known, file = BestKnownFile(path.with_name("bks.json")), RecordFile(path, load_records(path))
    return execute_runs(runs, file, pool or ThreadPool(), known, on_run=on_run, **more)
