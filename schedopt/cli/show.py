"""``schedopt show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show_plan(
    plan: Annotated[Path, typer.Argument(help="A schedopt.plan/1 file.", metavar="PLAN")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Draw a picture instead: .svg, .png or .pdf.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Show what each GPU does when, and its memory over time.

    Two periods of the pattern, on the terminal or as a picture (which needs the extra draw).

    Examples
    --------
    schedopt show plan.json

    schedopt show plan.json -o plan.svg
    """
    from schedopt.cli.charts import load_valid, print_chart
    from schedopt.drawing import chart_plan, picture_suffix, save_picture
    from schedopt.formats import check_writable
    from schedopt.simulation import simulate, usual_micro_batches
    from schedopt.units import format_duration

    if output is not None:
        picture_suffix(output)
        check_writable(output)
    result = load_valid(plan)
    chart = chart_plan(result)
    if output is not None:
        save_picture(chart, output)
        typer.echo(f"Picture written to {output}")
        return
    print_chart(chart)
    assert result.plan is not None
    step = simulate(result.plan, usual_micro_batches(result.plan))
    typer.echo(
        f"A step of {step.microbatches} micro-batches with a flush takes "
        f"{format_duration(step.makespan_ns)}, {format_duration(step.time_per_micro_batch)} each, "
        f"bubble {float(step.bubble):.1%}. See: schedopt simulate {plan}"
    )
