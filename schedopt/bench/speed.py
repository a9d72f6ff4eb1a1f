"""How long the exact contiguous solver and the command line take.

Run it as ``python -m schedopt.bench.speed -o results/speed.json``.
"""

from __future__ import annotations

import json
import os
import platform as machine
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from schedopt import Chain, Platform, __version__, solve
from schedopt.bounds import load_bound
from schedopt.families import random_chain

LEVELS: Final = (1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0)
"""Memory of a GPU, as a multiple of the least with which a contiguous plan exists."""


def measure_solver(count: int, gpus: int, seed: int) -> list[dict[str, Any]]:
    """Solve one chain at several memory levels; seconds for each."""
    chain = random_chain(count, seed).chain
    none = solve(chain, Platform(gpus, 1, bandwidth="12GB/s"))
    assert none.infeasibility is not None
    least = none.infeasibility.least_memory_bytes
    assert least is not None
    rows = [_row(chain, gpus, 0.0, none.seconds, none.status, None)]
    for level in LEVELS:
        result = solve(chain, Platform(gpus, int(least * level), bandwidth="12GB/s"))
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


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the figures.")],
    chain: Annotated[Path, typer.Option(help="The chain for the command line.")] = Path(
        "instances/gpt2-small.json"
    ),
) -> None:
    """Measure and write the figures with machine, versions and date."""
    from schedopt.formats import check_writable, write_whole

    check_writable(output)
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
    document = {
        "schedopt": __version__,
        "python": machine.python_version(),
        "machine": f"{machine.machine()}, {len(os.sched_getaffinity(0))} cores used",
        "date": datetime.now(UTC).date().isoformat(),
        "commands_seconds": {name: round(value, 3) for name, value in commands.items()},
        "solver": rows,
    }
    write_whole(output, json.dumps(document, indent=2) + "\n")
    print(json.dumps(document["commands_seconds"], indent=2))
    for count in (1000, 160, 40):
        times = [row["seconds"] for row in rows if row["layers"] == count]
        print(f"{count} layers: {min(times)} to {max(times)} s over {len(times)} memory levels")


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


if __name__ == "__main__":
    typer.run(main)
