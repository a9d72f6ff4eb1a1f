"""``schedopt bench solvers``."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.bench import Resume, shipped_chains
from schedopt.cli.options import (
    Dask,
    Jobs,
    check_time_limit,
    make_pool,
    naming_options,
    parse_counts,
)
from schedopt.cli.progress import progress_bar
from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.bench.cases import Case, Grid
    from schedopt.bench.records import Record
    from schedopt.bench.solvers import Asked
    from schedopt.bench.summary import Best
    from schedopt.chain import Chain

TIME_LIMIT, QUICK_TIME_LIMIT = 20.0, 3.0


def bench_solvers(
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
            help="How many GPUs. Default: 2,4,8; 4,8 if quick.", metavar="P,P", show_default=False
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Memory of a GPU over the least with which a contiguous plan exists. Default: "
            "1,1.5,4; 1.5,4 if quick.",
            metavar="X,X",
            show_default=False,
        ),
    ] = None,
    bandwidths: Annotated[
        str | None,
        typer.Option(
            help="Of each link; free for none. Default: 12GB/s,1GB/s; 12GB/s if quick.",
            metavar="RATE,RATE",
            show_default=False,
        ),
    ] = None,
    solvers: Annotated[
        str | None,
        typer.Option(
            help="Which of them; schedopt for what solve does by itself. Default: ours, and what "
            "people use instead.",
            metavar="NAME,NAME",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few chains and platforms, and little time for each.")
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help=f"Seconds for each run. Default: {TIME_LIMIT:g}; {QUICK_TIME_LIMIT:g} if quick.",
            metavar="S",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="For solvers that draw.", metavar="N", min=0)] = 0,
    jobs: Jobs = None,
    dask: Dask = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The runs, one a line. Beside: tables (.md), a picture (.svg), and the "
            "best-known plans (bks.json, plans).",
            metavar="FILE",
        ),
    ] = Path("results/solvers.jsonl"),
    resume: Resume = True,
) -> None:
    """Run solvers on chains x GPUs x memory levels x bandwidths, and compare what they find.

    Ours beside what people use instead, each run by 1F1B* and by 1F1B. Each run is recorded at
    once. Started again, the command does only what is missing, so that Ctrl-C loses only what
    runs at that moment. The best plan and the largest bound of each instance are kept, whoever
    found them.

    Examples
    --------
    schedopt bench solvers --quick --jobs 2 -o quick.jsonl

    schedopt bench solvers --chains profiles --gpus 4,8 --levels 1,2 -o profiles.jsonl

    schedopt bench solvers --dask tcp://host:8786
    """
    from schedopt.bench.best_known_files import BestKnownFile
    from schedopt.bench.cases import FULL, QUICK, load_chains
    from schedopt.bench.contenders import OURS, RIVALS, contender
    from schedopt.bench.effort import Effort
    from schedopt.bench.records import latest, load_records
    from schedopt.bench.solver_picture import save_solver_picture
    from schedopt.bench.solver_tables import to_markdown
    from schedopt.bench.solvers import plan_suite, run_suite
    from schedopt.bench.summary import best_periods, missed_goals
    from schedopt.drawing import picture_suffix
    from schedopt.formats import check_writable, write_whole

    if output.suffix != ".jsonl":
        raise InputError(
            f"{output} does not end in .jsonl",
            field="--output",
            way_out="Let it; the tables go beside it, into a file that ends in .md",
        )
    tables, picture = output.with_suffix(".md"), output.with_suffix(".svg")
    best_known = output.with_name("bks.json")
    grid = _grid(QUICK if quick else FULL, gpus, levels, bandwidths)
    names = [*OURS, *RIVALS] if solvers is None else solvers.split(",")
    with naming_options({"solver": "solvers"}):
        contenders = [contender(name) for name in dict.fromkeys(names)]
        pool = make_pool(jobs, dask)
    limit = (QUICK_TIME_LIMIT if quick else TIME_LIMIT) if time_limit is None else time_limit
    check_time_limit(limit)
    own = None if chains is None else load_chains(chains)
    picture_suffix(picture)
    for path in (output, tables, picture, best_known):
        check_writable(path)
    records = load_records(output) if resume else []
    known = BestKnownFile(best_known)
    effort = Effort(workers=1, time_limit=limit, seed=seed)
    try:
        asked = plan_suite(_cases(own, grid, quick), contenders, effort)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Nothing was run.", err=True)
        raise typer.Exit(130) from None
    if not resume:
        output.unlink(missing_ok=True)
    _tell_of_others(asked, records, output)
    with naming_options(), progress_bar() as show:
        outcome = run_suite(asked, records, pool, output, known, on_run=show)
    records = latest(outcome.records)
    if records:
        instances = known.instances
        write_whole(tables, to_markdown(records, instances, picture.name))
        save_solver_picture(records, instances, picture)
        _print(records, best_periods(records, instances))
        for missed in missed_goals(records):
            typer.echo(f"Not as it should be: {missed}")
        typer.echo(f"Runs in {output}, tables in {tables}, picture in {picture}")
        typer.echo(f"Best-known plans of {len(instances)} instances in {best_known}")
    for name in outcome.given_up:
        typer.echo(
            f"Error: {name}: each process that ran it ended without an answer (out of memory?). "
            "All else is recorded; start again to try once more, with fewer --jobs if memory is "
            "short.",
            err=True,
        )
    if not outcome.complete:
        typer.echo("Interrupted. Start it again to go on.", err=True)
        raise typer.Exit(130)
    if outcome.given_up:
        raise typer.Exit(1)


def _grid(usual: Grid, gpus: str | None, levels: str | None, bandwidths: str | None) -> Grid:
    """Return what was typed, and what is usual where nothing was."""
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
            f"{text!r:.60} is no memory level", field="--levels", way_out="Give 1 to 1000: 1,1.5,4"
        )
    return value


def _rate(text: str) -> int | None:
    from schedopt.units import parse_bandwidth

    return None if text == "free" else parse_bandwidth(text, field="--bandwidths")


def _cases(own: Sequence[Chain] | None, grid: Grid, quick: bool) -> list[Case]:
    """Return every chain on every platform; with our own chains the instances of theorems too."""
    from schedopt.bench.cases import QUICK_CHAINS, family_chains, theorem_cases

    if own is not None:
        return list(grid.cases(own))
    ours = [*shipped_chains(), *family_chains()]
    if quick:
        ours = [chain for chain in ours if chain.name in QUICK_CHAINS]
    return [*grid.cases(ours), *theorem_cases()]


def _tell_of_others(asked: Sequence[Asked], records: Sequence[Record], output: Path) -> None:
    """Say which runs of the file do not count, since they had other limits."""
    wanted = {one.record.asked: one.record.limits for one in asked}
    others = [
        record
        for record in records
        if record.asked in wanted and record.limits != wanted[record.asked]
    ]
    done = {record.asked for record in records if record.limits == wanted.get(record.asked)}
    again = {record.asked for record in others} - done
    if again:
        limits = dict.fromkeys(
            f"schedopt {one.schedopt}, seed {one.seed}, {one.time_limit_s:g} s"
            for one in others
            if one.asked in again
        )
        typer.echo(
            f"{len(again)} runs in {output} were made otherwise ({'; '.join(limits)}): they stay "
            "there and are done again, and the last of them count.",
            err=True,
        )


def _print(records: Sequence[Record], best: Best) -> None:
    from schedopt.bench.summary import standings
    from schedopt.cli.printing import make_console, print_table
    from schedopt.reporting.tables import Table

    figures = ("Runs", "Plans", "Proven", "Refused", "Mean", "Most", "Median", "Longest")
    rows = []
    for one in standings(records, best):
        ratios = ("" if value is None else f"{value:.3f}" for value in (one.mean, one.worst))
        times = (f"{value:.3f} s" for value in (one.median_s, one.longest_s))
        counts = (str(count) for count in (one.runs, one.plans, one.proven, one.refused))
        rows.append((one.solver, *counts, *ratios, *times))
    table = Table(
        title="Solvers: period over the best known plan",
        columns=("Solver", *figures),
        rows=tuple(rows),
        left=frozenset(("Solver",)),
    )
    print_table(make_console(), table)
