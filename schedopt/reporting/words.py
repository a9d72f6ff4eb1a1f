"""A plan, its scope and its bound in sentences for a reader who has never seen one, and words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from schedopt.account import PlanReport, versions
from schedopt.drawing import name_group, name_shards
from schedopt.plan import Plan
from schedopt.problem import Scope
from schedopt.reporting.proofs import explain_proof
from schedopt.reporting.tables import layer_names, layer_range
from schedopt.result import Result
from schedopt.simulation import Simulation
from schedopt.stage import Stage
from schedopt.units import counted, format_bytes, format_duration, format_gap, printable, readable

WORDS: Final = (
    ("Layer", "a part of the network that is measured as one: its time and its bytes."),
    ("Stage", "neighbouring layers that run as one on one GPU."),
    ("Micro-batch", "a small part of a batch, which goes through all stages on its own."),
    ("Forward, F", "computes the output of a stage, and saves what the backward needs."),
    ("Backward, B", "computes gradients, from the last stage to the first."),
    ("Input half, I, and weight half, W", "the two parts of a backward that is split."),
    ("Recompute, R", "runs a forward again, so that less has to be kept in memory."),
    ("Weight update, U", "applies the gradients of a mini-batch to the weights."),
    ("Pattern", "the times at which all runs, repeated forever."),
    ("Period", "the length of the pattern for each of its micro-batches: less is faster."),
    ("In flight", "micro-batches between their forward and their backward on a stage."),
    ("Bubble", "the share of the time in which GPUs that have a stage idle."),
    ("Shard", "the part of weights, gradients or optimizer state that one GPU of a stage keeps."),
    ("Flush", "all gradients are applied, and the pipeline is empty, before the next step."),
    ("Bound", "a period that no plan of a certain kind can beat, proven."),
    ("Gap", "how much longer the period of the plan is than the bound."),
    ("1F1B*", "of all orders with one forward and one backward a period the one that keeps the "
     "least in memory (Beaumont, Eyraud-Dubois and Shilova 2021)."),
)  # fmt: skip
"""Each with what it means."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that a reader wants to know first, with what it is."""

    name: str
    value: str
    meaning: str


def title_of(plan: Plan) -> str:
    """Return what a page about a plan is called."""
    name = printable(plan.chain.name) or "unnamed model"
    return f"Pipeline plan: {name} on {counted(len(plan.platform.gpus), 'GPU')}"


def first_figures(result: Result, report: PlanReport, step: Simulation) -> Iterator[Figure]:
    """Yield the numbers that stand at the top."""
    plan, period = report.plan, result.period
    assert period is not None
    finite = plan.scope.microbatches is not None
    yield Figure(
        name="Period",
        value=format_duration(period),
        meaning="time from one finished micro-batch to the next"
        + (", over a step with its flush" if finite else ", once the pipeline is full"),
    )
    yield Figure(
        name="Throughput",
        value=f"{float(10**9 / period):,.4g}/s",
        meaning="micro-batches finished each second",
    )
    yield _quality(result)
    yield Figure(
        name="Bubble",
        value=f"{float(report.bubble):.1%}",
        meaning="share of the time in which the GPUs that have a stage idle",
    )
    share, gpu, need = _fullest(report)
    yield Figure(
        name="Fullest GPU",
        value=f"{float(share):.1%}",
        meaning=f"GPU {gpu} needs {format_bytes(need)} of "
        f"{format_bytes(plan.platform.gpus[gpu].usable_bytes)}",
    )
    yield Figure(
        name=f"Step of {counted(step.microbatches, 'micro-batch')}",
        value=format_duration(step.makespan_ns),
        meaning="from an empty pipeline to an empty one, "
        f"{format_duration(step.time_per_micro_batch)} each",
    )


def _quality(result: Result) -> Figure:
    if result.status == "optimal":
        return Figure(
            name="Gap to the best", value="0%", meaning="proven: no plan of its kind is faster"
        )
    if result.gap is None:
        return Figure(name="Gap to the best", value="unknown", meaning="nothing was proven")
    return Figure(
        name="Gap to the best",
        value=f"at most {format_gap(result.gap)}",
        meaning="how much longer the period is than the proven bound",
    )


def _fullest(report: PlanReport) -> tuple[Fraction, int, int]:
    """Return the largest share of its memory that a GPU needs, which GPU, and its bytes."""
    needs = report.needed_bytes
    shares = [
        Fraction(need, gpu.usable_bytes) if gpu.usable_bytes else Fraction(0)
        for need, gpu in zip(needs, report.plan.platform.gpus, strict=True)
    ]
    gpu = max(range(len(shares)), key=lambda number: shares[number])
    return shares[gpu], gpu, needs[gpu]


def plan_sentences(result: Result, report: PlanReport) -> Iterator[str]:
    """Yield paragraphs that say what a plan is and does."""
    plan, period = report.plan, result.period
    assert period is not None
    used = len({gpu for stage in plan.stages for gpu in stage.every_gpu})
    work = sum(layer.forward_ns + layer.backward_ns for layer in plan.chain.layers)
    name = printable(plan.chain.name) or "The model"
    yield (
        f"{name} has {counted(len(plan.chain.layers), 'layer')}, one after the other. A "
        "micro-batch (a small part of a batch) goes forward through all of them and then backward, "
        f"which takes {format_duration(work)} on one GPU of speed 1. It is to "
        f"run on {plan.platform}."
    )
    turns = " Stages with several GPUs give the micro-batches to them in turn."
    yield (
        f"The plan cuts the layers into {counted(len(plan.stages), 'stage')} on {used} of "
        f"{counted(len(plan.platform.gpus), 'GPU')}. While one micro-batch is in one stage, others "
        "are in the others, so that the GPUs work at the same time."
        + (turns if any(len(set(stage.gpus)) > 1 for stage in plan.stages) else "")
    )
    yield _rhythm(plan, period)
    yield (
        f"What keeps it from being faster: {report.binding}. The GPUs that have a stage idle "
        f"{float(report.bubble):.1%} of the time."
    )
    yield from _updates(plan)


