"""``schedopt bench solvers``."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from schedopt.cli.options import Dask, Jobs, make_pool, naming_options, parse_counts
from schedopt.cli.progress import progress_bar
from schedopt.cli.suites import (
    RESULTS,
    check_outputs,
    finish,
    interrupted,
    make_effort,
    shipped_chains,
    suite_command,
)
from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.bench.cases import Grid
    from schedopt.bench.records import Record
    from schedopt.bench.solvers import MethodRun


@suite_command(
    "solvers",
    chains="instances, and chains by rule",
    gpus="2,4,8; 4,8 if quick",
    levels="1,1.5,4; 1.5,4 if quick",
    bandwidths="12GB/s,1GB/s; 12GB/s if quick",
    batches="none: micro-batches go on for ever",
    solvers="ours, and what people use instead; schedopt for batches",
    time_limit="20; 3 if quick",
)
def bench_solvers(
    chains: Path | None = None,
    gpus: str | None = None,
    levels: str | None = None,
    bandwidths: str | None = None,
    batches: str | None = None,
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
    With --batches instances are training steps, asked for all that solve --batch allows.

    Examples
    --------
    schedopt bench solvers --quick --jobs 2 -o quick.jsonl

    schedopt bench solvers --chains profiles --gpus 4,8 --levels 1,2 -o profiles.jsonl

    schedopt bench solvers --chains profiles --batches 64,256 -o steps.jsonl

    schedopt bench solvers --dask tcp://host:8786
    """
    from schedopt.bench import cases
    from schedopt.bench.best_known_file import BKS_FORMAT, BestKnownFile
    from schedopt.bench.records import RecordFile
    from schedopt.bench.solvers import (
        NAMES,
        WHOLE,
        execute_runs,
        find_method,
        latest,
        load_runs,
        plan_runs,
    )
    from schedopt.bench.solvers_tables import in_order, solvers_suite
    from schedopt.formats import check_writable

    grid = _grid(cases.QUICK if quick else cases.FULL, gpus, levels, bandwidths, batches)
    usual = NAMES if batches is None else (WHOLE,)
    names = usual if solvers is None else solvers.split(",")
    with naming_options({"solver": "solvers"}):
        methods = [find_method(name) for name in dict.fromkeys(names)]
        pool = make_pool(jobs, dask)
    effort = make_effort(1, time_limit, 3.0 if quick else 20.0, seed)
    check_outputs(output, endings=(".jsonl",))
    best_known = output.with_name("bks.json")
    check_writable(best_known, BKS_FORMAT)
    own_chains = None if chains is None else cases.load_chains(chains)
    file = RecordFile(output, load_runs(output, here=dask is None) if resume else ())
    known = BestKnownFile(best_known)
    try:
        if own_chains is None:
            # Chains by rule do not say what updates need.
            by_rule = cases.family_chains() if batches is None else []
            loaded = [*shipped_chains(), *by_rule]
            loaded = [chain for chain in loaded if not quick or chain.name in cases.QUICK_CHAINS]
            instances = [*grid.instances(loaded)]
            instances += cases.theorem_instances() if batches is None else ()
        else:
            instances = [*grid.instances(own_chains)]
        with naming_options({"batch": "batches"}):
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


def _grid(
    usual: Grid,
    gpus: str | None,
    levels: str | None,
    bandwidths: str | None,
    batches: str | None,
) -> Grid:
    """Return the grid that was typed, and the usual one where nothing was."""
    from schedopt.bench.cases import Grid

    return Grid(
        gpus=usual.gpus if gpus is None else tuple(parse_counts(gpus)),
        levels=usual.levels if levels is None else tuple(map(_multiple, levels.split(","))),
        bandwidths=(
            usual.bandwidths if bandwidths is None else tuple(map(_rate, bandwidths.split(",")))
        ),
        batches=(None,)
        if batches is None
        else tuple(parse_counts(batches, "--batches", "samples")),
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
    done = {identity(record) for record in of_wanted if limits(record) == wanted[identity(record)]}
    others = [record for record in of_wanted if identity(record) not in done]
    if others:
        conditions = dict.fromkeys(
            "schedopt {schedopt}, seed {seed}, {time_limit_s:g} s".format(**other.conditions)
            for other in others
        )
        typer.echo(
            f"{len({*map(identity, others)})} runs in {output} were made otherwise "
            f"({'; '.join(conditions)}): they stay there and are done again, and the last "
            "of them count.",
            err=True,
        )
