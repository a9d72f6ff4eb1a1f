"""A small suite that tests run, in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from schedopt import Chain, Layer, Platform
from schedopt.bench.best_known_files import BestKnownFile
from schedopt.bench.cases import Case
from schedopt.bench.contenders import contender
from schedopt.bench.effort import Effort
from schedopt.bench.records import load_records
from schedopt.bench.solvers import Outcome, plan_suite, run_suite
from schedopt.sweeping import Pool
from tests.sweeping.helpers import ThreadPool

LAYER = Layer(forward_ns=1, backward_ns=2, weight_bytes=10, activation_bytes=1, saved_bytes=5)
CHAIN = Chain(layers=(LAYER,) * 4, name="four")


def case(gpus: int, memory: int, chain: Chain = CHAIN) -> Case:
    return Case(chain, Platform(gpus, memory), "own")


def run(
    cases: Sequence[Case],
    path: Path,
    solvers: Sequence[str] = ("contiguous",),
    pool: Pool | None = None,
    *,
    time_limit: float = 60,
    on_run: Callable[[int, int, str], None] = lambda done, total, name: None,
    **more: Any,
) -> Outcome:
    """Run a suite as the command does, beside a list of best-known plans."""
    asked = plan_suite(cases, [contender(name) for name in solvers], Effort(1, time_limit))
    known = BestKnownFile(path.with_name("bks.json"))
    pool = pool or ThreadPool()
    return run_suite(asked, load_records(path), pool, path, known, on_run=on_run, **more)
