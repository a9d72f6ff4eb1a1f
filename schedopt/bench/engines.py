"""Steps of any kind beside those that engines run: none of theirs should be shorter."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from schedopt.bench import cases
from schedopt.bench.general import chain_key
from schedopt.bench.records import of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bench.tables import Row
from schedopt.chain import Chain
from schedopt.engine import ENGINES, Engine
from schedopt.errors import InputError
from schedopt.formats.platforms import load_platform
from schedopt.problem import Problem, training_step, widest_step
from schedopt.solving.clock import Clock
from schedopt.solving.local_search.compilation import COMPILATIONS
from schedopt.solving.phases import search_phases
from schedopt.solving.run import Run

FAMILY: Final = "engines"
GOAL: Final = 1.002
"""For our step over the shortest one of an engine."""
QUESTIONS: Final = (
    ("gpt2-small", "a10g:2x4", 64),
    ("gpt2-medium", "dgx-a100:1", 64),
    ("gpt2-medium", "l4:2x4", 128),
    ("bert-large", "dgx-a100:1", 128),
    ("bert-large", "l4:2x4", 128),
    ("llama-8b", "dgx-h100:1", 16),
    ("llama-8b", "dgx-h100:2", 32),
    ("llama-8b", "dgx-h100:2", 64),
    ("vit-b16", "a10g:2x4", 512),
)
"""Chain, platform, and micro-batches of a step."""


def engine_cases(chains: Sequence[Chain], *, quick: bool = False) -> list[Case]:
    """Return a case for each question of which a chain is there; quick: for the first."""
    named = {chain.name: chain for chain in chains}
    found = [
        engine_case(named[name], platform, count)
        for name, platform, count in QUESTIONS
        if name in named
    ]
    return found[:1] if quick else found


def engine_case(chain: Chain, platform: str, count: int) -> Case:
    """Return the steps of a chain on a platform, of any kind and of each engine."""

    def measure(effort: Effort, proceed: Proceed) -> dict[str, Any]:
        cases.compile_search()
        for room in ("replicas", "engines"):
            COMPILATIONS[room].compile_here()
        figures: dict[str, Any] = {}
        for name, engine in (("any", None), *((engine, engine) for engine in ENGINES)):
            proceed(f"{chain.name}, {platform}, {count} micro-batches, {name}")
            begin = time.process_time()
            figures[f"{name}_ns"] = _solve(chain, platform, count, engine, effort)
            figures[f"{name}_cpu_s"] = round(time.process_time() - begin, 3)
        return figures

    key = {**chain_key(chain), "platform": platform, "microbatches": count}
    return Case(FAMILY, key, measure)


def _solve(
    chain: Chain, platform: str, count: int, engine: Engine | None, effort: Effort
) -> int | None:
    """Return the shortest step that is found, ns; None where there is none."""
    scope = replace(widest_step(chain), engine=engine)
    problem: Problem = training_step(chain, load_platform(platform), count * chain.samples, scope)
    run = Run(problem, seed=effort.seed, workers=1, gap=Fraction(1, 1000))
    run.clock = Clock(effort.time_limit, now=time.process_time)
    with suppress(InputError):
        search_phases(problem, run)
    plan = run.best()
    return None if plan is None else plan.pattern.period_total_ns


def over_engines(row: Row) -> float | None:
    """Return our step over the shortest of an engine; None where one of the two is missing."""
    others = [row[f"{engine}_ns"] for engine in ENGINES if row[f"{engine}_ns"] is not None]
    return row["any_ns"] / min(others) if others and row["any_ns"] is not None else None


def _rows(records: Records) -> list[Row]:
    return [
        {**record, "any_over_engines": over_engines(record)}
        for record in of_family(records, FAMILY)
    ]


def _misses(records: Records) -> Iterator[str]:
    for row in _rows(records):
        named = f"{row['chain']} on {row['platform']}, {row['microbatches']} micro-batches"
        ratio = row["any_over_engines"]
        if ratio is not None and ratio > GOAL:
            yield f"{named}: our step is {ratio:.4f} of the shortest of an engine."
        if row["any_ns"] is None:
            yield f"{named}: no step was found."


def _summary(records: Records) -> Iterator[str]:
    known = [row["any_over_engines"] for row in _rows(records) if row["any_over_engines"]]
    if known:
        yield (
            f"{len(known)} steps: ours over the shortest of an engine {min(known):.4f} to "
            f"{max(known):.4f}."
        )


SUITE: Final = Suite(
    title="Steps of any kind beside those of engines",
    families=(FAMILY,),
    protocol="Each training step is looked for without an engine, and for each engine alone, all "
    "by one worker with the same limit, which counts CPU seconds of the process, so that other "
    "work on the machine matters little. What an engine runs, any step may be: ours should never "
    "be longer.",
    misses=_misses,
    well="No step of ours is longer by more than 0.2 % than the shortest of an engine.",
    tables=[
        Table(
            "Steps",
            "",
            "chain platform microbatches=m any_ns=any "
            + " ".join(f"{engine}_ns={engine}" for engine in ENGINES)
            + " any_over_engines=any/engine any_cpu_s",
            _rows,
            keys=3,
        )
    ],
    summary=_summary,
)
