"""``schedopt profile``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from schedopt.chain import Chain


def profile_model(
    model: Annotated[
        str,
        typer.Argument(
            help="package.module:factory, a function without arguments that returns "
            "(nn.Sequential, input), and optionally a loss and an optimizer.",
            metavar="MODEL",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the chain.", metavar="FILE")
    ],
    device: Annotated[str, typer.Option(help="cpu, cuda, or cuda:1.", metavar="DEVICE")] = "cpu",
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd"],
        typer.Option(help="Whose state is counted, unless the factory brings its own."),
    ] = "adamw",
    warmup: Annotated[int, typer.Option(help="Sweeps that are not timed.", metavar="N")] = 3,
    repeats: Annotated[
        int, typer.Option(help="Sweeps that are timed; the median counts.", metavar="N")
    ] = 10,
) -> None:
    """Measure a torch model layer by layer and write it as a chain.

    Times are medians after a warm-up; bytes are what autograd really saves, what crosses each
    boundary, and parameters, gradients and optimizer state. Needs the extra "torch".

    Example: schedopt profile schedopt.profiling.models:gpt2_small -o gpt2.json
    """
    from schedopt.formats import check_writable, save_chain
    from schedopt.profiling import load_model, profile

    check_writable(output)
    loaded = load_model(model)
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(f"measuring {model}", total=None)
            chain = profile(
                loaded,
                device=device,
                optimizer=optimizer,
                warmup=warmup,
                repeats=repeats,
                on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    else:
        chain = profile(loaded, device=device, optimizer=optimizer, warmup=warmup, repeats=repeats)
    save_chain(chain, output)
    _print(chain, output)


def _print(chain: Chain, output: Path) -> None:
    from schedopt.cli.tables import make_console, make_table
    from schedopt.units import format_bytes, format_duration, printable

    table = make_table(f"{printable(chain.name)}: {len(chain.layers)} layers")
    table.add_column("Layer", no_wrap=True)
    for name in ("Forward", "Spread", "Backward", "Spread", "Saved", "Output", "Weights"):
        table.add_column(name, justify="right", no_wrap=True)
    spreads = zip(
        chain.provenance["forward_spread"], chain.provenance["backward_spread"], strict=True
    )
    for layer, (forward, backward) in zip(chain.layers, spreads, strict=True):
        table.add_row(
            printable(layer.name),
            format_duration(layer.forward_ns),
            f"{forward:.1%}",
            format_duration(layer.backward_ns),
            f"{backward:.1%}",
            format_bytes(layer.saved),
            format_bytes(layer.activation_bytes),
            format_bytes(layer.weight_bytes),
        )
    table.add_section()
    table.add_row(
        "all",
        format_duration(sum(layer.forward_ns for layer in chain.layers)),
        "",
        format_duration(sum(layer.backward_ns for layer in chain.layers)),
        "",
        format_bytes(sum(layer.saved for layer in chain.layers)),
        "",
        format_bytes(sum(layer.weight_bytes for layer in chain.layers)),
    )
    console = make_console()
    console.print(table)
    console.print(f"Chain written to {output}")
