"""``schedopt profile``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from schedopt.chain import CHAIN_FORMAT, Chain
from schedopt.cli.options import (
    ChainOutput,
    ModelOptions,
    OptimizerName,
    naming_options,
    parse_counts,
    refuse_together,
)
from schedopt.cli.profile_shape import write_shape
from schedopt.cli.progress import progress_bar
from schedopt.errors import InputError
from schedopt.platform import PLATFORM_FORMAT
from schedopt.profile import PROFILE_FORMAT, Profile
from schedopt.units import parse_bytes

if TYPE_CHECKING:
    from schedopt.profiling import Estimator, Profiler

USED: Final[Mapping[str, frozenset[str]]] = {
    "--links": frozenset({"links", "output", "device", "warmup", "repeats"}),
    "--shape": frozenset(
        {"shape", "output", "on", "batch", "tensor_parallel", "seq", "dtype", "recompute_modules"}
    ),
    "--fake": frozenset(
        {"fake", "output", "model", "on", "flops", "batch", "tensor_parallel", "seq", "image"}
        | {"dtype", "optimizer", "min_share"}
    ),
}
"""What has an effect where a profile is not measured, by the option that says so."""

GpuName: TypeAlias = Literal["a100", "h100", "h200", "b200", "a10g", "l4"]


def profile_model(
    model: Annotated[
        str | None,
        typer.Argument(
            help="hf:NAME, such as hf:resnet50, or with options as in hf:gpt2:tied=no,layers=6, "
            "built from a config with random weights; or package.module:factory, a function "
            "without arguments that returns (module, inputs), and optionally a loss, an optimizer "
            "and, for runs, data.",
            metavar="MODEL",
        ),
    ] = None,
    *,
    context: typer.Context,
    output: ChainOutput,
    batch: Annotated[
        str | None,
        "N,...: Samples of a micro-batch, for hf: models. Several, such as 1,2,4, are measured one "
        "after the other and written as a profile.",
    ] = None,
    tensor_parallel: Annotated[
        str | None,
        "T,...: GPUs of a tensor group, such as 1,2,4: how each of them fares with its part of "
        "every layer, for models whose plan says how they are split (hf:llama...). Measured under "
        "torchrun, with as many processes as the largest group; or with --fake --on.",
    ] = None,
    config: ModelOptions,
    device: Annotated[str, "DEVICE: cpu, cuda, or cuda:1."] = "cpu",
    optimizer: Annotated[
        OptimizerName, "Its state is counted, unless the factory brings its own."
    ] = "adamw",
    warmup: Annotated[int, "N: Sweeps that are not timed."] = 3,
    repeats: Annotated[int, "N: Sweeps that are timed; the median counts."] = 10,
    min_share: Annotated[
        float,
        "X: Merge layers with less than this share of the time into a neighbour; 0 keeps every "
        "cut.",
    ] = 0.001,
    verify: Annotated[bool, "Run the whole model too, and compare the sum of the chain."] = False,
    links: Annotated[
        bool,
        "Instead of a model, measure bandwidth and latency between the processes that torchrun "
        "started, one for each GPU, and write a platform.",
    ] = False,
    strict: Annotated[
        bool,
        "End with exit code 5 where times spread by more than 5% on average, since the machine was "
        "busy. The file is written all the same.",
    ] = False,
    fake: Annotated[
        bool,
        "Take no memory and run nothing: exact bytes, and times from --on or --flops. For models "
        "larger than the machine.",
    ] = False,
    on: Annotated[
        GpuName | None,
        "With --fake: times from the roofline of this GPU, its rates for operations and bytes "
        "(instances/PRESETS.md).",
    ] = None,
    shape: Annotated[
        str | None,
        "NAME=N,...: Instead of a model, a decoder given by numbers: layers, hidden, heads, "
        "kv-heads, head, ffn, vocabulary; experts, active, shared, expert-ffn, dense, "
        "expert-parallel; predictors (MTP); context-parallel. Work and bytes follow from "
        "formulas, times from --on; in bfloat16, trained with Adam. Needs no torch.",
    ] = None,
    recompute_modules: Annotated[
        str | None,
        "NAME,...: With --shape: measure each layer also with these modules computed again in the "
        "backward (selective recompute): core_attn, layernorm, mlp, moe, moe_act.",
    ] = None,
    flops: Annotated[
        str | None, "RATE: With --fake: floating-point operations a second, such as 300T."
    ] = None,
) -> None:
    """Measure a torch model layer by layer and write it as a chain, or as a profile of chains.

    The model is cut wherever exactly one tensor is live. Times are medians after a warm-up; bytes
    are what autograd really saves, what crosses each boundary, and parameters, gradients and
    optimizer state. The update of a layer is a step of the optimizer on its own parameters. Needs
    torch, and transformers for hf: models.

    Several sizes (--batch 1,2,4) or tensor groups (--tensor-parallel 1,2,4) are a profile, which is
    written after each. Started again with the same arguments on the same machine, it goes on behind
    what the file holds; remove the file to measure all again.

    Examples
    --------
    schedopt profile hf:gpt2:tied=no -o gpt2.json

    schedopt profile hf:resnet50 --batch 8 --device cuda --verify -o resnet50.json

    schedopt profile hf:gpt2:tied=no --batch 1,2,4,8 --device cuda -o gpt2.profile.json

    schedopt profile hf:llama-8b --dtype bfloat16 --fake --on h100 -o llama.json

    schedopt profile hf:llama-8b --fake --on h100 --tensor-parallel 1,2,4 --batch 1,2 -o llama.json

    schedopt profile --shape layers=80,hidden=8192,heads=64,kv-heads=8,ffn=28672,vocabulary=128256
    --on h100 --seq 4096 --tensor-parallel 1,2,4,8 --batch 1,2 -o llama-70b.json

    torchrun --nproc-per-node 2 -m schedopt profile hf:llama --tensor-parallel 1,2 -o llama.json

    torchrun --nproc-per-node 8 -m schedopt profile --links --device cuda -o machine.json

    schedopt profile package.module:factory -o chain.json
    """
    from schedopt.formats import check_writable
    from schedopt.profiling import Estimator, Profiler

    check_writable(output, *([PLATFORM_FORMAT] if links else [CHAIN_FORMAT, PROFILE_FORMAT]))
    for mode, is_asked in (("--links", links), ("--shape", shape is not None), ("--fake", fake)):
        if is_asked:
            _refuse_idle(context, mode)
    if links:
        _write_links(device, output, warmup=warmup, repeats=repeats)
        return
    sizes = None if batch is None else parse_counts(batch, "--batch", "samples")
    degrees = [1]
    if tensor_parallel is not None:
        degrees = parse_counts(tensor_parallel, "--tensor-parallel", "GPUs")
    if shape is not None:
        modules = [] if recompute_modules is None else recompute_modules.split(",")
        write_shape(shape, on, config, sizes or [1], degrees, modules, output)
        return
    if recompute_modules is not None:
        raise InputError(
            "the modules of a model that is given are not known",
            field="--recompute-modules",
            way_out="Give a --shape, or a model that computes them again by itself",
        )
    if model is None:
        raise InputError(
            "not given",
            field="MODEL",
            way_out="Name a model, such as hf:gpt2; give a --shape; or measure links (--links)",
        )
    if fake != ((flops is not None) or (on is not None)):
        raise InputError(
            "go together",
            field="--fake and --on or --flops",
            way_out="Give --fake --on h100 or --fake --flops RATE for a model that is not run, "
            "none of them for one that is",
        )
    if flops is not None and on is not None:
        refuse_together("--flops", "--on", "which has a rate of its own")
    several = degrees != [1] or (sizes is not None and len(sizes) > 1)
    if several and verify:
        refuse_together("--verify", "several variants", "which are not compared")
    options = config.given()
    how: Estimator | Profiler
    with naming_options({"model": "MODEL"}):
        if fake:
            rate = None if flops is None else parse_bytes(flops, field="flops")
            how = Estimator(flops=rate, on=on, optimizer=optimizer, min_share=min_share)
        else:
            how = Profiler(
                device=device,
                optimizer=optimizer,
                warmup=warmup,
                repeats=repeats,
                min_share=min_share,
                whole=verify,
            )
        if not several:
            given = options if sizes is None else {"batch": sizes[0], **options}
            chains = [_write_chain(model, given, how, output)]
        else:
            with _processes(how):
                profile = _write_profile(model, options, sizes or [1], degrees, how, output)
                chains = [variant.chain for variant in profile.variants]
    if strict:
        refuse_spreads(chains, output)


def _refuse_idle(context: typer.Context, mode: str) -> None:
    """Refuse what was given and has no effect in a mode, even if it is as by default."""
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in USED[mode]:
            given = "a model" if name == "model" else option.opts[0]
            refuse_together(mode, given, "which it leaves nothing to do")


def _write_links(device: str, output: Path, *, warmup: int, repeats: int) -> None:
    """Measure the links between the processes that torchrun started; the first one speaks."""
    if not torchrun_started():
        raise InputError(
            "needs a process for each GPU",
            field="--links",
            way_out="Start it as torchrun --nproc-per-node 8 -m schedopt profile --links "
            "--device cuda -o machine.json",
        )
    from schedopt.profiling.model import require_torch

    require_torch()
    from schedopt.cli.profile_tables import print_links
    from schedopt.profiling.links import measure_links
    from schedopt.profiling.processes import joined, rank

    with joined(device):
        found = measure_links(device, warmup=warmup, repeats=repeats)
        if rank() == 0:
            found.platform().save(output)
            print_links(found)
            typer.echo(f"Platform written to {output}")


def refuse_spreads(chains: Iterable[Chain], output: Path) -> None:
    """End with exit code 5 if times spread too much to be relied on."""
    from schedopt.cli.profile_tables import mean_spread
    from schedopt.profiling.verifying import TOLERANCE

    most = max(map(mean_spread, chains))
    if most > TOLERANCE:
        typer.echo(
            f"Error: --strict: the times in {output} spread by {most:.1%} on average, more than "
            f"{TOLERANCE:.0%}. Measure on an idle machine, or with more --repeats",
            err=True,
        )
        raise typer.Exit(5)


@contextmanager
def _processes(how: Estimator | Profiler) -> Iterator[None]:
    """Join the other processes, if torchrun started this one; only the first one speaks."""
    from schedopt.profiling import Profiler

    if not isinstance(how, Profiler) or not torchrun_started():
        yield
        return
    from schedopt.profiling.processes import joined, rank

    with joined(how.device):
        if rank() == 0:
            yield
        else:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                yield


def torchrun_started() -> bool:
    """Whether this process is one of several that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _write_chain(
    model: str, options: dict[str, Any], how: Estimator | Profiler, output: Path
) -> Chain:
    from schedopt.cli.profile_tables import print_chain, print_deviations, print_notes
    from schedopt.profiling import load_model, verify_chain

    with how.session(), progress_bar() as show:
        chain = how.chain(
            load_model(model, **options),
            on_progress=lambda done, total: show(done, total, f"measuring {model}"),
        )
    chain.save(output)
    print_chain(chain)
    if "whole" in chain.provenance:
        print_deviations(verify_chain(chain))
    print_notes(chain)
    typer.echo(f"Chain written to {output}")
    return chain


def _write_profile(
    model: str,
    options: dict[str, Any],
    sizes: list[int],
    degrees: list[int],
    how: Estimator | Profiler,
    output: Path,
) -> Profile:
    from schedopt.cli.profile_tables import print_notes, print_profile
    from schedopt.profiling import load_model, profile_variants
    from schedopt.profiling.processes import rank

    known = _so_far(output)
    with progress_bar() as show:
        profile = profile_variants(
            lambda: load_model(model, batch=sizes[0], **options),
            sizes,
            how,
            degrees=degrees,
            known=known,
            on_progress=lambda done, total, variant: show(done, total, f"{model}, {variant}"),
            on_variant=lambda profile: profile.save(output),
        )
    if profile != known and rank() == 0:
        profile.save(output)
    kept = [known is not None and variant in known.variants for variant in profile.variants]
    print_profile(profile, kept)
    print_notes(profile.variants[0].chain)
    typer.echo(f"Profile written to {output}")
    return profile


def _so_far(output: Path) -> Profile | None:
    """Return what a file holds already, if it is a profile or a chain."""
    try:
        return Profile.load(output)
    except InputError:
        return None
