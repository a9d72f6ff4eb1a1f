"""``schedopt instance``: a chain by rule, what is known of it, and the command that solves it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from schedopt import families
from schedopt.chain import CHAIN_FORMAT
from schedopt.cli.commands import Commands
from schedopt.cli.options import AsJson, ChainOutput, naming_options
from schedopt.families import Fact, Instance
from schedopt.units import counted, format_bytes, format_duration, parse_bytes, parse_duration

EXIT_CODES = "Exit codes: 0 the chain was written · 1 an internal error · 2 bad usage or bad input"
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

Gpus = Annotated[int, "P: How many GPUs the chain is for."]


@instance_app.command("section6-1", epilog=EXIT_CODES)
def section_6_1(output: ChainOutput, as_json: AsJson = False) -> None:
    """Write costs 1, 2, 1 on 2 GPUs: contiguous 3, any allocation 2.

    Beaumont et al. 2021, section 6.1. One unit of time is 1 ms; all sizes are 0.

    Example: schedopt instance section6-1 -o chain.json
    """
    _write(families.section_6_1, output, as_json)


@instance_app.command("lemma2", epilog=EXIT_CODES)
def lemma_2(output: ChainOutput, as_json: AsJson = False) -> None:
    """Write weights 1, 2, 1 on 2 GPUs with memory 2: only a general allocation fits.

    Beaumont et al. 2021, Lemma 2, which gives no costs: each layer takes 1 ms.
    One unit of memory is 1 MB.

    Example: schedopt instance lemma2 -o chain.json
    """
    _write(families.lemma_2, output, as_json)


@instance_app.command("theorem4", epilog=EXIT_CODES)
def theorem_4(
    k: Annotated[int, "K: 1 to 4095."],
    output: ChainOutput,
    as_json: AsJson = False,
) -> None:
    """Write k + 1 layers whose best pattern needs k micro-batches: 2 (1 + 1 / k).

    Beaumont et al. 2021, Theorem 4. One unit of time is 1 ms, one of memory 1 MB.

    Example: schedopt instance theorem4 --k 3 -o chain.json
    """
    _write(lambda: families.theorem_4(k), output, as_json)


@instance_app.command("theorem5", epilog=EXIT_CODES)
def theorem_5(
    k: Annotated[int, "K: 2 to 45."],
    output: ChainOutput,
    as_json: AsJson = False,
) -> None:
    """Write a chain whose best contiguous period is 4 k / (2 k + 1) times the best of all.

    Beaumont et al. 2021, Theorem 5. The short layers take 1 ms, so one unit
    of time is 2 k + 1 ms; all sizes are 0.

    Example: schedopt instance theorem5 --k 3 -o chain.json
    """
    _write(lambda: families.theorem_5(k), output, as_json)


@instance_app.command("theorem6", epilog=EXIT_CODES)
def theorem_6(
    k: Annotated[int, "K: 2 to 740."],
    output: ChainOutput,
    memory: Annotated[
        int | None, "M: M, the memory of a GPU in MB, at least k. Default: k."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a chain whose memory makes the best contiguous period k - 1 times the best of all.

    Beaumont et al. 2021, Theorem 6. One unit of time is 1 ms, one of memory 1 MB.

    Example: schedopt instance theorem6 --k 4 -o chain.json
    """
    _write(lambda: families.theorem_6(k, memory), output, as_json)


