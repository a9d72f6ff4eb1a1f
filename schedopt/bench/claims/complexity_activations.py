"""Beaumont et al. 2021: which patterns of one micro-batch keep the fewest activations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product

from schedopt.account import concurrent_activations
from schedopt.bench.claims.plans import ask, checked, plain_layer, problem_of
from schedopt.bench.claims.result import Case, Computed, Step, announced
from schedopt.chain import Chain
from schedopt.checking import check
from schedopt.families.instance import stages_on
from schedopt.plan import Kind, Operation, Pattern, Plan, place_in_period
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.scope import Grain
from schedopt.solving.stage_chain import StageChain

Times = tuple[tuple[int, int], ...]
"""Forward and backward of each stage, ns."""


def find_fewest_activations(step: Step, drawn: int = 60, listed: int = 2) -> Computed:
    """P2: hold 1F1B* against exact searches, and every schedule of short chains against Lemma 1.

    Searches on `drawn` chains of 2 to 5 stages, and lists for `listed` chains of 2 and of 3.
    """
    counts = {"periods": 0, "searches": 0, "short_periods": 0, "listed": 0}
    beaten, fewer, unlike = [], [], []
    for seed in announced(step, "search, seed {}", range(drawn)):
        for times, period, least in _with_1f1b(drawn_stages(seed)):
            counts["periods"] += 1
            for stage, count in enumerate(least):
                counts["searches"] += count > 1
                if count > 1 and has_schedule(times, period, stage, count - 1) is not False:
                    case = {"stages": times, "period": period, "stage": stage, "1F1B*": count}
                    beaten.append(case)
    for seed, size in announced(step, "all schedules, {}, {}", product(range(listed), (2, 3))):
        for times, period, least in _with_1f1b(drawn_stages(seed, count=size, most=2)):
            counts["short_periods"] += 1
            for plan in schedules(times, period, (2 * period if size == 2 else period) - 1):
                counts["listed"] += 1
                kept = kept_by_stage(plan)
                case = {"stages": times, "period": period, "counts": kept, "1F1B*": least}
                fewer += [case] if any(a < b for a, b in zip(kept, least, strict=True)) else []
                unlike += [case] if breaks_lemma_1(plan) is not None else []
    apart = _layers_apart()
    return Computed(
        {"beaten": beaten, "fewer": fewer, "unlike": unlike, "apart": apart},
        {**counts, "drawn": drawn, "short": 2 * listed},
        figures={
            "exact_searches": counts["searches"],
            "schedules_listed": counts["listed"],
            "least_period_with_layers_apart": [
                {"whole": case["whole"], "apart": case["apart"]} for case in apart
            ],
        },
    )


def drawn_stages(seed: int, *, count: int | None = None, most: int = 5) -> Times:
    """Return random times of stages, none of which takes no time at all."""
    draw = random.Random(f"{seed} {count} {most}")
    size = draw.randint(2, 5) if count is None else count
    return tuple((draw.randint(0, most), draw.randint(1, most)) for _ in range(size))


def _with_1f1b(times: Times) -> Iterator[tuple[Times, int, list[int]]]:
    """Yield the periods between full overlap and none, with what 1F1B* keeps of each stage."""
    for period in range(max(map(sum, times)), sum(map(sum, times)) + 1):
        yield times, period, fewest(times, period)


def fewest(times: Times, period: int) -> list[int]:
    """Return the activations that 1F1B* keeps of each stage at a period."""
    problem = _own_gpus(times)
    return kept_by_stage(checked(StageChain(problem, problem.stages).plan(period)))


def has_schedule(times: Times, period: int, stage: int, count: int) -> bool | None:
    """Whether a schedule of at most a period keeps this few of a stage; None: not decided."""
    problem = _own_gpus(times, {stage: 1}, count)
    result = ask(replace(problem, scope=replace(problem.scope, period_ns=period)), "periodic")
    return None if result.status == "unknown" else result.plan is not None


def schedules(times: Times, period: int, longest_wait: int) -> Iterator[Plan]:
    """Yield every valid 1-periodic schedule of stages, each on its own GPU.

    An operation starts at most `longest_wait` ns after what it needs is there.
    """
    problem = _own_gpus(times)
    path: list[tuple[Kind, int]] = [("F", s) for s in range(len(times))]
    path += [("B", s) for s in reversed(range(len(times)))]
    for waits in product(range(longest_wait + 1), repeat=len(path) - 1):
        now, operations = 0, []
        for (kind, stage), wait in zip(path, (0, *waits), strict=True):
            start, shift = place_in_period(now + wait, 0, 1, period)
            operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=start))
            now += wait + times[stage][kind == "B"]
        plan = Plan(
            chain=problem.chain,
            platform=problem.platform,
            scope=problem.scope,
            stages=problem.stages,
            pattern=Pattern(k=1, period_total_ns=period, operations=tuple(operations)),
        )
        if not check(plan):
            yield plan


def breaks_lemma_1(plan: Plan) -> tuple[int, int] | None:
    """Return two neighbouring stages with equal numbers but no Equal Shift Pattern, if any.

    The pattern: the forwards run one micro-batch, and the next backward of each stage runs one
    and the same micro-batch, too.
    """
    counts = kept_by_stage(plan)
    lags = [_backward_lag(plan, stage) for stage in range(len(plan.stages))]
    for one, other in pairwise(range(len(plan.stages))):
        if counts[one] == counts[other] and lags[one] != lags[other]:
            return one, other
    return None


def _backward_lag(plan: Plan, stage: int) -> int:
    """Return how many micro-batches before that of a forward the next backward runs."""
    period = plan.pattern.period_total_ns
    own = {o.kind: o for o in plan.pattern.operations if o.stage == stage}
    forward, backward = (own[kind].start_ns - own[kind].shift * period for kind in ("F", "B"))
    return (backward - forward - plan.chain.layers[stage].forward_ns) // period


def kept_by_stage(plan: Plan) -> list[int]:
    """Return the activations that each stage keeps at the same time, a GPU each."""
    counts = concurrent_activations(plan)
    return [counts[stage, stage] for stage in range(len(plan.stages))]


def _layers_apart() -> list[Case]:
    """Return the case in which layers of one GPU that run apart do with less memory, if so.

    Three layers of 1 ns forward and back and an activation of 1 byte, two on the first GPU, which
    holds three.
    """
    chain = Chain(layers=(plain_layer(1, 1, 1),) * 3)
    periods = {}
    grains: tuple[Grain, ...] = ("stage", "layer")
    for grain in grains:
        scope = Scope(allocation="fixed", grain=grain)
        result = ask(problem_of(chain, Platform(2, 3), scope, stages_on([0, 0, 1])), "periodic")
        assert result.status == "optimal"
        periods[grain] = int(result.period or 0)
    words = "x and y on one GPU with room for 3 activations, z on another; all take 1"
    case: Case = {"layers": words, "whole": periods["stage"], "apart": periods["layer"]}
    return [case] if case["apart"] < case["whole"] else []


def _own_gpus(
    times: Times, activations: Mapping[int, int] | None = None, memory_bytes: int = 10**6
) -> Problem:
    """Return stages of one layer, each on its own GPU, with an activation of 1 byte or as given."""
    layers = tuple(
        plain_layer(*both, 1 if activations is None else activations.get(stage, 0))
        for stage, both in enumerate(times)
    )
    stages, platform = stages_on(range(len(times))), Platform(len(times), memory_bytes)
    return problem_of(Chain(layers=layers), platform, Scope(allocation="fixed"), stages)
