"""``schedopt report``: a page about a plan, points of sweeps, or systems of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.options import Microbatches, naming_options
from schedopt.cli.plans import load_measurable, load_valid, micro_batches
from schedopt.cli.progress import progress_bar
from schedopt.errors import InputError, naming_file
from schedopt.plan import PLAN_FORMAT
from schedopt.units import format_bytes
from schedopt.validation import show

if TYPE_CHECKING:
    from schedopt.reporting.exploration import Exploration

Progress = Callable[[int, int, str], None]


def report_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="A schedopt.plan/1 file, a schedopt.comparison/1 file, or schedopt.sweep/1 files "
            "of one chain.",
            metavar="FILE...",
        ),
    ],
    output: Annotated[Path, "FILE: Where to write the page (.html)."],
    compare_with: Annotated[
        list[Path] | None,
        "PLAN: A plan for the same chain to compare a plan with, such as the one in use now (see "
        "schedopt import), also one that does not fit. May be given more than once.",
    ] = None,
    microbatches: Microbatches = None,
) -> None:
    """Write one page that can be sent: no other file, no network is needed to read it.

    Of a plan: the plan in words, what runs when and what lies in memory, the stages with their
    layers, the bound and what it means, how the plan was found, what people do without a search on
    the same GPUs, and how to run it.

    Of sweeps or a comparison: one moves memory, GPUs, links and batch, or picks systems, and sees
    the plan, its timeline and its bound, two side by side. It opens in any browser.

    Examples
    --------
    schedopt report plan.json -o report.html

    schedopt report plan.json -o report.html --compare-with now.plan.json --microbatches 32

    schedopt report sweep.json -o explorer.html

    schedopt report systems.json -o systems.html
    """
    from schedopt.formats import check_writable, read_format, write_whole

    kinds = {path: read_format(path) for path in files}
    for path in files:
        if kinds[path] != kinds[files[0]]:
            raise InputError(
                f"is another kind of file than {files[0]}",
                field="format",
                way_out="Give one plan, one comparison, or sweeps of one chain",
                source=str(path),
            )
    check_writable(output)
    with progress_bar() as progress:
        if kinds[files[0]] == PLAN_FORMAT:
            page, note = _plan_page(_one(files), compare_with or (), microbatches, progress), ""
        else:
            if compare_with:
                raise InputError(
                    "given without a plan",
                    field="--compare-with",
                    way_out="Leave it out: the page shows two of its plans side by side",
                )
            page, note = _explorer_page(files, kinds[files[0]], microbatches, progress)
    write_whole(output, page)
    typer.echo(f"Page written to {output} ({format_bytes(len(page.encode()))}){note}")


def _one(files: Sequence[Path]) -> Path:
    if len(files) > 1:
        raise InputError(
            "is a second file",
            way_out="Give one; only sweeps can be shown together",
            source=str(files[1]),
        )
    return files[0]


def _plan_page(
    file: Path, compare_with: Sequence[Path], microbatches: int | None, progress: Progress
) -> str:
    from schedopt.comparing.baselines import named_baseline, usual_baselines
    from schedopt.comparing.measures import measure_plan
    from schedopt.drawing.charts import MOST_DRAWN
    from schedopt.folding import whole
    from schedopt.reporting.page import render_page
    from schedopt.simulation import simulate

    result, plan = load_valid(file)
    with naming_options(file=file):
        # Its page draws all that it does.
        plan = whole(plan, MOST_DRAWN)
    others = [(path.name, load_measurable(path)) for path in compare_with]
    count = micro_batches(plan, microbatches)
    progress(0, 3, "the step")
    with naming_options(file=file):
        step = simulate(plan, count)
    progress(1, 3, "what it is compared with")
    named = [named_baseline(name, other, plan, count) for name, other in others]
    baselines = [*named, *usual_baselines(plan, count)]
    figures = measure_plan(plan, count, file.name)
    progress(2, 3, "the page")
    # Without the folders of whoever writes it.
    return render_page(result, file=file.name, step=step, figures=figures, baselines=baselines)


def _explorer_page(
    files: Sequence[Path], kind: object, microbatches: int | None, progress: Progress
) -> tuple[str, str]:
    """Return the page, and what is to be said of it."""
    from schedopt.reporting.explorer import render_explorer

    page = render_explorer(_explore(files, kind, microbatches), on_plan=progress)
    if not page.left_out:
        return page.text, ""
    return page.text, f", without the timelines of {page.left_out} plans: it says why"


def _explore(files: Sequence[Path], kind: object, microbatches: int | None) -> Exploration:
    from schedopt.comparing.comparison import COMPARISON_FORMAT, Comparison
    from schedopt.reporting.comparison_entries import explore_comparison
    from schedopt.reporting.sweep_entries import explore_sweeps
    from schedopt.sweeping import Sweep
    from schedopt.sweeping.points import SWEEP_FORMAT

    if kind == SWEEP_FORMAT:
        with naming_options():
            return explore_sweeps([(str(path), Sweep.load(path)) for path in files], microbatches)
    file = _one(files)
    if kind == COMPARISON_FORMAT:
        if microbatches is not None:
            raise InputError(
                "given with a comparison, whose steps are those that were compared",
                field="--microbatches",
                way_out="Compare again with another number",
            )
        with naming_file(file):
            return explore_comparison(Comparison.load(file))
    raise InputError(
        "is missing" if kind is None else f"{show(kind)} is not supported here",
        field="format",
        way_out=f"Give a {PLAN_FORMAT}, a {SWEEP_FORMAT} or a {COMPARISON_FORMAT} file",
        source=str(file),
    )
