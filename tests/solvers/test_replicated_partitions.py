"""What people use to choose cuts and replicas: each against its own published objective."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import Chain, Layer, Platform, Problem, Scope, Stage
from schedopt.bounds.recomputation import held_bytes
from schedopt.cuts import NoPartition
from schedopt.problem import training_step
from schedopt.solving.registry import load_partitioner
from tests.budgets import trials
from tests.solvers.test_partitions import Parts, all_parts, needed, there_and_back, time_of
from tests.strategies import platforms, small

Dealt = tuple[tuple[int, int, int], ...]
"""First layer of each stage, the layer behind its last one, and its replicas."""
COUNT = 12
"""Micro-batches of a step."""


@st.composite
def trained(draw: st.DrawFn) -> Chain:
    """Draw a chain that says what weights and optimizer take."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        parameters, optimizer = draw(small), draw(small)
        layers.append(
            Layer(
                forward_ns=draw(small),
                backward_ns=draw(small),
                weight_bytes=2 * parameters + optimizer + draw(small),
                activation_bytes=draw(small),
                saved_bytes=draw(small),
                saved_input_bytes=draw(small),
                parameter_bytes=parameters,
                gradient_bytes=parameters,
                optimizer_bytes=optimizer,
            )
        )
    return Chain(layers=tuple(layers))


def question(chain: Chain, platform: Platform, **scope: str | bool) -> Problem:
    asked = Scope(max_k=None, memory="peak", replicas=None, **scope)  # type: ignore[arg-type]
    return training_step(chain, platform, COUNT, asked)


def partition(name: str, problem: Problem) -> list[Stage]:
    return load_partitioner(name)(problem)


def dealt(stages: list[Stage]) -> Dealt:
    gpus = [gpu for stage in stages for gpu in stage.gpus]
    assert gpus == list(range(len(gpus)))
    return tuple((stage.first, stage.last + 1, len(stage.gpus)) for stage in stages)


def all_dealt(problem: Problem) -> Iterator[Dealt]:
    """Yield all cuts with replicas that divide the micro-batches, on the GPUs that there are."""
    gpus = len(problem.platform.gpus)
    counts = [number for number in range(1, gpus + 1) if COUNT % number == 0]
    for stages in range(1, min(len(problem.chain.layers), gpus) + 1):
        for parts in all_parts(problem.chain, stages):
            for replicas in product(counts, repeat=stages):
                if sum(replicas) <= gpus:
                    yield tuple((*part, r) for part, r in zip(parts, replicas, strict=True))


def parts_of(stages: Dealt) -> Parts:
    return tuple((first, end) for first, end, _ in stages)


def gpus_from(stages: Dealt) -> list[int]:
    """Return for each stage how many GPUs it and those behind it have."""
    return [sum(stage[2] for stage in stages[number:]) for number in range(len(stages))]


def sync_of(problem: Problem, first: int, end: int) -> int:
    size = sum(layer.parameter_bytes or 0 for layer in problem.chain.layers[first:end])
    link = problem.platform.link
    return link.transfer_ns(size) if link and size else 0


def up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def of_piper(problem: Problem, stages: Dealt) -> int | None:
    chain, platform = problem.chain, problem.platform
    loads = []
    for (first, end, replicas), behind in zip(stages, gpus_from(stages), strict=True):
        if needed(chain, first, end, up(behind, replicas)) > platform.gpus[0].memory_bytes:
            return None
        cuts = [cut for cut in (first, end) if 0 < cut < len(chain.layers)]
        work = time_of(chain, first, end) + sum(there_and_back(chain, platform, c) for c in cuts)
        sync = 4 * (replicas - 1) * sync_of(problem, first, end)
        loads.append(up(work * COUNT + sync, replicas * COUNT))
    return max(loads)


