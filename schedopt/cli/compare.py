"""``schedopt compare``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from schedopt.cli.options import (
    AsJson,
    ChainFile,
    Memory,
    Recompute,
    Samples,
    SearchOptions,
    TiedLayers,
    TrainingStateName,
    check_outputs,
    check_size,
    load_profile,
    naming_options,
)
from schedopt.cli.plans import load_measurable
from schedopt.cli.platform_options import PlatformOptions
from schedopt.cli.progress import progress_bar
from schedopt.cli.signals import usual_signals
from schedopt.errors import naming_file
from schedopt.profile import kinds_of_one_size
from schedopt.units import parse_bytes

if TYPE_CHECKING:
    from schedopt.comparing.comparison import Comparison

PATIENCE_S: Final = 30
"""After this time a user is told what would be quicker."""


def compare_systems(
    *,
    chain: ChainFile,
    samples: Samples = None,
    machine: PlatformOptions,
    microbatches: Annotated[
        int | None, "M: Micro-batches of one step. Default: 4 for each GPU."
    ] = None,
    systems: Annotated[
        str | None,
        "NAME,NAME: Only these systems; our plans are schedopt (least period) and schedopt_step "
        "(shortest step with a flush, with replicas). Default: all.",
    ] = None,
    bucket: Annotated[
        str | None, "SIZE: Size of the buckets in which systems send gradients. Default: 25MiB."
    ] = None,
    training_state: TrainingStateName = None,
    tied: Annotated[
        TiedLayers,
        "Layers with tied weights share a GPU, or each has a copy, and the gradients of copies are "
        "added up at the end of the step.",
    ] = "together",
    memory: Memory = "peak",
    recompute: Recompute = False,
    compare_with: Annotated[
        list[Path] | None,
        "PLAN: Put this plan for the same chain and platform beside them, such as what you run now "
        "(see schedopt import). May be given more than once.",
    ] = None,
    sort: Annotated[
        Literal["throughput", "memory", "name"],
        "The order of the rows; systems that fit always come first.",
    ] = "throughput",
    search: SearchOptions,
    plans: Annotated[Path | None, "DIR: A folder for the plan of each system, NAME.json."] = None,
    output: Annotated[Path | None, "FILE: A schedopt.comparison/1 file."] = None,
    plot: Annotated[
        Path | None, "FILE: Draw throughput against memory: .svg, .png or .pdf."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put every system that people train with and our best plans side by side.

    Which parallelism should I use on these GPUs? Each system is a plan of the same kind, timed,
    weighed and checked by the same model. At most two thirds of the time limit are for systems, and
    our plans share the rest. Of a profile, our step may have tensor groups, and compute modules of
    layers again; everything else runs on single GPUs and computes none of them again.

    Examples
    --------
    schedopt compare --chain instances/gpt2-small.json --gpus 8 --mem 16G --bandwidth 12GB/s

    schedopt compare --chain chain.json --gpus 8 --mem 24G --bandwidth 25GB/s --training-state
    mixed-adam --plot systems.svg --plans plans

    schedopt compare --chain chain.json --gpus 8 --mem 24G --bandwidth 25GB/s --compare-with
    now.plan.json

    schedopt compare --chain profile.json --samples 2 --platform dgx-a100:2
    """
    from schedopt.comparing.builder import compare
    from schedopt.comparing.comparison import COMPARISON_FORMAT, save_plans
    from schedopt.comparing.picture import save_comparison_picture
    from schedopt.formats import make_folder

    platform = machine.read()
    profile = load_profile(chain, training_state, tied, samples)
    check_size(profile, chain)
    with naming_file(chain):
        # That there are layers on one GPU, of each kind.
        kinds_of_one_size(profile)
    others = {_name(path): load_measurable(path) for path in compare_with or ()}
    names = None if systems is None else [name.strip() for name in systems.split(",")]
    check_outputs({"--plot": plot, "--output": output}, COMPARISON_FORMAT, picture=plot)
    if plans is not None:
        make_folder(plans)
    with naming_options({**machine.names, "bucket_bytes": "bucket", "plans": "compare-with"}):
        bucket_bytes = None if bucket is None else parse_bytes(bucket, field="bucket")
        with progress_bar() as show, usual_signals():
            comparison = compare(
                profile,
                platform,
                microbatches=microbatches,
                systems=names,
                bucket_bytes=bucket_bytes,
                memory=memory,
                recompute=recompute,
                plans=others,
                on_progress=show_and_advise(show),
                **vars(search),
            ).ordered(sort)
    if plans is not None:
        save_plans(comparison, plans)
    if output is not None:
        comparison.save(output)
    if plot is not None and comparison.rows:
        save_comparison_picture(comparison, plot)
    _print(comparison, output, as_json)
    if comparison.missing:
        typer.echo(
            f"Interrupted: without {', '.join(comparison.missing)}. Start again for all of them.",
            err=True,
        )
        raise typer.Exit(130)
    late = [row.system.name for row in comparison.rows if row.is_late]
    if late:
        typer.echo(
            f"No time was left for {', '.join(late)}: give more (--time-limit), fewer "
            "micro-batches (--microbatches) or only some systems (--systems).",
            err=True,
        )
    if any(row.outcome == "fits" for row in comparison.rows):
        raise typer.Exit(0)
    raise typer.Exit(4 if late else 3)


def _name(path: Path) -> str:
    """Return what the row of a plan is called: its file, without the endings."""
    return path.name.removesuffix(".json").removesuffix(".plan")


def show_and_advise(show: Callable[[int, int, str], None]) -> Callable[[int, int, str], None]:
    """Return a callback that shows progress, and advises once where systems take long."""
    from schedopt.comparing.comparison import OURS

    begin, advised = monotonic(), False
    ours = tuple(system.name for system in OURS)

    def on_progress(done: int, total: int, name: str) -> None:
        nonlocal advised
        show(done, total, name)
        # Our plans have a time limit.
        if advised or name.startswith(ours) or monotonic() - begin < PATIENCE_S:
            return
        advised = True
        typer.echo(
            f"{done} of {total} rows are done. Fewer micro-batches (--microbatches) or only some "
            "systems (--systems) are quicker; Ctrl-C ends with the rows so far.",
            err=True,
        )

    return on_progress


def _print(comparison: Comparison, output: Path | None, as_json: bool) -> None:
    if as_json:
        from schedopt.cli.printing import print_json
        from schedopt.comparing.files import comparison_document

        print_json(comparison_document(comparison))
        return
    from schedopt.cli.comparison_tables import print_comparison

    print_comparison(comparison)
    if output is not None:
        typer.echo(f"Comparison written to {output}")
