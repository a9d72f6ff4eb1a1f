"""The commands that read a plan: check, show, simulate and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from schedopt.chain import CHAIN_FORMAT, Chain
from schedopt.cli.options import (
    AsJson,
    Microbatches,
    PictureOutput,
    PlanFile,
    check_outputs,
    naming_options,
)
from schedopt.errors import InputError
from schedopt.exporting.targets import TARGETS, find_target
from schedopt.plan import PLAN_FORMAT, Plan
from schedopt.platform import PLATFORM_FORMAT, Platform
from schedopt.profile import PROFILE_FORMAT, Profile
from schedopt.units import counted, format_bytes, format_duration
from schedopt.validation import show

if TYPE_CHECKING:
    from schedopt.checking import Violation
    from schedopt.result import Result
    from schedopt.simulation import Simulation


def check_plan(plan: PlanFile, as_json: AsJson = False) -> None:
    """Check a plan with code that knows no solver: every violation, with its place, or none.

    Everything is derived again from the file: each layer placed once, every dependency, one
    operation at a time on each GPU and link, memory by replay over time, gradients and versions.

    Example: schedopt check plan.json
    """
    from schedopt.cli.printing import print_json

    result, violations = _load_checked(plan)
    if as_json:
        print_json(
            {
                "valid": not violations,
                "violations": [
                    {"kind": item.kind, "place": item.place, "message": item.message}
                    for item in violations
                ],
            }
        )
    elif violations:
        for item in violations:
            typer.echo(str(item))
        typer.echo(f"{plan}: {counted(len(violations), 'violation')}")
    else:
        from schedopt.cli.result_tables import print_plan

        print_plan(result)
        typer.echo(f"{plan}: valid")
    if violations:
        raise typer.Exit(5)


def show_plan(
    plan: Annotated[
        Path,
        typer.Argument(
            help="A schedopt.plan/1, platform/1, chain/1 or profile/1 file.", metavar="FILE"
        ),
    ],
    output: PictureOutput = None,
) -> None:
    """Show what each GPU does when, and its memory over time.

    Two periods of the pattern, on the terminal or as a picture (which needs the extra draw). Of a
    platform, a file or a preset: its nodes, and the paths between them. Of a chain its layers, of a
    profile its variants. A plan that is over memory
    is drawn too, with a warning and exit code 5.

    Examples
    --------
    schedopt show plan.json

    schedopt show plan.json -o plan.svg

    schedopt show instances/two-nodes.platform.json

    schedopt show dgx-h100:8
    """
    from schedopt.cli.platform_tables import print_platform
    from schedopt.cli.printing import print_chart
    from schedopt.cli.profile_tables import print_chain, print_profile
    from schedopt.drawing import chart_plan, save_picture
    from schedopt.formats import read_format
    from schedopt.formats.presets import names_preset
    from schedopt.formats.reading import KINDS
    from schedopt.simulation import simulate, usual_micro_batches

    check_outputs({"--output": output}, picture=output)
    if output is None:
        preset = names_preset(str(plan)) and not plan.exists()
        kind = PLATFORM_FORMAT if preset else read_format(plan)
        if kind == PLATFORM_FORMAT:
            print_platform(Platform.load(plan))
            return
        if kind == CHAIN_FORMAT:
            print_chain(Chain.load(plan))
            return
        if kind == PROFILE_FORMAT:
            print_profile(Profile.load(plan))
            return
        if kind not in KINDS:
            raise InputError(
                "is missing" if kind is None else f"{show(kind)} is not supported here",
                field="format",
                way_out="Give a file of the format "
                f"{PLAN_FORMAT}, {PLATFORM_FORMAT}, {CHAIN_FORMAT} or {PROFILE_FORMAT}",
                source=str(plan),
            )
    result, loaded, code = _load_drawable(plan)
    chart = chart_plan(result)
    if output is not None:
        save_picture(chart, output)
        typer.echo(f"Picture written to {output}")
        raise typer.Exit(code)
    print_chart(chart)
    step = simulate(loaded, usual_micro_batches(loaded))
    typer.echo(
        f"A step of {counted(step.microbatches, 'micro-batch')} with a flush takes "
        f"{format_duration(step.makespan_ns)}, {format_duration(step.time_per_micro_batch)} each, "
        f"bubble {float(step.bubble):.1%}. See: schedopt simulate {plan}"
    )
    raise typer.Exit(code)


def simulate_plan(
    plan: PlanFile,
    microbatches: Microbatches = None,
    timing: Annotated[
        Literal["asap", "pattern"],
        "Start everything as soon as the order of the pattern allows, as an engine does, or at "
        "the times of the pattern.",
    ] = "asap",
    output: PictureOutput = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan for one step, from an empty pipeline to an empty one (a flush).

    Prints how long the step takes, the idle
    time of the GPUs (the bubble) and the memory of each GPU over time. A plan that is over memory
    is run too, with a warning and exit code 5.

    Examples
    --------
    schedopt simulate plan.json --microbatches 32

    schedopt simulate plan.json --microbatches 32 -o step.svg
    """
    from schedopt.cli.printing import print_chart, print_json
    from schedopt.drawing import chart_simulation, save_picture
    from schedopt.simulation import simulate

    check_outputs({"--output": output}, picture=output)
    _, loaded, code = _load_drawable(plan)
    with naming_options(file=plan):
        step = simulate(loaded, micro_batches(loaded, microbatches), timing=timing)
    if output is not None:
        save_picture(chart_simulation(step), output)
    if as_json:
        print_json(_step_document(step))
    elif output is None:
        print_chart(chart_simulation(step))
    else:
        typer.echo(f"Picture written to {output}")
    raise typer.Exit(code)