def of_pipedream(problem: Problem, stages: Dealt) -> int:
    times = [there_and_back(problem.chain, problem.platform, first) for first, _, _ in stages[1:]]
    for first, end, replicas in stages:
        sync = 2 * (replicas - 1) * sync_of(problem, first, end)
        times.append(up(max(time_of(problem.chain, first, end), sync), replicas))
    return max(times)


def fits_memory_option(problem: Problem, stages: Dealt) -> bool:
    for (first, end, replicas), count in zip(stages, gpus_from(stages), strict=True):
        size = sum(a.saved + a.weight_bytes for a in problem.chain.layers[first:end])
        if up(count - replicas, replicas) * size > problem.platform.gpus[0].memory_bytes:
            return False
    return True


def of_alpa(problem: Problem, stages: Dealt, *, again: bool) -> int | None:
    chain, times = problem.chain, []
    for (first, end, replicas), behind in zip(stages, gpus_from(stages), strict=True):
        layers = chain.layers[first:end]
        optimizer = sum(layer.optimizer_bytes or 0 for layer in layers)
        need = needed(chain, first, end, up(behind, replicas))
        time = time_of(chain, first, end)
        if again:
            held = held_bytes(chain, range(first, end), [(first, end - 1)])
            time += sum(layer.forward_ns for layer in layers)
            need = needed(chain, first, end, 0) + held["R", "B"]
            need += up(behind, replicas) * held["F", "B"]
        if problem.scope.shard != "none":
            need -= optimizer - up(optimizer, replicas)
        if need > problem.platform.gpus[0].memory_bytes or replicas not in (1, 2, 4):
            return None
        times.append(up(time, replicas))
    return sum(times) + (COUNT - 1) * max(times)


@trials(150)
@given(trained(), platforms())
def test_none_is_better_by_the_account_of_piper(chain: Chain, platform: Platform) -> None:
    problem = question(chain, platform)
    values = {stages: of_piper(problem, stages) for stages in all_dealt(problem)}
    possible = {stages: value for stages, value in values.items() if value is not None}
    if not possible:
        with pytest.raises(NoPartition):
            partition("piper", problem)
        return
    found = dealt(partition("piper", problem))
    least = min(possible.values())
    assert possible[found] == least
    fewest = min(gpus_from(stages)[0] for stages, value in possible.items() if value == least)
    assert gpus_from(found)[0] == fewest


@trials(150)
@given(trained(), platforms())
def test_none_is_better_by_the_account_of_pipedream(chain: Chain, platform: Platform) -> None:
    problem = question(chain, platform)
    most = max(gpus_from(stages)[0] for stages in all_dealt(problem))
    values = {
        stages: of_pipedream(problem, stages)
        for stages in all_dealt(problem)
        if gpus_from(stages)[0] == most
    }
    assert values[dealt(partition("pipedream", problem))] == min(values.values())
    within = {stages: v for stages, v in values.items() if fits_memory_option(problem, stages)}
    if within:
        found = dealt(partition("pipedream_memory", problem))
        assert within[found] == min(within.values())
    else:
        with pytest.raises(NoPartition):
            partition("pipedream_memory", problem)


@trials(150)
@given(trained(), platforms(), st.booleans(), st.sampled_from(["none", "optimizer"]))
def test_none_is_better_by_the_account_of_alpa(
    chain: Chain, platform: Platform, recompute: bool, shard: str
) -> None:
    problem = question(chain, platform, recompute=recompute, shard=shard)
    best: dict[bool, int] = {}
    for again in (False, True) if recompute else (False,):
        values = {stages: of_alpa(problem, stages, again=again) for stages in all_dealt(problem)}
        possible = {stages: value for stages, value in values.items() if value is not None}
        most = max((gpus_from(stages)[0] for stages in possible), default=0)
        for stages, value in possible.items():
            if gpus_from(stages)[0] == most:
                best[again] = min(value, best.get(again, value))
    if not best:
        with pytest.raises(NoPartition):
            partition("alpa", problem)
        return
    found = partition("alpa", problem)
    again = bool(found[0].recompute)
    assert [stage.recompute for stage in found] == [(stage.layers,) * again for stage in found]
    assert of_alpa(problem, dealt(found), again=again) == best[again] == min(best.values())
    for stage in found:
        assert stage.shard == (shard if len(stage.gpus) > 1 else "none")


