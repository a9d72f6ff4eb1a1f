"""``schedopt show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedopt.cli.options import PictureOutput


def show_plan(
    plan: Annotated[
        Path, typer.Argument(help="A schedopt.plan/1 or schedopt.platform/1 file.", metavar="FILE")
    ],
    output: PictureOutput = None,
) -> None:
    """Show what each GPU does when, and its memory over time.

    Two periods of the pattern, on the terminal or as a picture (which needs the extra draw). Of a
    platform: its nodes, and the ways between them. A plan that is over memory is drawn too, with a
    warning and exit code 5.

    Examples
    --------
    schedopt show plan.json

    schedopt show plan.json -o plan.svg

    schedopt show instances/two-nodes.platform.json
    """
    from schedopt.cli.charts import load_drawable, print_chart
    from schedopt.cli.platforms import print_platform
    from schedopt.drawing import chart_plan, picture_suffix, save_picture
    from schedopt.errors import InputError
    from schedopt.formats import check_writable, read_format
    from schedopt.formats.reading import KINDS
    from schedopt.plan import PLAN_FORMAT
    from schedopt.platform import PLATFORM_FORMAT, Platform
    from schedopt.simulation import simulate, usual_micro_batches
    from schedopt.units import format_duration
    from schedopt.validation import show

    if output is not None:
        picture_suffix(output)
        check_writable(output)
    else:
        found = read_format(plan)
        if found == PLATFORM_FORMAT:
            print_platform(Platform.load(plan))
            return
        if found not in KINDS:
            raise InputError(
                "is missing" if found is None else f"{show(found)} is not supported here",
                field="format",
                way_out=f"Give a {PLAN_FORMAT} or a {PLATFORM_FORMAT} file",
                source=str(plan),
            )
    result, code = load_drawable(plan)
    chart = chart_plan(result)
    if output is not None:
        save_picture(chart, output)
        typer.echo(f"Picture written to {output}")
        raise typer.Exit(code)
    print_chart(chart)
    assert result.plan is not None
    step = simulate(result.plan, usual_micro_batches(result.plan))
    typer.echo(
        f"A step of {step.microbatches} micro-batches with a flush takes "
        f"{format_duration(step.makespan_ns)}, {format_duration(step.time_per_micro_batch)} each, "
        f"bubble {float(step.bubble):.1%}. See: schedopt simulate {plan}"
    )
    raise typer.Exit(code)
