"""``schedopt bench claims``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.progress import progress_bar
from schedopt.cli.suites import tables_beside

if TYPE_CHECKING:
    from schedopt.bench.claims.suite import Done


def bench_claims(
    only: Annotated[
        str | None,
        typer.Option(
            help="Only these rows; the file keeps its others. Default: all, anew.",
            metavar="ROW,ROW",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The results; text and pictures lie next to it.", metavar="FILE"
        ),
    ] = Path("results/claims.json"),
) -> None:
    """Compute the claims of four papers again, and report which of them hold.

    Each row ends as holds, holds-under-convention (which is named) or fails (with the
    counterexamples). Rows are written one after the other, so that Ctrl-C loses one at most. An
    existing file is written anew; with --only its other rows stay as they are.

    Examples
    --------
    schedopt bench claims

    schedopt bench claims --only P3,C8 -o some.json
    """
    from schedopt.bench.claims.suite import (
        choose_claims,
        load_computation,
        load_rows,
        run_claims,
        save,
    )
    from schedopt.drawing import picture_suffix

    chosen = choose_claims(only)
    text = tables_beside(output)
    picture_suffix(output.with_suffix(".svg"))
    wanted = [(claim, load_computation(claim)) for claim in chosen]
    before = {} if only is None else load_rows(output)

    kept = 0

    def keep(done: Done) -> None:
        nonlocal kept
        save(done, output, before)
        kept = len(done)
        claim, result, seconds = done[-1]
        typer.echo(f"{claim.id}: {result.verdict}, {seconds:.1f} s")

    with progress_bar() as show:
        complete = run_claims(wanted, keep, show)
    if kept:
        typer.echo(f"Results in {output}, text in {text}")
    if not complete:
        rest = "What is done is kept." if kept else "Nothing was written."
        typer.echo(f"Interrupted. {rest}", err=True)
        raise typer.Exit(130)
