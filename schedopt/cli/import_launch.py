"""``schedopt import`` of what people run now."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from schedopt.chain import say_recomputed
from schedopt.cli.options import TrainingStateName, load_profile, naming_options
from schedopt.cli.plans import say_over
from schedopt.cli.platform_options import PlatformOptions
from schedopt.engine import TITLES
from schedopt.errors import InputError
from schedopt.units import counted, format_bytes, format_duration, format_gap

if TYPE_CHECKING:
    from schedopt.importing import ImportedLaunch
    from schedopt.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What a launch file is read with; None: not given."""

    chain: Annotated[
        Path | None,
        "FILE: Of launch files: the model, as a schedopt.chain/1 or schedopt.profile/1 file with "
        "their micro-batches and tensor groups.",
    ] = None
    training_state: TrainingStateName = None
    tied: Annotated[
        Literal["together", "copied"] | None,
        "Of launch files: layers with tied weights share a GPU (the default), or each has a copy "
        "wherever it lies, whose gradients are added up.",
    ] = None
    ignore: Annotated[
        list[str] | None,
        "NAME: Of launch files: leave out this flag or setting, which changes neither the step nor "
        "the memory of the chain as it was measured. May be given more than once.",
    ] = None
    config: Annotated[
        str | None,
        "NAME: Of torchtitan-toml in Python: the function that returns the configuration. Default: "
        "the only one.",
    ] = None
    arguments: Annotated[
        str | None,
        "TEXT: Of torchtitan-toml: what its command line adds, in one pair of quotes, such as "
        "'--parallelism.pipeline_parallel_degree 4'.",
    ] = None
    stages: Annotated[
        int | None, "S: Of deepspeed-json: the stages of the pipeline. Default: 1."
    ] = None
    partition: Annotated[
        str | None,
        "HOW: Of deepspeed-json: how the layers of the chain are cut: parameters (the default), "
        "uniform, or where stages begin, 0,9,18.",
    ] = None
    tensor_parallel: Annotated[
        int | None, "T: Of deepspeed-json: GPUs of a tensor group. Default: 1."
    ] = None

    def check(self, source: str) -> None:
        """Refuse options that a format does not have, and require the chain of a launch file."""
        from schedopt.importing.launches import LAUNCH_SOURCES

        is_launch = source in LAUNCH_SOURCES
        sources = dict.fromkeys(("stages", "partition", "tensor_parallel"), "deepspeed-json")
        sources |= dict.fromkeys(("config", "arguments"), "torchtitan-toml")
        for field in fields(self):
            option = f"--{field.name.replace('_', '-')}"
            allowed = source == sources[field.name] if field.name in sources else is_launch
            if getattr(self, field.name) and not allowed:
                raise InputError(
                    f"{source} has no such thing",
                    field=option,
                    way_out="Leave it out, or see --help",
                )
        if is_launch and self.chain is None:
            raise InputError(
                f"{source} says nothing of the layers",
                field="--chain",
                way_out="Name the chain or profile of the model: see schedopt profile",
            )


def import_launch_file(
    file: Path,
    source: Any,
    options: LaunchOptions,
    machine: PlatformOptions,
    output: Path,
    *,
    as_json: bool,
) -> None:
    """Read a launch file, write its plan, and say what it costs."""
    from schedopt.importing import Pipeline, import_launch

    platform = machine.read()
    assert options.chain is not None
    profile = load_profile(options.chain, options.training_state, options.tied or "together")
    pipeline = None
    if source == "deepspeed-json":
        with naming_options({"tensor": "tensor-parallel"}):
            pipeline = Pipeline(
                stages=options.stages,
                partition=options.partition or "parameters",
                tensor=1 if options.tensor_parallel is None else options.tensor_parallel,
            )
    with naming_options():
        try:
            found = import_launch(
                file,
                source,
                profile,
                platform,
                ignored=options.ignore or (),
                pipeline=pipeline,
                config=options.config,
                arguments=options.arguments or "",
            )
        except InputError as error:
            if error.source or not error.field.startswith(("layers", "variants")):
                raise
            raise error.in_file(str(options.chain)) from None
    found.result.save(output)
    if as_json:
        from schedopt.cli.printing import print_json

        print_json(_document(found))
        return
    _print(found)
    typer.echo(f"Plan written to {output}")
    plan = found.result.plan
    assert plan is not None
    if plan.is_training_step:
        best = output.with_name("best.plan.json")
        # Of copies of shards nothing is looked for, so that no search begins with them.
        valid = found.result.status != "unknown" and found.launch.shard_copies == 1
        start = output if valid else None
        typer.echo(f"Solve     {shlex.join(_solve(options, machine, plan, start, best))}")
        page = ["schedopt", "report", str(best), "-o", "report.html", "--compare-with", str(output)]
        typer.echo(f"Compare   {shlex.join(page)}")


