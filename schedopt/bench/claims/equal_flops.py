"""How even the stages are that are cut at equal shares of the operations of a model."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import isqrt
from typing import Any, Final

import numpy as np
from torch import nn

from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Reading, Step, Table
from schedopt.chain import Chain, Layer
from schedopt.platform import Platform
from schedopt.problem import Scope
from schedopt.profiling import estimate
from schedopt.profiling.factory import load_model
from schedopt.profiling.faking import FlopClock, without_memory
from schedopt.profiling.tracing import WithLoss
from schedopt.solving import solve

CLAIM: Final = Claim(
    id="C9",
    says="Cutting the sums of the FLOPs of a model's modules at equal shares (searchsorted) gives "
    "stages of similar FLOPs.",
    sources=(f"{CDP}, Appendix D",),
)
WITHIN: Final = (
    "similar: the largest stage has at most {times} times the FLOPs of the largest one of the "
    "best contiguous stages"
)
TIMES: Final = Fraction(2)
MODELS: Final = ("resnet18", "resnet50", "vit-b16")
PAPERS: Final = ("resnet18", "resnet50")
STAGES: Final = (2, 4, 8, 16, 32)
SIDES: Final = ("left", "right")
RATE: Final = 10**9
"""With so many operations a second an operation takes 1 ns."""


def find_evenness(
    step: Step, models: Sequence[str] = MODELS, stages: Sequence[int] = STAGES
) -> Finding:
    """Compare the largest stage of the rule with that of the exact contiguous optimum."""
    cases = []
    for model in models:
        for grain in ("modules", "places to cut"):
            step(f"{model}, {grain}")
            costs = module_flops(model) if grain == "modules" else cut_flops(model)
            cases += [
                {"model": model, "grain": grain, "modules": len(costs), **compare(costs, count)}
                for count in stages
            ]
    papers = [
        case
        for case in cases
        if case["stages"] == 4 and case["model"] in PAPERS and case["grain"] == "modules"
    ]
    tried = f"{', '.join(models)}; {', '.join(map(str, stages))} stages; modules, places to cut"
    within = WITHIN.format(times=TIMES)
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="4 stages of ResNet-18 and of ResNet-50 are as even as contiguous stages can "
                "be",
                readings=[
                    Reading(tried="both, their modules", counterexamples=_worse(papers, 1)),
                    Reading(
                        convention=within,
                        tried="both, their modules",
                        counterexamples=_worse(papers, TIMES),
                    ),
                ],
            ),
            Part(
                says="so are other numbers of stages, and stages of whole blocks",
                readings=[
                    Reading(tried=tried, counterexamples=_worse(cases, 1)),
                    Reading(
                        convention=within, tried=tried, counterexamples=_worse(cases, TIMES)
                    ),
                ],
            ),
        ],
        figures={
            "largest_over_best": max(case["ratio"] for case in cases),
            **{
                f"{case['model']}_4_stages_over_best": case["ratio"]
                for case in papers
            },
            "cases_with_an_empty_stage": sum(case["empty"] > 0 for case in cases),
            "cases_that_are_best": sum(case["ratio"] == 1 for case in cases),
            "cases": len(cases),
        },
        notes=[
            "The rule is tried with both sides of searchsorted, the module that reaches a share "
            "in the stage before the cut or behind it, and the better one is taken. Of a linear "
            "layer weight and bias count apart, the bias as the square root of the FLOPs, as in "
            "the source."
        ],
        tables=[
            Table(
                title="FLOPs of the largest stage",
                header=["model", "grain", "modules", "stages", "rule", "side", "best", "ratio",
                        "best over mean", "empty stages"],
                rows=[
                    (
                        case["model"], case["grain"], case["modules"], case["stages"],
                        case["largest"], case["side"], case["best"], f"{case['ratio']:.3f}",
                        f"{case['best_over_mean']:.3f}", case["empty"],
                    )
                    for case in cases
                ],
            )
        ],
    )  # fmt: skip


def compare(costs: Sequence[int], stages: int) -> dict[str, Any]:
    """Return the largest stage of the rule and the least possible one."""
    rules = {side: share_out(costs, stages, side) for side in SIDES}
    largest = {side: max(map(sum, parts)) for side, parts in rules.items()}
    side = min(SIDES, key=lambda side: largest[side])
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

    Parameters
    ----------
    costs : sequence of int
    stages : int
    side : {"left", "right"}
        Whether the module that reaches a share comes before the cut, or behind it.
    """
    sums = np.array([*accumulate(costs)], dtype=np.int64) * stages
    shares = np.arange(1, stages, dtype=np.int64) * sum(costs)
    reached = np.searchsorted(sums, shares, side="left")
    cuts = [int(one) + (side == "left") for one in reached]
    bounds = [0, *cuts, len(costs)]
    return [[*costs[first:end]] for first, end in pairwise(bounds)]


def best_bottleneck(costs: Sequence[int], stages: int) -> int:
    """Return the least possible cost of the largest of so many contiguous stages."""
    layers = tuple(
        Layer(forward_ns=cost, backward_ns=0, weight_bytes=0, activation_bytes=0) for cost in costs
    )
    result = solve(
        Chain(layers=layers), Platform(stages, 1), scope=Scope(), solver="contiguous", workers=1
    )
    assert result.status == "optimal"
    assert result.period is not None
    return int(result.period)


def module_flops(name: str) -> list[int]:
    """Return what each module computes forward, in order; what no module does goes to the next."""
    with without_memory():
        model = load_model(f"hf:{name}")
        whole = WithLoss(model.module, model.loss)
        found: list[int] = []
        with FlopClock(RATE) as clock:
            last = [clock.mark()]

            def note(module: nn.Module, given: object, made: object) -> None:
                now = clock.mark()
                count = clock.between(last[0], now)
                last[0] = now
                bias = isqrt(count) if isinstance(module, nn.Linear) else 0
                found.extend([count, bias] if bias else [count])

            for module in whole.modules():
                if not any(True for _ in module.children()):
                    module.register_forward_hook(note)
            whole(*model.args, **model.kwargs)
    return found


def cut_flops(name: str) -> list[int]:
    """Return what each layer computes forward where the model is cut wherever it can be."""
    chain = estimate(lambda: load_model(f"hf:{name}"), flops=RATE, min_share=0)
    return [layer.forward_ns for layer in chain.layers]


def _worse(cases: Sequence[dict[str, Any]], times: Fraction | int) -> list[dict[str, Any]]:
    """Return the cases whose largest stage is more than so many times the best."""
    return [case for case in cases if case["largest"] > times * case["best"]]
