"""``schedopt solve``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from schedopt.cli.fixed_plan import say_what_it_has
from schedopt.cli.options import (
    AsJson,
    FreedomOptions,
    Samples,
    SearchOptions,
    TiedLayers,
    TrainingOptions,
    TrainingStateName,
    alone,
    load_profile,
    naming_files,
    naming_options,
    refuse_together,
)
from schedopt.cli.plans import load_valid
from schedopt.cli.platform_options import OF_PLATFORM, PlatformOptions
from schedopt.cli.progress import search_line
from schedopt.cli.signals import usual_signals
from schedopt.engine import Engine
from schedopt.errors import InputError
from schedopt.plan import PLAN_FORMAT, Plan
from schedopt.problem import Problem, Scope
from schedopt.profile import Profile, Variant
from schedopt.scope import USUAL_MAX_K
from schedopt.units import parse_duration

if TYPE_CHECKING:
    from schedopt.result import Result

EXITS = {"optimal": 0, "feasible": 0, "infeasible": 3, "unknown": 4}


def solve_chain(
    *,
    chain: Annotated[
        Path | None,
        "FILE: A schedopt.chain/1 file, or a schedopt.profile/1 file: with --batch tensor groups "
        "and the size of micro-batches are chosen too. With --fix it may be left out.",
    ] = None,
    samples: Samples = None,
    machine: PlatformOptions,
    allocation: Annotated[
        Literal["contiguous", "general"] | None,
        "One stage for each GPU, or layers anywhere (the default).",
    ] = None,
    fix: Annotated[
        Path | None,
        "PLAN: Keep the stages and GPUs of this plan and find the best pattern for them. Chain "
        "and platform come from the plan, as far as they are not given.",
    ] = None,
    start: Annotated[
        Path | None,
        "PLAN: Begin with this plan, such as import makes of what you run now; none is longer.",
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--for",
            help="Only steps that Megatron-LM, torchtitan, DeepSpeed or a script with "
            "torch.distributed.pipelining runs: its own order (1F1B, or interleaved 1F1B), cuts "
            "where it can cut; with --batch also its grids of pipeline ranks, replicas and tensor "
            "groups. --microbatches: by default 4 for each GPU. See: schedopt export.",
            show_default=False,
        ),
    ] = None,
    restrictions: Annotated[
        bool,
        "With --for: also look for plans that the engine does not run, one kind more at a time, "
        "and say in the ladder what each restriction costs. 40 % of the time is for that, and what "
        "the engine's own search leaves.",
    ] = False,
    max_k: Annotated[
        int | None,
        "K: The longest pattern, in micro-batches that it repeats. Default: 2 for layers "
        "anywhere, else 1.",
    ] = None,
    freedoms: FreedomOptions,
    training_state: TrainingStateName = None,
    tied: Annotated[
        TiedLayers | None,
        "Layers with tied weights share a GPU (the default), or each has a copy wherever it lies, "
        "as Megatron-LM does. In the step of a --batch the gradients of the copies are added up; "
        "their stages share the optimizer state at most.",
    ] = None,
    training: TrainingOptions,
    microbatches: Annotated[
        int | None,
        "M: Minimise a step of this many micro-batches with a flush, not the steady state. The "
        "update of the weights is not in it: see --batch.",
    ] = None,
    period: Annotated[
        str | None,
        "TIME: A decision: is there a plan with a period (T / k) of at most 12ms? With "
        "--microbatches: with a step of at most this long for each micro-batch (T / m). Plain "
        "numbers are ns.",
    ] = None,
    solver: Annotated[
        str | None,
        "NAME: contiguous, contiguous_cpsat, engine_step, general, general_cpsat, next_fit, "
        "one_f_one_b_star, packing, periodic, relaxation, replicated, step, thinned, or one "
        "that is installed. What people use instead: alpa, block_partition, even_split, "
        "parameters_balanced, pipedream, pipedream_memory, piper, time_balanced, run by 1F1B*, and "
        "with _1f1b behind the name by 1F1B.",
    ] = None,
    search: SearchOptions,
    work_limit: Annotated[
        int | None,
        typer.Option(
            help="End the local search after this many placements; the same seed and workers then "
            "give the same plan, if no time limit ends it before.",
            min=1,
            metavar="N",
        ),
    ] = None,
    output: Annotated[Path | None, "FILE: Where to write the plan."] = None,
    as_json: AsJson = False,
) -> None:
    """Find the plan with the least period, or with --batch the shortest training step, with proof.

    Examples
    --------
    schedopt solve --chain instances/gpt2-small.json --gpus 4 --mem 4G

    schedopt solve --chain chain.json --gpus 8 --mem 16G --bandwidth 12GB/s -o plan.json

    schedopt solve --chain instances/gpt2-small.json --gpus 4 --mem 1.5G --recompute --max-k 4

    schedopt solve --chain chain.json --gpus 64 --mem 80G --bandwidth 25GB/s --batch 512

    schedopt solve --chain gpt2-tied.json --gpus 4 --mem 8G --batch 16 --tied copied

    schedopt solve --fix plan.json --bandwidth 6GB/s --max-k 4

    schedopt solve --chain chain.json --platform instances/two-nodes.platform.json

    schedopt solve --chain instances/llama-8b.json --platform dgx-h100:2 --batch 32

    schedopt solve --chain profile.json --platform dgx-h100:8 --batch 512 --tensor-parallel 4

    schedopt solve --chain chain.json --gpus 8 --mem 80G --for megatron --batch 64 --restrictions

    schedopt solve --chain llama.json --platform dgx-h100:8 --batch 64 --for torchtitan
    """
    from schedopt.formats import check_writable
    from schedopt.result import Result
    from schedopt.solving import still_valid
    from schedopt.solving.registry import default_scope
    from schedopt.solving.restrictions import solve_restricted
    from schedopt.solving.sizes import say_left_out, solve_sizes, steps_of_sizes

    _refuse_contradictions(allocation, fix, max_k, microbatches, solver, engine)
    if start is not None and fix is not None:
        refuse_together("--start", "--fix", "which begins with its own plan")
    _refuse_beside_batch(training, fix, max_k, microbatches)
    if output is not None:
        check_writable(output, PLAN_FORMAT)
    fixed = Result.load(fix).plan if fix is not None else None
    initial = None if start is None else load_valid(start)[1]
    platform = machine.read(fixed.platform if fixed else None)
    if engine is not None and microbatches is None and training.batch is None:
        # Every step of an engine ends with a flush.
        microbatches = 4 * len(platform.gpus)
    profile = _profile(chain, training_state, tied, samples, fixed, fix)
    source = chain or fix
    assert source is not None
    layers = alone(profile, source) if training.batch is None else profile.variants[0].chain
    longest = None if period is None else _longest(period)
    usual = default_scope(solver, fixed=fixed is not None)
    if allocation is not None:
        longest_pattern = USUAL_MAX_K if allocation == "general" else 1
        usual = replace(usual, allocation=allocation, max_k=longest_pattern)
    with naming_options({**OF_PLATFORM, "engine": "for"}):
        scope = Scope(
            allocation=usual.allocation,
            max_k=None if microbatches is not None else (usual.max_k if max_k is None else max_k),
            microbatches=microbatches,
            period_ns=longest,
            engine=engine,
            **freedoms.fields(usual.memory),
        )
    with (
        naming_options({**machine.names, "tensor": "tensor-parallel"}),
        naming_files(source, fix, start),
    ):
        stages = fixed.stages if fixed is not None else ()
        network = platform.network
        # A switch is a node without GPUs.
        nodes = sum(node.gpus > 0 for node in network.nodes) if network is not None else 1
        scope = training.widen(scope, layers, freedoms, usual.replicas, nodes=nodes)
        training.check_groups(platform)
        if profile.degrees == (1,):
            scope = _without_groups(scope, training)
        if training.batch is None:
            problem = Problem(chain=layers, platform=platform, scope=scope, stages=stages)
            problems = [problem]
            initial = initial if fixed is None else still_valid(fixed, problem)
        else:
            problems = steps_of_sizes(profile, platform, training.batch, scope)
        with search_line() as show, usual_signals():
            result = (solve_restricted if restrictions else solve_sizes)(
                problems,
                solver=solver,
                work_limit=work_limit,
                initial=initial,
                on_progress=show,
                **vars(search),
            )
    if output is not None and result.plan is not None:
        result.save(output)
    _print(result, output, as_json)
    if fixed is not None and (remark := say_what_it_has(fixed, result, str(fix))):
        typer.echo(remark, err=as_json)
    if training.batch is not None and (sizes := say_left_out(profile, training.batch)):
        typer.echo(f"Left out  {sizes}", err=as_json)
    raise typer.Exit(EXITS[result.status])


def _refuse_contradictions(
    allocation: str | None,
    fix: Path | None,
    max_k: int | None,
    microbatches: int | None,
    solver: str | None,
    engine: str | None,
) -> None:
    """Refuse options that contradict one another."""
    from schedopt.solving.registry import CHOOSE_ALLOCATION

    if fix is not None and allocation is not None:
        refuse_together("--allocation", "--fix", "which keeps the allocation")
    if fix is not None and solver in CHOOSE_ALLOCATION:
        raise InputError(
            f"{solver} chooses the allocation itself",
            field="--solver",
            way_out="Leave --fix out, or use periodic, which keeps the stages of the plan",
        )
    if engine is not None and fix is not None:
        refuse_together("--for", "--fix", "which keeps the stages")
    for option, value in (("--microbatches", microbatches), ("--for", engine)):
        if value is not None and max_k is not None:
            refuse_together("--max-k", option, "which makes one pattern of the whole step")


def _refuse_beside_batch(
    training: TrainingOptions,
    fix: Path | None,
    max_k: int | None,
    microbatches: int | None,
) -> None:
    """Refuse options that contradict --batch, or mean nothing without it."""
    if training.batch is None:
        if training.replicas is not None and microbatches is not None:
            raise InputError(
                "replicas add their gradients up at the end of a step, which is not in it",
                field="--replicas",
                way_out="Ask for a batch (--batch) in place of --microbatches",
            )
        return
    others = {
        "--fix": (fix, "which keeps the stages"),
        "--max-k": (max_k, "which makes one pattern of the whole step"),
        "--microbatches": (microbatches, "which says how many micro-batches a step has, too"),
    }
    for option, (value, why) in others.items():
        if value is not None:
            refuse_together("--batch", option, why)


def _without_groups(scope: Scope, training: TrainingOptions) -> Scope:
    """Return a scope for a profile that has no tensor groups."""
    if training.tensor_parallel not in (None, 1):
        raise InputError(
            "the chain says nothing of tensor groups",
            field="--tensor-parallel",
            way_out="Give a schedopt.profile/1 file with variants of several tensor degrees, or "
            "leave it out",
        )
    return replace(scope, tensor=1)


def _profile(
    path: Path | None,
    training_state: str | None,
    tied: TiedLayers | None,
    samples: int | None,
    plan: Plan | None,
    fix: Path | None,
) -> Profile:
    """Return what is in a file, or without one the chain of a plan; both are the same."""
    if path is None:
        if plan is None:
            raise InputError("not given", field="--chain", way_out="Name a schedopt.chain/1 file")
        given = {"--training-state": training_state, "--tied": tied, "--samples": samples}
        for option, value in given.items():
            if value is not None:
                raise InputError(
                    "given without a chain",
                    field=option,
                    way_out="Name the chain too (--chain), or leave it out: the plan has its own",
                )
        return Profile(variants=(Variant(tensor=1, chain=plan.chain),))
    profile = load_profile(path, training_state, tied or "together", samples)
    if plan is not None and plan.chain.sha256 not in {
        variant.chain.sha256 for variant in profile.variants
    }:
        raise InputError(
            f"the plan was made for another chain than {path}",
            field="chain_sha256",
            way_out="Leave --chain out, or fix a plan of this chain",
            source=str(fix),
        )
    return profile


def _longest(period: str) -> int:
    """Return the period that a plan may have at most, ns."""
    longest = parse_duration(period, field="--period")
    if longest == 0:
        raise InputError(
            f"{period!r} is less than 1 ns", field="--period", way_out="Give a longer time"
        )
    return longest


def _print(result: Result, output: Path | None, as_json: bool) -> None:
    if as_json:
        from schedopt.cli.printing import print_json
        from schedopt.cli.result_tables import summarise

        print_json(summarise(result))
        return
    from schedopt.cli.result_tables import print_result

    print_result(result)
    if output is not None and result.plan is not None:
        typer.echo(f"Plan written to {output}")
