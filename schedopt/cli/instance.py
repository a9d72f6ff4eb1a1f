"""``schedopt instance``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedopt.cli.commands import Commands
from schedopt.cli.options import AsJson, ChainOutput, naming_options

if TYPE_CHECKING:
    from schedopt.families import Fact, Instance

EXIT_CODES = "Exit codes: 0 the chain was written · 1 a fault of ours · 2 bad usage or bad input"
OPTIONS = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "weight_bytes": "weight",
    "activation_bytes": "activation",
    "saved_bytes": "saved",
    "memory_bytes": "mem",
}
"""Parameters of a family whose option has another name."""

instance_app = Commands(
    help="Write a chain by rule: the instances of the theorems, uniform or random layers.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Gpus = Annotated[int, typer.Option(help="How many GPUs the chain is for.", metavar="P")]


@instance_app.command("section6-1", epilog=EXIT_CODES)
def section_6_1(output: ChainOutput, as_json: AsJson = False) -> None:
    """Write costs 1, 2, 1 on 2 GPUs: contiguous 3, any allocation 2.

    Beaumont et al. 2021, section 6.1. One unit of time is 1 ms; all sizes are 0.

    Example: schedopt instance section6-1 -o chain.json
    """
    from schedopt import families

    with _writing(output):
        instance = families.section_6_1()
    _write(instance, output, as_json)


@instance_app.command("lemma2", epilog=EXIT_CODES)
def lemma_2(output: ChainOutput, as_json: AsJson = False) -> None:
    """Write weights 1, 2, 1 on 2 GPUs with memory 2: only a general allocation fits.

    Beaumont et al. 2021, Lemma 2, which gives no costs: each layer takes 1 ms.
    One unit of memory is 1 MB.

    Example: schedopt instance lemma2 -o chain.json
    """
    from schedopt import families

    with _writing(output):
        instance = families.lemma_2()
    _write(instance, output, as_json)


@instance_app.command("theorem4", epilog=EXIT_CODES)
def theorem_4(
    k: Annotated[int, typer.Option(help="1 to 4095.", metavar="K")],
    output: ChainOutput,
    as_json: AsJson = False,
) -> None:
    """Write k + 1 layers whose best pattern needs k micro-batches: 2 (1 + 1 / k).

    Beaumont et al. 2021, Theorem 4. One unit of time is 1 ms, one of memory 1 MB.

    Example: schedopt instance theorem4 --k 3 -o chain.json
    """
    from schedopt import families

    with _writing(output):
        instance = families.theorem_4(k)
    _write(instance, output, as_json)


@instance_app.command("theorem5", epilog=EXIT_CODES)
def theorem_5(
    k: Annotated[int, typer.Option(help="2 to 45.", metavar="K")],
    output: ChainOutput,
    as_json: AsJson = False,
) -> None:
    """Write a chain whose best contiguous period is 4 k / (2 k + 1) times the best of all.

    Beaumont et al. 2021, Theorem 5. The short layers take 1 ms, so one unit
    of time is 2 k + 1 ms; all sizes are 0.

    Example: schedopt instance theorem5 --k 3 -o chain.json
    """
    from schedopt import families

    with _writing(output):
        instance = families.theorem_5(k)
    _write(instance, output, as_json)


@instance_app.command("theorem6", epilog=EXIT_CODES)
def theorem_6(
    k: Annotated[int, typer.Option(help="2 to 740.", metavar="K")],
    output: ChainOutput,
    memory: Annotated[
        int | None,
        typer.Option(
            help="M, the memory of a GPU in MB, at least k. Default: k.",
            metavar="M",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a chain whose memory makes the best contiguous period k - 1 times the best of all.

    Beaumont et al. 2021, Theorem 6. One unit of time is 1 ms, one of memory 1 MB.

    Example: schedopt instance theorem6 --k 4 -o chain.json
    """
    from schedopt import families

    with _writing(output):
        instance = families.theorem_6(k, memory)
    _write(instance, output, as_json)


@instance_app.command("uniform", epilog=EXIT_CODES)
def uniform(
    layers: Annotated[int, typer.Option(help="How many, 1 to 4096.", metavar="N")],
    output: ChainOutput,
    forward: Annotated[str, typer.Option(help="Of each layer.", metavar="TIME")] = "1ms",
    backward: Annotated[str, typer.Option(help="Of each layer.", metavar="TIME")] = "2ms",
    weight: Annotated[str, typer.Option(help="Of each layer.", metavar="SIZE")] = "10MB",
    activation: Annotated[str, typer.Option(help="Of each layer.", metavar="SIZE")] = "1MB",
    saved: Annotated[
        str | None,
        typer.Option(
            help="Kept from forward to backward. Default: the activation.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    gpus: Gpus = 4,
    mem: Annotated[
        str | None,
        typer.Option(
            help="Memory of each GPU. Default: just enough for the least period.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a chain of equal layers.

    Examples
    --------
    schedopt instance uniform --layers 32 -o chain.json

    schedopt instance uniform --layers 32 --gpus 8 --mem 600MB -o chain.json
    """
    from schedopt import families
    from schedopt.units import parse_bytes, parse_duration

    with _writing(output):
        instance = families.uniform_chain(
            layers,
            forward_ns=parse_duration(forward, field="forward"),
            backward_ns=parse_duration(backward, field="backward"),
            weight_bytes=parse_bytes(weight, field="weight"),
            activation_bytes=parse_bytes(activation, field="activation"),
            saved_bytes=None if saved is None else parse_bytes(saved, field="saved"),
            gpus=gpus,
            memory=None if mem is None else parse_bytes(mem, field="mem"),
        )
    _write(instance, output, as_json)


@instance_app.command("random", epilog=EXIT_CODES)
def random(
    layers: Annotated[int, typer.Option(help="How many, 1 to 4096.", metavar="N")],
    seed: Annotated[int, typer.Option(help="The same seed, the same chain.", metavar="S")],
    output: ChainOutput,
    gpus: Gpus = 4,
    mem: Annotated[
        str | None,
        typer.Option(
            help="Memory of each GPU. Default: what one GPU needs to run all layers.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a chain whose times and sizes differ by up to a factor of nine between layers.

    Example: schedopt instance random --layers 40 --seed 1 -o chain.json
    """
    from schedopt import families
    from schedopt.units import parse_bytes

    with _writing(output):
        instance = families.random_chain(
            layers, seed, gpus=gpus, memory=None if mem is None else parse_bytes(mem, field="mem")
        )
    _write(instance, output, as_json)


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Refuse a file that cannot be written; name the option of each bad parameter."""
    from schedopt.formats import check_writable

    check_writable(output)
    with naming_options(OPTIONS):
        yield


def _write(instance: Instance, output: Path, as_json: bool) -> None:
    instance.chain.save(output)
    command = _solve_command(instance, output)
    if as_json:
        typer.echo(json.dumps(_document(instance, command), indent=2))
    else:
        _print(instance, output, command)


def _solve_command(instance: Instance, output: Path) -> list[str]:
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
    plans = "contiguous" if scope.allocation == "contiguous" else "any allocation"
    if scope.max_k is None:
        plans += ", any k"
    else:
        plans += ", k = 1" if scope.max_k == 1 else f", k up to {scope.max_k}"
    if fact.period is None:
        return f"{plans}: infeasible"
    reached = f", reached with k = {fact.k}" if scope.max_k != 1 else ""
    return f"{plans}: {format_duration(fact.period)} or {fact.period} ns{reached}"
