"""``schedopt compare``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from schedopt.cli.options import (
    OF_PLATFORM,
    AsJson,
    Memory,
    Recompute,
    Seed,
    TimeLimit,
    TrainingStateName,
    Workers,
    check_outputs,
    check_time_limit,
    load_chain,
    naming_options,
)
from schedopt.cli.platform_options import (
    Bandwidth,
    DuplexChoice,
    Gpus,
    Latency,
    Mem,
    PlatformFile,
    PlatformOptions,
    Reserved,
    Speed,
)
from schedopt.cli.progress import progress_bar
from schedopt.cli.signals import usual_signals
from schedopt.effort import TIME_LIMIT

if TYPE_CHECKING:
    from schedopt.comparing.comparison import Comparison

PATIENCE_S: Final = 30
"""How long systems are laid out before somebody hears what would be quicker."""


def compare_systems(
    chain: Annotated[Path, typer.Option(help="A schedopt.chain/1 file.", metavar="FILE")],
    platform: PlatformFile = None,
    gpus: Gpus = None,
    mem: Mem = None,
    reserved: Reserved = None,
    speed: Speed = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    duplex: DuplexChoice = None,
    microbatches: Annotated[
        int | None,
        typer.Option(help="Of one step. Default: 4 for each GPU.", metavar="M", show_default=False),
    ] = None,
    systems: Annotated[
        str | None,
        typer.Option(
            help="Only these, by name; our plans are schedopt (least period) and schedopt_step "
            "(shortest step with a flush). Default: all.",
            metavar="NAME,NAME",
            show_default=False,
        ),
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(
            help="Gradients that systems with buckets send together. Default: 25MiB.",
            metavar="SIZE",
        ),
    ] = None,
    training_state: TrainingStateName = None,
    memory: Memory = "sum",
    recompute: Recompute = False,
    sort: Annotated[
        Literal["throughput", "memory", "name"],
        typer.Option(help="What is best; those that fit always come first."),
    ] = "throughput",
    time_limit: TimeLimit = TIME_LIMIT,
    workers: Workers = None,
    seed: Seed = 0,
    plans: Annotated[
        Path | None,
        typer.Option(help="A folder for the plan of each system, NAME.json.", metavar="DIR"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A schedopt.comparison/1 file.", metavar="FILE"),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw throughput against memory: .svg, .png or .pdf.", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put every system that people train with and our best plans side by side.

    Which parallelism should I use on these GPUs? Each system is a plan of the same kind, timed,
    weighed and checked by the same model. Our plans share the time limit.

    Examples
    --------
    schedopt compare --chain instances/gpt2-small.json --gpus 8 --mem 16G --bandwidth 12GB/s

    schedopt compare --chain chain.json --gpus 8 --mem 24G --bandwidth 25GB/s --training-state
    mixed-adam --plot systems.svg --plans plans
    """
    from schedopt.comparing.builder import compare
    from schedopt.comparing.comparison import save_plans
    from schedopt.comparing.picture import save_comparison_picture
    from schedopt.drawing import picture_suffix
    from schedopt.formats import make_folder
    from schedopt.units import parse_bytes

    check_time_limit(time_limit)
    typed = PlatformOptions(
        gpus=gpus,
        mem=mem,
        reserved=reserved,
        speed=speed,
        bandwidth=bandwidth,
        latency=latency,
        duplex=duplex,
    )
    machine = typed.load_instead(platform) if platform is not None else typed.read()
    layers = load_chain(chain, training_state)
    names = None if systems is None else [name.strip() for name in systems.split(",")]
    if plot is not None:
        picture_suffix(plot)
    check_outputs({"--plot": plot, "--output": output})
    if plans is not None:
        make_folder(plans)
    with naming_options({**OF_PLATFORM, "bucket_bytes": "bucket"}):
        bucket_bytes = None if bucket is None else parse_bytes(bucket, field="bucket")
        with progress_bar() as show, usual_signals():
            found = compare(
                layers,
                machine,
                microbatches=microbatches,
                systems=names,
                bucket_bytes=bucket_bytes,
                memory=memory,
                recompute=recompute,
                time_limit=time_limit,
                seed=seed,
                workers=workers,
                on_progress=telling(show),
            ).ordered(sort)
    if plans is not None:
        save_plans(found, plans)
    if output is not None:
        found.save(output)
    if plot is not None and found.rows:
        save_comparison_picture(found, plot)
    _print(found, output, as_json)
    if found.missing:
        typer.echo(
            f"Interrupted: without {', '.join(found.missing)}. Start again for all of them.",
            err=True,
        )
        raise typer.Exit(130)
    raise typer.Exit(0 if any(row.outcome == "fits" for row in found.rows) else 3)


def telling(show: Callable[[int, int, str], None]) -> Callable[[int, int, str], None]:
    """Return what shows progress, and says once what would be quicker where systems take long."""
    from schedopt.comparing.comparison import OURS

    begin, told = monotonic(), False
    ours = tuple(system.name for system in OURS)

    def tell(done: int, total: int, name: str) -> None:
        nonlocal told
        show(done, total, name)
        # Our plans have a time limit.
        if told or name.startswith(ours) or monotonic() - begin < PATIENCE_S:
            return
        told = True
        typer.echo(
            f"{done} of {total} rows are done. Fewer micro-batches (--microbatches) or only some "
            "systems (--systems) are quicker; Ctrl-C ends with the rows so far.",
            err=True,
        )

    return tell


def _print(found: Comparison, output: Path | None, as_json: bool) -> None:
    if as_json:
        from schedopt.comparing.comparison import comparison_document

        typer.echo(json.dumps(comparison_document(found), indent=2))
        return
    from schedopt.cli.comparison_table import print_comparison

    print_comparison(found)
    if output is not None:
        typer.echo(f"Comparison written to {output}")
