"""What ``schedopt profile`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from schedopt.chain import Chain
from schedopt.cli.printing import make_console, print_table
from schedopt.profile import Profile
from schedopt.reporting.tables import Table
from schedopt.units import format_bandwidth, format_bytes, format_duration, printable

if TYPE_CHECKING:
    from schedopt.profiling import Deviation
    from schedopt.profiling.links import MeasuredLinks


def print_profile(profile: Profile, kept: Sequence[bool] = ()) -> None:
    """Print a row for each variant; `kept` says which were taken from the file as they were."""
    rows = []
    again = ("Computed again",) if any(modules for _, modules in profile.measured) else ()
    for number, variant in enumerate(profile.variants):
        chain = variant.chain
        forward = sum(layer.forward_ns for layer in chain.layers)
        backward = sum(layer.backward_ns for layer in chain.layers)
        rows.append(
            (
                str(variant.tensor),
                str(chain.samples),
                *([", ".join(chain.recomputed_modules)] if again else ()),
                format_duration(forward),
                format_duration(backward),
                format_duration((forward + backward) // chain.samples),
                format_bytes(sum(layer.saved for layer in chain.layers)),
                format_bytes(sum(layer.weight_bytes for layer in chain.layers)),
                *(["kept" if kept[number] else "new"] if kept else ()),
            )
        )
    columns = (
        *("Tensor", "Samples", *again),
        *("Forward", "Backward", "A sample", "Saved", "Weights"),
    )
    table = Table(
        title=f"{printable(profile.name)}: {len(profile.variants[0].chain.layers)} layers in "
        f"{len(profile.variants)} variants",
        columns=(*columns, "") if kept else columns,
        rows=tuple(rows),
        words=(*again, *([""] if kept else ())),
    )
    print_table(make_console(), table)


def print_chain(chain: Chain) -> None:
    """Print the layers of a chain."""
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


def print_links(found: MeasuredLinks) -> None:
    """Print a row for each pair that was measured, and the options that say the same."""
    inside = [node.inside for node in found.nodes if node.inside is not None]
    rows = [
        (
            place,
            f"{link.ranks[0]}, {link.ranks[1]}",
            format_bandwidth(link.bandwidth_bytes_per_s),
            format_duration(link.latency_ns),
            link.duplex,
            f"{link.spread:.1%}",
        )
        for place, links in (("inside a node", inside), ("between nodes", found.between))
        for link in links
    ]
    columns = ("Link", "Ranks", "Bandwidth", "Latency", "Duplex", "Spread")
    table = Table(title="Links", columns=columns, rows=tuple(rows), left=("Ranks", "Duplex"))
    print_table(make_console(), table)
    if len(found.nodes) == 1:
        (link,) = inside
        typer.echo(
            f"The same as options: --bandwidth {link.bandwidth_bytes_per_s} --latency "
            f"{link.latency_ns} --duplex {link.duplex}"
        )
    typer.echo(
        "Nothing is reserved of the memory: add what the framework takes to the file (reserved)."
    )


def mean_spread(chain: Chain) -> float:
    """Return the mean of the spreads of layers, weighted by their times; 0 if not measured."""
    weights = [layer.forward_ns + layer.backward_ns for layer in chain.layers]
    spreads = _spreads(chain)
    if not spreads or not sum(weights):
        return 0.0
    return sum(a * b for a, b in zip(spreads, weights, strict=True)) / sum(weights)


def _spreads(chain: Chain) -> list[float]:
    """Return the larger spread of forward and backward of each layer; none if not measured."""
    both = [chain.provenance.get(f"{name}_spread", []) for name in ("forward", "backward")]
    return [max(pair) for pair in zip(*both, strict=True)]


def print_deviations(deviations: list[Deviation]) -> None:
    """Print how far the sum of the layers is from the whole model."""
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


def print_notes(chain: Chain) -> None:
    """Say what a reader of the table should know."""
    from schedopt.profiling.verifying import TOLERANCE

    if mean_spread(chain) > TOLERANCE:
        typer.echo(
            f"Note: the times spread by {mean_spread(chain):.1%} on average. Measure on an idle "
            "machine."
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
