"""One page about a plan: complete in itself, without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from schedopt.account import PlanReport
from schedopt.comparing.baselines import Baseline
from schedopt.comparing.measures import Figures
from schedopt.drawing import chart_plan, chart_simulation, name_unused
from schedopt.plan import Plan
from schedopt.reporting.commands import commands
from schedopt.reporting.markup import (
    described,
    escape,
    folded,
    listed,
    paragraphs,
    table,
)
from schedopt.reporting.tables import (
    Table,
    comparison_table,
    ladder_table,
    layer_table,
    memory_table,
    say_best,
    stage_table,
)
from schedopt.reporting.templates import fill_template, shown_in
from schedopt.reporting.timeline import encode_view
from schedopt.reporting.words import (
    WORDS,
    bound_sentences,
    first_figures,
    gpu_sentences,
    plan_sentences,
    scope_items,
    title_of,
)
from schedopt.result import Result
from schedopt.simulation import Simulation
from schedopt.units import counted, format_bytes, format_duration, printable, readable

FEW_GPUS: Final = 8
"""Up to this many GPUs are shown at once; the rows of more are folded away."""


def render_page(
    result: Result, *, file: str, step: Simulation, figures: Figures, baselines: Sequence[Baseline]
) -> str:
    """Return a page about a valid plan: the same one for the same plan.

    `file` is that of the plan, for the commands; `figures` is what the plan costs.
    """
    plan, report = step.plan, PlanReport(step.plan)
    few = len({gpu for stage in plan.stages for gpu in stage.every_gpu}) <= FEW_GPUS
    shares = [
        need / gpu.usable_bytes if gpu.usable_bytes else 0.0
        for need, gpu in zip(report.needed_bytes, plan.platform.gpus, strict=True)
    ]
    return fill_template(
        "report.html",
        "plan.js",
        data={"views": page_views(result, step, report)},
        shown=shown_in([plan]),
        title=escape(title_of(plan)),
        verdict=escape(_verdict(result)),
        figures="\n".join(
            f"<div><dt>{escape(figure.name)}</dt><dd><strong>{escape(figure.value)}</strong> "
            f"{escape(figure.meaning)}</dd></div>"
            for figure in first_figures(result, report, step)
        ),
        plan=paragraphs(plan_sentences(result, report)),
        gpus=folded("What each GPU runs", listed(gpu_sentences(report)), open_=few),
        step=paragraphs(_step_sentences(step)),
        memory=table(memory_table(report), bars=shares),
        memory_words=paragraphs(_memory_sentences(plan)),
        stages=table(stage_table(report)),
        layers=folded("Every layer", table(layer_table(plan))),
        bound=paragraphs(bound_sentences(result)),
        scope=described(
            [*scope_items(result.problem.scope), *(("Left out", note) for note in result.notes)]
        ),
        bounds=_bounds(result),
        ladder=_ladder(result),
        compared=paragraphs([say_best(figures, baselines)]),
        comparison=table(comparison_table(figures, baselines, plan.scope.memory)),
        commands="\n".join(
            f"<dt><code>{escape(line)}</code></dt><dd>{escape(text)}</dd>"
            for line, text in commands(plan, file, step)
        ),
        words=described(WORDS),
        sha256=plan.chain.sha256,
    )


def page_views(
    result: Result, step: Simulation, report: PlanReport | None = None
) -> list[dict[str, Any]]:
    """Return what the script of a page draws, as JSON documents.

    The step, and the pattern unless that is this very step.
    """
    plan = step.plan
    planned = plan.scope.microbatches
    title = f"A step of {counted(step.microbatches, 'micro-batch')}"
    views = [encode_view(title, chart_simulation(step, report), plan)]
    as_planned = step.makespan_ns == plan.pattern.period_total_ns
    if planned != step.microbatches or not as_planned:
        title = "The repeating pattern" if planned is None else "The planned step"
        views.append(encode_view(title, chart_plan(result, report), plan))
    return views


def _verdict(result: Result) -> str:
    period = result.period
    assert period is not None
    by = ""
    if result.ladder:
        by = f" Found by the solver {result.solver}; the search took {result.seconds:.1f} s."
    verdict = result.verdict[0].upper() + result.verdict[1:]
    return f"Period {format_duration(period)}. {verdict}.{by}"


def _step_sentences(step: Simulation) -> Iterator[str]:
    phases = step.phases
    parts = ""
    if phases is not None:
        warm, drain = phases.steady_from_ns, step.makespan_ns - phases.steady_to_ns
        parts = (
            f" After {format_duration(warm)} every GPU has begun, and {format_duration(drain)} "
            "before the end the first of them is through. Memory may go on rising behind the "
            "start, until as many micro-batches are under way as the plan keeps."
        )
    yield (
        f"A step of {counted(step.microbatches, 'micro-batch')} takes "
        f"{format_duration(step.makespan_ns)} "
        f"when everything starts as soon as the order allows.{parts} The GPUs that have a stage "
        f"idle {float(step.bubble):.1%} of it."
    )


def _memory_sentences(plan: Plan) -> Iterator[str]:
    if plan.scope.memory == "sum":
        yield (
            "The total adds up the maximum of each kind of memory on each stage. The drawing above "
            "shows the true amount over time, which is never more."
        )
    reserved = sorted({gpu.reserved_bytes for gpu in plan.platform.gpus} - {0})
    if reserved:
        kept = " or ".join(map(format_bytes, reserved))
        yield f"The limit is what is left of a GPU's memory behind {kept} that are reserved."
    if unused := name_unused(plan):
        yield f"Without a stage: {unused}."


def _bounds(result: Result) -> str:
    """Return all that was proven, folded away; nothing if that is one bound, or none."""
    if len(result.bounds) < 2:
        return ""
    scope = result.problem.scope
    rows = Table(
        title="Bounds",
        columns=("Bound", "Speaks of this plan", "Why it holds", "Scope"),
        rows=tuple(
            (
                format_duration(bound.period),
                "yes" if bound.scope.covers(scope) else "no",
                printable(readable(str(bound.proof))),
                readable(str(bound.scope)),
            )
            for bound in result.bounds
        ),
        keys=0,
        words=("Speaks of this plan", "Why it holds", "Scope"),
    )
    return folded("All that was proven", table(rows))


def _ladder(result: Result) -> str:
    if not result.ladder:
        by = f" It was made by {printable(result.solver)}." if result.solver else ""
        return paragraphs([f"The plan file does not say what else was tried.{by}"])
    return paragraphs(
        [
            "Solvers were asked one after the other. Those further down may do all that those "
            "before may, and what stands under “In addition”, if anything does. Each row says what "
            "was found, how much faster that is than the best before, which bound was known then "
            "for plans with the freedoms so far, and how long it took."
        ]
    ) + table(ladder_table(result))