@instance_app.command("uniform", epilog=EXIT_CODES)
def uniform(
    layers: Annotated[int, "N: How many, 1 to 4096."],
    output: ChainOutput,
    forward: Annotated[str, "TIME: Of each layer."] = "1ms",
    backward: Annotated[str, "TIME: Of each layer."] = "2ms",
    weight: Annotated[str, "SIZE: Of each layer."] = "10MB",
    activation: Annotated[str, "SIZE: Of each layer."] = "1MB",
    saved: Annotated[
        str | None, "SIZE: Kept from forward to backward. Default: the activation."
    ] = None,
    gpus: Gpus = 4,
    mem: Annotated[
        str | None, "SIZE: Memory of each GPU. Default: just enough for the least period."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a chain of equal layers.

    Examples
    --------
    schedopt instance uniform --layers 32 -o chain.json

    schedopt instance uniform --layers 32 --gpus 8 --mem 600MB -o chain.json
    """

    def make() -> Instance:
        return families.uniform_chain(
            layers,
            forward_ns=parse_duration(forward, field="forward"),
            backward_ns=parse_duration(backward, field="backward"),
            weight_bytes=parse_bytes(weight, field="weight"),
            activation_bytes=parse_bytes(activation, field="activation"),
            saved_bytes=None if saved is None else parse_bytes(saved, field="saved"),
            gpus=gpus,
            memory=None if mem is None else parse_bytes(mem, field="mem"),
        )

    _write(make, output, as_json)


@instance_app.command("random", epilog=EXIT_CODES)
def random(
    layers: Annotated[int, "N: How many, 1 to 4096."],
    seed: Annotated[int, "S: The same seed, the same chain."],
    output: ChainOutput,
    gpus: Gpus = 4,
    mem: Annotated[
        str | None, "SIZE: Memory of each GPU. Default: what one GPU needs to run all layers."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a chain whose times and sizes differ by up to a factor of nine between layers.

    Example: schedopt instance random --layers 40 --seed 1 -o chain.json
    """

    def make() -> Instance:
        memory = None if mem is None else parse_bytes(mem, field="mem")
        return families.random_chain(layers, seed, gpus=gpus, memory=memory)

    _write(make, output, as_json)


@instance_app.command("three-partition", epilog=EXIT_CODES)
def three_partition(
    theorem: Annotated[
        Literal["1", "2"], "1|2: 1: any allocation on m GPUs; 2: a given one on 2 GPUs."
    ],
    m: Annotated[int, "M: Groups, 1 to 256; with --no 2 to 12."],
    solvable: Annotated[
        bool,
        typer.Option(
            "--yes/--no", help="Whether the numbers have a 3-partition, so that there is a plan."
        ),
    ],
    output: ChainOutput,
    seed: Annotated[int, "S: The same seed, the same chain."] = 0,
    total: Annotated[int, "V: V, what each group adds up to, 9 to 2^20."] = 1000,
    as_json: AsJson = False,
) -> None:
    """Write 3 m numbers as a chain: a plan of one given period is a 3-partition of them.

    Beaumont et al. 2021, Theorems 1 and 2. Are there m groups of three numbers that add up to V
    each? The numbers lie between V / 4 and V / 2, and take as many ns. With --yes groups are
    built; with --no numbers are drawn until none are found by trying all.

    Example: schedopt instance three-partition --theorem 1 --m 8 --no -o c.json
    """
    from schedopt.families.reductions import three_partition as make

    def solve_command(instance: Instance) -> list[str]:
        if theorem == "1":
            more = ("--allocation", "general", "--period", str(total), "--solver", "packing")
            return [*_solve_command(instance, output), *more]
        # No option of solve takes an allocation without a plan.
        return ["schedopt", "bench", "hardness", "--instance", str(output)]

    _write(
        lambda: make(1 if theorem == "1" else 2, m, total, seed, solvable=solvable),
        output,
        as_json,
        solve_command,
    )


def _write(
    make: Callable[[], Instance],
    output: Path,
    as_json: bool,
    command_for: Callable[[Instance], list[str]] | None = None,
) -> None:
    """Write an instance, and print what it is and the command that solves it on its platform."""
    from schedopt.cli.printing import print_json
    from schedopt.formats import check_writable

    check_writable(output, CHAIN_FORMAT)
    with naming_options(OPTIONS):
        instance = make()
    instance.chain.save(output)
    command = command_for(instance) if command_for else _solve_command(instance, output)
    if as_json:
        print_json(_document(instance, command))
    else:
        _print(instance, output, command)


def _solve_command(instance: Instance, output: Path) -> list[str]:
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
    chain, gpus = instance.chain, instance.platform.gpus
    work = sum(layer.forward_ns + layer.backward_ns for layer in chain.layers)
    count = counted(len(chain.layers), "layer")
    typer.echo(
        f"Chain     {chain.name}: {count}, {format_duration(work)} for one micro-batch on one GPU"
    )
    typer.echo(
        f"Platform  {counted(len(gpus), 'GPU')} of {format_bytes(gpus[0].memory_bytes)}; "
        "transfers are free"
    )
    for fact in instance.known:
        typer.echo(f"Known     {_sentence(fact)} ({fact.source})")
    if not instance.known:
        typer.echo("Known     nothing")
    typer.echo(f"Chain written to {output}")
    typer.echo(f"Solve     {shlex.join(command)}")


def _sentence(fact: Fact) -> str:
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
