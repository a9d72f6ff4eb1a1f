"""``schedopt run``."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from schedopt.cli.options import (
    AsJson,
    Microbatches,
    ModelOptions,
    OptimizerName,
    PlanFile,
    Seed,
    check_outputs,
    naming_options,
)
from schedopt.cli.signals import usual_signals
from schedopt.errors import InputError, SchedoptError
from schedopt.units import format_bytes

if TYPE_CHECKING:
    from schedopt.running.job import Job
    from schedopt.running.report import Report


def run_plan(
    *,
    plan: PlanFile,
    model: Annotated[
        str | None,
        "MODEL: The model that the plan was made for, as for profile: hf:NAME or "
        "package.module:factory. Only what is named here is imported and run.",
    ] = None,
    synthetic: Annotated[
        bool,
        "Run layers that sleep as long and hold as much as the plan says, instead of a model: "
        "does its order hold on real processes?",
    ] = False,
    stretch: Annotated[
        float,
        "X: With --synthetic: sleep this many times as long, for plans of microseconds or of "
        "minutes. What is printed is in the time of the plan.",
    ] = 1.0,
    backend: Annotated[
        Literal["logical", "p2p", "pytorch"],
        "All ranks in one process, one operation after the other; a process for each rank on "
        "torch.distributed; or torch's own pipeline runtime, a process for each rank.",
    ] = "p2p",
    microbatches: Microbatches = None,
    steps: Annotated[int, "N: Steps that are timed, after two that are not."] = 3,
    device: Annotated[
        str, "DEVICE: cpu; cuda, a GPU for each rank; or cuda:0, all ranks on this one."
    ] = "cpu",
    optimizer: Annotated[
        OptimizerName, "The optimizer, unless the factory brings its own."
    ] = "adamw",
    seed: Seed = 0,
    batch: Annotated[int | None, "N: Samples of a micro-batch, for hf: models."] = None,
    config: ModelOptions,
    compare: Annotated[
        bool, "Train the whole model in one process for a step, and compare the gradients."
    ] = True,
    port: Annotated[int, "Port at which the ranks meet. Default: any."] = 0,
    nodes: Annotated[
        int, "N: Print the torchrun line for this many machines instead of running."
    ] = 1,
    actions: Annotated[bool, "Print what each rank does, a line each, and do not run."] = False,
    trace: Annotated[Path | None, "FILE: Write both timelines for ui.perfetto.dev (.json)."] = None,
    plot: Annotated[
        Path | None, "FILE: Draw both timelines, one below the other: .svg, .png or .pdf."
    ] = None,
    output: Annotated[Path | None, "FILE: Write what --json prints."] = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan, and print what was measured next to what was predicted.

    The model is cut where the plan says. Names and bytes must be those of the plan; times may
    differ, and are compared. Each step runs M micro-batches from an empty pipeline to an empty
    one. Needs torch, and transformers for hf: models.

    Examples
    --------
    schedopt run plan.json --model hf:gpt2:tied=no --microbatches 16

    schedopt run plan.json --model package.module:factory --backend logical

    schedopt run plan.json --synthetic --stretch 0.1 --microbatches 16 --trace trace.json

    schedopt run plan.json --model package.module:factory --nodes 2
    """
    from schedopt.cli.plans import load_valid, micro_batches
    from schedopt.cli.printing import print_json
    from schedopt.running.report import RUN_FORMAT

    outputs = {"--trace": trace, "--plot": plot, "--output": output}
    check_outputs(outputs, RUN_FORMAT, picture=plot)
    _, loaded = load_valid(plan)
    count = micro_batches(loaded, microbatches)
    if actions:
        from schedopt.actions import make_actions

        with naming_options(file=plan):
            typer.echo(str(make_actions(loaded, count)), nl=False)
        return
    if (model is None) != synthetic:
        raise InputError(
            "give one of them",
            field="--model and --synthetic",
            way_out="Name the model that the plan was made for, or let synthetic layers run",
        )
    from schedopt.running.job import Job

    with naming_options(file=plan):
        job = Job(
            plan=loaded,
            model=model,
            backend=backend,
            microbatches=count,
            steps=steps,
            device=device,
            seed=seed,
            optimizer=optimizer,
            options={**({} if batch is None else {"batch": batch}), **config.given()},
            compare=compare,
            stretch=stretch,
        )
        if nodes != 1:
            _print_torchrun(job, nodes, port)
            return
        report = _run(job, port)
    if report is None:
        return
    _write(report, trace, plot, output)
    if as_json:
        print_json(report.to_json())
    else:
        from schedopt.cli.run_tables import print_report

        print_report(report)
    _check_gradients(report)
    _check_memory(report)


