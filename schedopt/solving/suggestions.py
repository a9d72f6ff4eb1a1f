"""What to try where there is no plan: each freedom that is not allowed yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schedopt.bounds import load_bound, longest_layer_ns, memory_proof, stage_load_bound
from schedopt.problem import Problem
from schedopt.proofs import Suggestion
from schedopt.stage import SHARDS
from schedopt.tied_weights import can_copy


def suggest(problem: Problem) -> tuple[Suggestion, ...]:
    """Return what could make a plan possible, the least intrusive first.

    Examples
    --------
    >>> from schedopt import Chain, Layer, Platform
    >>> layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=4, activation_bytes=1)
    >>> chain, platform = Chain(layers=[layer] * 4), Platform(gpus=2, memory=9)
    >>> [way.value for way in suggest(Problem(chain=chain, platform=platform))]
    ['recompute', 'smaller_microbatch', 'more_gpus']
    """
    return tuple(_suggestions(problem))


def _suggestions(problem: Problem) -> Iterator[Suggestion]:
    scope, halves = problem.scope, problem.chain.has_halves
    if scope.engine is not None:
        yield from (Suggestion.ANOTHER_ORDER, Suggestion.SMALLER_MICROBATCH, Suggestion.MORE_GPUS)
        return
    if scope.period_ns is not None:
        yield Suggestion.LONGER_PERIOD
        enough = list(_against_the_load(problem, scope.period_ns, halves=halves))
        if enough:
            yield from enough
            return
        if scope.max_k == 1:
            yield Suggestion.LONGER_PATTERN
        if halves and not scope.split_backward:
            yield Suggestion.SPLIT_BACKWARD
    recomputing = replace(problem, scope=replace(scope, recompute=True))
    if not scope.recompute and memory_proof(recomputing) is None:
        yield Suggestion.RECOMPUTE
    known = all(layer.optimizer_bytes is not None for layer in problem.chain.layers)
    known &= problem.degrees == (1,)
    if problem.is_training_step and known and scope.replicas != 1:
        if scope.shard == "none":
            yield Suggestion.SHARE_OPTIMIZER
        if scope.shard != SHARDS[-1] and not problem.chain.copied:
            yield Suggestion.SHARE_MORE
    if scope.allocation != "fixed" and can_copy(problem.chain):
        yield Suggestion.COPIES
    if memory_proof(problem) is None:
        if scope.memory == "sum" and (scope.allocation == "general" or scope.grain == "layer"):
            yield Suggestion.PEAK_MEMORY
        if scope.allocation == "contiguous":
            yield Suggestion.ANY_ALLOCATION
    if scope.allocation == "fixed":
        yield Suggestion.OTHER_STAGES
    yield Suggestion.SMALLER_MICROBATCH
    yield Suggestion.MORE_GPUS


def _against_the_load(problem: Problem, period_ns: int, *, halves: bool) -> Iterator[Suggestion]:
    """Yield what else could help where the work alone takes longer than a period.

    With all that can be allowed: recompute and longer patterns do not lessen it.
    """
    free = replace(problem, scope=replace(problem.scope, split_backward=halves, grain="layer"))
    given = stage_load_bound(free)
    if problem.scope.replicas == 1 and longest_layer_ns(free) > period_ns:
        yield Suggestion.FINER_CHAIN
    elif load_bound(free).period > period_ns:
        yield from (Suggestion.SMALLER_MICROBATCH, Suggestion.MORE_GPUS)
    elif given is not None and given.period > period_ns:
        yield Suggestion.OTHER_STAGES