def _print(found: ImportedLaunch) -> None:
    launch, result, plan = found.launch, found.result, found.result.plan
    assert plan is not None
    count, step = plan.pattern.k, plan.pattern.period_total_ns
    shared = {
        "none": "",
        "optimizer": ", optimizer state shared",
        "gradient": ", optimizer state and gradients shared",
        "parameter": ", all state shared",
    }[launch.shard]
    if launch.shard_copies > 1:
        shared += f" in each of {launch.shard_copies} groups"
    context = f", {launch.context} of them to a sequence" if launch.context > 1 else ""
    if launch.expert > 1:
        alike = launch.expert < launch.replicas
        context += f", experts shared by {f'each {launch.expert}' if alike else 'all'}"
    again = say_recomputed(launch.recomputed_modules)
    typer.echo(
        f"Plan      {TITLES[launch.engine]}: {counted(len(launch.stages), 'stage')} on "
        f"{counted(launch.ranks, 'pipeline rank')}, "
        f"{counted(launch.replicas, 'replica')} of "
        f"{counted(launch.tensor, 'GPU')} each{shared}{context}{again}"
    )
    update = ", the update of the weights included" if plan.is_training_step else ""
    typer.echo(
        f"Step      {format_duration(step)} for {plan.chain.samples_of(count)} samples in "
        f"{counted(count, 'micro-batch')}{update}"
    )
    if result.lower_bound is not None and result.lower_bound:
        bound, most = result.lower_bound * count, 1 - result.lower_bound * count / step
        typer.echo(
            f"Bound     {format_duration(bound)}: no plan on these GPUs has a shorter step with "
            f"such micro-batches{again}; at most {format_gap(most)} of the step can be saved"
        )
    typer.echo(f"Memory    {_say_memory(plan, fits=result.status != 'unknown')}")
    for note in found.notes:
        typer.echo(f"Note      {note}")
    if plan.scope.engine is None and launch.shard in ("none", "optimizer"):
        typer.echo(
            f"Note      schedopt solve --for {launch.engine} does not look at plans with such "
            "recompute, order or stages"
        )


def _say_memory(plan: Plan, *, fits: bool) -> str:
    """Return which GPU binds, and by how much."""
    from schedopt.account import memory

    if not fits:
        return f"does not fit: {say_over(plan)}"
    over = [
        (need.reading(plan.scope.memory) - gpu.usable_bytes, number)
        for number, (need, gpu) in enumerate(zip(memory(plan), plan.platform.gpus, strict=True))
    ]
    most, number = max(over, key=lambda pair: (pair[0], -pair[1]))
    usable = plan.platform.gpus[number].usable_bytes
    need = format_bytes(usable + most)
    return f"fits: GPU {number} has the least room, and needs {need} of its {format_bytes(usable)}"


def _solve(
    options: LaunchOptions,
    machine: PlatformOptions,
    plan: Plan,
    start: Path | None,
    output: Path,
) -> Sequence[str]:
    """Return the command that looks for a better step of the same batch, on the same engine."""
    command = ["schedopt", "solve", "--chain", str(options.chain)]
    for field in fields(machine):
        value = getattr(machine, field.name)
        if value is not None:
            command += [f"--{field.name}", str(value)]
    if options.training_state is not None:
        command += ["--training-state", options.training_state]
    if options.tied is not None:
        command += ["--tied", options.tied]
    samples = plan.chain.samples_of(plan.pattern.k)
    command += ["--batch", str(samples)]
    if plan.scope.engine is not None:
        command += ["--for", plan.scope.engine]
        command += [] if start is None else ["--start", str(start)]
    return [*command, "-o", str(output)]


def _document(found: ImportedLaunch) -> dict[str, Any]:
    from schedopt.account import memory

    plan, launch, result = found.result.plan, found.launch, found.result
    assert plan is not None
    needs = [need.reading(plan.scope.memory) for need in memory(plan)]
    over = [need - gpu.usable_bytes for need, gpu in zip(needs, plan.platform.gpus, strict=True)]
    bound = None if result.lower_bound is None else result.lower_bound * plan.pattern.k
    return {
        "engine": launch.engine,
        "step_ns": plan.pattern.period_total_ns,
        "step_bound_exact": None if bound is None else [bound.numerator, bound.denominator],
        "microbatches": plan.pattern.k,
        "samples": plan.chain.samples_of(plan.pattern.k),
        "stages": [list(stage) for stage in launch.stages],
        "pipeline_ranks": launch.ranks,
        "replicas": launch.replicas,
        "tensor": launch.tensor,
        "context": launch.context,
        "expert": launch.expert,
        "shard": launch.shard,
        "shard_copies": launch.shard_copies,
        "recomputed_modules": list(launch.recomputed_modules),
        "fits": result.status != "unknown",
        "memory_bytes": needs,
        "over_bytes": max(0, *over),
        "binding_gpu": over.index(max(over)),
        "notes": list(found.notes),
    }
