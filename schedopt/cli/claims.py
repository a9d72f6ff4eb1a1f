"""``schedopt bench claims``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.progress import progress_bar
from schedopt.cli.suites import tables_beside

if TYPE_CHECKING:
    from schedopt.bench.claims.running import Done


def bench_claims(
    only: Annotated[
        str | None,
        typer.Option(
            help="These rows, into those that the file has. Default: all, anew.",
            metavar="ROW,ROW",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The findings; text and pictures lie beside.", metavar="FILE"
        ),
    ] = Path("results/claims.json"),
) -> None:
    """Compute again what the sources claim, and say which of it holds.

    Each row ends as holds, holds-under-convention (which is said) or fails (with the
    counterexamples). Rows are written one after the other, so that Ctrl-C loses one at most. A
    file that is there is written anew; with --only its other rows stay as they are.

    Examples
    --------
    schedopt bench claims

    schedopt bench claims --only P3,C8 -o some.json
    """
    from schedopt.bench.claims.registry import choose_claims, load_claims
    from schedopt.bench.claims.running import run_claims
    from schedopt.bench.claims.writing import load_rows, save
    from schedopt.drawing import picture_suffix

    names = choose_claims(only)
    text = tables_beside(output)
    picture_suffix(output.with_suffix(".svg"))
    wanted = load_claims(names)
    before = {} if only is None else load_rows(output)

    kept = 0

    def keep(done: Done) -> None:
        nonlocal kept
        save(done, output, before)
        kept = len(done)
        finding, seconds = done[-1]
        typer.echo(f"{finding.claim.id}: {finding.verdict}, {seconds:.1f} s")

    with progress_bar() as show:
        complete = run_claims(wanted, keep, show)
    if kept:
        typer.echo(f"Findings in {output}, text in {text}")
    if not complete:
        what = "What is done is kept." if kept else "Nothing was written."
        typer.echo(f"Interrupted. {what}", err=True)
        raise typer.Exit(130)
