"""``schedopt bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from schedopt.cli.commands import Commands
from schedopt.cli.options import check_time_limit
from schedopt.cli.progress import progress_bar
from schedopt.cli.signals import usual_signals
from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.chain import Chain

EXIT_CODES = "Exit codes: 0 done · 1 a fault of ours · 2 bad usage or bad input · 130 interrupted"
SHIPPED = Path("instances")

TimeLimit: TypeAlias = Annotated[float, typer.Option(help="Seconds for each run.", metavar="S")]
Figures: TypeAlias = Annotated[
    Path, typer.Option("--output", "-o", help="The figures; the tables lie beside.", metavar="FILE")
]
Resume: TypeAlias = Annotated[
    bool,
    typer.Option("--resume/--anew", help="Go on with the runs in the file, or do all of them."),
]

bench_app = Commands(
    help="Compare solvers and measure how fast they are.", epilog=EXIT_CODES, no_args_is_help=True
)


@bench_app.callback()
def _options(context: typer.Context) -> None:
    # The suites keep what they have measured when they are interrupted.
    context.with_resource(usual_signals())


@bench_app.command("speed", epilog=EXIT_CODES)
def bench_speed(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the figures.", metavar="FILE")
    ] = Path("results/speed.json"),
    chain: Annotated[
        Path, typer.Option(help="The chain for the command line.", metavar="FILE")
    ] = SHIPPED / "gpt2-small.json",
) -> None:
    """Measure how long the exact contiguous solver and the command line take.

    Example: schedopt bench speed -o results/speed.json
    """
    from schedopt.bench.speed import measure_speed
    from schedopt.formats import check_writable, to_text, write_whole

    check_writable(output)
    document = measure_speed(chain)
    write_whole(output, to_text(document))
    for name, seconds in document["commands_seconds"].items():
        typer.echo(f"{name}: {seconds} s")
    for layers in dict.fromkeys(row["layers"] for row in document["solver"]):
        times = [row["seconds"] for row in document["solver"] if row["layers"] == layers]
        typer.echo(f"{layers} layers: {min(times)} to {max(times)} s over {len(times)} levels")
    typer.echo(f"Figures written to {output}")


@bench_app.command("periodic", epilog=EXIT_CODES)
def bench_periodic(
    output: Figures = Path("results/periodic.json"),
    seeds: Annotated[
        int,
        typer.Option(
            help="Random chains of each size, at most 10 where one takes long.", metavar="N"
        ),
    ] = 20,
    workers: Annotated[int, typer.Option(help="Threads of the solver.", metavar="N")] = 2,
    time_limit: TimeLimit = 60.0,
) -> None:
    """Measure how long exact proofs take, each beside its goal in seconds.

    Patterns of k micro-batches (Theorem 4, uniform stages with little room, the best contiguous
    allocations of random chains), split backwards, recompute, and steps with a flush. Written
    only when all is measured; Ctrl-C leaves what was there.

    Example: schedopt bench periodic -o results/periodic.json
    """
    from schedopt.bench.periodic import measure_periodic
    from schedopt.bench.periodic_tables import missed_goals, to_markdown
    from schedopt.formats import to_text, write_whole

    check_least("--seeds", seeds, 1)
    check_least("--workers", workers, 1)
    tables = tables_beside(output)
    with progress_bar() as show:
        try:
            document = measure_periodic(seeds, workers, time_limit, show)
        except KeyboardInterrupt:
            typer.echo("Interrupted. Nothing was written.", err=True)
            raise typer.Exit(130) from None
    write_whole(output, to_text(document))
    write_whole(tables, to_markdown(document))
    for family in ("theorem_4", "uniform"):
        rows = document[family]
        proven = sum(row["status"] == "optimal" for row in rows)
        longest = max(row["seconds"] for row in rows)
        typer.echo(f"{family}: {proven} of {len(rows)} proven, longest {longest} s")
    for family, rows in document.items():
        if not isinstance(rows, list) or family in ("theorem_4", "uniform"):
            continue
        for row in rows:
            typer.echo(
                f"{family}, {_sizes(row)}: {row['proven']} of {row['seeds']} proven, "
                f"median {row['median_s']} s, longest {row['longest_s']} s"
            )
    for missed in missed_goals(document):
        typer.echo(f"Not as it should be: {missed}")
    typer.echo(f"Figures in {output}, tables in {tables}")


@bench_app.command("general", epilog=EXIT_CODES)
def bench_general(
    chains: Annotated[Path, typer.Option(help="A folder of chains.", metavar="DIR")] = SHIPPED,
    only: Annotated[
        str | None,
        typer.Option(help="One part: chains, theorems or speed.", metavar="PART"),
    ] = None,
    time_limit: TimeLimit = 60.0,
    workers: Annotated[int, typer.Option(help="Threads of a solver.", metavar="N")] = 2,
    seed: Annotated[
        int,
        typer.Option(help="For solvers that draw, and the first of random chains.", metavar="N"),
    ] = 0,
    output: Figures = Path("results/general.json"),
    resume: Resume = True,
) -> None:
    """Measure what plans with any allocation gain, each figure beside its goal.

    chains: on 4 and 8 GPUs with tight, medium and loose memory, what the usual search finds over
    the exact contiguous plan, and how far from the bound it is. theorems: whether the known optima
    are proven, and those of short random chains. speed: placements a second, and 64 GPUs.

    Each run is recorded at once. Started again, the command does only what is missing, so that
    Ctrl-C loses one run at most.

    Examples
    --------
    schedopt bench general

    schedopt bench general --only chains --chains profiles -o profiles.json
    """
    from schedopt.bench.cases import load_chains
    from schedopt.bench.documents import load_document, measure, new_document
    from schedopt.bench.effort import Effort
    from schedopt.bench.general import PARTS, problems
    from schedopt.bench.general_tables import means, missed_goals, to_markdown
    from schedopt.formats import to_text, write_whole

    if only is not None and only not in PARTS:
        raise InputError(
            f"{only!r:.60} is no part", field="--only", way_out=f"Choose {', '.join(PARTS)}"
        )
    check_least("--workers", workers, 1)
    check_least("--seed", seed, 0)
    check_time_limit(time_limit)
    tables = tables_beside(output)
    parts = [only] if only else [*PARTS]
    # Theorems need no chains.
    found = [] if parts == ["theorems"] else load_chains(chains)
    effort = Effort(workers, time_limit, seed)
    document = load_document(output, effort, to_markdown) if resume else new_document(effort)

    def save(document: dict[str, Any]) -> None:
        write_whole(output, to_text(document))
        write_whole(tables, to_markdown(document))

    with progress_bar() as show:
        complete = measure(problems(found, seed, parts), effort, document, save, show)
    if any(isinstance(rows, list) for rows in document.values()):
        # Another version may have left other tables, or none.
        save(document)
    for mean in means(document):
        typer.echo(str(mean))
    for family in ("theorems", "random"):
        if rows := document.get(family):
            proven = sum(row["status"] in ("optimal", "infeasible") for row in rows)
            longest = max(row["seconds"] for row in rows)
            typer.echo(f"{family}: {proven} of {len(rows)} proven, longest {longest} s")
    for row in document.get("placements", []):
        typer.echo(f"{row['chain']}, {row['gpus']} GPUs: {row['per_s']:,} placements a second")
    for missed in missed_goals(document):
        typer.echo(f"Not as it should be: {missed}")
    typer.echo(f"Figures in {output}, tables in {tables}")
    if not complete:
        typer.echo("Interrupted. Start it again to go on.", err=True)
        raise typer.Exit(130)


@bench_app.command("running", epilog=EXIT_CODES)
def bench_running(
    chain: Annotated[
        Path, typer.Option(help="The chain whose plans are run.", metavar="FILE")
    ] = SHIPPED / "gpt2-medium.json",
    steps: Annotated[
        int, typer.Option(help="That are timed in each run; the median counts.", metavar="N")
    ] = 5,
    output: Figures = Path("results/running.json"),
) -> None:
    """Measure whether plans hold when they run: predicted beside measured periods.

    Contiguous and other plans, with patterns of two micro-batches, split backwards and recompute,
    on 4 and 8 ranks, as processes whose layers sleep. Needs torch. Written only when all is
    measured; Ctrl-C leaves what was there.

    Example: schedopt bench running -o results/running.json
    """
    from schedopt.bench.running import measure_running, missed_goals, to_markdown
    from schedopt.chain import Chain
    from schedopt.formats import to_text, write_whole

    check_least("--steps", steps, 1)
    tables = tables_beside(output)
    loaded = Chain.load(chain)
    with progress_bar() as show:
        try:
            document = measure_running(loaded, steps, show)
        except KeyboardInterrupt:
            typer.echo("Interrupted. Nothing was written.", err=True)
            raise typer.Exit(130) from None
    write_whole(output, to_text(document))
    write_whole(tables, to_markdown(document))
    for missed in missed_goals(document):
        typer.echo(f"Not as it should be: {missed}")
    typer.echo(f"Figures in {output}, tables in {tables}")


def shipped_chains() -> list[Chain]:
    """Return the chains of the folder `instances`; where there is none, say so."""
    from schedopt.bench.cases import load_chains

    if SHIPPED.is_dir():
        return load_chains(SHIPPED)
    typer.echo(
        f"There is no folder {SHIPPED} here, with the measured chains: chains by rule only.",
        err=True,
    )
    return []


def check_least(option: str, value: int, least: int) -> None:
    """Refuse a number that is too small."""
    if value < least:
        raise InputError(f"{value} is too few", field=option, way_out=f"Give {least} or more")


def tables_beside(output: Path) -> Path:
    """Return where tables go that lie beside figures; both can be written."""
    from schedopt.formats import check_writable

    if output.suffix != ".json":
        raise InputError(
            f"{output} does not end in .json",
            field="--output",
            way_out="Let it; the tables go beside it, into a file that ends in .md",
        )
    tables = output.with_suffix(".md")
    check_writable(output)
    check_writable(tables)
    return tables


def _sizes(row: dict[str, Any]) -> str:
    words = [f"{row['layers']} layers, {row['gpus']} GPUs, memory level {row['memory_level']:g}"]
    if "microbatches" in row:
        words.append(f"{row['microbatches']} micro-batches")
    else:
        words.append(f"k up to {row['max_k']}")
    return ", ".join(words)
