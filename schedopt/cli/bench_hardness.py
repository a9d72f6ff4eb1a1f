"""``schedopt bench hardness``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedopt.cli.bench import Resume, tables_beside
from schedopt.cli.options import check_time_limit
from schedopt.cli.progress import progress_bar
from schedopt.errors import InputError, naming_file

if TYPE_CHECKING:
    from schedopt.bench.effort import Effort
    from schedopt.bench.three_partition import Answer

LIMIT_S = 10.0
LIMIT_OF_ONE_S = 60.0
OUTPUT = Path("results/hardness.json")


def bench_hardness(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A part of it, in about a minute; the first time compiling adds another.",
        ),
    ] = False,
    instance: Annotated[
        Path | None,
        typer.Option(
            help="Answer one chain, written by schedopt instance three-partition, instead.",
            metavar="FILE",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --instance: print one JSON document and nothing else."),
    ] = False,
    workers: Annotated[int, typer.Option(help="Threads of a solver.", min=1, metavar="N")] = 2,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help=f"Seconds for each run. Default: {LIMIT_S:g}, with --instance {LIMIT_OF_ONE_S:g}.",
            metavar="S",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"The figures; tables and picture lie beside. Default: {OUTPUT}.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    resume: Resume = True,
) -> None:
    """Answer instances of Theorems 1 and 2, by special methods and by solvers of all problems.

    Numbers with and without a 3-partition, m = 2 to 8, become chains that have a plan of a given
    period or not (Beaumont, Eyraud-Dubois and Shilova 2021). Every answer is compared with what
    is known, every plan is checked and turned back into groups of three.

    Each run is recorded at once. Started again, the command does only what is missing, so that
    Ctrl-C loses one run at most.

    Examples
    --------
    schedopt bench hardness --quick -o quick.json

    schedopt bench hardness --instance chain.json --json
    """
    from schedopt.bench.effort import Effort

    usual = LIMIT_S if instance is None else LIMIT_OF_ONE_S
    seconds = usual if time_limit is None else time_limit
    check_time_limit(seconds)
    effort = Effort(workers, seconds)
    if instance is None:
        if as_json:
            raise InputError(
                "goes with --instance",
                field="--json",
                way_out="Name one (--instance), or leave it out: the figures are JSON anyway",
            )
        _measure(quick, effort, output or OUTPUT, resume)
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
    from schedopt.bench.three_partition import answer
    from schedopt.chain import Chain
    from schedopt.families.reductions import read_reduction

    chain = Chain.load(path)
    with naming_file(path):
        reduction = read_reduction(chain)
    found = answer(reduction, effort)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if found.answer == "unknown":
        raise typer.Exit(4)


def _print(found: Answer) -> None:
    from schedopt.units import format_duration

    shown = found.to_json()
    typer.echo(
        f"Instance  Theorem {shown['theorem']}, m = {shown['m']}, V = {shown['V']}: is there a "
        f"plan of period {format_duration(shown['period_ns'])}?"
    )
    typer.echo(f"Numbers   {' '.join(map(str, shown['numbers']))}")
    typer.echo(f"Answer    {found.answer}, in {found.seconds:g} s")
    typer.echo(f"Proof     {found.proof}")
    for group in shown["groups"]:
        typer.echo(f"Group     {' + '.join(map(str, group))} = {shown['V']}")


def _measure(quick: bool, effort: Effort, output: Path, resume: bool) -> None:
    from schedopt.bench.documents import load_document, new_document
    from schedopt.bench.hardness import FULL, QUICK, measure_hardness
    from schedopt.bench.hardness_picture import save_hardness_picture
    from schedopt.bench.hardness_tables import missed_goals, summary, to_markdown
    from schedopt.drawing import picture_suffix
    from schedopt.formats import check_writable, to_text, write_whole

    tables, picture = tables_beside(output), output.with_suffix(".svg")
    picture_suffix(picture)
    check_writable(picture)

    def as_tables(document: dict[str, Any]) -> str:
        return to_markdown(document, picture.name)

    document = load_document(output, effort, as_tables) if resume else new_document(effort)

    def save(document: dict[str, Any]) -> None:
        write_whole(output, to_text(document))
        write_whole(tables, as_tables(document))

    with progress_bar() as show:
        complete = measure_hardness(QUICK if quick else FULL, effort, document, save, show)
    if document.get("answers"):
        save(document)
        save_hardness_picture(document, picture)
    for line in summary(document):
        typer.echo(line)
    for missed in missed_goals(document):
        typer.echo(f"Not as it should be: {missed}")
    typer.echo(f"Figures in {output}, tables in {tables}, picture in {picture}")
    if not complete:
        typer.echo("Interrupted. Start it again to go on.", err=True)
        raise typer.Exit(130)
