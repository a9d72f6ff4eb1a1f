"""``schedopt bench schedules``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from schedopt.cli.bench import Resume, check_least, shipped_chains, tables_beside
from schedopt.cli.options import check_time_limit, parse_counts
from schedopt.cli.progress import progress_bar

if TYPE_CHECKING:
    from schedopt.bench.schedules_tables import Mean

GPUS: Final = "4,8"
TIME_LIMIT: Final = 5.0
OUTPUT: Final = Path("results/schedules.json")
QUICK_GPUS: Final = "4"
QUICK_TIME_LIMIT: Final = 2.0
QUICK_OUTPUT: Final = Path("results/schedules-quick.json")


def bench_schedules(
    chains: Annotated[
        Path | None,
        typer.Option(
            help="A folder of chains of one's own. Default: instances, and chains by rule.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            help=f"How many GPUs. Default: {GPUS}; {QUICK_GPUS} with --quick.",
            metavar="P,P",
            show_default=False,
        ),
    ] = None,
    microbatches: Annotated[
        str, typer.Option(help="Micro-batches of a step, for each GPU.", metavar="N,N")
    ] = "1,4",
    time_limit: Annotated[
        float | None,
        typer.Option(
            help=f"Seconds for each search. Default: {TIME_LIMIT:g}; {QUICK_TIME_LIMIT:g} with "
            "--quick.",
            metavar="S",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Threads of a search.", metavar="N")] = 2,
    seed: Annotated[int, typer.Option(help="Of the searches.", metavar="N")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the first chain and the last one, in less time.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The figures; tables and a picture lie beside. Default: "
            f"{OUTPUT}; {QUICK_OUTPUT} with --quick.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    resume: Resume = True,
) -> None:
    """Compare searched patterns with GPipe, 1F1B, interleaved 1F1B, ZB-H1 and Chimera.

    Each schedule is laid out for m micro-batches. What its fullest GPU needs is the memory of all
    GPUs in the searches beside it: for the shortest step with a flush and the least period, on the
    stages of the schedule and on any.

    Each run is recorded at once. Started again, the command does only what is missing, so that
    Ctrl-C loses one run at most.

    Examples
    --------
    schedopt bench schedules --quick

    schedopt bench schedules --chains profiles --gpus 8 --microbatches 2 -o profiles.json
    """
    from schedopt.bench.cases import load_chains
    from schedopt.bench.documents import load_document, measure, new_document
    from schedopt.bench.effort import Effort
    from schedopt.bench.schedules import all_chains, matches
    from schedopt.bench.schedules_picture import save_picture
    from schedopt.bench.schedules_tables import means, missed_goals, to_markdown
    from schedopt.drawing import picture_suffix
    from schedopt.formats import check_writable, to_text, write_whole

    counts = parse_counts(gpus or (QUICK_GPUS if quick else GPUS))
    turns = parse_counts(microbatches, "--microbatches", "micro-batches for each GPU")
    check_least("--workers", workers, 1)
    check_least("--seed", seed, 0)
    seconds = (QUICK_TIME_LIMIT if quick else TIME_LIMIT) if time_limit is None else time_limit
    check_time_limit(seconds)
    output = output or (QUICK_OUTPUT if quick else OUTPUT)
    tables = tables_beside(output)
    picture = output.with_suffix(".svg")
    picture_suffix(picture)
    check_writable(picture)
    found = load_chains(chains) if chains is not None else all_chains(shipped_chains())
    if quick:
        found = found[:1] + found[1:][-1:]
    effort = Effort(workers, seconds, seed)
    document = load_document(output, effort, to_markdown) if resume else new_document(effort)

    def save(document: dict[str, Any]) -> None:
        write_whole(output, to_text(document))
        write_whole(tables, to_markdown(document))

    with progress_bar() as show:
        complete = measure(matches(found, counts, turns), effort, document, save, show)
    if "schedules" in document:
        # Another version may have left other tables, or none.
        save(document)
        save_picture(document, picture)
        _print(means(document))
        for missed in missed_goals(document):
            typer.echo(f"Not as it should be: {missed}")
        typer.echo(f"Figures in {output}, tables in {tables}, a picture in {picture}")
    if not complete:
        typer.echo("Interrupted. Start it again to go on.", err=True)
        raise typer.Exit(130)


def _print(means: Sequence[Mean]) -> None:
    from schedopt.bench.schedules_tables import SEARCHES, per_gpu
    from schedopt.cli.printing import make_console, print_table
    from schedopt.reporting.tables import Table
    from schedopt.systems.registry import find_system

    rows = []
    for one in means:
        found = (one.ratios.get(name) for name in SEARCHES)
        rows.append(
            (
                find_system(one.schedule).title,
                per_gpu(one.turns),
                str(one.runs - one.refused),
                str(one.refused),
                *("" if ratios is None else f"{ratios[0]:.3f}" for ratios in found),
            )
        )
    searches = (words.capitalize() for words in SEARCHES.values())
    table = Table(
        title="Times as fast as the fixed schedule: geometric mean, with its memory",
        columns=("Schedule", "m", "Plans", "Refused", *searches),
        rows=tuple(rows),
        keys=2,
        words=frozenset(("Schedule",)),
    )
    print_table(make_console(), table)
