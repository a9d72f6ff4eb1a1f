"""``schedopt bench claims``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from schedopt.cli.progress import progress_bar
from schedopt.cli.suites import interrupted, tables_beside

if TYPE_CHECKING:
    from schedopt.bench.claims.result import Claim, Result

STORED: Final = Path("results/claims.json")


def bench_claims(
    only: Annotated[
        str | None,
        "ROW,ROW: Only these rows: printed, or put into the file of -o, which keeps its others. "
        "Default: all, anew.",
    ] = None,
    output: Annotated[
        Path | None,
        "FILE: The results; text and pictures lie next to it. "
        f"Default: {STORED}; with --only none.",
    ] = None,
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
        describe,
        load_computation,
        load_rows,
        run_claims,
        save,
    )
    from schedopt.drawing import picture_suffix

    chosen = choose_claims(only)
    if output is None and only is None:
        output = STORED
    if output is not None:
        text = tables_beside(output)
        picture_suffix(output.with_suffix(".svg"))
    computations = [(claim, load_computation(claim)) for claim in chosen]
    rows = {} if only is None or output is None else load_rows(output)
    kept = 0

    def keep(claim: Claim, result: Result, seconds: float) -> None:
        nonlocal kept
        if output is not None:
            save(claim, result, seconds, output, rows)
        else:
            typer.echo(f"{describe(claim, result)}\n")
        kept += 1
        typer.echo(f"{claim.id}: {result.verdict}, {seconds:.1f} s")

    with progress_bar() as show:
        complete = run_claims(computations, keep, show)
    if output is not None and kept:
        typer.echo(f"Results in {output}, text in {text}")
    elif complete:
        typer.echo("Nothing was written: name a file (-o) for figures, text and pictures")
    if not complete:
        interrupted("What is done is kept." if kept and output else "Nothing was written.")
