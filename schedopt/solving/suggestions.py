"""What to try where there is no plan: each option that is not given yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schedopt.bounds import load_bound, longest_layer_ns, memory_proof, stage_load_bound
from schedopt.problem import Problem


def ways_out(problem: Problem) -> str:
    """Return what could make a plan possible, the least intrusive first.

    Examples
    --------
    >>> from schedopt import Chain, Layer, Platform
    >>> layer = Layer(forward_ns=1, backward_ns=2, weight_bytes=4, activation_bytes=1)
    >>> chain, platform = Chain(layers=[layer] * 4), Platform(gpus=2, memory=9)
    >>> ways_out(Problem(chain=chain, platform=platform))
    '--recompute, a smaller micro-batch, or more GPUs'
    """
    *others, last = _ways(problem)
    return ", ".join([*others, f"or {last}"])


def _ways(problem: Problem) -> Iterator[str]:
    scope = problem.scope
    if scope.engine is not None:
        yield "another order (leave --for out)"
        yield "a smaller micro-batch"
        yield "more GPUs"
        return
    halves = problem.chain.has_halves
    if scope.period_ns is not None:
        yield "a longer period (without --period the least is found)"
        enough = list(_against_the_load(problem, scope.period_ns, halves=halves))
        if enough:
            yield from enough
            return
        if scope.max_k == 1:
            yield "--max-k 4"
        if halves and not scope.split_backward:
            yield "--split-backward"
    if not scope.recompute and memory_proof(_asking(problem, recompute=True)) is None:
        yield "--recompute"
    if memory_proof(problem) is None:
        if scope.memory == "sum" and (scope.allocation == "general" or scope.grain == "layer"):
            yield "--memory peak"
        if scope.allocation == "contiguous":
            yield "--allocation general"
    if scope.allocation == "fixed":
        yield "another allocation (leave --fix out)"
    yield "a smaller micro-batch"
    yield "more GPUs"


def _against_the_load(problem: Problem, period_ns: int, *, halves: bool) -> Iterator[str]:
    """Yield what else could help where the work alone takes longer than a period.

    With all that can be allowed: recompute and longer patterns do not lessen it.
    """
    free = replace(problem, scope=replace(problem.scope, split_backward=halves, grain="layer"))
    given = stage_load_bound(free)
    if longest_layer_ns(free) > period_ns:
        yield "a finer chain"
    elif load_bound(free).period > period_ns:
        yield "a smaller micro-batch"
        yield "more GPUs"
    elif given is not None and given.period > period_ns:
        yield "another allocation (leave --fix out)"


def _asking(problem: Problem, *, recompute: bool) -> Problem:
    return replace(problem, scope=replace(problem.scope, recompute=recompute))
