"""What ``schedopt instance`` writes and prints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from schedopt.cli.options import naming_options

if TYPE_CHECKING:
    from schedopt.families import Fact, Instance

OPTIONS = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "weight_bytes": "weight",
    "activation_bytes": "activation",
    "saved_bytes": "saved",
    "memory_bytes": "mem",
}
"""Parameters of a family whose option has another name."""


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Refuse a file that cannot be written; name the option of each bad parameter."""
    from schedopt.formats import check_writable

    check_writable(output)
    with naming_options(OPTIONS):
        yield


def write(
    instance: Instance, output: Path, as_json: bool, command: list[str] | None = None
) -> None:
    """Write an instance, and print what it is and the command that solves it."""
    instance.chain.save(output)
    command = command or solve_command(instance, output)
    if as_json:
        typer.echo(json.dumps(_document(instance, command), indent=2))
    else:
        _print(instance, output, command)


def solve_command(instance: Instance, output: Path) -> list[str]:
    """Return what solves the instance on its platform."""
    platform = instance.platform
    machine = ["--gpus", str(len(platform.gpus)), "--mem", str(platform.gpus[0].memory_bytes)]
    return ["schedopt", "solve", "--chain", str(output), *machine]


def _document(instance: Instance, command: list[str]) -> dict[str, object]:
    from schedopt.families.instance import platform_to_json

    return {
        "name": instance.chain.name,
        "layers": len(instance.chain.layers),
        "platform": platform_to_json(instance.platform),
        "known": [fact.to_json() for fact in instance.known],
        "chain_sha256": instance.chain.sha256,
        "solve": command,
    }


def _print(instance: Instance, output: Path, command: list[str]) -> None:
    from schedopt.units import format_bytes, format_duration

    chain, gpus = instance.chain, instance.platform.gpus
    work = sum(layer.forward_ns + layer.backward_ns for layer in chain.layers)
    count = f"{len(chain.layers)} layer{'s' if len(chain.layers) > 1 else ''}"
    typer.echo(
        f"Chain     {chain.name}: {count}, {format_duration(work)} for one micro-batch on one GPU"
    )
    typer.echo(
        f"Platform  {len(gpus)} GPU{'s' if len(gpus) > 1 else ''} of "
        f"{format_bytes(gpus[0].memory_bytes)}; transfers are free"
    )
    for fact in instance.known:
        typer.echo(f"Known     {_sentence(fact)} ({fact.source})")
    if not instance.known:
        typer.echo("Known     nothing")
    typer.echo(f"Chain written to {output}")
    typer.echo(f"Solve     {shlex.join(command)}")


def _sentence(fact: Fact) -> str:
    from schedopt.units import format_duration

    scope = fact.scope
    plans = {
        "contiguous": "contiguous",
        "general": "any allocation",
        "fixed": "the given allocation",
    }[scope.allocation]
    if scope.max_k is None:
        plans += ", any k"
    else:
        plans += ", k = 1" if scope.max_k == 1 else f", k up to {scope.max_k}"
    if scope.period_ns is not None:
        plans += f", period {format_duration(scope.period_ns)} or {scope.period_ns} ns"
    if fact.period is None:
        return f"{plans}: infeasible"
    reached = f", reached with k = {fact.k}" if scope.max_k != 1 else ""
    return f"{plans}: {format_duration(fact.period)} or {fact.period} ns{reached}"
