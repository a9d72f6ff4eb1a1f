"""What the work alone takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from schedopt.bounds.scopes import widest
from schedopt.chain import Layer
from schedopt.interrupts import never_stop, raise_if_stopped
from schedopt.platform import Gpu
from schedopt.problem import Problem
from schedopt.proofs import Proof, ProofKind
from schedopt.result import Bound
from schedopt.validation import as_ratio


def load_bound(problem: Problem) -> Bound:
    """Return the bound that the work alone gives, for any allocation and any k.

    In T ns the GPUs do at most T times the sum of their speeds of work, and a pattern holds k
    times the work of all layers; one GPU runs each layer whole, so T / k is also at least the
    longest layer on the fastest GPU (Beaumont et al. 2021, proof of Theorem 5). And of the n P + 1
    longest layers some GPU runs n + 1. Rounding each half of a split backward up takes at least as
    long as rounding their sum. Replicas share a layer, so that only the work of all counts then. In
    a tensor group all GPUs work on it; of each layer the size of groups counts with the least work.
    """
    split = problem.scope.split_backward
    speeds = sum((gpu.speed for gpu in problem.platform.gpus), Decimal(0))
    total = sum(
        least_in_groups(problem, lambda layer: layer.forward_ns + least_backward(layer, split))
    )
    # Where two are equal, the one that says more about the work comes first.
    bounds = [(Fraction(total) / Fraction(speeds), ProofKind.SHARED_WORK)]
    if problem.scope.replicas == 1 and problem.degrees == (1,):
        bounds += [
            (Fraction(longest_layer_ns(problem)), ProofKind.LONGEST_LAYER),
            (Fraction(_crowded_ns(problem)), ProofKind.LONG_LAYERS),
        ]
    value, kind = max(bounds, key=lambda bound: bound[0])
    return Bound(exact=as_ratio(value), scope=widest(problem.scope), proof=Proof(kind))


def least_in_groups(problem: Problem, cost: Callable[[Layer], int]) -> list[int]:
    """Return what each layer costs on all GPUs of a tensor group together, at least."""
    groups = [(tensor, problem.in_group(tensor).layers) for tensor in problem.degrees]
    return [
        min(tensor * cost(layers[number]) for tensor, layers in groups)
        for number in range(len(problem.chain.layers))
    ]


def longest_layer_ns(problem: Problem) -> int:
    """Return how long the longest layer takes on the fastest GPU, ns."""
    return max(_layers_ns(problem))


def one_after_the_other_ns(problem: Problem) -> Fraction:
    """Return a period that is possible on any allocation on which there is a plan at all, ns.

    One micro-batch after the other, and its operations in the order that they have in the plan,
    hold no more than the plan does.
    """
    platform, layers = problem.platform, problem.chain.layers
    slowest = min(platform.gpus, key=lambda gpu: gpu.speed)
    total = 0
    for layer in layers:
        halves = (layer.backward_input_ns, layer.backward_weight_ns)
        backs = [layer.backward_ns, *(half or 0 for half in halves)]
        total += 2 * slowest.duration_ns(layer.forward_ns) + sum(map(slowest.duration_ns, backs))
        total += 2 * platform.longest_transfer_ns(layer.activation_bytes)
    return Fraction(max(1, total))


def _layers_ns(problem: Problem) -> list[int]:
    """Return how long each layer takes on the fastest GPU, ns."""
    fastest = max(problem.platform.gpus, key=lambda gpu: gpu.speed)
    split = problem.scope.split_backward
    return [
        fastest.duration_ns(layer.forward_ns) + fastest.duration_ns(least_backward(layer, split))
        for layer in problem.chain.layers
    ]


def _crowded_ns(problem: Problem) -> int:
    """Return the longest that n + 1 of the n P + 1 longest layers take at least, over all n, ns."""
    times, gpus = sorted(_layers_ns(problem), reverse=True), len(problem.platform.gpus)
    shared = range(1, (len(times) - 1) // gpus + 1)
    return max((sum(times[n * gpus - n : n * gpus + 1]) for n in shared), default=0)


def stage_load_bound(problem: Problem, stopped: Callable[[], bool] = never_stop) -> Bound | None:
    """Return the bound that the work of each GPU gives where the stages are given, for any k.

    A GPU runs its stages once for each micro-batch, each backward whole or in halves, whichever is
    shorter: of a stage, or of every layer where these run apart. Recompute only adds to it.

    Returns
    -------
    Bound or None
        None if no stages are given, or some that do not fit chain and platform.
    """
    scope, gpus = problem.scope, problem.platform.gpus
    if scope.allocation != "fixed" or not _are_possible(problem):
        return None
    raise_if_stopped(stopped)
    work = [0] * len(gpus)
    for stage in problem.stages:
        gpu, layers = gpus[stage.gpus[0]], problem.chain.layers[stage.first : stage.last + 1]
        runs = [layers] if scope.grain == "stage" else [(layer,) for layer in layers]
        work[stage.gpus[0]] += sum(_least_work(gpu, run, scope.split_backward) for run in runs)
    busiest = max(range(len(gpus)), key=lambda gpu: work[gpu])
    return Bound(
        exact=as_ratio(work[busiest]),
        scope=replace(widest(scope), allocation="fixed", grain=scope.grain),
        proof=Proof(ProofKind.WORK_OF_STAGES, gpu=busiest),
    )


def _are_possible(problem: Problem) -> bool:
    """Whether each stage that is given lies on one GPU of the platform, and holds its layers."""
    most, count = len(problem.chain.layers), len(problem.platform.gpus)
    return all(
        len(stage.gpus) == 1 and 0 <= stage.gpus[0] < count and stage.last < most
        for stage in problem.stages
    )


def _least_work(gpu: Gpu, layers: Sequence[Layer], split: bool) -> int:
    """Return how long layers that run as one occupy a GPU at least, ns."""
    forward = sum(gpu.duration_ns(layer.forward_ns) for layer in layers)
    backward = sum(gpu.duration_ns(layer.backward_ns) for layer in layers)
    if split:
        halves = sum(
            gpu.duration_ns(layer.backward_input_ns or 0)
            + gpu.duration_ns(layer.backward_weight_ns or 0)
            for layer in layers
        )
        backward = min(backward, halves)
    return forward + backward


def least_backward(layer: Layer, split: bool) -> int:
    """Return how long the backward of a layer occupies its GPU at least, ns at speed 1."""
    halves = (layer.backward_input_ns or 0) + (layer.backward_weight_ns or 0)
    return min(layer.backward_ns, halves) if split else layer.backward_ns


def layers_through_time(problem: Problem) -> int:
    """Return how many layers there are up to the last whose way there or back takes time.

    Those behind may begin and end at one instant, one after the other.
    """
    split = problem.scope.split_backward
    timed = (
        time > 0
        for time in least_in_groups(
            problem, lambda layer: layer.forward_ns + way_back(layer, split)
        )
    )
    return max((number + 1 for number, one in enumerate(timed) if one), default=0)


def way_back(layer: Layer, split: bool) -> int:
    """Return how long the gradient takes through a layer at least, ns at speed 1.

    It leaves at the end of the backward, or of its input half.
    """
    return min(layer.backward_ns, layer.backward_input_ns or 0) if split else layer.backward_ns
