"""``schedopt bench``: its commands, those that are short in this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from schedopt.cli.claims import bench_claims
from schedopt.cli.hardness import bench_hardness
from schedopt.cli.hybrid import bench_hybrid
from schedopt.cli.options import parse_counts
from schedopt.cli.portfolio import bench_portfolio
from schedopt.cli.published import bench_published
from schedopt.cli.solvers import bench_solvers
from schedopt.cli.suites import (
    EXIT_CODES,
    RESULTS,
    SHIPPED,
    bench_app,
    check_outputs,
    make_effort,
    run_suite,
    shipped_chains,
    suite_command,
)
from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.bench.records import RecordFile
    from schedopt.bench.suite import Case

__all__ = [
    "bench_app",
    "bench_hardness",
    "bench_hybrid",
    "bench_portfolio",
    "bench_published",
    "bench_solvers",
]

bench_app.command("claims", epilog=EXIT_CODES)(bench_claims)


@suite_command("speed")
def bench_speed(
    output: Path = RESULTS / "speed.jsonl", chain: Path = SHIPPED / "gpt2-small.json"
) -> None:
    """Measure how long the exact contiguous solver and the command line take.

    Example: schedopt bench speed -o results/speed.jsonl
    """
    from schedopt.bench.speed import SUITE, speed_cases

    run_suite(SUITE, lambda _: [speed_cases(chain)], None, output)


@suite_command("periodic")
def bench_periodic(
    output: Path = RESULTS / "periodic.jsonl",
    seeds: int = 20,
    workers: int = 2,
    time_limit: float = 60.0,
) -> None:
    """Measure how long exact proofs take, each with its goal in seconds.

    Patterns of k micro-batches (Theorem 4, uniform stages with little room, the best contiguous
    allocations of random chains), split backwards, recompute, and steps with a flush. Written
    only when all is measured; Ctrl-C leaves the file as it was.

    Example: schedopt bench periodic -o results/periodic.jsonl
    """
    from schedopt.bench.periodic import SUITE, periodic_cases

    effort = make_effort(workers, time_limit)
    run_suite(SUITE, lambda _: [periodic_cases(seeds)], effort, output)


@suite_command("general", time_limit="60; 5 if quick")
def bench_general(
    chains: Path = SHIPPED,
    only: str | None = None,
    quick: bool = False,
    time_limit: float | None = None,
    workers: int = 2,
    seed: int = 0,
    output: Path = RESULTS / "general.jsonl",
    resume: bool = True,
) -> None:
    """Measure what plans with any allocation gain, each figure with its goal.

    chains: on 4 and 8 GPUs with tight, medium and loose memory, what the usual search finds over
    the exact contiguous plan, and how far from the bound it is. theorems: whether the known optima
    are proven, and those of short random chains. speed: placements a second, and 64 GPUs.

    Examples
    --------
    schedopt bench general

    schedopt bench general --only chains --chains profiles -o profiles.jsonl
    """
    from schedopt.bench.cases import load_chains
    from schedopt.bench.general import PARTS, general_cases
    from schedopt.bench.general_tables import SUITE

    if only is not None and only not in PARTS:
        raise InputError(
            f"{only!r:.60} is not a part", field="--only", way_out=f"Choose {', '.join(PARTS)}"
        )
    effort = make_effort(workers, time_limit, 5.0 if quick else 60.0, seed)
    check_outputs(output, picture=False)
    # Theorems need no chains.
    loaded = [] if only == "theorems" else load_chains(chains)
    cases = general_cases(loaded, seed, [only] if only else [*PARTS], quick=quick)
    run_suite(SUITE, lambda _: [cases], effort, output, resume)


@suite_command("piper")
def bench_piper(
    data: Path = SHIPPED / "planners",
    output: Path = RESULTS / "piper.jsonl",
    resume: bool = True,
) -> None:
    """Find the best plans by the rule of Piper, with proof.

    Stages, replicas, tensor degrees and a variant of each layer, such as with recompute, from the
    tables piper/variants.json, edges.json and clusters.json of a folder.

    Examples
    --------
    schedopt bench piper

    schedopt bench piper --data tables -o piper.jsonl
    """
    from schedopt.bench.piper.suite import SUITE, piper_cases
    from schedopt.bench.published.tables import Tables

    tables = Tables(data)
    cases = piper_cases(tables)
    run_suite(SUITE, lambda _: [cases], None, output, resume, data=tables.digest)


@suite_command("aceso")
def bench_aceso(
    data: Path = SHIPPED / "published",
    time_limit: Annotated[
        float, "S: CPU seconds for each search; more than 16 GPUs have longer in proportion."
    ] = 60.0,
    workers: int = 2,
    seed: int = 0,
    output: Path = RESULTS / "aceso.jsonl",
    resume: bool = True,
) -> None:
    """Hold the published plans of Aceso and Megatron-LM against bounds and plans of ours.

    Each with its own profile, GPUs and batch, from the tables mist/plans.json, ops.json and
    measurements.json of a folder.

    Examples
    --------
    schedopt bench aceso

    schedopt bench aceso --data measured --time-limit 20 -o aceso.jsonl
    """
    from schedopt.bench.aceso.suite import SUITE, plan_cases, problem_cases
    from schedopt.bench.published.tables import Tables

    tables = Tables(data)

    def batches(file: RecordFile) -> Iterator[list[Case]]:
        yield [*plan_cases(tables)]
        yield [*problem_cases(tables, file)]

    effort = make_effort(workers, time_limit, seed=seed)
    run_suite(SUITE, batches, effort, output, resume, data=tables.digest)


@suite_command("layouts")
def bench_layouts(
    data: Annotated[Path, "FILE: A table of layouts in the format of the published ones."] = SHIPPED
    / "published"
    / "layouts"
    / "layouts.json",
    quick: bool = False,
    time_limit: Annotated[float, "S: CPU seconds for each layout."] = 30.0,
    output: Path = RESULTS / "layouts.jsonl",
    resume: bool = True,
) -> None:
    """Score layouts of Megatron-LM that people set by hand, and find better ones or prove them.

    Each is run in Megatron-LM's order on a chain of the shape of its model, beside the best layout
    for the same pipeline ranks and chunks, with a bound on all of them.

    Examples
    --------
    schedopt bench layouts --quick

    schedopt bench layouts --data layouts.json -o mine.jsonl
    """
    from schedopt.bench.layouts.rows import read_rows
    from schedopt.bench.layouts.suite import SUITE, layout_cases
    from schedopt.bench.published.tables import Tables

    tables = Tables(data.parent)
    cases = layout_cases(read_rows(tables, data.stem), quick=quick)
    effort = make_effort(1, time_limit)
    run_suite(SUITE, lambda _: [cases], effort, output, resume)


@suite_command("engines")
def bench_engines(
    chains: Path = SHIPPED,
    quick: bool = False,
    time_limit: Annotated[float, "S: CPU seconds for each step."] = 20.0,
    seed: int = 0,
    output: Path = RESULTS / "engines.jsonl",
    resume: bool = True,
) -> None:
    """Hold training steps of any kind against those that engines run, found in the same time.

    Nothing that an engine runs should be shorter than what is found without one.

    Examples
    --------
    schedopt bench engines --quick

    schedopt bench engines --time-limit 8 -o mine.jsonl
    """
    from schedopt.bench.cases import load_chains
    from schedopt.bench.engines import SUITE, engine_cases

    cases = engine_cases(load_chains(chains), quick=quick)
    run_suite(SUITE, lambda _: [cases], make_effort(1, time_limit, seed=seed), output, resume)


@suite_command("running")
def bench_running(
    chain: Path = SHIPPED / "gpt2-medium.json",
    steps: int = 5,
    output: Path = RESULTS / "running.jsonl",
) -> None:
    """Measure whether plans hold when they run: predicted and measured periods.

    Contiguous and other plans, with patterns of two micro-batches, split backwards and recompute,
    on 4 and 8 ranks, as processes whose layers sleep. Needs torch. Written only when all is
    measured; Ctrl-C leaves the file as it was.

    Example: schedopt bench running -o results/running.jsonl
    """
    from schedopt.bench.execution import SUITE, execution_cases
    from schedopt.chain import Chain

    cases = execution_cases(Chain.load(chain), steps)
    run_suite(SUITE, lambda _: [cases], None, output, steps=steps)


@suite_command(
    "schedules",
    chains="instances, and chains by rule",
    gpus="4,8; 4 if quick",
    time_limit="5; 2 if quick",
    output="results/schedules.jsonl; results/schedules-quick.jsonl if quick",
)
def bench_schedules(
    chains: Path | None = None,
    gpus: str | None = None,
    microbatches: str = "1,4",
    time_limit: float | None = None,
    workers: int = 2,
    seed: int = 0,
    quick: bool = False,
    output: Path | None = None,
    resume: bool = True,
) -> None:
    """Compare searched patterns with GPipe, 1F1B, interleaved 1F1B, ZB-H1 and Chimera.

    Each schedule is laid out for m micro-batches. The memory of its fullest GPU is the memory of
    all GPUs in the searches: for the shortest step with a flush and the least period, on the
    stages of the schedule and on any. Quick: the first chain and the last one.

    Examples
    --------
    schedopt bench schedules --quick

    schedopt bench schedules --chains profiles --gpus 8 --microbatches 2 -o profiles.jsonl
    """
    from schedopt.bench.cases import family_chains, load_chains
    from schedopt.bench.schedules import SUITE, schedule_cases

    counts = parse_counts(gpus or ("4" if quick else "4,8"))
    multiples = parse_counts(microbatches, "--microbatches", "micro-batches for each GPU")
    effort = make_effort(workers, time_limit, 2.0 if quick else 5.0, seed)
    output = output or RESULTS / f"schedules{'-quick' * quick}.jsonl"
    check_outputs(output)
    loaded = load_chains(chains) if chains else [*shipped_chains(), *family_chains()[:2]]
    if quick:
        loaded = loaded[:1] + loaded[1:][-1:]
    cases = schedule_cases(loaded, counts, multiples)
    run_suite(SUITE, lambda _: [cases], effort, output, resume)
