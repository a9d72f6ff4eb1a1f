"""``schedopt import``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from schedopt.chain import Chain
from schedopt.cli.options import AsJson, ChainOutput, naming_options
from schedopt.units import counted, format_bytes, format_duration, printable

if TYPE_CHECKING:
    from schedopt.importing import Imported


def import_profile(
    file: Annotated[Path, typer.Argument(help="A published profile.", metavar="FILE")],
    source: Annotated[
        Literal["pipedream", "dnn-partitioning", "piper"],
        typer.Option("--from", help="The format of the profile."),
    ],
    output: ChainOutput,
    cuts: Annotated[
        Literal["order", "articulation"],
        "Where the graph is not a chain: take the topological order and add up the live tensors "
        "over each cut, or merge layers until exactly one crosses each.",
    ] = "order",
    copies: Annotated[
        int, "N: Copies of the parameters on a GPU: two versions, gradient, momentum."
    ] = 4,
    name: Annotated[str | None, "NAME: Name of the chain. Default: that of the file."] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a published profile (PipeDream, dnn-partitioning, Piper) into a chain.

    Example: schedopt import graph.txt --from pipedream -o chain.json
    """
    from schedopt.cli.printing import print_json
    from schedopt.formats import check_writable
    from schedopt.importing import import_chain

    check_writable(output)
    with naming_options({"source": "from"}):
        imported = import_chain(file, source, cuts=cuts, copies=copies, name=name)
    imported.chain.save(output)
    command = ["schedopt", "solve", "--chain", str(output), "--gpus", "4", "--mem", "16G"]
    if as_json:
        print_json(_document(imported, command))
    else:
        _print(imported, output, command)


def _totals(chain: Chain) -> dict[str, int]:
    layers = chain.layers
    return {
        "forward_ns": sum(layer.forward_ns for layer in layers),
        "backward_ns": sum(layer.backward_ns for layer in layers),
        "parameter_bytes": sum(layer.parameter_bytes or 0 for layer in layers),
        "weight_bytes": sum(layer.weight_bytes for layer in layers),
        "saved_bytes": sum(layer.saved for layer in layers),
        "largest_activation_bytes": max(layer.activation_bytes for layer in layers),
        "input_bytes": chain.input_bytes,
    }


def _document(imported: Imported, command: list[str]) -> dict[str, Any]:
    chain = imported.chain
    return {
        "name": chain.name,
        "layers": len(chain.layers),
        **_totals(chain),
        "chain_sha256": chain.sha256,
        "notes": list(imported.notes),
        "provenance": dict(chain.provenance),
        "solve": command,
    }


def _print(imported: Imported, output: Path, command: list[str]) -> None:
    chain = imported.chain
    totals = _totals(chain)
    count = counted(len(chain.layers), "layer")
    typer.echo(
        f"Chain     {printable(chain.name) or 'unnamed'}: {count}, "
        f"forward {format_duration(totals['forward_ns'])}, "
        f"backward {format_duration(totals['backward_ns'])} for one micro-batch"
    )
    typer.echo(
        f"Sizes     parameters {format_bytes(totals['parameter_bytes'])}, "
        f"weights {format_bytes(totals['weight_bytes'])} "
        f"({chain.provenance['weight_copies']} copies)"
    )
    typer.echo(
        f"          saved {format_bytes(totals['saved_bytes'])} for each micro-batch, "
        f"input {format_bytes(totals['input_bytes'])}, "
        f"largest output of a layer {format_bytes(totals['largest_activation_bytes'])}"
    )
    for note in imported.notes:
        typer.echo(f"Note      {note}")
    typer.echo(f"Chain written to {output}")
    typer.echo(f"Solve     {shlex.join(command)}")
