"""What a notebook shows: a table and a picture, complete in itself."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from schedopt.account import PlanReport
from schedopt.drawing import chart_plan
from schedopt.drawing.files import encode_figure
from schedopt.drawing.picture import draw_picture
from schedopt.plan import Plan
from schedopt.reporting.choices import sweep_table, system_table
from schedopt.reporting.markup import escape, paragraphs, table
from schedopt.reporting.tables import alike_together, memory_table, stage_table
from schedopt.result import Result
from schedopt.units import format_duration, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from schedopt.comparing.comparison import Comparison
    from schedopt.solving import Progress
    from schedopt.sweeping import Sweep


def show_progress() -> Callable[[Progress], None]:
    """Return what shows, in a notebook, how far a search is: best plan, bound and gap as they come.

    It needs IPython, which notebooks have.

    Examples
    --------
    In a cell of a notebook::

        from schedopt.reporting.notebook import show_progress

        solve(chain, platform, on_progress=show_progress())
    """
    from IPython.display import HTML, display

    place = display(HTML(""), display_id=True)
    drawn: Plan | None = None
    stages, due = "", 0.0

    def show(progress: Progress) -> None:
        nonlocal drawn, stages, due
        begin = monotonic()
        if progress.plan is not None and progress.plan is not drawn and begin >= due:
            drawn = progress.plan
            stages = table(alike_together(stage_table(PlanReport(drawn))))
            # A tenth of the time at most, which is that of the search.
            due = monotonic() + 9 * (monotonic() - begin)
        text = f"{progress.seconds:.1f} s: {progress}"
        place.update(HTML(f"{paragraphs([text])}\n{stages}"))

    return show


def show_result(result: Result) -> str:
    """Return what was found, or why nothing was, as HTML."""
    verdict = result.verdict[0].upper() + result.verdict[1:]
    if result.plan is None or result.period is None:
        return paragraphs([f"No plan. {verdict}.", f"Scope: {result.problem.scope}."])
    begin = f"Period {format_duration(result.period)}. {verdict}."
    return paragraphs([begin]) + _show(result)


def show_plan(plan: Plan) -> str:
    """Return a plan as HTML."""
    begin = f"Period {format_duration(plan.pattern.period)}."
    return paragraphs([begin]) + _show(Result(problem=plan.problem, status="feasible", plan=plan))


def _show(result: Result) -> str:
    assert result.plan is not None
    report = PlanReport(result.plan)
    rows = alike_together(stage_table(report)), alike_together(memory_table(report))
    picture = _picture(lambda: draw_picture(chart_plan(result, report)), "the plan, GPU by GPU")
    return "\n".join([*map(table, rows), picture])


def show_comparison(comparison: Comparison) -> str:
    """Return systems side by side as HTML."""
    from schedopt.comparing.picture import draw_comparison

    begin = f"{comparison.chain}. {comparison.platform}."
    picture = _picture(lambda: draw_comparison(comparison), "throughput against memory")
    return "\n".join([paragraphs([begin]), table(system_table(comparison)), picture])


def show_sweep(sweep: Sweep) -> str:
    """Return the points of a sweep as HTML."""
    from schedopt.sweeping.picture import draw_sweep

    begin = f"{printable(sweep.chain_name) or 'A chain'}: {sweep.options.scope}."
    picture = _picture(lambda: draw_sweep(sweep), "period against memory") if sweep.points else ""
    return "\n".join([paragraphs([begin]), table(sweep_table(sweep)), picture])


def _picture(draw: Callable[[], Figure], words: str) -> str:
    """Return a picture that needs nothing from elsewhere, or how to get one."""
    try:
        content = encode_figure(draw, ".svg")
    except ImportError:
        return paragraphs(["For a picture: pip install matplotlib"])
    source = f"data:image/svg+xml;base64,{b64encode(content).decode()}"
    return f'<img alt="{escape(words)}" style="max-width:100%" src="{source}">'
