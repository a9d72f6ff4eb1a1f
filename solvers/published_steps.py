"""The training steps of published systems, which no search for one should be longer than."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from schedopt.account import fits
from schedopt.errors import InputError
from schedopt.problem import Problem
from schedopt.solving.replicas.layout import ITEM_S, count_chunks, count_items
from schedopt.solving.run import Run
from schedopt.stage import SHARDS, Shard
from schedopt.systems.catalogue import find_system
from schedopt.systems.config import SystemConfig

WHOLE: Final[dict[str, Shard]] = {
    "zero_1": "optimizer",
    "dp_by_layer": "none",
    "dp_overlapped": "none",
    "dp_bucketed": "none",
    "dp_blocking": "none",
    "zero_2": "gradient",
    "zero_3": "parameter",
}
"""Systems in which each GPU runs the whole chain, with what they share of its state."""
PIPELINES: Final = (
    "interleaved",
    "chimera",
    "zero_bubble",
    "one_f_one_b_flush",
    "gpipe",
)
"""Systems in which each GPU runs a part of the chain, all for the same micro-batches.

The search for contiguous stages begins with those of the last ones.
"""
SEVERAL_STAGES: Final = ("interleaved", "chimera")
"""Those of them in which a GPU has several stages."""
SHARED: Final[dict[Shard, tuple[str, ...]]] = {
    "none": (),
    "optimizer": ("optimizer_bytes",),
    "gradient": ("optimizer_bytes", "gradient_bytes"),
    "parameter": ("optimizer_bytes", "gradient_bytes", "parameter_bytes"),
}
"""What a level of shards shares."""
MOST_PUBLISHED: Final = 32768
"""Layers times GPUs times micro-batches up to which they are laid out."""


def report_published(problem: Problem, run: Run) -> None:
    """Report the steps of published systems that answer the problem, if they are the shortest."""
    scope, platform, count = problem.scope, problem.platform, problem.scope.microbatches or 1
    if len(problem.chain.layers) * len(platform.gpus) * count > MOST_PUBLISHED:
        return
    config = SystemConfig(chain=problem.chain, platform=platform, microbatches=count)
    for name in (*PIPELINES, *WHOLE):
        if run.stopped() or run.settled():
            return
        if not (_is_allowed(problem, name) if name in WHOLE else _is_in_scope(problem, name)):
            continue
        left = run.remaining()
        if left is not None and left < _needed_s(problem, name):
            continue
        with suppress(InputError):
            plan = replace(find_system(name).plan(config), scope=scope)
            best, asked = run.period(), scope.period_ns
            if (
                plan.rule == problem.rule
                and scope.allows(plan.stages)
                and (best is None or plan.pattern.period < best)
                and (asked is None or plan.pattern.period <= asked)
                and fits(plan, buffers=False)
            ):
                run.report_if_valid(plan)


def _needed_s(problem: Problem, name: str) -> float:
    """Return how long the step of a system takes to be laid out and checked, about, seconds."""
    layers, gpus = len(problem.chain.layers), len(problem.platform.gpus)
    count = problem.scope.microbatches or 1
    if name in PIPELINES:
        return ITEM_S * count_items(gpus, count)
    # Layer by layer: operations, what goes home or comes for each, and rings.
    sent = {"gradient": gpus, "parameter": 3 * gpus}.get(WHOLE[name], 0)
    return ITEM_S * layers * (count * (2 + sent) + count_chunks(gpus))


def _is_in_scope(problem: Problem, name: str) -> bool:
    """Whether the steps of a pipeline may be of the scope."""
    scope = problem.scope
    apart = scope.allocation == "general" or name not in SEVERAL_STAGES
    return apart and (scope.split_backward or name != "zero_bubble")


def _is_allowed(problem: Problem, name: str) -> bool:
    """Whether a system in which each GPU runs all layers may share what it does, and fits."""
    allowed = SHARDS[: SHARDS.index(problem.scope.shard) + 1]
    return WHOLE[name] in allowed and _may_fit(problem, WHOLE[name])


def _may_fit(problem: Problem, shard: Shard) -> bool:
    """Whether the weights of the whole chain may fit on each GPU."""
    layers, gpus = problem.chain.layers, problem.platform.gpus
    held = sum(layer.weight_bytes for layer in layers)
    for name in SHARED[shard]:
        total = sum(getattr(layer, name) or 0 for layer in layers)
        held -= total - -(-total // len(gpus))
    return held <= min(gpu.usable_bytes for gpu in gpus)
