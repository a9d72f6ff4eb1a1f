"""One page about a plan: complete in itself, without anything from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any, Final

from schedopt.account import PlanReport
from schedopt.comparing.baselines import Baseline
from schedopt.comparing.measures import Figures
from schedopt.drawing import chart_plan, chart_simulation, name_unused
from schedopt.drawing.chart import LETTERS
from schedopt.drawing.looks import COLOURS, NAMES, SENT, hatch
from schedopt.plan import Kind, Plan, Tensor
from schedopt.reporting.commands import commands
from schedopt.reporting.markup import (
    described,
    embedded,
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
from schedopt.reporting.timeline import encode_chart
from schedopt.reporting.words import (
    WORDS,
    bound_sentences,
    first_figures,
    gpu_sentences,
    name_layers,
    plan_sentences,
    scope_items,
    title_of,
)
from schedopt.result import Result
from schedopt.simulation import Simulation
from schedopt.units import format_bytes, format_duration, printable, readable
from schedopt.version import __version__

SCRIPTS: Final = ("data.js", "painting.js", "timeline.js")
FEW_GPUS: Final = 8
"""Up to this many GPUs are shown at once; the rows of more are folded away."""


def render_page(
    result: Result, *, file: str, step: Simulation, ours: Figures, baselines: Sequence[Baseline]
) -> str:
    """Return a page about a valid plan: the same one for the same plan.

    `file` is that of the plan, for the commands; `ours` is what the plan costs.
    """
    plan, report = step.plan, PlanReport(step.plan)
    script = "\n".join(["'use strict';", *map(_read, SCRIPTS)])
    few = len({gpu for stage in plan.stages for gpu in stage.every_gpu}) <= FEW_GPUS
    shares = [
        need / gpu.usable_bytes if gpu.usable_bytes else 0.0
        for need, gpu in zip(report.needed_bytes, plan.platform.gpus, strict=True)
    ]
    return Template(_read("report.html")).substitute(
        title=escape(title_of(plan)),
        verdict=escape(_verdict(result)),
        digest=b64encode(sha256(script.encode()).digest()).decode(),
        style=_read("report.css"),
        script=script,
        data=embedded(page_data(result, step, report)),
        figures="\n".join(
            f"<div><dt>{escape(figure.name)}</dt><dd><strong>{escape(figure.value)}</strong> "
            f"{escape(figure.meaning)}</dd></div>"
            for figure in first_figures(result, report, step)
        ),
        plan=paragraphs(plan_sentences(result, report)),
        gpus=folded("What each GPU runs", listed(gpu_sentences(report)), open_=few),
        step=paragraphs(_step_sentences(step)),
        legend="\n".join(_legend(plan)),
        memory=table(memory_table(report), bars=shares),
        memory_words=paragraphs(_memory_sentences(plan)),
        stages=table(stage_table(report)),
        layers=folded("Every layer", table(layer_table(plan))),
        bound=paragraphs(bound_sentences(result)),
        scope=described(scope_items(result.problem.scope)),
        bounds=_bounds(result),
        ladder=_ladder(result),
        compared=paragraphs([say_best(ours, baselines)]),
        comparison=table(comparison_table(ours, baselines, plan.scope.memory)),
        commands="\n".join(
            f"<dt><code>{escape(line)}</code></dt><dd>{escape(text)}</dd>"
            for line, text in commands(plan, file, step)
        ),
        words=described(WORDS),
        version=escape(__version__),
        sha256=plan.chain.sha256,
    )


def page_data(result: Result, step: Simulation, report: PlanReport | None = None) -> dict[str, Any]:
    """Return what the script of a page draws, as a JSON document."""
    plan = step.plan
    shown = _shown(plan)
    return {
        "views": list(_views(result, step, report)),
        "stages": [name_layers(plan, stage) for stage in plan.stages],
        "names": {what: NAMES[what] for what in shown},
        "letters": {what: LETTERS.get(what, what) for what in shown},
        "hatches": {what: hatch(what)[:1] for what in shown},
        "colours": list(COLOURS),
        "sent": {what: SENT[what][0] for what in shown if what in SENT},
    }


def _views(result: Result, step: Simulation, report: PlanReport | None) -> Iterator[dict[str, Any]]:
    """Yield the step, and the pattern unless that is this very step."""
    planned = step.plan.scope.microbatches
    title = f"A step of {step.microbatches} micro-batches"
    yield {"title": title, **encode_chart(chart_simulation(step, report))}
    as_planned = step.makespan_ns == step.plan.pattern.period_total_ns
    if planned != step.microbatches or not as_planned:
        title = "The repeating pattern" if planned is None else "The planned step"
        yield {"title": title, **encode_chart(chart_plan(result, report))}


def _read(name: str) -> str:
    return files("schedopt.reporting").joinpath(name).read_text(encoding="utf-8")


def _shown(plan: Plan) -> list[Kind | Tensor]:
    """Return what runs and is sent in a plan, in the order of the field."""
    pattern = plan.pattern
    there = {*(operation.kind for operation in pattern.operations)}
    sent = {transfer.tensor for transfer in pattern.transfers}
    sent |= {collective.tensor for collective in pattern.collectives}
    return [what for what in NAMES if what in there or what in sent]


def _legend(plan: Plan) -> Iterator[str]:
    for what in _shown(plan):
        yield (
            f'<li><canvas width="32" height="18" data-what="{what}" aria-hidden="true">'
            f"</canvas><b>{LETTERS.get(what, what)}</b> {escape(NAMES[what])}</li>"
        )


def _verdict(result: Result) -> str:
    period = result.period
    assert period is not None
    by = ""
    if result.ladder:
        by = f" Found by the solver {result.solver}; the search took {result.seconds:.1f} s."
    said = result.verdict[0].upper() + result.verdict[1:]
    return f"Period {format_duration(period)}. {said}.{by}"


def _step_sentences(step: Simulation) -> Iterator[str]:
    phases = step.phases
    parts = ""
    if phases is not None:
        warm, drain = phases.steady_from_ns, step.makespan_ns - phases.steady_to_ns
        parts = (
            f" The pipeline fills for {format_duration(warm)} (warm-up) and empties for "
            f"{format_duration(drain)} (drain)."
        )
    yield (
        f"A step of {step.microbatches} micro-batches takes {format_duration(step.makespan_ns)} "
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
    asked = result.problem.scope
    rows = Table(
        title="Bounds",
        columns=("Bound", "Speaks of this plan", "Why it holds", "Scope"),
        rows=tuple(
            (
                format_duration(bound.period),
                "yes" if bound.scope.covers(asked) else "no",
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
