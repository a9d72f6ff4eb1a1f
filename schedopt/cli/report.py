"""``schedopt report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedopt.cli.options import Microbatches, PlanFile, naming_options
from schedopt.cli.progress import progress_bar


def report_plan(
    plan: PlanFile,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Where to write the page (.html).", metavar="FILE"),
    ],
    compare_with: Annotated[
        list[Path] | None,
        typer.Option(
            help="A plan for the same chain to put beside it, such as what runs now. May be given "
            "more than once.",
            metavar="PLAN",
        ),
    ] = None,
    microbatches: Microbatches = None,
) -> None:
    """Write one page about a plan that can be sent: no other file, no network is needed to read it.

    The plan in words, what runs when and what lies in memory, the stages with their layers, the
    bound and what it means, how the plan was found, what people do without a search on the same
    GPUs, and how to run it. It opens in any browser.

    Examples
    --------
    schedopt report plan.json -o report.html

    schedopt report plan.json -o report.html --compare-with now.plan.json --microbatches 32
    """
    from schedopt.cli.charts import load_valid
    from schedopt.comparing.baselines import named_baseline, usual_baselines
    from schedopt.comparing.measures import measure_plan
    from schedopt.formats import check_writable, write_whole
    from schedopt.reporting.page import render_page
    from schedopt.simulation import simulate, usual_micro_batches
    from schedopt.units import format_bytes

    check_writable(output)
    result = load_valid(plan)
    others = [(path.name, load_valid(path).plan) for path in compare_with or ()]
    loaded = result.plan
    assert loaded is not None
    count = usual_micro_batches(loaded) if microbatches is None else microbatches
    with progress_bar() as show:
        show(0, 3, "the step")
        with naming_options():
            step = simulate(loaded, count)
        show(1, 3, "what it is compared with")
        named = [named_baseline(name, other, loaded, count) for name, other in others if other]
        baselines = [*named, *usual_baselines(loaded, count)]
        ours = measure_plan(loaded, count, plan.name)
        show(2, 3, "the page")
        # Without the folders of whoever writes it.
        page = render_page(result, file=plan.name, step=step, ours=ours, baselines=baselines)
    write_whole(output, page)
    typer.echo(f"Page written to {output} ({format_bytes(len(page.encode()))})")
