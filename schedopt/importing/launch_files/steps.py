"""The step that a launch file starts, laid out as its engine runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from schedopt.bounds.load import load_bound
from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.engine import TITLES, why_not_together
from schedopt.errors import InputError
from schedopt.importing.launch_files.launch import Launch, Layers
from schedopt.importing.launch_files.splitting import spans, units_within
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope, training_step, widest_step
from schedopt.profile import Profile, say_measured
from schedopt.result import Result
from schedopt.simulation.delaying import delay_transfers
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import has_expert_copies, is_spelled_out, lay_out_step
from schedopt.solving.replicas.layout import lay_out_turns
from schedopt.stage import Stage, say_shared
from schedopt.systems.config import SystemConfig
from schedopt.systems.data_parallel import list_buckets
from schedopt.systems.flush_step import Turn
from schedopt.systems.zero import gathered_step
from schedopt.transformer_blocks import find_blocks
from schedopt.units import counted
from schedopt.validation import show
from schedopt.version import __version__

SOLVER: Final = "imported"
MOST_TRANSFERS: Final = 150_000
"""Of a step whose replicas share gradients or parameters: they take half a minute."""


def lay_out(launch: Launch, profile: Profile, platform: Platform) -> Result:
    """Return the step of a launch file as a plan; whether it fits is the status.

    It ends with the sum of the gradients and the update, where the chain says what these take; a
    chain that does not has steps of one replica.

    Raises
    ------
    InputError
        If the profile lacks the size of micro-batches or the tensor groups, or the plan would not
        be valid for another reason than memory.
    """
    problem = _problem(launch, profile, platform)
    _check_groups(launch, problem)
    _check_ties(launch, problem)
    plan = _lay_out_layers(launch, problem) if launch.shard in ("gradient", "parameter") else None
    plan = plan or _lay_out_stages(launch, problem)
    found = check(plan)
    if plan.scope.engine and any(violation.kind == "scope" for violation in found):
        # Solvers for the engine look at fewer plans than it runs.
        plan = replace(plan, scope=replace(plan.scope, engine=None))
        found = check(plan)
    wrong = [violation for violation in found if violation.kind != "memory"]
    if wrong:
        raise InputError(
            f"as a plan of this chain it is not valid: {wrong[0]}",
            way_out="Give the chain of the model that the file is for",
        )
    asked = plan.problem
    # What holds for all plans holds for those of an engine.
    every = replace(asked, scope=replace(asked.scope, engine=None))
    return Result(
        problem=asked,
        status="unknown" if found else "feasible",
        plan=plan,
        bounds=(load_bound(every),),
        solver=SOLVER,
        version=__version__,
    )


def _check_experts(launch: Launch) -> None:
    """Require that rows of replicas share the experts of a layer, as plans have it."""
    expert, replicas, copies = launch.expert, launch.replicas, launch.shard_copies
    if expert == 1 or (expert == replicas and copies == 1):
        return
    has = _say_experts(launch)
    if replicas % expert:
        raise InputError(
            has,
            field="replicas",
            way_out=f"Name the GPUs of {expert} replicas or a multiple, or let fewer share the "
            "experts",
        )
    if copies > 1 or launch.shard in ("gradient", "parameter"):
        raise InputError(
            f"{has} that share {say_shared(launch.shard, copies)}: of those with the same experts, "
            "plans have all share the optimizer state at most",
            field="replicas",
            way_out="Import it with the optimizer state shared among all replicas, or with as many "
            "replicas as share the experts",
        )


def _check_known_experts(launch: Launch, chain: Chain) -> None:
    """Require that a chain says what experts take of which several replicas have the same."""
    if launch.expert < launch.replicas and chain.expert > 1 and not chain.knows_experts:
        raise InputError(
            f"{_say_experts(launch)}, some of which have the same: the chain does not say what "
            "experts take",
            field="layers",
            way_out="Give expert_parameter_bytes, expert_gradient_bytes and expert_optimizer_bytes "
            "of each layer, as a profile of a shape does, or import it for the GPUs of "
            f"{launch.expert} replicas, without the sums between others",
        )


def _say_experts(launch: Launch) -> str:
    replicas = counted(launch.replicas, "replica")
    return f"{launch.expert} GPUs share the experts of a layer, and a stage has {replicas}"


def _problem(launch: Launch, profile: Profile, platform: Platform) -> Problem:
    """Return the question whose answer the step is: how long a step of its batch must take."""
    _check_experts(launch)
    if launch.samples not in profile.sizes:
        raise InputError(
            f"none is for micro-batches of {launch.samples} samples, as the file has them, but for "
            f"{' and '.join(map(str, profile.sizes))}",
            field="variants",
            way_out=f"Profile the model with micro-batches of {launch.samples} samples",
        )
    own = (launch.samples, launch.recomputed_modules)
    if own not in profile.measured:
        raise InputError(
            f"none is for {say_measured(own)}, as the file has it, but for "
            f"{' and '.join(map(say_measured, profile.measured))}",
            field="variants",
            way_out="Profile layers that do so, and say so in each chain (recomputed_modules: "
            f"{show([*launch.recomputed_modules])}), as a profile of a shape does"
            if launch.recomputed_modules
            else "Profile layers that keep all that they need",
        )
    chain, variants = profile.of_size(*own)
    for name, what in (("context", "a sequence"), ("expert", "the experts of a layer")):
        own, asked = getattr(chain, name), getattr(launch, name)
        if own != asked:
            raise InputError(
                f"{counted(own, 'GPU')} to {what}, and {asked} by the file",
                field="variants",
                way_out=f"Profile the model with {counted(asked, 'GPU')} to {what}, and say so in "
                f"each chain ({name}: {asked})",
            )
    _check_known_experts(launch, chain)
    why, _ = why_not_together(
        chain, launch.engine, shared=launch.shard != "none", tensor=launch.tensor
    )
    if why:
        raise InputError(
            f"{chain.sharing}, and {why}",
            field="experts",
            way_out="Give degrees with which it runs: all replicas share the state, and have one "
            "GPU each",
        )
    count = launch.replicas * launch.microbatches
    shared = launch.shard in ("gradient", "parameter")
    if not chain.knows_gradients:
        if launch.replicas > 1 or launch.tensor > 1:
            raise InputError(
                f"the chain has no gradient_bytes, and the file {launch.replicas} replicas in "
                f"tensor groups of {launch.tensor}",
                field="layers",
                way_out="Profile the model with schedopt profile",
            )
        scope = Scope(
            allocation="general",
            max_k=None,
            memory="peak",
            recompute=True,
            microbatches=count,
            engine=launch.engine,
        )
        return Problem(chain=chain, platform=platform, scope=scope)
    scope = widest_step(chain, tensor=None if variants else 1)
    scope = replace(scope, engine=None if shared else launch.engine)
    if shared:
        scope = replace(scope, shard=launch.shard)
    scope = replace(scope, hybrid=launch.shard_copies > 1)
    if any(kind in ("I", "W") for row in launch.rows or () for kind, *_ in row):
        scope = replace(scope, engine=None, split_backward=True)
    return training_step(chain, platform, chain.samples_of(count), scope, variants)


def _check_groups(launch: Launch, problem: Problem) -> None:
    """Require what the layers cost in tensor groups, and that groups lie inside nodes."""
    if launch.tensor not in problem.degrees:
        raise InputError(
            f"none of {launch.samples} samples is for tensor groups of {launch.tensor}, as the "
            "file has them",
            field="variants",
            way_out=f"Profile the model in groups of 1 and {launch.tensor} GPUs, with "
            f"micro-batches of {launch.samples} samples",
        )
    if launch.shard == "optimizer":
        problem.chain.require(
            "optimizer_bytes",
            range(len(problem.chain.layers)),
            needed_by="a shard of the optimizer state",
        )


def _check_ties(launch: Launch, problem: Problem) -> None:
    """Require that tied layers share a rank, or have copies."""
    for group in problem.chain.same_gpu:
        ranks = {
            launch.home(number)
            for number, (first, last) in enumerate(launch.stages)
            if any(first <= layer <= last for layer in group)
        }
        if len(ranks) > 1:
            layers, told = (" and ".join(map(str, sorted(found))) for found in (group, ranks))
            raise InputError(
                f"layers {layers} have the same weights, and lie on ranks {told} by the file",
                field="layers",
                way_out="Give each a copy of them, as engines do (tied_weights.copy_tied_weights)",
            )


def _lay_out_stages(launch: Launch, problem: Problem) -> Plan:
    """Return the step on its stages, in the order of the engine or of the file."""
    grid = Grid(
        ranks=launch.ranks,
        chunks=len(launch.stages) // launch.ranks,
        replicas=launch.replicas,
        tensor=launch.tensor,
        shard=launch.shard,
        copies=launch.shard_copies,
        recomputed=max(map(len, launch.recompute), default=0),
    )
    stages = [
        Stage(
            layers=layers,
            gpus=tuple(
                grid.gpu(launch.home(number), replica) for replica in range(launch.replicas)
            ),
            recompute=again,
            shard=launch.shard,
            tensor=launch.tensor,
            shard_copies=launch.shard_copies,
        )
        for number, (layers, again) in enumerate(zip(launch.stages, launch.recompute, strict=True))
    ]
    if launch.rows is None:
        folded = not is_spelled_out(problem, grid)
        if not folded and (launch.shard_copies > 1 or has_expert_copies(problem, grid)):
            _check_size(launch, len(stages))
        return lay_out_step(problem, grid, stages, folded=folded)
    return lay_out_turns(problem, stages, _of_replicas(launch, launch.rows))


def _of_replicas(launch: Launch, rows: tuple[tuple[Turn, ...], ...]) -> Iterator[Turn]:
    """Yield what each GPU runs, replica j the micro-batches j, d + j, 2d + j and so on."""
    for row in rows:
        for kind, stage, i in row:
            for replica in range(launch.replicas):
                yield kind, stage, i * launch.replicas + replica


def _lay_out_layers(launch: Launch, problem: Problem) -> Plan:
    """Return the step of replicas that share gradients or parameters: it runs layer by layer.

    The next layer's weights are fetched while one runs. Inside a node everything goes straight
    home, gradients behind each backward. Between nodes it goes round in rings, gradients once a
    step, as they do where there is one backward.
    """
    runs = [run for runs in launch.recompute for run in runs]
    units = _units(problem.chain)
    _check_size(launch, len(units))
    gpus = tuple(range(0, launch.replicas * launch.tensor, launch.tensor))
    stages = [
        Stage(
            layers=(first, last),
            gpus=gpus,
            recompute=tuple(units_within(runs, (first, last))),
            shard=launch.shard,
            tensor=launch.tensor,
            shard_copies=launch.shard_copies,
        )
        for first, last in units
    ]
    in_rings = goes_in_rings(problem.platform) and launch.shard_copies == 1
    if launch.shard_copies > 1:
        _check_groups_of_shards(launch, problem.platform)
    if in_rings and launch.shard == "parameter":
        config = SystemConfig(
            chain=problem.chain,
            platform=problem.platform,
            microbatches=launch.replicas * launch.microbatches,
            variants=problem.variants,
        )
        plan = gathered_step(config, stages)
        return replace(delay_transfers(plan), scope=problem.scope)
    numbers = range(len(stages))
    row: list[Turn] = []
    for i in range(launch.microbatches):
        row += [("F", stage, i) for stage in numbers]
        row += [("B", stage, i) for stage in reversed(numbers)]
    once = launch.shard == "gradient" and launch.microbatches == 1
    ahead = {} if once or in_rings else dict.fromkeys(numbers, 1)
    return lay_out_turns(problem, stages, _of_replicas(launch, (tuple(row),)), ahead=ahead)


def _check_groups_of_shards(launch: Launch, platform: Platform) -> None:
    """Require that replicas that share all state, and copy it in groups, lie in one node."""
    size, network = launch.tensor * launch.replicas // launch.shard_copies, platform.network
    if network is None:
        return
    for first in range(0, launch.replicas * launch.tensor, size):
        if len({network.node_of[gpu] for gpu in range(first, first + size)}) > 1:
            raise InputError(
                f"GPUs {first} to {first + size - 1} share all state in {launch.shard_copies} "
                "groups, and lie in several nodes, where weights go round in rings of all replicas",
                field="replicas",
                way_out="Import it with groups that lie in a node, or with one group",
            )


def _units(chain: Chain) -> list[Layers]:
    """Return what is shared and fetched as one: a transformer layer, or each layer with weights."""
    try:
        begins = sorted(find_blocks(chain).begins)
    except InputError:
        return list_buckets(chain, 1)
    return [*spans(begins, len(chain.layers))]


def _check_size(launch: Launch, units: int) -> None:
    """Refuse a step with more transfers than can be laid out."""
    reads = 2 + any(launch.recompute) if launch.shard == "parameter" else 1
    rounds = 1 if launch.shard == "optimizer" else reads * launch.microbatches
    copies, size = launch.shard_copies, launch.replicas // launch.shard_copies
    within, between = launch.replicas**2 * (size - 1) // size, 2 * launch.replicas * (copies - 1)
    if launch.expert > 1:
        between += 2 * launch.replicas * (launch.replicas // launch.expert - 1)
    sent = units * (within * (rounds + 1) + between)
    if sent > MOST_TRANSFERS:
        raise InputError(
            f"its {launch.replicas} replicas send {sent} messages in a step, and at most "
            f"{MOST_TRANSFERS} are laid out",
            way_out="Import it for fewer GPUs, in steps of as many micro-batches for each",
        )


def say_assumed(launch: Launch, platform: Platform) -> tuple[str, ...]:
    """Return in sentences what the engine does otherwise than the plan."""
    shared = launch.shard in ("gradient", "parameter")
    if not (shared and launch.microbatches > 1):
        return ()
    if launch.shard_copies > 1:
        return (
            f"Sums of groups are added up once a step; {TITLES[launch.engine]} does so behind each "
            "backward, which takes more time where it does not hide",
        )
    if not goes_in_rings(platform):
        return ()
    return (
        f"Gradients go round between nodes once a step; {TITLES[launch.engine]} sends them behind "
        "each backward, which takes less memory and perhaps more time",
    )


def goes_in_rings(platform: Platform) -> bool:
    """Whether what replicas share goes round in rings: between nodes."""
    network = platform.network
    return network is not None and sum(node.gpus > 0 for node in network.nodes) > 1
