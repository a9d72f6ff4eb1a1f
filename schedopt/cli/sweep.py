"""``schedopt sweep``."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from schedopt.cli.options import (
    AsJson,
    ChainFile,
    Dask,
    FreedomOptions,
    Jobs,
    Samples,
    Seed,
    TrainingOptions,
    alone,
    check_outputs,
    check_time_limit,
    load_profile,
    make_pool,
    naming_files,
    naming_options,
    parse_counts,
    refuse_together,
)
from schedopt.cli.platform_options import OF_PLATFORM
from schedopt.cli.progress import progress_bar
from schedopt.errors import InputError
from schedopt.problem import Scope
from schedopt.units import parse_bandwidth, parse_bytes, parse_duration

if TYPE_CHECKING:
    from schedopt.profile import Profile
    from schedopt.sweeping import Cell, Sweep


def sweep_chain(
    *,
    chain: ChainFile,
    samples: Samples = None,
    gpus: Annotated[str, "P,P: How many GPUs: 4,8."],
    mem: Annotated[
        str, "SIZES: Memory of a GPU: sizes, 8G,16G, or ranges from:to:step, 8G:32G:4G."
    ],
    bandwidth: Annotated[str, "RATES: Of each link; free for none: free,12GB/s,25GB/s."] = "free",
    reserved: Annotated[str, "SIZE: Memory of each GPU that is reserved."] = "0",
    latency: Annotated[str, "TIME: Time added to each transfer: 5us."] = "0",
    duplex: Annotated[
        Literal["half", "full"],
        "Whether the two directions of a link share it (half) or not (full).",
    ] = "half",
    allocation: Annotated[
        Literal["contiguous", "general"], "One stage for each GPU, or layers anywhere."
    ] = "contiguous",
    max_k: Annotated[
        int | None, "K: The longest pattern, in micro-batches that it repeats. Default: 1."
    ] = None,
    freedoms: FreedomOptions,
    training: TrainingOptions,
    solver: Annotated[str | None, "NAME: A solver by name, as in schedopt solve."] = None,
    time_limit: Annotated[float, "S: Seconds for each point; inf: never."] = 60.0,
    seed: Seed = 0,
    jobs: Jobs = None,
    dask: Dask = None,
    output: Annotated[
        Path,
        "FILE: A schedopt.sweep/1 file, written after each point. A sweep that is there already "
        "is continued.",
    ] = Path("sweep.json"),
    plot: Annotated[Path | None, "FILE: Draw a picture: .svg, .png or .pdf."] = None,
    plans: Annotated[Path | None, "DIR: A folder for the plan of each point."] = None,
    as_json: AsJson = False,
) -> None:
    """Find the least period for ranges of memory, GPUs and bandwidths.

    What would 8 more GB buy? Each point is recorded at once. Started again with the same file,
    the command solves only what is missing, and more memories or GPUs may be asked. More memory
    never makes a period longer: a plan for less is one for more.

    Examples
    --------
    schedopt sweep --chain chain.json --gpus 4,8 --mem 8G:32G:4G -o sweep.json --plot sweep.png

    schedopt sweep --chain chain.json --gpus 8 --mem 16G,24G --bandwidth 12GB/s,25GB/s --jobs 4

    schedopt sweep --chain chain.json --gpus 8,16 --mem 16G,24G --bandwidth 12GB/s --batch 64

    schedopt sweep --chain chain.json --gpus 8 --mem 16G,24G --dask tcp://host:8786
    """
    from schedopt.formats import check_writable, make_folder
    from schedopt.solving import load_solver
    from schedopt.solving.registry import default_scope
    from schedopt.sweeping import Options, run_sweep
    from schedopt.sweeping.files import resume_sweep
    from schedopt.sweeping.points import SWEEP_FORMAT

    check_time_limit(time_limit)
    if training.batch is not None and max_k is not None:
        refuse_together("--batch", "--max-k", "which makes one pattern of the whole step")
    cells = _cells(gpus, mem, bandwidth)
    profile = load_profile(chain, samples=samples)
    layers = alone(profile, chain)
    delay = parse_duration(latency, field="--latency")
    if delay and all(cell.bandwidth_bytes_per_s is None for cell in cells):
        raise InputError(
            "given without a bandwidth",
            field="--latency",
            way_out="Give the bandwidth too; without one transfers are free",
        )
    with naming_options(OF_PLATFORM), naming_files(chain):
        if solver is not None:
            load_solver(solver)
        usual = 1 if solver is None else default_scope(solver, fixed=False).replicas
        longest = 1 if max_k is None else max_k
        scope = Scope(allocation=allocation, max_k=longest, **freedoms.fields())
        options = Options(
            scope=training.widen(scope, layers, freedoms, usual),
            batch=training.batch,
            solver=solver,
            time_limit_s=None if time_limit == float("inf") else time_limit,
            seed=seed,
            reserved_bytes=parse_bytes(reserved, field="reserved"),
            latency_ns=delay,
            duplex=duplex,
        )
        machines = [cell.platform(options) for cell in cells]
        for machine in machines:
            # Of a step the scope says how long it is.
            options = replace(options, scope=options.ask(profile, machine).scope)
    check_outputs({"--plot": plot}, picture=plot)
    known = resume_sweep(output, profile, options)
    check_writable(output, SWEEP_FORMAT)
    if plans is not None:
        make_folder(plans)
    with naming_options(), progress_bar() as show:
        outcome = run_sweep(
            known,
            profile,
            cells,
            make_pool(jobs, dask),
            save=lambda sweep: sweep.save(output),
            on_point=show,
        )
    sweep = outcome.sweep
    if sweep.points:
        # An older file that had every point gets the chain.
        sweep.save(output)
    if plans is not None:
        _write_plans(sweep, profile, plans)
    if plot is not None and sweep.points:
        from schedopt.sweeping.picture import save_sweep_picture

        save_sweep_picture(sweep, plot)
    _print(sweep, output, as_json)
    for cell in outcome.given_up:
        typer.echo(
            f"Error: {cell}: each process that solved it ended without an answer (out of "
            f"memory?). All else is in {output}; start again to try once more, with fewer --jobs "
            "if memory is short.",
            err=True,
        )
    if outcome.interrupted:
        missing = len({cell.key for cell in cells} - {point.key for point in sweep.points})
        typer.echo(
            f"Interrupted: {len(sweep.points)} of {len(sweep.points) + missing} points are in "
            f"{output}. Start the same command again to continue.",
            err=True,
        )
        raise typer.Exit(130)
    raise typer.Exit(1 if outcome.given_up else _exit_code(sweep))


def _exit_code(sweep: Sweep) -> int:
    """Return 0 if there is a plan, 3 if none is possible anywhere, else 4."""
    statuses = {point.status for point in sweep.points}
    if statuses & {"optimal", "feasible"}:
        return 0
    return 3 if statuses == {"infeasible"} else 4


def _cells(gpus: str, mem: str, bandwidth: str) -> list[Cell]:
    """Return every number of GPUs with every memory and bandwidth that was typed."""
    from schedopt.sweeping import Cell

    rates = [
        None if rate == "free" else parse_bandwidth(rate, field="--bandwidth")
        for rate in bandwidth.split(",")
    ]
    sizes = [size for part in mem.split(",") for size in _sizes(part)]
    with naming_options(OF_PLATFORM):
        return [
            Cell(gpus=count, memory_bytes=size, bandwidth_bytes_per_s=rate)
            for count, rate, size in product(parse_counts(gpus), rates, sizes)
        ]


def _sizes(text: str) -> list[int]:
    """Return the sizes of one part of ``--mem``: one size, or a range with both ends."""
    from schedopt.sweeping.points import MOST_POINTS

    ends = [parse_bytes(part, field="--mem") for part in text.split(":")]
    if len(ends) == 1:
        return ends
    if len(ends) != 3 or ends[0] > ends[1] or not ends[2]:
        raise InputError(
            f"{text!r:.60} is not a range",
            field="--mem",
            way_out="Write from:to:step with from <= to and a step above 0: 8G:32G:4G",
        )
    sizes = range(ends[0], ends[1] + 1, ends[2])
    if len(sizes) > MOST_POINTS:
        raise InputError(
            f"{text!r:.60} has {len(sizes)} sizes", field="--mem", way_out="Give a larger step"
        )
    return list(sizes)


def _write_plans(sweep: Sweep, chain: Profile, folder: Path) -> None:
    """Write each plan under a name such as 4x16G-12G.plan.json."""
    for point in sweep.points:
        if point.pattern is not None:
            rate = point.bandwidth_bytes_per_s
            links = "free" if rate is None else _short(rate)
            name = f"{point.gpus}x{_short(point.memory_bytes)}-{links}.plan.json"
            point.result(chain, sweep.options).save(folder / name)


def _short(count: int) -> str:
    """Return a number of bytes exactly, and as short as `parse_bytes` can read it."""
    for letter, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count and count % factor == 0:
            return f"{count // factor}{letter}"
    return str(count)


def _print(sweep: Sweep, output: Path, as_json: bool) -> None:
    from schedopt.cli.printing import print_json
    from schedopt.cli.sweep_tables import print_sweep, summarise_sweep

    if as_json:
        print_json(summarise_sweep(sweep))
        return
    print_sweep(sweep)
    typer.echo(f"Sweep written to {output}")