def _rhythm(plan: Plan, period: Fraction) -> str:
    pattern, steps = plan.pattern, plan.scope.microbatches
    whole = format_duration(pattern.period_total_ns)
    if steps is not None:
        return (
            f"A step runs {counted(steps, 'micro-batch')} from an "
            f"empty pipeline to an empty one in {whole}, {format_duration(period)} for each."
        )
    if pattern.k == 1:
        return (
            f"Once the pipeline is full, all repeats every {whole}, the period: each stage then "
            "has done one forward and one backward, and one micro-batch is finished."
        )
    return (
        f"Once the pipeline is full, all repeats every {whole}, in which {pattern.k} micro-batches "
        f"are finished: one every {format_duration(period)}, the period."
    )


def _updates(plan: Plan) -> Iterator[str]:
    if plan.rule.is_given:
        return
    found = versions(plan)
    count = plan.rule.update_every or 1
    yield (
        f"The weights are updated after every {counted(count, 'micro-batch')}. A "
        f"GPU holds at most {counted(max(found.held.values()), 'version')} of the weights of a "
        f"stage; a forward reads weights that are up to "
        f"{counted(max(found.forward_staleness.values()), 'update')} old, a backward up to "
        f"{max(found.backward_staleness.values())}."
    )
    if shards := name_shards(plan):
        yield f"The GPUs of a stage share out what it shards: {shards}."


def gpu_sentences(report: PlanReport) -> Iterator[str]:
    """Yield what each GPU that has a stage runs and needs."""
    plan = report.plan
    for gpu in sorted({gpu for stage in plan.stages for gpu in stage.gpus}):
        runs = [name_layers(plan, stage) for stage in plan.stages if gpu in stage.gpus]
        limit = plan.platform.gpus[gpu].usable_bytes
        share = float(report.loads[gpu].share)
        yield (
            f"{name_group(plan, gpu)} runs {', then '.join(runs)}; it works {share:.1%} of the "
            f"time and needs {format_bytes(report.needed_bytes[gpu])} of "
            f"{format_bytes(limit)}."
        )


def name_layers(plan: Plan, stage: Stage) -> str:
    """Return the layers of a stage with their names: layers 0-3 (embed … mlp)."""
    if stage.is_empty:
        return "no layers"
    names = layer_names(plan, stage)
    several = "s" if stage.first < stage.last else ""
    return f"layer{several} {layer_range(stage)}" + (f" ({names})" if names else "")


def bound_sentences(result: Result) -> Iterator[str]:
    """Yield what is proven about the period of a plan, and what that means."""
    period, bound = result.period, result.lower_bound
    assert period is not None
    if bound is None:
        yield (
            "Nothing is proven about this plan: no bound was searched for when it was made, or "
            "bounds do not speak of plans of its kind. There may be a faster one."
        )
        return
    yield (
        f"No plan of the kind described below can have a period of less than "
        f"{format_duration(bound)}. This plan has {format_duration(period)}."
    )
    if period == bound:
        yield "The two are equal, as exact fractions: this plan is the best possible, proven."
    else:
        saved = (period - bound) / period
        yield f"No plan of this kind can save more than {format_gap(saved)} of the period."
    yield f"Why it holds: {printable(readable(str(result.proof)))}. {explain_proof(result.proof)}"
    yield (
        "A bound rests on the times and bytes of the layers in the plan file, and speaks only of "
        "plans of the kind below: with one GPU for each stage, and one micro-batch for each "
        "operation. Another model, other GPUs or more freedom may be faster."
    )


def scope_items(scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield each limit of a scope, and what it means."""
    yield (
        "Which GPU runs what",
        {
            "contiguous": "each GPU runs one stage, of neighbouring layers",
            "general": "a GPU may run any layers, also several stages that are not neighbours",
            "fixed": "the stages and their GPUs are those of this plan; only the order is free",
        }[scope.allocation]
        + (
            ", and the stages lie on the GPUs in the order in which the platform lists them"
            if scope.allocation == "contiguous" and scope.gpu_order == "given"
            else ""
        ),
    )
    if scope.microbatches is not None:
        many = counted(scope.microbatches, "micro-batch")
        yield "Step", f"{many} from an empty pipeline to an empty one"
    else:
        yield (
            "Length of the pattern",
            "any"
            if scope.max_k is None
            else f"it repeats after at most {counted(scope.max_k, 'micro-batch')}",
        )
    yield (
        "Grain",
        "the layers of a stage run as one"
        if scope.grain == "stage"
        else "each layer may run on its own",
    )
    yield (
        "Backward",
        "its weight half may run later" if scope.split_backward else "runs whole",
    )
    yield (
        "Recompute",
        "layers may be computed again instead of kept in memory"
        if scope.recompute
        else "what the forward saves is kept in memory until the backward",
    )
    yield (
        "Memory",
        "each kind of it at its own maximum, added up"
        if scope.memory == "sum"
        else "the true maximum over time",
    )
    if scope.period_ns is not None:
        yield "Period", f"only plans of at most {format_duration(scope.period_ns)} were looked for"
