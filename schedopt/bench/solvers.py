"""Methods side by side: the same instances for all, each run recorded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from schedopt.bench.best_known import scope_of
from schedopt.bench.best_known_file import BestKnownFile
from schedopt.bench.cases import SolverInstance, compile_search, naming_chain
from schedopt.bench.general import GENERAL, chain_key
from schedopt.bench.records import (
    RUNS,
    Record,
    RecordFile,
    describe_machine,
    exact,
    load_records,
    refuse_other,
)
from schedopt.bench.suite import Effort
from schedopt.errors import InputError
from schedopt.problem import Scope
from schedopt.result import Result
from schedopt.solving import Progress, load_solver, solve
from schedopt.solving.registry import ANY_ALLOCATION, PARTITIONERS, SCHEDULES
from schedopt.sweeping.pools import Pool
from schedopt.sweeping.queue import Queue
from schedopt.sweeping.worker import in_own_thread

WHOLE: Final = "schedopt"
"""The name of `schedopt solve` without a choice of solver."""
OURS: Final = {
    WHOLE: "what `schedopt solve` does by itself, one solver after the other",
    "general": "local search over allocations",
    "general_cpsat": "CP-SAT over all allocations and orders, for short chains",
    "thinned": "contiguous stages run by thinned 1F1B*",
    "contiguous": "exact programme over contiguous stages run by 1F1B* (Beaumont et al. 2021)",
    "contiguous_cpsat": "CP-SAT over contiguous stages and orders",
    "next_fit": "Next-Fit (Beaumont et al. 2021, Theorem 5)",
    "relaxation": "a bound for any allocation, no plans",
}
BASELINES: Final = tuple(f"{name}{ending}" for ending in SCHEDULES for name in PARTITIONERS)
"""The partitioners that people use instead, each run by the schedules of `SCHEDULES`."""
NAMES: Final = (*OURS, *BASELINES)
"""Of the methods that are compared if nothing else is said, in the order of tables."""
RUN_BY: Final = {
    "": "run by 1F1B*",
    "_1f1b": "run by 1F1B",
}


@dataclass(frozen=True)
class Method:
    """A solver, and the plans that it is asked for; of a batch that is the widest scope."""

    name: str
    solver: str | None
    """None: what the scope calls for."""
    scope: Scope


def find_method(name: str) -> Method:
    """Return the method with a name.

    Solvers for any allocation, and those of patterns of several micro-batches, are asked for the
    plans of `GENERAL`; all others for contiguous plans with k = 1.
    """
    if name == WHOLE:
        return Method(name, None, GENERAL)
    load_solver(name)
    wide = name in ANY_ALLOCATION or name == "thinned"
    return Method(name, name, GENERAL if wide else Scope())


def title_of(name: str) -> str:
    """Return a description of a method, with its source; empty for a solver of a third party."""
    if name not in BASELINES:
        return OURS.get(name, "")
    ending = next(ending for ending in reversed(SCHEDULES) if name.endswith(ending))
    entry = PARTITIONERS[name.removesuffix(ending)]
    return f"{entry.title} ({entry.source}), {RUN_BY[ending]}"


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of a method on an instance; its record has no figures before it ran."""

    instance: SolverInstance
    method: Method
    record: Record

    def __str__(self) -> str:
        return f"{self.record['chain']}, {self.record['gpus']} GPUs, {self.method.name}"


@dataclass(frozen=True)
class Solved:
    """The record of a run and its result; none where the solver refused."""

    record: Record
    result: Result | None


def identity(record: Record) -> tuple[object, ...]:
    """Return what was solved, by whom and in which scope."""
    return record.instance, record["solver"], record["scope"]


