"""Solvers side by side: the same problems for all, each run recorded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from schedopt.bench.cases import Case
from schedopt.bench.machine import describe_machine
from schedopt.bench.records import Record, append_record, load_records
from schedopt.errors import InputError
from schedopt.interrupts import interrupts
from schedopt.result import Result
from schedopt.solving import solve


def run_suite(
    cases: Sequence[Case],
    solvers: Sequence[str],
    path: Path,
    *,
    time_limit: float,
    seed: int,
    workers: int,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> bool:
    """Run what the file of records lacks, and add a line for each run.

    Parameters
    ----------
    cases : sequence of Case
    solvers : sequence of str
    path : Path
        A file of records, made if absent.
    time_limit : float
        Seconds for each run.
    seed, workers : int
    on_run : callable
        Called before each run with the number of runs done, of all, and the name of this one.

    Returns
    -------
    bool
        Whether the suite is complete; not after Ctrl-C, which drops the run that it meets.
    """
    done = {record.key for record in load_records(path)}
    where = describe_machine()
    pairs = [(case, solver) for case in cases for solver in solvers]
    with interrupts() as interrupted:
        for number, (case, solver) in enumerate(pairs):
            record = _blank(case, solver, time_limit, seed, workers, where)
            if record.key in done:
                continue
            on_run(number, len(pairs), f"{record.chain}, {record.gpus} GPUs, {solver}")
            found = _run(record, case)
            if interrupted():
                return False
            append_record(path, found)
            done.add(found.key)
    return True


def _run(record: Record, case: Case) -> Record:
    begin = time.perf_counter()
    try:
        result: Result = solve(
            case.chain,
            case.platform,
            solver=record.solver,
            time_limit=record.time_limit_s,
            seed=record.seed,
            workers=record.workers,
        )
    except InputError:
        return replace(record, status="refused", seconds=round(time.perf_counter() - begin, 4))
    bound = result.lower_bound
    return replace(
        record,
        status=result.status,
        period_exact=None if result.period is None else result.period.as_integer_ratio(),
        bound_exact=None if bound is None else bound.as_integer_ratio(),
        seconds=round(time.perf_counter() - begin, 4),
    )


def _blank(
    case: Case, solver: str, time_limit: float, seed: int, workers: int, where: dict[str, str]
) -> Record:
    return Record(
        chain=case.chain.name or "unnamed",
        chain_sha256=case.chain.sha256,
        layers=len(case.chain.layers),
        gpus=len(case.platform.gpus),
        memory_bytes=case.platform.gpus[0].memory_bytes,
        level=case.level,
        bandwidth=case.bandwidth,
        solver=solver,
        time_limit_s=time_limit,
        seed=seed,
        workers=workers,
        status="unknown",
        period_exact=None,
        bound_exact=None,
        seconds=0.0,
        **where,
    )
