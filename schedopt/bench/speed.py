"""How long the exact contiguous solver and the command line take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from schedopt import Chain, Platform, solve
from schedopt.bench.machine import describe_machine
from schedopt.bounds import load_bound
from schedopt.families import random_chain

LEVELS: Final = (1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0)
"""Memory of a GPU, as a multiple of the least with which a contiguous plan exists."""


def measure_solver(count: int, gpus: int, seed: int) -> list[dict[str, Any]]:
    """Solve one chain at several memory levels; seconds for each."""
    chain = random_chain(count, seed).chain
    none = solve(chain, Platform(gpus, 1, bandwidth="12GB/s"), solver="contiguous")
    assert none.infeasibility is not None
    least = none.infeasibility.least_memory_bytes
    assert least is not None
    rows = [_row(chain, gpus, 0.0, none.seconds, none.status, None)]
    for level in LEVELS:
        platform = Platform(gpus, int(least * level), bandwidth="12GB/s")
        result = solve(chain, platform, solver="contiguous")
        assert result.period is not None
        ratio = float(result.period / load_bound(result.problem).period)
        rows.append(_row(chain, gpus, level, result.seconds, result.status, ratio))
    return rows


def _row(
    chain: Chain, gpus: int, level: float, seconds: float, status: str, ratio: float | None
) -> dict[str, Any]:
    return {
        "layers": len(chain.layers),
        "gpus": gpus,
        "memory_level": level,
        "seconds": round(seconds, 4),
        "status": status,
        "period_over_load_bound": None if ratio is None else round(ratio, 4),
    }


def measure_command(arguments: list[str], repeats: int = 7) -> float:
    """Return the median wall time of a command with the interpreter's start, in seconds."""
    command = [sys.executable, "-m", "schedopt", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def run() -> None:
        subprocess.run(command, check=True, capture_output=True, env=environment)

    run()
    return sorted(_timed(run) for _ in range(repeats))[repeats // 2]


def _timed(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure_speed(chain: Path) -> dict[str, Any]:
    """Return the figures with machine, versions and date.

    Parameters
    ----------
    chain : Path
        What the command line solves.
    """
    rows = []
    for count, gpus in ((1000, 64), (160, 8), (40, 4)):
        rows += measure_solver(count, gpus, seed=1)
    commands = {
        "schedopt --help": measure_command(["--help"]),
        "schedopt solve (shipped chain, 4 GPUs)": measure_command(
            ["solve", "--chain", str(chain), "--gpus", "4", "--mem", "16G", "--bandwidth", "12GB/s"]
        ),
        "import schedopt": measure_import(),
    }
    return {
        **describe_machine(),
        "commands_seconds": {name: round(value, 3) for name, value in commands.items()},
        "solver": rows,
    }


def measure_import() -> float:
    """Return what ``import schedopt`` takes inside a running interpreter, in seconds."""
    code = "import time; t = time.perf_counter(); import schedopt; print(time.perf_counter() - t)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = [
        float(
            subprocess.run(
                [sys.executable, "-c", code],
                check=True,
                capture_output=True,
                text=True,
                env=environment,
            ).stdout
        )
        for _ in range(7)
    ]
    return sorted(times)[3]
