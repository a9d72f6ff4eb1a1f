"""Methods side by side: the same instances for all, each run recorded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

from schedopt.bench.best_known_file import BestKnownFile
from schedopt.bench.cases import SolverInstance
from schedopt.bench.general import chain_key
from schedopt.bench.methods import WHOLE, Method
from schedopt.bench.records import RUNS, Record, RecordFile, describe_machine
from schedopt.bench.suite import Effort
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.result import Result
from schedopt.solving import Progress, Run, solve
from schedopt.sweeping.pools import Pool
from schedopt.sweeping.queue import Queue
from schedopt.sweeping.worker import in_own_thread


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
    """Return every method on every instance."""
    return [
        MethodRun(instance, method, _blank(instance, method, effort))
        for instance in instances
        for method in methods
    ]


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

    Parameters
    ----------
    runs : sequence of MethodRun
    file : RecordFile
    pool : Pool
        Where, not entered yet.
    known : BestKnownFile
        Takes each plan and bound that is better than its own.
    on_run : callable
        Called with the number of runs done, of all, and the name of one that runs.
    work : callable, optional
        Called in another process. Default: `solve_run`.

    Returns
    -------
    complete : bool
        Not after Ctrl-C, or a request to end, with runs left to do.
    given_up : tuple of str
        The runs of which each process ended before it had an answer.

    Raises
    ------
    InputError
        If a cluster is gone. Records that were made are kept.
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
        _compile_search()
    return in_own_thread(_solve, run)


@cache
def _compile_search() -> None:
    """Load or compile the local search once a process, so that no run's time holds that."""
    from schedopt.chain import Chain, Layer
    from schedopt.platform import Platform
    from schedopt.solving.local_search.search import is_compiled

    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=0)
    is_compiled(Run(Problem(chain=Chain(layers=(layer,)), platform=Platform(1, 0))))


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
            scope=run.method.scope,
            solver=run.method.solver,
            time_limit=conditions["time_limit_s"],
            seed=conditions["seed"],
            workers=conditions["workers"],
            on_progress=watch,
        )
    except InputError as error:
        figures = {"status": "refused", "reason": error.rule}
    else:
        bound = result.lower_bound
        figures = {
            "status": result.status,
            "period_exact": None if result.period is None else result.period.as_integer_ratio(),
            "bound_exact": None if bound is None else bound.as_integer_ratio(),
            "found_by": "" if result.plan is None else result.solver,
            "to_best_s": watch.to_best_s,
            "to_proof_s": watch.to_proof_s,
        }
    seconds = round(time.perf_counter() - begin, 4)
    values = {**run.record.row, **figures, "seconds": seconds}
    return Solved(Record(RUNS, values, conditions), result)


def _blank(instance: SolverInstance, method: Method, effort: Effort) -> Record:
    chain, platform = instance.chain, instance.platform
    values = {
        **chain_key(chain),
        "layers": len(chain.layers),
        "gpus": len(platform.gpus),
        "memory_bytes": platform.gpus[0].memory_bytes,
        "bandwidth_bytes_per_s": platform.link and platform.link.bandwidth_bytes_per_s,
        "level": instance.level,
        "solver": method.name,
        "scope": method.scope,
        **dict.fromkeys(("status", "reason", "found_by"), ""),
        **dict.fromkeys(("period_exact", "bound_exact", "seconds", "to_best_s", "to_proof_s")),
    }
    return Record(RUNS, values, {**effort.conditions, "jobs": 1})
