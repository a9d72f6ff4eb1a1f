"""``schedopt import``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from schedopt.chain import CHAIN_FORMAT, Chain
from schedopt.cli.import_launch import LaunchOptions, import_launch_file
from schedopt.cli.options import AsJson, ChainOutput, naming_options
from schedopt.cli.platform_options import PlatformOptions
from schedopt.errors import InputError
from schedopt.plan import PLAN_FORMAT
from schedopt.platform import Platform
from schedopt.profile import PROFILE_FORMAT, Profile
from schedopt.units import counted, format_bytes, format_duration, printable

if TYPE_CHECKING:
    from schedopt.importing import Imported


def import_profile(
    *,
    file: Annotated[
        Path, typer.Argument(help="A published profile or plan, or a launch file.", metavar="FILE")
    ],
    source: Annotated[
        Literal[
            "pipedream",
            "dnn-partitioning",
            "piper",
            "superscaler",
            "sailor",
            "megatron-args",
            "torchtitan-toml",
            "deepspeed-json",
        ],
        typer.Option("--from", help="The format of the file."),
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
    all_degrees: Annotated[
        bool, "Of piper: all its degrees of tensor parallelism, as a profile."
    ] = False,
    model: Annotated[
        str | None, "NAME: Of superscaler or sailor: which model, where a table has several."
    ] = None,
    gpu: Annotated[str | None, "NAME: The same for the kind of GPU."] = None,
    layers: Annotated[
        int | None, "N: Layers of the model, where a table has the operators of one."
    ] = None,
    plan: Annotated[
        str | None,
        "NAME: Of superscaler: import this plan of a table of plans; the table of its operators, "
        "ops.json, lies beside it. Name the GPUs that it runs on too.",
    ] = None,
    launch: LaunchOptions,
    machine: PlatformOptions,
    as_json: AsJson = False,
) -> None:
    """Turn what others published, or what you run now, into a chain, a profile or a plan.

    PipeDream, dnn-partitioning and Piper have graphs, which become chains. Superscaler (Aceso) and
    Sailor have tables (schedopt-data/1) of layers in several tensor groups and sizes of
    micro-batches, which become profiles; plans of Aceso and Megatron-LM become plans that can be
    checked, simulated and shown.

    The launch file of an engine becomes a plan for a chain or profile of the model (--chain) on the
    GPUs that it runs on, laid out in the engine's own order: the arguments of Megatron-LM
    (megatron-args: a script, a flag a line, or YAML), the configuration of torchtitan
    (torchtitan-toml: TOML, or functions of a Python file, which are read and not run) or DeepSpeed
    (deepspeed-json), and what schedopt export writes for them. What changes the step or the memory
    in a way that plans do not have is refused, and so is what is not known. A plan that does not
    fit is written too, and it says by how much.

    Examples
    --------
    schedopt import graph.txt --from pipedream -o chain.json

    schedopt import bert32.json --from piper --all-degrees -o profile.json

    schedopt import layers.json --from superscaler --model 1.3B -o profile.json

    schedopt import plans.json --from superscaler --plan NAME --platform l4:2x8 -o plan.json

    schedopt import pretrain.sh --from megatron-args --chain profile.json --platform dgx-h100:2 -o
    now.plan.json

    schedopt import job.toml --from torchtitan-toml --chain chain.json --platform dgx-h100:1 -o
    now.plan.json

    schedopt import config_registry.py --from torchtitan-toml --config llama3_8b --chain
    profile.json --platform dgx-h100:1 -o now.plan.json

    schedopt import ds.json --from deepspeed-json --chain chain.json --gpus 8 --mem 40G --stages 4
    -o now.plan.json
    """
    from schedopt.formats import check_writable
    from schedopt.importing.launches import LAUNCH_SOURCES

    makes_plan = source in LAUNCH_SOURCES or plan is not None
    check_writable(output, *([PLAN_FORMAT] if makes_plan else [CHAIN_FORMAT, PROFILE_FORMAT]))
    _check_options(source, all_degrees, model or gpu, layers, plan, machine)
    launch.check(source)
    if source in LAUNCH_SOURCES:
        import_launch_file(file, source, launch, machine, output, as_json=as_json)
    elif plan is not None:
        _import_plan(file, plan, machine.read(), output, as_json)
    elif source in ("superscaler", "sailor"):
        from schedopt.importing import import_profile as read_profile

        with naming_options():
            found = read_profile(file, source, model=model, gpu=gpu, layers=layers)
        _write_profile(found.profile, found.notes, output, as_json)
    elif all_degrees:
        from schedopt.importing import import_degrees

        profile, notes = import_degrees(file, cuts=cuts, copies=copies, name=name)
        _write_profile(profile, notes, output, as_json)
    else:
        _import_chain(file, source, cuts, copies, name, output, as_json)


def _check_options(
    source: str,
    all_degrees: bool,
    lines: str | None,
    layers: int | None,
    plan: str | None,
    machine: PlatformOptions,
) -> None:
    """Refuse options that a format does not have."""
    from schedopt.importing.launches import LAUNCH_SOURCES

    tables = source in ("superscaler", "sailor")
    placed = [f"--{name}" for name, value in vars(machine).items() if value is not None]
    has_plans = source in (*LAUNCH_SOURCES, "superscaler")
    given = {
        "--all-degrees": all_degrees and source != "piper",
        "--model and --gpu": lines is not None and not tables,
        "--layers": layers is not None and source != "superscaler",
        "--plan": plan is not None and source != "superscaler",
        **dict.fromkeys(placed, not has_plans),
    }
    for option, wrong in given.items():
        if wrong:
            raise InputError(
                f"{source} has no such thing", field=option, way_out="Leave it out, or see --help"
            )
    if source not in LAUNCH_SOURCES and (plan is not None) != bool(placed):
        raise InputError(
            "go together",
            field=f"--plan and {placed[0] if placed else '--platform'}",
            way_out="Name a plan of the table and the GPUs that it runs on, or neither",
        )


def _import_plan(file: Path, plan: str, platform: Platform, output: Path, as_json: bool) -> None:
    from schedopt.checking import check
    from schedopt.cli.printing import print_json
    from schedopt.importing import import_plan

    with naming_options():
        result = import_plan(file, platform, plan=plan)
    result.save(output)
    found = result.plan
    assert found is not None
    violations = [str(violation) for violation in check(found)]
    step_ns = found.pattern.period_total_ns
    if as_json:
        document = {"plan": plan, "step_ns": step_ns, "stages": len(found.stages)}
        print_json({**document, "violations": violations})
        return
    typer.echo(
        f"Plan      {printable(plan)}: {counted(len(found.stages), 'stage')} of "
        f"{counted(len(found.chain.layers), 'operator')}, a step of "
        f"{counted(found.pattern.k, 'micro-batch')} in {format_duration(step_ns)}"
    )
    for violation in violations:
        typer.echo(f"Note      {violation}")
    typer.echo(f"Plan written to {output}")


def _write_profile(profile: Profile, notes: Sequence[str], output: Path, as_json: bool) -> None:
    from schedopt.cli.printing import print_json
    from schedopt.cli.profile_tables import print_profile

    profile.save(output)
    if as_json:
        document = {"name": profile.name, "layers": len(profile.variants[0].chain.layers)}
        sizes = {"tensor_degrees": list(profile.degrees), "samples": list(profile.sizes)}
        print_json({**document, **sizes, "notes": list(notes)})
        return
    print_profile(profile)
    for note in notes:
        typer.echo(f"Note      {note}")
    typer.echo(f"Profile written to {output}")


def _import_chain(
    file: Path,
    source: Any,
    cuts: Literal["order", "articulation"],
    copies: int,
    name: str | None,
    output: Path,
    as_json: bool,
) -> None:
    from schedopt.cli.printing import print_json
    from schedopt.importing import import_chain

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
