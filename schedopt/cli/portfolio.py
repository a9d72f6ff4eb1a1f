"""``schedopt bench portfolio``."""

from __future__ import annotations

from pathlib import Path

from schedopt.cli.options import parse_counts
from schedopt.cli.suites import (
    RESULTS,
    SHIPPED,
    check_outputs,
    make_effort,
    run_suite,
    suite_command,
)


@suite_command("portfolio")
def bench_portfolio(
    chains: Path = SHIPPED,
    gpus: str = "2,4,8",
    limits: str = "1,5,20",
    workers: int = 2,
    seed: int = 0,
    output: Path = RESULTS / "portfolio.jsonl",
    resume: bool = True,
) -> None:
    """Measure whether any part of the default is better alone, with the same limit.

    On each chain and number of GPUs, with tight and medium memory, with and without recompute, and
    for each limit: what solve finds by default, and what each of its solvers finds by name.

    Examples
    --------
    schedopt bench portfolio

    schedopt bench portfolio --chains profiles --gpus 4 --limits 5 -o profiles.jsonl
    """
    from schedopt.bench.cases import load_chains
    from schedopt.bench.portfolio import LEVELS, SUITE, portfolio_cases

    seconds = parse_counts(limits, "--limits", "seconds")
    counts = parse_counts(gpus)
    effort = make_effort(workers, None, float(max(seconds)), seed)
    check_outputs(output, picture=False)
    cases = portfolio_cases(load_chains(chains), counts, seconds, LEVELS)
    run_suite(SUITE, lambda _: [cases], effort, output, resume)