def export_plan(
    plan: PlanFile,
    to: Annotated[
        str,
        typer.Option(
            help="; ".join(f"{target.name}: {target.title}" for target in TARGETS) + ".",
            metavar="TARGET",
        ),
    ],
    output: Annotated[
        Path, "OUT: Where to write it: a file, or a folder for a target of several files."
    ],
    microbatches: Microbatches = None,
) -> None:
    """Write a plan in the words of another tool.

    What the tool cannot express is refused, with the reason and what to ask for instead, before
    anything is written.

    Examples
    --------
    schedopt export plan.json --to torch-csv --microbatches 16 -o schedule.csv

    schedopt export plan.json --to torchtitan -o titan
    """
    with naming_options():
        target = find_target(to)
    _, loaded = load_valid(plan)
    with naming_options(file=plan):
        files = target.export(loaded, micro_batches(loaded, microbatches))
    for path in _write_files(files, output):
        typer.echo(f"Written: {path}")


def load_valid(path: Path) -> tuple[Result, Plan]:
    """Read a result with its plan; end with exit code 5 if the check refuses it."""
    result, violations = _load_checked(path)
    if violations:
        _refuse(path, violations)
    assert result.plan is not None
    return result, result.plan


def load_measurable(path: Path) -> Plan:
    """Read a plan that is valid, or needs too much memory; else end with exit code 5."""
    result, violations = _load_checked(path)
    if any(violation.kind != "memory" for violation in violations):
        _refuse(path, violations)
    assert result.plan is not None
    return result.plan


def micro_batches(plan: Plan, asked: int | None) -> int:
    """Return how many micro-batches a step has: what was asked for, or what is usual."""
    from schedopt.simulation import usual_micro_batches

    return usual_micro_batches(plan) if asked is None else asked


def _load_drawable(path: Path) -> tuple[Result, Plan, int]:
    """Read a plan that is valid, or needs too much memory, and return the exit code with it.

    Too much memory is reported on standard error. All else ends with exit code 5.
    """
    result, violations = _load_checked(path)
    if any(violation.kind != "memory" for violation in violations):
        _refuse(path, violations)
    plan = result.plan
    assert plan is not None
    if violations:
        typer.echo(f"{path}: over memory: {say_over(plan)}. See: schedopt check {path}", err=True)
    return result, plan, 5 if violations else 0


def _load_checked(path: Path) -> tuple[Result, tuple[Violation, ...]]:
    from schedopt.checking import check
    from schedopt.result import Result

    result = Result.load(path)
    return result, check(result)


def _refuse(path: Path, violations: Sequence[Violation]) -> NoReturn:
    # Memory comes last: what else is wrong is worth more.
    more = f" and {len(violations) - 1} more" if len(violations) > 1 else ""
    typer.echo(
        f"{path}: not a valid plan: {violations[0]}{more}. See: schedopt check {path}", err=True
    )
    raise typer.Exit(5)


def say_over(plan: Plan) -> str:
    """Return which GPU needs the most too much, and how many others do."""
    from schedopt.account import memory

    over = [
        (need.reading(plan.scope.memory) - gpu.usable_bytes, number)
        for number, (need, gpu) in enumerate(zip(memory(plan), plan.platform.gpus, strict=True))
    ]
    most, worst = max(over, key=lambda pair: (pair[0], -pair[1]))
    usable = format_bytes(plan.platform.gpus[worst].usable_bytes)
    others = sum(size > 0 for size, _ in over) - 1
    more = f"; {others} more GPU{'s' if others > 1 else ''} too" if others else ""
    return f"GPU {worst} needs {format_bytes(most)} more than its {usable}{more}"


def _write_files(files: Mapping[str, str], output: Path) -> list[Path]:
    """Write one file as it is named, several into a folder, and return their paths."""
    from schedopt.formats import check_writable, make_folder, write_whole

    if len(files) == 1:
        paths = [output]
    else:
        make_folder(output)
        paths = [output / name for name in files]
    for path in paths:
        check_writable(path)
    for path, text in zip(paths, files.values(), strict=True):
        write_whole(path, text)
    return paths


def _step_document(step: Simulation) -> dict[str, object]:
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