@trials(100)
@given(trained(), platforms())
def test_piper_recomputes_so_that_its_stages_fit_and_no_more(
    chain: Chain, platform: Platform
) -> None:
    free, problem = question(chain, platform), question(chain, platform, recompute=True)
    try:
        stages = partition("piper", problem)
    except NoPartition:
        with pytest.raises(NoPartition):
            partition("piper", free)
        return
    if not any(stage.recompute for stage in stages):
        assert of_piper(free, dealt(stages)) is not None
    for stage, behind in zip(stages, gpus_from(dealt(stages)), strict=True):
        kept = up(behind, len(stage.gpus))
        need = needed(chain, stage.first, stage.last + 1, kept)
        # Each recomputed layer keeps its input, and what it saves is there once.
        for number in stage.recomputed_layers:
            behind_it = chain.layers[number - 1].activation_bytes if number else chain.input_bytes
            need -= (kept - 1) * chain.layers[number].saved - kept * behind_it
        assert need <= platform.gpus[0].memory_bytes


LAYER = Layer(
    forward_ns=2,
    backward_ns=4,
    weight_bytes=6,
    activation_bytes=1,
    saved_bytes=10,
    parameter_bytes=3,
    gradient_bytes=3,
    optimizer_bytes=0,
)


def test_by_hand_piper_recomputes_what_saves_most_for_its_time() -> None:
    # Alone on a GPU a stage of all layers keeps one micro-batch, in 18 + 30 bytes.
    cheap, long = replace(LAYER, forward_ns=1), replace(LAYER, forward_ns=8)
    chain = Chain(layers=(LAYER, cheap, long))
    (stage,) = partition("piper", question(chain, Platform(1, 48), recompute=True))
    assert (stage.layers, stage.recompute) == ((0, 2), ())
    # Of stages 0 1 | 2, with 11 and 12 ns, the first keeps 2 micro-batches: 12 + 40 bytes. Layer 1
    # saves 10 - 2 bytes in 1 ns, layer 0 saves 10 in 2 ns. So for 44 bytes layer 1 is recomputed.
    scope = Scope(max_k=None, memory="peak", recompute=True)
    stages = partition("piper", training_step(chain, Platform(2, 44), COUNT, scope))
    assert [(stage.layers, stage.recompute) for stage in stages] == [
        ((0, 1), ((1, 1),)),
        ((2, 2), ()),
    ]


def test_by_hand_each_adds_up_weights_in_its_own_way() -> None:
    # A byte a ns; two layers of 6 ns and 3 bytes. One stage on two GPUs: Piper counts 12 / 2 +
    # 4 x 6 / (2 x 12) = 7, on one GPU each 6 + 2 x 1 = 8. PipeDream counts 2 x 6 / 2 = 6 for the
    # weights of one stage, as for its work, and 6 for two. Four times as many bytes: Piper 10
    # against 8, PipeDream 24 against 6.
    platform = Platform(2, 99, bandwidth=10**9)
    light, heavy = (replace(LAYER, parameter_bytes=size, gradient_bytes=size, weight_bytes=2 * size)
                    for size in (3, 12))  # fmt: skip
    for layer, piper in ((light, ((0, 2, 2),)), (heavy, ((0, 1, 1), (1, 2, 1)))):
        problem = question(Chain(layers=(layer, layer)), platform)
        assert dealt(partition("piper", problem)) == piper
    assert dealt(partition("pipedream", problem)) == ((0, 1, 1), (1, 2, 1))
    # Alpa ignores both.
    assert dealt(partition("alpa", problem)) == ((0, 2, 2),)
