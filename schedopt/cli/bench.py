"""``schedopt bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.claims import bench_claims
from schedopt.cli.hybrid import bench_hybrid
from schedopt.cli.options import Dask, Jobs, make_pool, naming_options, parse_counts
from schedopt.cli.portfolio import bench_portfolio
from schedopt.cli.progress import progress_bar
from schedopt.cli.published import bench_published
from schedopt.cli.suites import (
    EXIT_CODES,
    RESULTS,
    SHIPPED,
    bench_app,
    check_outputs,
    finish,
    interrupted,
    make_effort,
    run_suite,
    shipped_chains,
    suite_command,
)
from schedopt.errors import InputError, naming_file

if TYPE_CHECKING:
    from schedopt.bench.cases import Grid
    from schedopt.bench.records import Record
    from schedopt.bench.solvers import MethodRun
    from schedopt.bench.suite import Effort

__all__ = ["bench_app", "bench_hybrid", "bench_portfolio", "bench_published"]

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


@suite_command(
    "hardness",
    epilog=f"{EXIT_CODES} · 4 no answer to an instance in time",
    instance="none",
    time_limit="10; 60 with --instance",
    output="results/hardness.jsonl",
)
def bench_hardness(
    quick: bool = False,
    instance: Path | None = None,
    as_json: Annotated[bool, "With --instance: print one JSON document, nothing else."] = False,
    workers: int = 2,
    time_limit: float | None = None,
    output: Path | None = None,
    resume: bool = True,
) -> None:
    """Answer instances of Theorems 1 and 2, by special methods and by solvers of all problems.

    Numbers with and without a 3-partition, m = 2 to 8, become chains that have a plan of a given
    period or not (Beaumont, Eyraud-Dubois and Shilova 2021). Every answer is compared with the
    known one, every plan is checked and turned back into groups of three.

    Examples
    --------
    schedopt bench hardness --quick -o quick.jsonl

    schedopt bench hardness --instance chain.json --json
    """
    from schedopt.bench.hardness import FULL, QUICK, SUITE, batches

    effort = make_effort(workers, time_limit, 10.0 if instance is None else 60.0)
    if instance is None and as_json:
        raise InputError(
            "goes with --instance",
            field="--json",
            way_out="Name one (--instance), or leave it out: the figures are JSON anyway",
        )
    if instance is None:
        extent, output = QUICK if quick else FULL, output or RESULTS / "hardness.jsonl"
        run_suite(SUITE, lambda file: batches(extent, file.records), effort, output, resume)
        return
    for option, given in (("--quick", quick), ("--output", output is not None)):
        if given:
            raise InputError(
                "given beside --instance, which answers one chain and writes no figures",
                field=option,
                way_out="Leave one of them out",
            )
    _answer(instance, effort, as_json)


def _answer(path: Path, effort: Effort, as_json: bool) -> None:
    from schedopt.bench.hardness import answer
    from schedopt.chain import Chain
    from schedopt.families.reductions import read_reduction
    from schedopt.units import format_duration

    chain = Chain.load(path)
    with naming_file(path):
        reduction = read_reduction(chain)
    document = answer(reduction, effort)
    total, period = document["V"], format_duration(document["period_ns"])
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        size = f"Theorem {document['theorem']}, m = {document['m']}, V = {total}"
        typer.echo(f"Instance  {size}: is there a plan of period {period}?")
        typer.echo(f"Numbers   {' '.join(map(str, document['numbers']))}")
        typer.echo(f"Answer    {document['answer']}, in {document['seconds']:g} s")
        typer.echo(f"Proof     {document['proof']}")
        for group in document["groups"]:
            typer.echo(f"Group     {' + '.join(map(str, group))} = {total}")
    if document["answer"] == "unknown":
        raise typer.Exit(4)


@suite_command(
    "solvers",
    chains="instances, and chains by rule",
    gpus="2,4,8; 4,8 if quick",
    levels="1,1.5,4; 1.5,4 if quick",
    bandwidths="12GB/s,1GB/s; 12GB/s if quick",
    solvers="ours, and what people use instead",
    time_limit="20; 3 if quick",
)
def bench_solvers(
    chains: Path | None = None,
    gpus: str | None = None,
    levels: str | None = None,
    bandwidths: str | None = None,
    solvers: str | None = None,
    quick: bool = False,
    time_limit: float | None = None,
    seed: int = 0,
    jobs: Jobs = None,
    dask: Dask = None,
    output: Path = RESULTS / "solvers.jsonl",
    resume: bool = True,
) -> None:
    """Run solvers on chains x GPUs x memory levels x bandwidths, and compare what they find.

    Ours and what people use instead, each run by 1F1B* and by 1F1B. The best plan and the largest
    bound of each instance are kept, whoever found them, in bks.json and plans next to the runs.

    Examples
    --------
    schedopt bench solvers --quick --jobs 2 -o quick.jsonl

    schedopt bench solvers --chains profiles --gpus 4,8 --levels 1,2 -o profiles.jsonl

    schedopt bench solvers --dask tcp://host:8786
    """
    from schedopt.bench import cases
    from schedopt.bench.best_known_file import BestKnownFile
    from schedopt.bench.records import RecordFile
    from schedopt.bench.solvers import (
        NAMES,
        execute_runs,
        find_method,
        latest,
        load_runs,
        plan_runs,
    )
    from schedopt.bench.solvers_tables import in_order, solvers_suite
    from schedopt.formats import check_writable

    grid = _grid(cases.QUICK if quick else cases.FULL, gpus, levels, bandwidths)
    names = NAMES if solvers is None else solvers.split(",")
    with naming_options({"solver": "solvers"}):
        methods = [find_method(name) for name in dict.fromkeys(names)]
        pool = make_pool(jobs, dask)
    effort = make_effort(1, time_limit, 3.0 if quick else 20.0, seed)
    check_outputs(output, endings=(".jsonl",))
    best_known = output.with_name("bks.json")
    check_writable(best_known)
    own = None if chains is None else cases.load_chains(chains)
    file = RecordFile(output, load_runs(output, here=dask is None) if resume else ())
    known = BestKnownFile(best_known)
    try:
        if own is None:
            ours = [*shipped_chains(), *cases.family_chains()]
            ours = [chain for chain in ours if not quick or chain.name in cases.QUICK_CHAINS]
            instances = [*grid.instances(ours), *cases.theorem_instances()]
        else:
            instances = [*grid.instances(own)]
        runs = plan_runs(instances, methods, effort)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Nothing was run.", err=True)
        raise typer.Exit(130) from None
    _tell_of_others(runs, file.records, output)
    with naming_options(), progress_bar() as show:
        complete, given_up = execute_runs(runs, file, pool, known, on_run=show)
    records = in_order(latest(file.records))
    finish(solvers_suite(known.instances), records, output)
    if records:
        typer.echo(f"Best-known plans of {len(known.instances)} instances in {best_known}")
    for name in given_up:
        typer.echo(
            f"Error: {name}: each process that ran it ended without an answer (out of memory?). "
            "All else is recorded; start again to try once more, with fewer --jobs if memory is "
            "short.",
            err=True,
        )
    if not complete:
        interrupted("Start it again to go on.")
    if given_up:
        raise typer.Exit(1)


def _grid(usual: Grid, gpus: str | None, levels: str | None, bandwidths: str | None) -> Grid:
    """Return the grid that was typed, and the usual one where nothing was."""
    from schedopt.bench.cases import Grid

    return Grid(
        gpus=usual.gpus if gpus is None else tuple(parse_counts(gpus)),
        levels=usual.levels if levels is None else tuple(map(_multiple, levels.split(","))),
        bandwidths=(
            usual.bandwidths if bandwidths is None else tuple(map(_rate, bandwidths.split(",")))
        ),
    )


def _multiple(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal(0)
    if not value.is_finite() or not 1 <= value <= 1000:
        raise InputError(
            f"{text!r:.60} is not a memory level",
            field="--levels",
            way_out="Give 1 to 1000: 1,1.5,4",
        )
    return value


def _rate(text: str) -> int | None:
    from schedopt.units import parse_bandwidth

    return None if text == "free" else parse_bandwidth(text, field="--bandwidths")


def _tell_of_others(runs: Sequence[MethodRun], records: Sequence[Record], output: Path) -> None:
    """Say which runs of the file do not count, since they had other limits."""
    from schedopt.bench.solvers import identity, limits

    wanted = {identity(run.record): limits(run.record) for run in runs}
    of_wanted = [record for record in records if identity(record) in wanted]
    done = {identity(one) for one in of_wanted if limits(one) == wanted[identity(one)]}
    others = [record for record in of_wanted if identity(record) not in done]
    if others:
        said = dict.fromkeys(
            "schedopt {schedopt}, seed {seed}, {time_limit_s:g} s".format(**other.conditions)
            for other in others
        )
        typer.echo(
            f"{len({*map(identity, others)})} runs in {output} were made otherwise "
            f"({'; '.join(said)}): they stay there and are done again, and the last of them count.",
            err=True,
        )
