"""Proofs of bounds in plain words."""

from __future__ import annotations

import re
from typing import Final

from schedopt.proofs import Proof, ProofKind

_SEARCH: Final = "A complete search (with CP-SAT, a solver of OR-Tools) found no "
_SHORTER: Final = f"{_SEARCH}plan with a shorter period."
_FLIGHT: Final = (
    "The shorter the period, the more micro-batches are on their way at once, and what they keep "
    "must fit the memory."
)
_WORK: Final = "A GPU or a link cannot do more in a period than work all the time."
_STEP: Final = (
    "In a step every GPU waits for the first micro-batch, and for the last one to come back."
)
_STAR: Final = "For these stages no order keeps less in memory."
_MEMORY: Final = (
    "Even one micro-batch after the other, which keeps the least, needs more memory than there is."
)
_FOLLOWS: Final = "What is proven of the period lies above the one that was asked."
EXPLANATIONS: Final[dict[ProofKind, str]] = {
    ProofKind.SHARED_WORK: _WORK,
    ProofKind.LONGEST_LAYER: _WORK,
    ProofKind.LONG_LAYERS: _WORK,
    ProofKind.WORK_OF_STAGES: _WORK,
    ProofKind.WORK_OF_RESOURCE: _WORK,
    ProofKind.RESOURCE_TOO_BUSY: _WORK,
    ProofKind.IN_FLIGHT_OF_STAGE: _FLIGHT,
    ProofKind.IN_FLIGHT_OF_ALL: _FLIGHT,
    ProofKind.IN_FLIGHT_CUTS: _FLIGHT,
    ProofKind.IN_FLIGHT_INSTANTS: (
        f"{_FLIGHT[:-1]} at every instant: also when a forward has just started, or a backward is "
        "about to end."
    ),
    ProofKind.STEP_OF_GPUS: _STEP,
    ProofKind.STEP_IN_FLIGHT: (
        f"{_STEP[:-1]}. The shorter it is, the more of them are on their way at once, and what "
        "they keep must fit the memory."
    ),
    ProofKind.STEP_OF_AVERAGES: (
        "All GPUs together have so much time in a step, and so much room beside the weights. A "
        "layer keeps what it saves until all layers behind it are through, or computes it again. "
        "However the layers lie, all micro-batches together take more of one or the other."
    ),
    ProofKind.STEP_OF_GRADIENTS: (
        "All GPUs together do the work of all micro-batches. Behind its last backward each one "
        "waits while replicas add their gradients up, and new weights come; and the fewer have one "
        "of the first layers, the later the others begin, and the sooner they end. However the "
        "layers lie, there must be time for all of this."
    ),
    ProofKind.STEP_OF_STAGES: _STEP,
    ProofKind.STEP_OF_RESOURCE: _STEP,
    ProofKind.TRAINING_STEP: (
        f"{_STEP[:-1]}. Replicas share the work of a stage, and add their gradients up behind it. "
        "Every way to cut the chain, and all numbers of replicas, were taken into account."
    ),
    ProofKind.NO_STAGES_WITH_REPLICAS: _MEMORY,
    ProofKind.ONE_F_ONE_B_STAR: _STAR,
    ProofKind.STAGE_NEEDS: _STAR,
    ProofKind.CONTIGUOUS_DP: (
        "Every way to cut the chain was taken into account, each in the order that keeps the least "
        "in memory."
    ),
    ProofKind.REPLICATED_DP: (
        "Every way to cut the chain, and all numbers of replicas, were taken into account, each in "
        "the order that keeps the least in memory while all replicas of a stage do the same."
    ),
    ProofKind.ORDERS: _SHORTER,
    ProofKind.ORDERS_OF_STEP: _SHORTER,
    ProofKind.CONTIGUOUS_ALLOCATIONS: _SHORTER,
    ProofKind.ALLOCATIONS: _SHORTER,
    ProofKind.ALLOCATIONS_WITHOUT_ORDERS: _SHORTER,
    ProofKind.PACKINGS_ONTO_GPUS: _SHORTER,
    ProofKind.PACKINGS_INTO_HOLES: _SHORTER,
    ProofKind.RELAXATION: (
        f"{_SEARCH}way to give layers to GPUs with a shorter period, even with work, memory and "
        "transfers only added up, and nothing put in order."
    ),
    ProofKind.ORDERS_OF_GPUS: (
        "Layers have weights of which no GPU can hold its share: all sets of layers that weigh so "
        "much were ruled out, by work, by memory, or as their operations have no order on one GPU."
    ),
    ProofKind.ORDERS_OF_ALLOCATIONS: (
        "All sets of layers that a GPU may hold were listed. Of all ways to share layers out in "
        "such sets none is left whose GPUs have orders of their operations that agree on times."
    ),
    ProofKind.ENGINE_CUTS: (
        "The engine runs its own order, so only the cuts were left to choose: each was laid out, "
        "or a bound showed that it is no shorter."
    ),
    ProofKind.ENGINE_PATHS: (
        "The engine runs its own order, so a step takes as long as its longest path of operations "
        "that wait for each other. Of no cut are all known paths shorter: parts of all cuts were "
        "bounded by sums of paths."
    ),
    ProofKind.NO_ENGINE_CUT: "Every cut that the engine can run needs more memory than there is.",
    ProofKind.NO_ENGINE_GRID: (
        "Ranks are no more than the parts that the engine does not cut, and replicas have equal "
        "numbers of micro-batches. Without a pipeline, those of torchtitan have one each, since it "
        "adds gradients up behind each."
    ),
    ProofKind.NO_SHORT_ENGINE_CUT: (
        "Every cut that the engine can run needs more memory than there is, or more time than "
        "asked."
    ),
    ProofKind.LAYER_TOO_LARGE: "A layer lies on one GPU, with what it saves for a micro-batch.",
    ProofKind.LAYERS_TOO_LARGE: "All layers must lie somewhere, with what they save.",
    ProofKind.GPU_LACKS_MEMORY: _MEMORY,
    ProofKind.NO_MEMORY_FOR_ONE: _MEMORY,
    ProofKind.FILLED_STAGE: (
        "A stage with room for one micro-batch begins the next one when that is through."
    ),
    ProofKind.GPU_NEEDS: "Every other way to cut the chain needs even more memory on some GPU.",
    ProofKind.NO_MEMORY_HELPS: "The period is too short for the work, or for the transfers.",
    ProofKind.PERIOD_ABOVE: _FOLLOWS,
    ProofKind.BOUND_ABOVE: _FOLLOWS,
    ProofKind.CLAIMED: (
        "It rests on the word of another package: plans are checked here, and bounds cannot be."
    ),
}
"""What each kind of proof means to a reader who has never seen one."""


def explain_proof(proof: Proof | str) -> str:
    """Return in plain words why a bound holds; empty for a proof of another package."""
    if isinstance(proof, Proof):
        return EXPLANATIONS[proof.kind]
    kind = _KINDS.get(_without_numbers(proof))
    return "" if kind is None else EXPLANATIONS[kind]


def _without_numbers(words: str) -> str:
    return re.sub(r"\d+|\{\w+\}", "#", words)


_KINDS: Final = {_without_numbers(kind.words): kind for kind in ProofKind}
"""The kind of a proof that an older file says in its words."""
