"""Charts on the terminal, and what the commands that draw share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from schedopt.drawing import Chart
    from schedopt.result import Result


def load_valid(path: Path) -> Result:
    """Read a plan; end with exit code 5 if the check refuses it."""
    from schedopt.checking import check
    from schedopt.result import Result

    result = Result.load(path)
    violations = check(result)
    if violations:
        more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
        typer.echo(
            f"{path}: not a valid plan: {violations[0]}{more}. See: schedopt check {path}", err=True
        )
        raise typer.Exit(5)
    return result


def print_chart(chart: Chart) -> None:
    """Print a chart with what it says in words."""
    from schedopt.cli.tables import make_console
    from schedopt.drawing import explain_glyphs, render_chart

    console = make_console()
    unicode = console.encoding.lower().startswith("utf")
    console.print(chart.title, style="bold")
    for fact in chart.facts:
        console.print(fact)
    console.print()
    console.print(render_chart(chart, console.width, unicode=unicode), no_wrap=True, crop=False)
    console.print()
    console.print(explain_glyphs(chart, console.width, unicode=unicode))
