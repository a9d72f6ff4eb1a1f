"""``schedopt bench hybrid``."""

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


@suite_command("hybrid", gpus="4,8,16,64; 4,8 if quick", time_limit="10; 1 if quick")
def bench_hybrid(
    chains: Path = SHIPPED,
    gpus: str | None = None,
    quick: bool = False,
    time_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    output: Path = RESULTS / "hybrid.jsonl",
    resume: bool = True,
) -> None:
    """Compare training steps on stages with replicas with what people run, and with planners.

    At four memory levels each: what solve --batch finds with contiguous stages and with stages
    anywhere, with their bounds; the best pipeline and the best uniform grid of the same search,
    data parallelism, grids balanced by time; and the stages and replicas that Piper, PipeDream
    and an Alpa-like programme choose, simulated as ours are.

    Examples
    --------
    schedopt bench hybrid

    schedopt bench hybrid --chains profiles --gpus 4,8,16 -o profiles.jsonl
    """
    from schedopt.bench.cases import load_chains
    from schedopt.bench.hybrid import hybrid_cases
    from schedopt.bench.hybrid_tables import SUITE

    counts = parse_counts(gpus or ("4,8" if quick else "4,8,16,64"))
    effort = make_effort(workers, time_limit, 1.0 if quick else 10.0, seed)
    check_outputs(output)
    cases = hybrid_cases(load_chains(chains), counts, quick=quick)
    run_suite(SUITE, lambda _: [cases], effort, output, resume)
