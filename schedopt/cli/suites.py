"""What the commands of ``schedopt bench`` share: options, files, and the way of a suite."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_type_hints

import typer

from schedopt.cli.commands import Commands, one_line_a_paragraph
from schedopt.cli.options import check_time_limit
from schedopt.cli.progress import progress_bar
from schedopt.cli.signals import usual_signals
from schedopt.errors import InputError

if TYPE_CHECKING:
    from schedopt.bench.records import Record, RecordFile
    from schedopt.bench.suite import Case, Effort, Suite
    from schedopt.chain import Chain

EXIT_CODES = "Exit codes: 0 done · 1 an internal error · 2 bad usage or bad input · 130 interrupted"
SHIPPED = Path("instances")
RESULTS = Path("results")
RESUMES = (
    "Each run is recorded at once. Started again, the command does only what is missing, so that "
    "Ctrl-C loses only what runs at that moment."
)

OPTIONS: Final[dict[str, Any]] = {
    "output": "FILE: The figures, a run a line (.jsonl) or as one document (.json). Next to them: "
    "tables (.md), pictures (.svg).",
    "data": "DIR: A folder of published tables, with a folder for each package.",
    "chain": "FILE: The chain that is solved or run.",
    "chains": "DIR: A folder of chains.",
    "only": "PART: One part: chains, theorems or speed.",
    "quick": "A small part, in about a minute, plus compiling.",
    "seeds": typer.Option(
        help="Random chains of each size, at most 10 where one takes long.", metavar="N", min=1
    ),
    "steps": typer.Option(
        help="Steps that are timed in each run; the median counts.", metavar="N", min=1
    ),
    "gpus": "P,P: How many GPUs.",
    "microbatches": "N,N: Micro-batches of a step, for each GPU.",
    "levels": "X,X: Memory of a GPU over the least with which a contiguous plan exists.",
    "batches": "B,B: Samples of a training step, which is then what is made short.",
    "bandwidths": "RATE,RATE: Of each link; free for none.",
    "solvers": "NAME,NAME: Which solvers; schedopt stands for what solve does by default.",
    "instance": "FILE: Answer one chain, written by schedopt instance three-partition, instead.",
    "time_limit": "S: Seconds for each run.",
    "limits": "S,S: Seconds for each run, each limit in turn.",
    "workers": typer.Option(help="Threads of a solver.", metavar="N", min=1),
    "seed": typer.Option(
        help="For solvers that draw, and the first of random chains.", metavar="N", min=0
    ),
    "resume": typer.Option(
        "--resume/--anew", help="Go on with the runs in the file, or do all of them."
    ),
}
"""The options of the suites, as `Commands` takes them."""

bench_app = Commands(
    help="Compare solvers, and hold predictions, proofs and published claims against figures.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)


@bench_app.callback()
def _options(context: typer.Context) -> None:
    # The suites keep what they have measured when they are interrupted.
    context.with_resource(usual_signals())


def suite_command(name: str, epilog: str = EXIT_CODES, **defaults: str) -> Callable[[Any], Any]:
    """Return what registers a function as a command, whose options are those of `OPTIONS`.

    But for those that it annotates itself.

    `defaults` says of options what they are by default, where that is not in the signature.
    """

    def register(function: Any) -> Any:
        hints = get_type_hints(function, include_extras=True)
        for option in hints.keys() & OPTIONS.keys():
            if hasattr(hints[option], "__metadata__"):
                continue
            help_text = OPTIONS[option]
            if option in defaults:
                help_text = f"{help_text} Default: {defaults[option]}."
            function.__annotations__[option] = Annotated[hints[option], help_text]
        text = inspect.getdoc(function) or ""
        if "resume" in hints:
            before, _, examples = text.partition("\n\nExamples\n")
            text = f"{before}\n\n{RESUMES}\n\nExamples\n{examples}"
        return bench_app.command(name, epilog=epilog, help=one_line_a_paragraph(text))(function)

    return register


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


def run_suite(
    suite: Suite,
    batches: Callable[[RecordFile], Iterable[Sequence[Case]]],
    effort: Effort | None,
    output: Path,
    resume: bool = True,
    **conditions: Any,
) -> None:
    """Measure what a file of records lacks, write tables and picture, and print a summary."""
    from schedopt.bench.records import RecordFile, write_records
    from schedopt.bench.suite import measure

    check_outputs(output, picture=suite.draw is not None)
    before = suite.load(output, effort, **conditions) if suite.resumable and resume else ()
    file = RecordFile(output if suite.resumable else None, before)
    with progress_bar() as show:
        complete = measure(batches(file), effort, file, show, **conditions)
    if complete and not suite.resumable:
        write_records(output, file.records)
    if complete or suite.resumable:
        finish(suite, file.records, output)
    if not complete:
        interrupted("Start it again to go on." if suite.resumable else "Nothing was written.")


def finish(suite: Suite, records: Sequence[Record], output: Path) -> None:
    """Write tables and picture next to the records, and print what they say together."""
    from schedopt.cli.printing import make_console, print_table
    from schedopt.formats import write_whole
    from schedopt.reporting.tables import Table

    if not records:
        return
    tables, picture = output.with_suffix(".md"), output.with_suffix(".svg")
    write_whole(tables, suite.to_markdown(records, picture.name if suite.draw else ""))
    suite.save_picture(records, picture)
    if suite.overview:
        headings, rows = suite.overview.cells(records)
        columns = [heading[0].upper() + heading[1:] for heading in headings]
        table = Table(
            title=suite.overview.title,
            columns=(*columns,),
            rows=(*map(tuple, rows),),
            keys=suite.overview.keys,
            words=frozenset(columns[:1]),
        )
        if rows:
            print_table(make_console(), table)
    for line in suite.summary(records):
        typer.echo(line)
    for missed in suite.misses(records):
        typer.echo(f"Not as it should be: {missed}")
    drawn = f", picture in {picture}" if suite.draw else ""
    typer.echo(f"Figures in {output}, tables in {tables}{drawn}")


def interrupted(outcome: str) -> NoReturn:
    """End a command that somebody asked to stop."""
    typer.echo(f"Interrupted. {outcome}", err=True)
    raise typer.Exit(130)


def make_effort(workers: int, given: float | None, usual: float = 60.0, seed: int = 0) -> Effort:
    """Return an effort with the time limit that was typed, or else the usual one."""
    from schedopt.bench.suite import Effort

    limit = usual if given is None else given
    check_time_limit(limit)
    return Effort(workers, limit, seed)


def check_outputs(
    output: Path, *, picture: bool = True, endings: Sequence[str] = (".json", ".jsonl")
) -> None:
    """Refuse an output that cannot be written, or next to which tables and picture cannot."""
    from schedopt.drawing import picture_suffix
    from schedopt.formats import check_writable

    tables_beside(output, endings)
    if picture:
        picture_suffix(output.with_suffix(".svg"))
        check_writable(output.with_suffix(".svg"))


def tables_beside(output: Path, endings: Sequence[str] = (".json",)) -> Path:
    """Return where tables go that lie next to figures; both can be written."""
    from schedopt.formats import check_writable

    if output.suffix not in endings:
        known = " or ".join(endings)
        raise InputError(
            f"{output} does not end in {known}",
            field="--output",
            way_out=f"Name a file that ends in {known}; the tables go into one next to it (.md)",
        )
    tables = output.with_suffix(".md")
    check_writable(output)
    check_writable(tables)
    return tables