def _run(job: Job, port: int) -> Report | None:
    """Run a job; None in a process that is one of its ranks but the first."""
    from schedopt.running.report import Report

    if job.backend != "logical" and "TORCHELASTIC_RUN_ID" in os.environ:
        from schedopt.running.rank_process import run_rank

        load = os.getloadavg()[0]
        number, local = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
        with _ending_at_once(), _own_output():
            outcome = run_rank(job, number, local)
        return None if outcome is None else Report(job, outcome, load)
    from schedopt.running.execution import execute

    with _own_output():
        return execute(job, port=port)


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """End a rank that fails at once: its threads may wait for the other ranks forever."""
    with usual_signals():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            with naming_options():
                yield
        except SchedoptError as error:
            from schedopt.cli.flags import report

            os._exit(report(error))


@contextmanager
def _own_output() -> Iterator[None]:
    """Keep what a model prints, in any language, out of what the command prints."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _write(report: Report, trace: Path | None, plot: Path | None, output: Path | None) -> None:
    from schedopt.formats import write_whole

    if trace is not None:
        from schedopt.running.timelines import make_trace

        write_whole(trace, json.dumps(make_trace(report)) + "\n")
    if plot is not None:
        from schedopt.drawing import save_picture
        from schedopt.running.timelines import chart_run

        save_picture(chart_run(report), plot)
    if output is not None:
        write_whole(output, json.dumps(report.to_json(), indent=2) + "\n")


def _check_gradients(report: Report) -> None:
    """End with exit code 5 if what was trained is not what one process trains."""
    if not report.outcome.agrees:
        typer.echo(
            f"gradients: they are not those of {report.outcome.compared_with}, or not finite. Does "
            "the factory build the same model each time, from torch's seed, and its data no NaN?",
            err=True,
        )
        raise typer.Exit(5)


def _check_memory(report: Report) -> None:
    """End with exit code 5 if a rank took more memory than its GPU has."""
    for rank in report.over[:1]:
        used = format_bytes(report.measured.memory_bytes[rank])
        limit = format_bytes(report.plan.platform.gpus[report.gpus[rank]].usable_bytes)
        typer.echo(
            f"rank {rank}: took {used}, more than the {limit} of GPU {report.gpus[rank]} in the "
            "plan. Profile the model on this device again, and solve with what it says",
            err=True,
        )
        raise typer.Exit(5)


def _print_torchrun(job: Job, nodes: int, port: int) -> None:
    """Print the line that starts this command as each rank, on each of several machines."""
    ranks = job.processes
    if nodes < 1 or ranks % nodes:
        raise InputError(
            f"{ranks} ranks cannot be shared evenly by {nodes} machines",
            field="nodes",
            way_out="Give a number that divides the ranks",
        )
    if job.backend == "logical":
        raise InputError(
            "the backend logical is one process on one machine",
            field="nodes",
            way_out="Leave it out, or take the backend p2p or pytorch",
        )
    rest = shlex.join(_without(sys.argv[1:], "--nodes", "--port"))
    typer.echo(
        f"torchrun --nnodes {nodes} --nproc-per-node {ranks // nodes} --rdzv-backend c10d "
        f"--rdzv-id schedopt --rdzv-endpoint HOST:{port or 29400} -m schedopt {rest}"
    )
    typer.echo("Run it on each machine, HOST being one of them; the first rank reports.", err=True)


def _without(words: list[str], *options: str) -> list[str]:
    """Leave options with their values out of a command line."""
    found: list[str] = []
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if not skip and name not in options:
            found.append(word)
        skip = name in options and "=" not in word
    return found
