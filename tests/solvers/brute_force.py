"""Plans by trying everything, written from the paper and not from the solvers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product

from schedopt import Chain, Platform, Scope, Stage
from schedopt.solving.models.slots import as_layers

Cuts = tuple[tuple[int, int, int], ...]
"""First layer, last layer and GPU of each stage."""


def all_allocations(chain: Chain, platform: Platform) -> Iterator[Cuts]:
    """Yield every contiguous allocation, on GPUs in the order of the platform."""
    layers, gpus = len(chain.layers), len(platform.gpus)
    for count in range(1, min(layers, gpus) + 1):
        for cuts in combinations(range(1, layers), count - 1):
            bounds = [0, *cuts, layers]
            tied = any(group[0] < cut <= group[-1] for group in chain.same_gpu for cut in cuts)
            if tied:
                continue
            for chosen in combinations(range(gpus), count):
                yield tuple((bounds[i], bounds[i + 1] - 1, chosen[i]) for i in range(count))


def contiguous_stages(chain: Chain, platform: Platform) -> Iterator[list[Stage]]:
    """Yield the stages of every contiguous allocation, on GPUs in the order of the platform."""
    for cuts in all_allocations(chain, platform):
        yield [Stage(layers=(first, last), gpus=(gpu,)) for first, last, gpu in cuts]


def all_stages(chain: Chain, platform: Platform) -> Iterator[tuple[Stage, ...]]:
    """Yield every partition of the layers into stages, each on any GPU.

    Where all GPUs are alike, only with the GPUs in the order of their first use.
    """
    count = len(chain.layers)
    for gpus in product(range(len(platform.gpus)), repeat=count):
        used = list(dict.fromkeys(gpus))
        if platform.uniform and used != sorted(used):
            continue
        if any(len({gpus[layer] for layer in group}) > 1 for group in chain.same_gpu):
            continue
        must = [layer for layer in range(1, count) if gpus[layer] != gpus[layer - 1]]
        may = [layer for layer in range(1, count) if layer not in must]
        for chosen in product((False, True), repeat=len(may)):
            cuts = sorted(
                {0, count, *must, *(c for c, is_cut in zip(may, chosen, strict=True) if is_cut)}
            )
            yield tuple(
                Stage(layers=(first, end - 1), gpus=(gpus[first],)) for first, end in pairwise(cuts)
            )


def every_allocation(chain: Chain, platform: Platform, scope: Scope) -> Iterator[Sequence[Stage]]:
    """Yield the allocations of a scope, each layer a stage where layers run apart."""
    if scope.allocation == "general":
        yield from all_stages(chain, platform)
        return
    for stages in contiguous_stages(chain, platform):
        yield stages if scope.grain == "stage" else tuple(as_layers(stages))


def group_numbers(chain: Chain, platform: Platform, cuts: Cuts, period: int) -> list[int] | None:
    """Return the group of each stage at a period, or None if something is too long for it.

    Groups are filled from the end of the chain (Beaumont et al. 2021, Algorithm 1, phase 1). A
    full-duplex link only delays: its forward and backward lie on two resources.
    """
    lengths: list[tuple[str, int]] = []
    for place, (first, last, gpu) in enumerate(cuts):
        device = platform.gpus[gpu]
        work = sum(
            device.duration_ns(a.forward_ns) + device.duration_ns(a.backward_ns)
            for a in chain.layers[first : last + 1]
        )
        lengths.append(("stage", work))
        if last == len(chain.layers) - 1:
            continue
        after = cuts[place + 1][2]
        there, back = platform.route(gpu, after), platform.route(after, gpu)
        if there:
            one_way = platform.transfer_ns(chain.layers[last].activation_bytes, gpu, after)
            lengths.append(("half" if set(there) & set(back) else "full", one_way))
    groups: list[int] = []
    number, filled = 1, 0
    for kind, length in reversed(lengths):
        if kind == "full":
            if length > period:
                return None
            filled += 2 * length
            while filled > period:
                number, filled = number + 1, filled - period
            continue
        length = 2 * length if kind == "half" else length
        if length > period:
            return None
        if filled + length > period:
            number, filled = number + 1, 0
        filled += length
        if kind == "stage":
            groups.insert(0, number)
    return groups


def memory_fits(chain: Chain, platform: Platform, cuts: Cuts, groups: list[int]) -> bool:
    """Whether each GPU holds its weights, workspace and activations."""
    for (first, last, gpu), group in zip(cuts, groups, strict=True):
        layers = chain.layers[first : last + 1]
        saved = sum(a.activation_bytes if a.saved_bytes is None else a.saved_bytes for a in layers)
        saved += layers[0].saved_input_bytes or 0
        need = sum(a.weight_bytes for a in layers) + group * saved
        if any(a.forward_ns + a.backward_ns for a in layers):
            need += max(a.workspace_bytes or 0 for a in layers)
        if need > platform.gpus[gpu].memory_bytes - platform.gpus[gpu].reserved_bytes:
            return False
    return True


def works(chain: Chain, platform: Platform, cuts: Cuts, period: int) -> bool:
    """Whether an allocation runs with a period within memory."""
    groups = group_numbers(chain, platform, cuts, period)
    return groups is not None and memory_fits(chain, platform, cuts, groups)


def least_period(chain: Chain, platform: Platform, longest: int = 400) -> int | None:
    """Return the least period of any contiguous allocation, by trying all; None if there is none.

    What fits at one period fits at every longer one, so allocations that do not beat the best
    are dropped after one try.
    """
    best: int | None = None
    for cuts in all_allocations(chain, platform):
        top = longest if best is None else best - 1
        if top < 1 or not works(chain, platform, cuts, top):
            continue
        best = next(period for period in range(1, top + 1) if works(chain, platform, cuts, period))
    return best
