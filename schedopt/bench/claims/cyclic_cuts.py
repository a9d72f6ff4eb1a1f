"""Fournier and Oyallon: how even stages are that are cut at equal shares of a model's FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isqrt
from typing import Final

import numpy as np
from torch import nn

from schedopt.bench.claims.plans import ask, plain_layer, problem_of
from schedopt.bench.claims.result import Case, Computed, Step, announced, table_of
from schedopt.chain import Chain
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.profiling import estimate
from schedopt.profiling.factory import load_model
from schedopt.profiling.fake_tensors import without_memory
from schedopt.profiling.rates import Roofline
from schedopt.profiling.roofline import FlopClock
from schedopt.profiling.tracing import WithLoss

MODELS: Final = ("resnet18", "resnet50", "vit-b16")
IN_SOURCE: Final = ("resnet18", "resnet50")
STAGES: Final = (2, 4, 8, 16, 32)
SIDES: Final = ("left", "right")
RATE: Final = 10**9
"""Floating-point operations a second, so that one takes 1 ns."""
TIMES: Final = 2
"""The largest stage may have this many times the FLOPs of the best and count as similar."""


def find_evenness(
    step: Step, models: Sequence[str] = MODELS, stages: Sequence[int] = STAGES
) -> Computed:
    """C9: compare the largest stage of the rule with that of the exact contiguous optimum."""
    grains = {"modules": module_flops, "places to cut": cut_flops}
    cases = []
    for model, grain in announced(step, "{}, {}", [(m, g) for m in models for g in grains]):
        costs = grains[grain](model)
        given = {"model": model, "grain": grain, "modules": len(costs)}
        cases += [{**given, **compare_cuts(costs, count)} for count in stages]
    four = [
        case
        for case in cases
        if (case["stages"], case["grain"]) == (4, "modules") and case["model"] in IN_SOURCE
    ]
    return Computed(
        {
            "not best": _worse(cases, 1),
            f"over {TIMES} times": _worse(cases, TIMES),
            "4 stages, not best": _worse(four, 1),
            f"4 stages, over {TIMES} times": _worse(four, TIMES),
        },
        {"models": ", ".join(models), "stages": ", ".join(map(str, stages))},
        figures={
            "largest_over_best": max(case["ratio"] for case in cases),
            **{f"{case['model']}_4_stages_over_best": case["ratio"] for case in four},
            "cases_with_an_empty_stage": sum(case["empty"] > 0 for case in cases),
            "cases_that_are_best": sum(case["ratio"] == 1 for case in cases),
            "cases": len(cases),
        },
        tables=[
            table_of(
                "FLOPs of the largest stage",
                cases,
                {
                    **{name: name for name in ("model", "grain", "modules", "stages")},
                    "rule": "largest",
                    "side": "side",
                    "best": "best",
                    "ratio": lambda case: f"{case['ratio']:.3f}",
                    "best over mean": lambda case: f"{case['best_over_mean']:.3f}",
                    "empty stages": "empty",
                },
            )
        ],
    )


def compare_cuts(costs: Sequence[int], stages: int) -> Case:
    """Return the largest stage of the rule and the least possible one."""
    rules = {side: share_out(costs, stages, side) for side in SIDES}
    largest = {side: max(map(sum, parts)) for side, parts in rules.items()}
    side = min(SIDES, key=largest.__getitem__)
    best = best_bottleneck(costs, stages)
    return {
        "stages": stages,
        "side": side,
        "largest": largest[side],
        "best": best,
        "ratio": largest[side] / best,
        "best_over_mean": best * stages / sum(costs),
        "empty": sum(not part for part in rules[side]),
    }


def share_out(costs: Sequence[int], stages: int, side: str) -> list[list[int]]:
    """Return the costs of each stage when sums are cut at equal shares.

    `side` says on which side of the cut the module stands that reaches a share.
    """
    sums = np.array([*accumulate(costs)], dtype=np.int64) * stages
    shares = np.arange(1, stages, dtype=np.int64) * sum(costs)
    cuts = np.searchsorted(sums, shares, side="left") + (side == "left")
    return [[*costs[first:end]] for first, end in pairwise([0, *map(int, cuts), len(costs)])]


def best_bottleneck(costs: Sequence[int], stages: int) -> int:
    """Return the least possible cost of the largest of some contiguous stages."""
    chain = Chain(layers=tuple(plain_layer(cost, 0) for cost in costs))
    result = ask(problem_of(chain, Platform(stages, 1), Scope()), "contiguous")
    assert result.status == "optimal"
    assert result.period is not None
    return int(result.period)


def module_flops(name: str) -> list[int]:
    """Return the forward FLOPs of each module, with those between it and the one before."""
    with without_memory():
        model = load_model(f"hf:{name}")
        whole = WithLoss(model.module, model.loss)
        flops: list[int] = []
        with FlopClock(Roofline(flops=RATE)) as clock:
            last = [clock.mark()]

            def note(module: nn.Module, given: object, made: object) -> None:
                now = clock.mark()
                count = clock.between(last[0], now)
                last[0] = now
                bias = isqrt(count) if isinstance(module, nn.Linear) else 0
                flops.extend([count, bias] if bias else [count])

            for module in whole.modules():
                if not any(True for _ in module.children()):
                    module.register_forward_hook(note)
            whole(*model.args, **model.kwargs)
    return flops


def cut_flops(name: str) -> list[int]:
    """Return the forward FLOPs of each layer where the model is cut wherever it can be."""
    chain = estimate(lambda: load_model(f"hf:{name}"), flops=RATE, min_share=0)
    return [layer.forward_ns for layer in chain.layers]


def _worse(cases: Sequence[Case], times: int) -> list[Case]:
    """Return the cases whose largest stage is more than some times the best."""
    return [case for case in cases if case["largest"] > times * case["best"]]