def limits(record: Record) -> tuple[object, ...]:
    """Return the conditions that must agree for a run to count as done."""
    return tuple(
        record.conditions[name] for name in ("time_limit_s", "seed", "workers", "schedopt")
    )


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each method on each instance."""
    return list({identity(record): record for record in records}.values())


def plan_runs(
    instances: Sequence[SolverInstance], methods: Sequence[Method], effort: Effort
) -> list[MethodRun]:
    """Return every method on every instance.

    Raises
    ------
    InputError
        If a chain does not say what a training step needs, or its micro-batches make no batch.
    """
    return [
        MethodRun(instance, method, _blank(instance, method, effort))
        for instance in instances
        for method in methods
    ]


def load_runs(path: Path, *, here: bool) -> list[Record]:
    """Return the runs of a file, to go on with here or on a cluster, which has its own machines.

    Refused here if they are of another machine. Those of another version or effort are done again.
    """
    records = load_records(path)
    if here:
        machine = describe_machine()
        refuse_other(records, {name: machine[name] for name in ("machine", "python")}, path)
    return records


def missing_runs(
    runs: Sequence[MethodRun], records: Sequence[Record], known: BestKnownFile
) -> list[MethodRun]:
    """Return those that no run with the same limits and version has done.

    A run whose plan is gone from the best-known ones, with no better one there, is not done.
    """
    done = {(identity(record), limits(record)) for record in records if known.holds(record)}
    return [run for run in runs if (identity(run.record), limits(run.record)) not in done]


def execute_runs(
    runs: Sequence[MethodRun],
    file: RecordFile,
    pool: Pool,
    known: BestKnownFile,
    *,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
    work: Callable[[MethodRun], Solved] | None = None,
) -> tuple[bool, tuple[str, ...]]:
    """Do the runs that a file of records lacks, and add a record for each.

    `known` takes each plan and bound that is better than its own; `on_run` is told the number of
    runs done, of all, and one that runs; `work`, for other processes, is `solve_run` by default.
    Returns whether all is done (not after Ctrl-C or a request to end), and the runs of which each
    process ended before it had an answer. Where a cluster is gone, what was recorded stays.
    """
    missing = missing_runs(runs, file.records, known)

    def keep(solved: Solved) -> None:
        # In this order a run that is cut off here is done again.
        if solved.result is not None:
            known.keep(solved.record, solved.result)
        file.add(solved.record)

    def submit(run: MethodRun) -> MethodRun:
        conditions = {**run.record.conditions, "jobs": pool.slots()}
        return replace(run, record=replace(run.record, conditions=conditions))

    queue = Queue(
        missing,
        pool,
        work or solve_run,
        task=submit,
        keep=keep,
        on_item=on_run,
        done=len(runs) - len(missing),
    )
    complete = queue.go()
    return complete, tuple(map(str, queue.given_up))


def solve_run(run: MethodRun) -> Solved:
    """Do one run, in any process."""
    if run.method.name in (WHOLE, "general"):
        compile_search()
    return in_own_thread(_solve, run)


class _Watch:
    """Notes when the best plan came, and when the proof."""

    def __init__(self) -> None:
        self.period: Fraction | None = None
        self.to_best_s: float | None = None
        self.to_proof_s: float | None = None

    def __call__(self, progress: Progress) -> None:
        # Threads may report an older plan after a newer one.
        if progress.period is not None and (self.period is None or progress.period < self.period):
            self.period, self.to_best_s = progress.period, round(progress.seconds, 4)
        if progress.settled and self.to_proof_s is None:
            self.to_proof_s = round(progress.seconds, 4)


def _solve(run: MethodRun) -> Solved:
    conditions, watch = {**run.record.conditions, **describe_machine()}, _Watch()
    begin, result = time.perf_counter(), None
    figures: dict[str, Any]
    try:
        result = solve(
            run.instance.chain,
            run.instance.platform,
            scope=replace(run.record["scope"], microbatches=None),
            batch=run.instance.batch,
            solver=run.method.solver,
            time_limit=conditions["time_limit_s"],
            seed=conditions["seed"],
            workers=conditions["workers"],
            gap=0,
            on_progress=watch,
        )
    except InputError as error:
        figures = {"status": "refused", "reason": error.rule}
    else:
        figures = {
            "status": result.status,
            "period_exact": exact(result.period),
            "bound_exact": exact(result.lower_bound),
            "found_by": "" if result.plan is None else result.solver,
            "to_best_s": watch.to_best_s,
            "to_proof_s": watch.to_proof_s,
        }
    seconds = round(time.perf_counter() - begin, 4)
    values = {**run.record.row, **figures, "seconds": seconds}
    return Solved(Record(RUNS, values, conditions), result)


def _blank(instance: SolverInstance, method: Method, effort: Effort) -> Record:
    chain, platform, batch = instance.chain, instance.platform, instance.batch
    with naming_chain(chain):
        scope = method.scope if batch is None else scope_of(chain, platform, batch)
    values = {
        **chain_key(chain),
        "layers": len(chain.layers),
        "gpus": len(platform.gpus),
        "memory_bytes": platform.gpus[0].memory_bytes,
        "bandwidth_bytes_per_s": platform.link and platform.link.bandwidth_bytes_per_s,
        "batch": batch,
        "level": instance.level,
        "solver": method.name,
        "scope": scope,
        **dict.fromkeys(("status", "reason", "found_by"), ""),
        **dict.fromkeys(("period_exact", "bound_exact", "seconds", "to_best_s", "to_proof_s")),
    }
    return Record(RUNS, values, {**effort.conditions, "jobs": 1})
