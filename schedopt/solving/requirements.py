"""What solvers require of a problem: refusals with their ways out, and sizes that are searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schedopt.engine import TITLES, why_not_together
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.stage import Stage

MOST_PLACES: Final = 64
"""Layers times GPUs, of which all allocations and orders are searched: one query takes seconds."""
MOST_PLACES_WITHOUT_ORDERS: Final = 512
"""The same for a chain that keeps nothing for a micro-batch."""


def refuse_unsupported(problem: Problem, solver: str) -> None:
    """Raise `InputError` for what a solver of 1-periodic operations does not do.

    A plan whose backwards are whole is one of those that a split backward allows.
    """
    refuse_updates(problem, solver)
    if problem.scope.microbatches is not None:
        raise InputError(
            f"{solver} does not do a finite step",
            field="scope.microbatches",
            way_out="Leave the number of micro-batches (Scope.microbatches) out, or use the solver "
            "step",
        )
    if not problem.scope.recompute and any(stage.recompute for stage in problem.stages):
        raise InputError(
            "the stages recompute layers, which the scope does not allow",
            field="stages",
            way_out="Allow it (Scope.recompute), or leave it out of the stages",
        )


def refuse_apart(problem: Problem) -> None:
    """Raise `InputError` where GPUs cannot share sequences or experts as the chain says."""
    chain, scope, gpus = problem.chain, problem.scope, len(problem.platform.gpus)
    field = "chain.expert" if chain.expert > 1 else "chain.context"
    if not problem.is_training_step:
        raise InputError(
            f"{chain.sharing}, and add their gradients up in a training step",
            field=field,
            way_out="Ask for a batch (solve.batch), or give a profile of one GPU without others",
        )
    if gpus < chain.together:
        raise InputError(
            f"{gpus}, and {chain.sharing}",
            field="platform.gpus",
            way_out=f"Give {chain.together} or more, or a profile of one GPU without others",
        )
    if scope.replicas is not None and scope.replicas < chain.together:
        raise InputError(
            f"{scope.replicas}, and {chain.sharing}",
            field="scope.replicas",
            way_out=f"Allow {chain.together} or more, or any number (None)",
        )
    if (scope.microbatches or 0) % chain.together:
        raise InputError(
            f"{scope.microbatches} are no multiple of {chain.together} replicas, which run each "
            "operation at the same time",
            field="scope.microbatches",
            way_out=f"Give a multiple of {chain.together}, or another batch (solve.batch)",
        )
    if scope.engine is None:
        return
    why, way_out = why_not_together(
        chain, scope.engine, shared=scope.shard != "none", tensor=scope.tensor or 1
    )
    if why:
        raise InputError(f"{chain.sharing}, and {why}", field=field, way_out=way_out)
    network = problem.platform.network
    # With tensor groups they may take more than a node, and then several.
    known = [] if network is None or problem.degrees != (1,) else network.nodes
    nodes = [node.gpus for node in known]
    for count in (gpus, *(count for count in nodes if count > chain.together)):
        if count % chain.together:
            raise InputError(
                f"{count} in a row, no multiple of {chain.together}: {chain.sharing}, and "
                f"{TITLES[scope.engine]} takes all",
                field="platform.gpus",
                way_out=f"Give a multiple of {chain.together} GPUs, in all and in each node, or no "
                "engine (Scope.engine)",
            )


def refuse_updates(problem: Problem, solver: str) -> None:
    """Raise `InputError` for a rule with updates."""
    if not problem.rule.is_given:
        raise InputError(
            f"{solver} does not do a rule with updates", field="rule", way_out="Leave the rule out"
        )


def refuse_stages(problem: Problem, solver: str) -> None:
    """Raise `InputError` for stages that are given to a solver that makes its own."""
    if problem.scope.allocation == "fixed":
        raise InputError(
            f"{solver} chooses the allocation itself",
            field="solver",
            way_out="Leave the fixed stages out, or use one_f_one_b_star",
        )


def require_stages(problem: Problem, solver: str) -> None:
    """Raise `InputError` unless every layer lies in one of the stages, each on one GPU."""
    if problem.scope.allocation != "fixed":
        # Where no stages are given, periodic improves the best plan so far.
        lacking = "no plan so far to improve" if solver == "periodic" else f"{solver} needs stages"
        raise InputError(
            lacking,
            field="solver",
            way_out="Fix the stages of a plan (Problem.stages), or leave the choice of solvers to "
            "schedopt",
        )
    count = len(problem.platform.gpus)
    most = max(stage.gpus[0] for stage in problem.stages)
    for number, stage in enumerate(problem.stages):
        if len(stage.gpus) > 1:
            raise InputError(
                f"{solver} needs one GPU for each stage",
                field="stages",
                way_out="Give stages without replicas",
            )
        if not 0 <= stage.gpus[0] < count:
            raise InputError(
                f"stage {number} lies on GPU {stage.gpus[0]}, and there are {count}, "
                f"from 0 to {count - 1}",
                field=f"stages[{number}].gpus",
                way_out=f"Give at least {most + 1} GPUs (Platform(gpus={most + 1})), or stages for "
                "fewer"
                if most >= count
                else "Number GPUs from 0",
            )
    layers = [layer for stage in problem.stages for layer in stage.layer_range]
    if layers != list(range(len(problem.chain.layers))):
        raise InputError(
            f"the stages do not hold each of {len(problem.chain.layers)} layers once and in order",
            field="stages",
            way_out="Start each stage behind the last layer of the one before",
        )
    home = {layer: stage.gpus[0] for stage in problem.stages for layer in stage.layer_range}
    for group in problem.chain.same_gpu:
        for layer in group[1:]:
            if home[layer] != home[group[0]]:
                raise InputError(
                    f"layers {group[0]} and {layer} are tied (same_gpu), and lie on GPU "
                    f"{home[group[0]]} and GPU {home[layer]}",
                    field="stages",
                    way_out="Give stages that hold them on one GPU, or leave the allocation free "
                    "(without Problem.stages)",
                )


def require_contiguous(problem: Problem, solver: str) -> None:
    """Raise `InputError` unless each GPU has one of the stages that are given."""
    if not is_contiguous(problem.stages):
        raise InputError(
            f"{solver} needs one stage for each GPU",
            field="stages",
            way_out="Give a contiguous allocation, or use periodic",
        )


def is_contiguous(stages: Sequence[Stage]) -> bool:
    """Whether each GPU has one of these stages."""
    used = [stage.gpus[0] for stage in stages]
    return len(set(used)) == len(used)


def keeps_nothing(problem: Problem) -> bool:
    """Whether a chain keeps nothing for a micro-batch, nor any input to recompute from."""
    return not problem.scope.recompute and not any(
        layer.saved or layer.saved_input_bytes or layer.saved_weight_bytes
        for layer in problem.chain.layers
    )


def most_places(problem: Problem) -> int:
    """Return how many layers times GPUs are searched at most."""
    return MOST_PLACES_WITHOUT_ORDERS if keeps_nothing(problem) else MOST_PLACES


def is_short(problem: Problem) -> bool:
    """Whether all allocations can be searched at once."""
    places = len(problem.chain.layers) * len(problem.platform.gpus)
    return problem.platform.network is None and places <= most_places(problem)
