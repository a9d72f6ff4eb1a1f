"""``schedopt simulate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from schedopt.cli.options import (
    AsJson,
    Microbatches,
    PictureOutput,
    PlanFile,
    naming_options,
)

if TYPE_CHECKING:
    from schedopt.simulation import Simulation


def simulate_plan(
    plan: PlanFile,
    microbatches: Microbatches = None,
    timing: Annotated[
        Literal["asap", "pattern"],
        typer.Option(
            help="Start everything as soon as the order of the pattern allows, as an engine does, "
            "or at the times of the pattern."
        ),
    ] = "asap",
    output: PictureOutput = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan for one step: warm-up, steady state, drain.

    The pipeline is empty before and after (a flush). Prints how long the step takes, the idle
    time of the GPUs (the bubble) and the memory of each GPU over time. A plan that is over memory
    is run too, with a warning and exit code 5.

    Examples
    --------
    schedopt simulate plan.json --microbatches 32

    schedopt simulate plan.json --microbatches 32 -o step.svg
    """
    from schedopt.cli.charts import load_drawable, print_chart
    from schedopt.drawing import chart_simulation, picture_suffix, save_picture
    from schedopt.formats import check_writable
    from schedopt.simulation import simulate, usual_micro_batches

    if output is not None:
        picture_suffix(output)
        check_writable(output)
    result, code = load_drawable(plan)
    loaded = result.plan
    assert loaded is not None
    count = usual_micro_batches(loaded) if microbatches is None else microbatches
    with naming_options():
        step = simulate(loaded, count, timing=timing)
    if output is not None:
        save_picture(chart_simulation(step), output)
    if as_json:
        typer.echo(json.dumps(_document(step), indent=2))
    elif output is None:
        print_chart(chart_simulation(step))
    else:
        typer.echo(f"Picture written to {output}")
    raise typer.Exit(code)


def _document(step: Simulation) -> dict[str, object]:
    """Return a step as a JSON document: times in ns, memory in bytes."""
    steady, phases = step.steady_period, step.phases
    return {
        "microbatches": step.microbatches,
        "timing": step.timing,
        "makespan_ns": step.makespan_ns,
        "time_per_micro_batch_ns": float(step.time_per_micro_batch),
        "bubble": float(step.bubble),
        "busy_ns": list(step.busy_ns),
        "steady_period_exact": None if steady is None else [steady.numerator, steady.denominator],
        "steady_from_ns": None if phases is None else phases.steady_from_ns,
        "steady_to_ns": None if phases is None else phases.steady_to_ns,
        "memory_bytes": [need.reading(step.plan.scope.memory) for need in step.memory],
        "memory_peak_bytes": [need.peak_bytes for need in step.memory],
    }
