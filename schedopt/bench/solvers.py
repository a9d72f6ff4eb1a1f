"""Solvers side by side: the same problems for all, each run recorded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from schedopt.bench.best_known_files import BestKnownFile
from schedopt.bench.cases import Case
from schedopt.bench.contenders import WHOLE, Contender
from schedopt.bench.effort import Effort
from schedopt.bench.machine import describe_machine
from schedopt.bench.records import Record, append_record
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.result import Result
from schedopt.solving import Progress, Run, solve
from schedopt.sweeping.pools import Pool
from schedopt.sweeping.queue import Queue
from schedopt.sweeping.worker import in_own_thread


@dataclass(frozen=True, eq=False)
class Asked:
    """One run that is asked for; what no run knows yet is left blank in its record."""

    case: Case
    contender: Contender
    record: Record

    def __str__(self) -> str:
        return f"{self.record.chain}, {self.record.gpus} GPUs, {self.contender.name}"


@dataclass(frozen=True)
class Answer:
    """What a run found; no result where the solver refused."""

    record: Record
    result: Result | None


@dataclass(frozen=True)
class Outcome:
    """How a suite ended.

    Parameters
    ----------
    complete : bool
        Not after Ctrl-C, or a request to end, with runs left to do.
    given_up : tuple of str
        The runs of which each process ended before it had an answer.
    records : tuple of Record
        All of the file, in the order in which they were done.
    """

    complete: bool
    given_up: tuple[str, ...]
    records: tuple[Record, ...]


def plan_suite(
    cases: Sequence[Case], contenders: Sequence[Contender], effort: Effort
) -> list[Asked]:
    """Return every contender on every case."""
    return [Asked(case, one, _blank(case, one, effort)) for case in cases for one in contenders]


def missing_runs(
    asked: Sequence[Asked], records: Sequence[Record], known: BestKnownFile
) -> list[Asked]:
    """Return those that no run with the same limits and version has done.

    A run whose plan is gone from the best-known ones, with no better one there, is not done.
    """
    done = {(record.asked, record.limits) for record in records if known.holds(record)}
    return [one for one in asked if (one.record.asked, one.record.limits) not in done]


def run_suite(
    asked: Sequence[Asked],
    records: Sequence[Record],
    pool: Pool,
    path: Path,
    known: BestKnownFile,
    *,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
    work: Callable[[Asked], Answer] | None = None,
) -> Outcome:
    """Run what a file of records lacks, and add a line for each run.

    Parameters
    ----------
    asked : sequence of Asked
    records : sequence of Record
        What the file holds.
    pool : Pool
        Where, not entered yet.
    path : Path
        The file, made if absent.
    known : BestKnownFile
        Takes what is better than it.
    on_run : callable
        Called with the number of runs done, of all, and the name of one that runs.
    work : callable, optional
        What runs in another process. Default: `answer`.

    Raises
    ------
    InputError
        If a cluster is gone. What was done is kept.
    """
    missing, every = missing_runs(asked, records, known), list(records)

    def keep(found: Answer) -> None:
        # In this order a run that is cut off here is done again.
        if found.result is not None:
            known.keep(found.record, found.result)
        append_record(path, found.record)
        every.append(found.record)

    queue = Queue(
        missing,
        pool,
        work or answer,
        task=lambda one: replace(one, record=replace(one.record, jobs=pool.slots())),
        keep=keep,
        on_item=on_run,
        done=len(asked) - len(missing),
    )
    complete = queue.go()
    return Outcome(complete, tuple(map(str, queue.given_up)), tuple(every))


def answer(asked: Asked) -> Answer:
    """Do one run, in whichever process."""
    if asked.contender.name in (WHOLE, "general"):
        _compile_search()
    return in_own_thread(_answer, asked)


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
        # Threads may tell of an older plan after a newer one.
        if progress.period is not None and (self.period is None or progress.period < self.period):
            self.period, self.to_best_s = progress.period, round(progress.seconds, 4)
        if progress.settled and self.to_proof_s is None:
            self.to_proof_s = round(progress.seconds, 4)


def _answer(asked: Asked) -> Answer:
    where: Any = describe_machine()
    record, watch = replace(asked.record, **where), _Watch()
    begin = time.perf_counter()
    try:
        result = solve(
            asked.case.chain,
            asked.case.platform,
            scope=record.scope,
            solver=asked.contender.solver,
            time_limit=record.time_limit_s,
            seed=record.seed,
            workers=record.workers,
            on_progress=watch,
        )
    except InputError as error:
        seconds = round(time.perf_counter() - begin, 4)
        return Answer(replace(record, status="refused", reason=error.rule, seconds=seconds), None)
    bound = result.lower_bound
    done = replace(
        record,
        status=result.status,
        period_exact=None if result.period is None else result.period.as_integer_ratio(),
        bound_exact=None if bound is None else bound.as_integer_ratio(),
        found_by="" if result.plan is None else result.solver,
        seconds=round(time.perf_counter() - begin, 4),
        to_best_s=watch.to_best_s,
        to_proof_s=watch.to_proof_s,
    )
    return Answer(done, result)


def _blank(case: Case, one: Contender, effort: Effort) -> Record:
    link = case.platform.link
    return Record(
        chain=case.chain.name or "unnamed",
        chain_sha256=case.chain.sha256,
        layers=len(case.chain.layers),
        gpus=len(case.platform.gpus),
        memory_bytes=case.platform.gpus[0].memory_bytes,
        bandwidth_bytes_per_s=None if link is None else link.bandwidth_bytes_per_s,
        level=case.level,
        solver=one.name,
        scope=one.scope,
        time_limit_s=effort.time_limit,
        seed=effort.seed,
        workers=effort.workers,
        jobs=1,
        status="unknown",
        reason="",
        period_exact=None,
        bound_exact=None,
        found_by="",
        seconds=0.0,
        to_best_s=None,
        to_proof_s=None,
        **describe_machine(),
    )
