"""How long the exact contiguous solver and the command line take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from schedopt import Chain, Platform, solve
from schedopt.bench.cases import least_memory
from schedopt.bench.records import of_family
from schedopt.bench.suite import Case, Effort, Proceed, Records, Suite, Table
from schedopt.bounds import load_bound
from schedopt.families import random_chain

LEVELS: Final = (0.0, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0)
"""Memory of a GPU, as a multiple of the least with which a contiguous plan exists."""
SIZES: Final = ((1000, 64), (160, 8), (40, 4))
"""Layers and GPUs."""
BANDWIDTH: Final = "12GB/s"
IMPORT: Final = (
    "import time; t = time.perf_counter(); import schedopt; print(time.perf_counter() - t)"
)
REPEATS: Final = 7


def speed_cases(chain: Path) -> list[Case]:
    """Return the cases; the command line solves the chain of a file."""
    options = ["--chain", str(chain), "--gpus", "4", "--mem", "16G", "--bandwidth", BANDWIDTH]
    commands = {
        "schedopt --help": ["-m", "schedopt", "--help"],
        "schedopt solve (shipped chain, 4 GPUs)": ["-m", "schedopt", "solve", *options],
        "import schedopt": ["-c", IMPORT],
    }
    return [
        *(
            Case("commands", {"command": name}, partial(_time_command, arguments))
            for name, arguments in commands.items()
        ),
        *(
            Case(
                "solver",
                {"layers": layers, "gpus": gpus, "memory_level": level},
                partial(_time_solver, layers, gpus, level),
            )
            for layers, gpus in SIZES
            for level in LEVELS
        ),
    ]


@cache
def _problem(layers: int, gpus: int) -> tuple[Chain, int]:
    """Return a chain and the least memory with which a contiguous plan exists."""
    chain = random_chain(layers, 1).chain
    return chain, least_memory(chain, gpus, BANDWIDTH)


def _time_solver(
    layers: int, gpus: int, level: float, effort: Effort, proceed: Proceed
) -> dict[str, Any]:
    """Return the time for a chain at a memory level; at 0 there is too little memory."""
    chain, least = _problem(layers, gpus)
    platform = Platform(gpus, max(1, int(least * level)), bandwidth=BANDWIDTH)
    result, ratio = solve(chain, platform, solver="contiguous"), None
    if result.period is not None:
        ratio = round(float(result.period / load_bound(result.problem).period), 4)
    seconds = round(result.seconds, 4)
    return {"seconds": seconds, "status": result.status, "period_over_load_bound": ratio}


def _time_command(arguments: list[str], effort: Effort, proceed: Proceed) -> dict[str, Any]:
    """Return the median wall time with the interpreter's start, or what the code prints."""
    times = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        printed = _run(arguments)
        times.append(float(printed) if arguments[0] == "-c" else time.perf_counter() - begin)
    # The first one may have to write compiled files.
    return {"seconds": round(median(times[1:]), 3)}


def _run(arguments: list[str]) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout


def _summary(records: Records) -> Iterator[str]:
    for record in of_family(records, "commands"):
        yield f"{record['command']}: {record['seconds']} s"
    rows = of_family(records, "solver")
    for layers in dict.fromkeys(row["layers"] for row in rows):
        times = [row["seconds"] for row in rows if row["layers"] == layers]
        yield f"{layers} layers: {min(times)} to {max(times)} s over {len(times)} levels"


SUITE: Final = Suite(
    title="How long the exact contiguous solver and the command line take",
    families=("commands", "solver"),
    protocol="Chains are random, by seed 1, links of 12 GB/s, half duplex. A memory level is the "
    "memory of a GPU over the least with which a contiguous plan exists.",
    misses=lambda records: (),
    well="There is no goal.",
    tables=[
        Table("Commands", "Median of seven.", "command seconds", "commands"),
        Table(
            "Solver",
            "",
            "layers gpus memory_level seconds status period_over_load_bound",
            "solver",
        ),
    ],
    summary=_summary,
    resumable=False,
)
