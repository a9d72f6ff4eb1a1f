"""``schedopt profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.chain import Chain
from schedopt.cli.options import (
    ChainOutput,
    ModelOptions,
    OptimizerName,
    naming_options,
    refuse_together,
)
from schedopt.cli.progress import progress_bar
from schedopt.errors import InputError
from schedopt.units import format_bytes, format_duration, parse_bytes, printable

if TYPE_CHECKING:
    from schedopt.profiling import Deviation


def profile_model(
    model: Annotated[
        str,
        typer.Argument(
            help="hf:NAME, such as hf:resnet50, or with options as in hf:gpt2:tied=no,layers=6, "
            "built from a config with random weights; or package.module:factory, a function "
            "without arguments that returns (module, inputs), and optionally a loss, an optimizer "
            "and, for runs, data.",
            metavar="MODEL",
        ),
    ],
    output: ChainOutput,
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
    fake: Annotated[
        bool,
        "Take no memory and run nothing: exact bytes, and times from --flops. For models larger "
        "than the machine.",
    ] = False,
    flops: Annotated[
        str | None, "RATE: With --fake: floating-point operations a second, such as 300T."
    ] = None,
) -> None:
    """Measure a torch model layer by layer and write it as a chain.

    The model is cut wherever exactly one tensor is live. Times are medians after a warm-up; bytes
    are what autograd really saves, what crosses each boundary, and parameters, gradients and
    optimizer state. The update of a layer is a step of the optimizer on its own parameters. Needs
    torch, and transformers for hf: models.

    Examples
    --------
    schedopt profile hf:gpt2:tied=no -o gpt2.json

    schedopt profile hf:resnet50 --batch 8 --device cuda --verify -o resnet50.json

    schedopt profile hf:llama-8b --dtype bfloat16 --fake --flops 400T -o llama.json

    schedopt profile package.module:factory -o chain.json
    """
    from schedopt.formats import check_writable
    from schedopt.profiling import estimate, load_model, profile, verify_chain

    check_writable(output)
    if fake != (flops is not None):
        raise InputError(
            "go together",
            field="--fake and --flops",
            way_out="Give both for a model that is not run, neither for one that is",
        )
    if fake and (verify or device != "cpu"):
        refuse_together("--verify" if verify else "--device", "--fake", "which runs nothing")
    with naming_options({"model": "MODEL"}):
        options = vars(config)
        if flops is not None:
            rate = parse_bytes(flops, field="flops")
            chain = estimate(
                lambda: load_model(model, **options),
                flops=rate,
                optimizer=optimizer,
                min_share=min_share,
            )
        else:
            loaded = load_model(model, **options)
            with progress_bar() as show:
                chain = profile(
                    loaded,
                    device=device,
                    optimizer=optimizer,
                    warmup=warmup,
                    repeats=repeats,
                    min_share=min_share,
                    whole=verify,
                    on_progress=lambda done, total: show(done, total, f"measuring {model}"),
                )
    chain.save(output)
    _print(chain)
    if verify:
        _print_deviations(verify_chain(chain))
    _print_notes(chain)
    typer.echo(f"Chain written to {output}")


def _print(chain: Chain) -> None:
    from schedopt.cli.printing import make_console, print_table
    from schedopt.reporting.tables import Table

    figures = ("Forward", "Backward", "Spread", "Update", "Saved", "Output", "Weights")
    spreads, layers = _spreads(chain), chain.layers
    updates = [layer.update_ns for layer in layers if layer.update_ns is not None]
    rows = tuple(
        (
            str(number),
            printable(layer.name),
            format_duration(layer.forward_ns),
            format_duration(layer.backward_ns),
            f"{spreads[number]:.1%}" if spreads else "",
            "" if layer.update_ns is None else format_duration(layer.update_ns),
            format_bytes(layer.saved),
            format_bytes(layer.activation_bytes),
            format_bytes(layer.weight_bytes),
        )
        for number, layer in enumerate(layers)
    )
    total = (
        "all",
        "",
        format_duration(sum(layer.forward_ns for layer in layers)),
        format_duration(sum(layer.backward_ns for layer in layers)),
        "",
        format_duration(sum(updates)) if updates else "",
        format_bytes(sum(layer.saved for layer in layers)),
        "",
        format_bytes(sum(layer.weight_bytes for layer in layers)),
    )
    columns = ("", "Layer", *figures)
    table = Table(title=str(chain), columns=columns, rows=rows, words=("Layer",), last=total)
    print_table(make_console(), table)


def _spreads(chain: Chain) -> list[float]:
    """Return the larger spread of forward and backward of each layer; none if not measured."""
    both = [chain.provenance.get(f"{name}_spread", []) for name in ("forward", "backward")]
    return [max(pair) for pair in zip(*both, strict=True)]


def _print_deviations(deviations: list[Deviation]) -> None:
    from schedopt.cli.printing import make_console, print_table
    from schedopt.reporting.tables import Table

    rows = []
    for deviation in deviations:
        spread = deviation.spread
        write = format_bytes if spread is None else format_duration
        rows.append(
            (
                deviation.name,
                write(deviation.chain),
                write(deviation.whole),
                f"{deviation.error:+.2%}",
                "" if spread is None else f"{spread:.1%}",
            )
        )
    table = Table(
        title="The sum of the layers, and the whole model as it is",
        columns=("", "Chain", "Whole", "Chain over whole", "Spread"),
        rows=tuple(rows),
        left=("",),
    )
    print_table(make_console(), table)
    times = [deviation for deviation in deviations if deviation.spread is not None]
    worst = max(times[:2], key=lambda deviation: abs(deviation.chain - deviation.whole))
    difference = format_duration(abs(worst.chain - worst.whole))
    typer.echo(f"They differ most in the {worst.name}, by {difference}")


def _print_notes(chain: Chain) -> None:
    """Say what a reader of the table should know."""
    from schedopt.profiling.verifying import TOLERANCE

    weights = [layer.forward_ns + layer.backward_ns for layer in chain.layers]
    spreads = _spreads(chain)
    if spreads and sum(weights):
        mean = sum(a * b for a, b in zip(spreads, weights, strict=True)) / sum(weights)
        if mean > TOLERANCE:
            typer.echo(
                f"Note: the times spread by {mean:.1%} on average. Measure on an idle machine."
            )
    known = chain.recipe is not None and chain.recipe.factory.startswith("hf:")
    how = " (tied=no)" if known else ""
    for group in chain.same_gpu:
        typer.echo(
            f"Note: layers {', '.join(map(str, group))} share weights and must lie on one GPU; a "
            f"contiguous plan keeps all between them there too. Untie them if you can{how}, or "
            "solve with a copy for each (--tied copied)."
        )
    for name in ("halves", "apart"):
        if name in chain.provenance:
            typer.echo(f"Note: {name}: {chain.provenance[name]}")
