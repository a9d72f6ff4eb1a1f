"""What people use to cut a chain: each against its own published objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Gpu, Platform, Stage, solve
from schedopt.cuts import NoPartition
from schedopt.problem import Problem
from schedopt.solvers.block_partition import block_starts
from schedopt.solving.registry import load_partitioner
from tests.budgets import trials
from tests.layers import layer
from tests.strategies import chains, platforms, platforms_of_nodes

Parts = tuple[tuple[int, int], ...]
"""First layer of each part, and the layer behind its last one."""


def all_parts(chain: Chain, count: int) -> Iterator[Parts]:
    """Yield every way to cut a chain into so many parts that keeps tied layers together."""
    layers = len(chain.layers)
    for cuts in combinations(range(1, layers), count - 1):
        if not any(group[0] < cut <= group[-1] for group in chain.same_gpu for cut in cuts):
            yield tuple(pairwise((0, *cuts, layers)))


def most_stages(chain: Chain, platform: Platform) -> int:
    counts = range(1, min(len(chain.layers), len(platform.gpus)) + 1)
    return max(count for count in counts if any(all_parts(chain, count)))


def partition(name: str, chain: Chain, platform: Platform) -> list[Stage]:
    return load_partitioner(name)(Problem(chain=chain, platform=platform))


def parts_of(stages: list[Stage]) -> Parts:
    assert [stage.gpus for stage in stages] == [(gpu,) for gpu in range(len(stages))]
    return tuple((stage.first, stage.last + 1) for stage in stages)


def time_of(chain: Chain, first: int, end: int) -> int:
    return sum(a.forward_ns + a.backward_ns for a in chain.layers[first:end])


def there_and_back(chain: Chain, platform: Platform, cut: int) -> int:
    """Return what the slowest pair of GPUs takes for an activation and its gradient."""
    gpus = range(len(platform.gpus))
    size = chain.layers[cut - 1].activation_bytes
    return 2 * max(platform.transfer_ns(size, a, b) for a in gpus for b in gpus)


def smallest(platform: Platform) -> int:
    return min(gpu.memory_bytes for gpu in platform.gpus)


def heaviest(chain: Chain, platform: Platform, parts: Parts) -> int:
    return max(sum(a.weight_bytes for a in chain.layers[first:end]) for first, end in parts)


def longest(chain: Chain, platform: Platform, parts: Parts) -> int:
    return max(time_of(chain, *part) for part in parts)


def of_pipedream(chain: Chain, platform: Platform, parts: Parts) -> int:
    sent = [there_and_back(chain, platform, first) for first, _ in parts[1:]]
    return max([longest(chain, platform, parts), *sent])


def of_pipedream_with_memory(chain: Chain, platform: Platform, parts: Parts) -> int | None:
    for stage, (first, end) in enumerate(parts):
        size = sum(a.saved + a.weight_bytes for a in chain.layers[first:end])
        if (len(parts) - (stage + 1)) * size > smallest(platform):
            return None
    return of_pipedream(chain, platform, parts)


def needed(chain: Chain, first: int, end: int, kept: int) -> int:
    """Return the bytes of a stage that keeps some micro-batches."""
    layers = chain.layers[first:end]
    saved = sum(a.saved for a in layers) + (layers[0].saved_input_bytes or 0)
    timed = time_of(chain, first, end)
    workspace = max(a.workspace_bytes or 0 for a in layers) if timed else 0
    return sum(a.weight_bytes for a in layers) + workspace + kept * saved


def of_piper(chain: Chain, platform: Platform, parts: Parts) -> int | None:
    loads = []
    for kept, (first, end) in zip(range(len(parts), 0, -1), parts, strict=True):
        if needed(chain, first, end, kept) > smallest(platform):
            return None
        cuts = [cut for cut in (first, end) if 0 < cut < len(chain.layers)]
        loads.append(
            time_of(chain, first, end) + sum(there_and_back(chain, platform, cut) for cut in cuts)
        )
    return max(loads)


def of_alpa(chain: Chain, platform: Platform, parts: Parts) -> int | None:
    for kept, (first, end) in zip(range(len(parts), 0, -1), parts, strict=True):
        if needed(chain, first, end, kept) > smallest(platform):
            return None
    return longest(chain, platform, parts)


OBJECTIVES: dict[str, Callable[[Chain, Platform, Parts], int | None]] = {
    "parameters_balanced": heaviest,
    "time_balanced": longest,
    "pipedream": of_pipedream,
    "pipedream_memory": of_pipedream_with_memory,
    "piper": of_piper,
    "alpa": of_alpa,
}


@trials(120)
@given(chains(longest=7, tied=True), platforms(unequal=True, most=5) | platforms_of_nodes())
def test_none_is_better_by_its_own_account_than_what_a_partitioner_finds(
    chain: Chain, platform: Platform
) -> None:
    most = most_stages(chain, platform)
    for name, account in OBJECTIVES.items():
        # Alpa uses as many GPUs as fit, Piper none that brings nothing.
        counts = range(1, most + 1) if name in ("piper", "alpa") else [most]
        values = {
            parts: account(chain, platform, parts)
            for count in counts
            for parts in all_parts(chain, count)
        }
        possible = {parts: value for parts, value in values.items() if value is not None}
        if not possible:
            with pytest.raises(NoPartition):
                partition(name, chain, platform)
            continue
        if name == "alpa":
            most_of = max(map(len, possible))
            possible = {parts: v for parts, v in possible.items() if len(parts) == most_of}
        found = parts_of(partition(name, chain, platform))
        least = min(possible.values())
        assert possible[found] == least
        if name == "piper":
            assert len(found) == min(len(p) for p, value in possible.items() if value == least)


@trials(500)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_blocks_differ_by_the_largest_element_at_most(
    sizes: list[int], data: st.DataObject
) -> None:
    # Barany and Grinberg 2015, Theorem 1.
    blocks = data.draw(st.integers(1, len(sizes)))
    starts = block_starts(sizes, blocks)
    assert (starts[0], starts[-1], len(starts)) == (0, len(sizes), blocks + 1)
    assert starts == sorted(starts)
    totals = [sum(sizes[first:end]) for first, end in pairwise(starts)]
    assert max(totals) - min(totals) <= max(sizes)


@trials(50)
@given(chains(longest=8, tied=True), platforms())
def test_the_block_partition_covers_the_chain_and_keeps_tied_layers_together(
    chain: Chain, platform: Platform
) -> None:
    found = parts_of(partition("block_partition", chain, platform))
    assert found in set(all_parts(chain, len(found)))
    assert len(found) <= len(platform.gpus)


def chain_of(*rows: tuple[int, int, int]) -> Chain:
    """Return layers of (F + B, weights, activation), each of which saves its activation."""
    layers = (layer(time // 2, time - time // 2, a, weight=w, sent=a) for time, w, a in rows)
    return Chain(layers=tuple(layers))


def test_by_hand_weights_and_times_are_balanced_apart() -> None:
    # Weights 5 | 1 1 1: the heaviest part weighs 5. Times 1 1 1 | 6: the longest takes 6.
    chain = chain_of((1, 5, 0), (1, 1, 0), (1, 1, 0), (6, 1, 0))
    assert parts_of(partition("parameters_balanced", chain, Platform(2, 99))) == ((0, 1), (1, 4))
    assert parts_of(partition("time_balanced", chain, Platform(2, 99))) == ((0, 3), (3, 4))


def test_by_hand_the_block_partition_need_not_be_the_best() -> None:
    # It starts from equal numbers, 3 1 | 1 1 with 4 and 2. They differ by 2, the largest is 3: it
    # stops there, where 3 | 1 1 1 is balanced.
    chain = chain_of((3, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0))
    assert parts_of(partition("block_partition", chain, Platform(2, 99))) == ((0, 2), (2, 4))
    assert parts_of(partition("time_balanced", chain, Platform(2, 99))) == ((0, 1), (1, 4))


def test_by_hand_blocks_move_elements_away_from_the_largest() -> None:
    # 9 9 | 1 1 | 1 1: 18, 2 and 2 differ by more than 9. The nearest of the small ones takes a 9
    # from its neighbour, the largest: 9 | 9 1 1 | 1 1 with 9, 11 and 2 differ by 9.
    assert block_starts([9, 9, 1, 1, 1, 1], 3) == [0, 1, 4, 6]
    # 4 4 | 4 4 | 1 1 | 1 1, with 8, 8, 2, 2: the third takes a 4 of the second, 8, 4, 6, 2. These
    # still differ by more than 4. Now the last takes a 1 of the third, 8, 4, 5, 3, and then
    # again, 8, 4, 4, 4: they differ by 4.
    assert block_starts([4, 4, 4, 4, 1, 1, 1, 1], 4) == [0, 2, 3, 4, 8]


def test_by_hand_pipedream_avoids_a_slow_transfer() -> None:
    # Behind layer 0: stages of 2 and 6, 2 x 1 ns for the transfers, so 6. Behind layer 1: 4 and 4,
    # but 2 x 10 ns.
    chain = chain_of((2, 0, 1), (2, 0, 10), (4, 0, 0))
    slow = Platform(2, 99, bandwidth=10**9)
    assert parts_of(partition("pipedream", chain, slow)) == ((0, 1), (1, 3))
    assert parts_of(partition("pipedream", chain, Platform(2, 99))) == ((0, 2), (2, 3))


def test_by_hand_the_memory_option_of_pipedream_is_wrong_in_both_directions() -> None:
    # Stage 0 counts (2 - 1) x (1 + 1) = 2 <= 5 bytes, stage 1 counts 0, though it needs 11.
    chain = chain_of((2, 1, 1), (2, 10, 1))
    found = partition("pipedream_memory", chain, Platform(2, 5))
    assert parts_of(found) == ((0, 1), (1, 2))
    assert solve(chain, Platform(2, 5), solver="pipedream_memory").plan is None
    # Of three stages the first counts twice, 2 x (4 + 0) = 8 > 6, but holds its weights once.
    thrice = chain_of((2, 4, 0), (2, 4, 0), (2, 4, 0))
    with pytest.raises(NoPartition, match="for 3 GPUs"):
        partition("pipedream_memory", thrice, Platform(3, 6))
    assert solve(thrice, Platform(3, 6), solver="contiguous").period == 2


def test_by_hand_piper_adds_transfers_to_the_load_and_counts_from_the_end() -> None:
    # One stage takes 8. Cut in the middle each takes 4 and 2 x 2 ns of transfers: 8 too, so one
    # GPU is enough. With 2 x 1 ns it is 6, on two.
    far, near = (chain_of((4, 0, a), (4, 0, 0)) for a in (2, 1))
    platform = Platform(2, 99, bandwidth=10**9)
    assert parts_of(partition("piper", far, platform)) == ((0, 2),)
    assert parts_of(partition("piper", near, platform)) == ((0, 1), (1, 2))
    # Three stages of 4: the first keeps 3 x 5 bytes; with 14 the first two layers must not lie
    # apart. 0 1 | 2 keeps 2 x (5 + 1) = 12 and takes 8; 0 | 1 2 keeps 2 x 5 and takes 8 too.
    three = chain_of((4, 0, 5), (4, 0, 1), (4, 0, 1))
    assert len(partition("piper", three, Platform(3, 15))) == 3
    assert parts_of(partition("piper", three, Platform(3, 14))) == ((0, 1), (1, 3))
    # With 9 only one stage holds 5 + 1 + 1 once, with 6 none does.
    assert parts_of(partition("piper", three, Platform(3, 9))) == ((0, 3),)
    with pytest.raises(NoPartition, match="the s-th stage from the end"):
        partition("piper", three, Platform(3, 6))


def test_unequal_gpus_count_with_the_smallest_memory() -> None:
    # Of four layers that weigh 4 and save 1, a GPU of 9 bytes holds one at most.
    chain = chain_of(*[(3, 4, 1)] * 4)
    gpus = [Gpu(memory_bytes=99), Gpu(memory_bytes=9)]
    with pytest.raises(NoPartition):
        partition("piper", chain, Platform(gpus))
