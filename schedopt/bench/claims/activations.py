"""Which patterns of one micro-batch keep the fewest activations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any, Final

from schedopt.account import concurrent_activations
from schedopt.bench.claims.claim import COMPLEXITY, Claim, Finding, Part, Reading, Step
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Kind, Operation, Pattern, Plan, place_in_period
from schedopt.platform import Platform
from schedopt.problem import Grain, Problem, Scope
from schedopt.solving import solve
from schedopt.solving.stage_chain import StageChain
from schedopt.stage import Stage

CLAIM: Final = Claim(
    id="P2",
    says="On contiguous stages no 1-periodic schedule of period T keeps fewer activations of any "
    "stage than 1F1B* does at T; stages that keep the same number have an Equal Shift Pattern.",
    sources=(f"{COMPLEXITY}, Theorem 3", f"{COMPLEXITY}, Lemma 1"),
)
APART: Final = "a stage runs as one: layers of one GPU that run apart are stages of their own"
ROOM: Final = 10**6
"""Memory that holds every activation there is, bytes."""

Times = tuple[tuple[int, int], ...]
"""Forward and backward of each stage, ns."""


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Parameters
    ----------
    drawn : int
        Chains of 2 to 5 stages, by seeds, each at every period worth a look.
    listed : int
        Chains of 2 and of 3 stages of which all schedules are listed.
    """

    drawn: int = 60
    listed: int = 2


def find_fewest_activations(step: Step, effort: Effort | None = None) -> Finding:
    """Hold 1F1B* against exact searches, and every schedule of short chains against the lemma."""
    tried = effort or Effort()
    searched, listed = _Tried(), _Tried()
    lemma: list[dict[str, Any]] = []
    for seed in range(tried.drawn):
        step(f"search, chain {seed + 1} of {tried.drawn}")
        _search(drawn_stages(seed), searched)
    for seed in range(tried.listed):
        step(f"all schedules, chain {seed + 1} of {tried.listed}")
        for count in (2, 3):
            lemma += _list(drawn_stages(seed, count=count, most=2), listed)
    layers = _layers_apart()
    return Finding(
        claim=CLAIM,
        parts=[
            Part(
                says="no schedule of whole stages keeps fewer activations of a stage than 1F1B*",
                readings=[
                    Reading(
                        tried=f"{tried.drawn} random chains of 2 to 5 stages at {searched.periods} "
                        f"periods: {searched.count} exact searches for one activation less",
                        counterexamples=searched.wrong,
                    )
                ],
            ),
            Part(
                says="the same, with every schedule looked at",
                readings=[
                    Reading(
                        tried=f"all {listed.count} schedules of {2 * tried.listed} random chains "
                        f"of 2 and 3 stages at {listed.periods} periods",
                        counterexamples=listed.wrong,
                    )
                ],
            ),
            Part(
                says="stages with equal numbers have an Equal Shift Pattern",
                readings=[Reading(tried="the same schedules", counterexamples=lemma)],
            ),
            Part(
                says="no schedule of the same layers on the same GPUs keeps fewer activations",
                readings=[
                    Reading(tried="3 layers on 2 GPUs, solved exactly", counterexamples=layers),
                    Reading(convention=APART, tried="see above", counterexamples=searched.wrong),
                ],
            ),
        ],
        figures={
            "exact_searches": searched.count,
            "schedules_listed": listed.count,
            "least_period_with_layers_apart": [
                {name: case[name] for name in ("whole", "apart")} for case in layers
            ],
        },
        notes=[
            "The exact search asks for a schedule of period T or less whose memory holds one "
            "activation less of one stage, all others being free: CP-SAT over all orders, which "
            "knows nothing of 1F1B*."
        ],
    )


@dataclass
class _Tried:
    """How many cases and periods were looked at, and which were wrong."""

    count: int = 0
    periods: int = 0

    def __post_init__(self) -> None:
        self.wrong: list[dict[str, Any]] = []


def drawn_stages(seed: int, *, count: int | None = None, most: int = 5) -> Times:
    """Return random times of stages, none of which takes no time at all."""
    draw = random.Random(f"{seed} {count} {most}")
    size = draw.randint(2, 5) if count is None else count
    return tuple((draw.randint(0, most), draw.randint(1, most)) for _ in range(size))


def fewest(times: Times, period: int) -> list[int]:
    """Return the activations that 1F1B* keeps of each stage at a period."""
    problem = _problem(times)
    plan = StageChain(problem, problem.stages).plan(period)
    assert not check(plan)
    return _counts(plan)


def has_schedule(times: Times, period: int, stage: int, count: int) -> bool | None:
    """Whether some schedule of a period or less keeps so few of a stage; None: not decided."""
    problem = _problem(times, {stage: 1}, count)
    result = solve(
        problem.chain,
        problem.platform,
        stages=problem.stages,
        scope=replace(problem.scope, period_ns=period),
        solver="periodic",
        workers=1,
    )
    return None if result.status == "unknown" else result.plan is not None


def schedules(times: Times, period: int, longest_wait: int) -> Iterator[Plan]:
    """Yield every valid 1-periodic schedule of stages, each on its own GPU.

    Parameters
    ----------
    longest_wait : int
        An operation starts at most so long, ns, after what it needs is there.
    """
    problem = _problem(times)
    count = len(times)
    way: list[tuple[Kind, int]] = [("F", s) for s in range(count)]
    way += [("B", s) for s in reversed(range(count))]
    lengths = [times[stage][kind == "B"] for kind, stage in way]
    for waits in product(range(longest_wait + 1), repeat=len(way) - 1):
        now, operations = 0, []
        for (kind, stage), wait, length in zip(way, (0, *waits), lengths, strict=True):
            start, shift = place_in_period(now + wait, 0, 1, period)
            operations.append(Operation(kind=kind, stage=stage, shift=shift, start_ns=start))
            now += wait + length
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
    counts = _counts(plan)
    behind = [_next_backward(plan, stage) for stage in range(len(plan.stages))]
    for one, other in pairwise(range(len(plan.stages))):
        if counts[one] == counts[other] and behind[one] != behind[other]:
            return one, other
    return None


def _next_backward(plan: Plan, stage: int) -> int:
    """Return how many micro-batches before that of a forward the next backward runs."""
    period = plan.pattern.period_total_ns
    found = {o.kind: o for o in plan.pattern.operations if o.stage == stage}
    forward, backward = (found[kind].start_ns - found[kind].shift * period for kind in ("F", "B"))
    length = plan.chain.layers[stage].forward_ns
    return (backward - forward - length) // period


def _search(times: Times, tried: _Tried) -> None:
    longest = sum(map(sum, times))
    for period in range(max(map(sum, times)), longest + 1):
        tried.periods += 1
        for stage, count in enumerate(fewest(times, period)):
            if count == 1:
                continue
            tried.count += 1
            if has_schedule(times, period, stage, count - 1) is not False:
                tried.wrong.append(
                    {"stages": times, "period": period, "stage": stage, "1F1B*": count}
                )


def _list(times: Times, tried: _Tried) -> list[dict[str, Any]]:
    """Count what is wrong about all schedules, and return those that break the lemma."""
    broken = []
    for period in range(max(map(sum, times)), sum(map(sum, times)) + 1):
        tried.periods += 1
        least = fewest(times, period)
        longest_wait = (2 * period if len(times) == 2 else period) - 1
        for plan in schedules(times, period, longest_wait):
            tried.count += 1
            counts = _counts(plan)
            case = {"stages": times, "period": period, "counts": counts, "1F1B*": least}
            if any(one < other for one, other in zip(counts, least, strict=True)):
                tried.wrong.append(case)
            if breaks_lemma_1(plan) is not None:
                broken.append(case)
    return broken


def _layers_apart() -> list[dict[str, Any]]:
    """Return the case in which layers of one GPU that run apart do with less memory, if so.

    Three layers of 1 ns forward and back and an activation of 1 byte, two on the first GPU, which
    holds three.
    """
    layer = Layer(forward_ns=1, backward_ns=1, weight_bytes=0, activation_bytes=1)
    chain = Chain(layers=(layer,) * 3)
    stages = (Stage(layers=(0, 1), gpus=(0,)), Stage(layers=(2, 2), gpus=(1,)))
    platform = Platform(2, 3)
    found = {}
    grains: tuple[Grain, ...] = ("stage", "layer")
    for grain in grains:
        scope = Scope(allocation="fixed", grain=grain)
        result = solve(chain, platform, stages=stages, scope=scope, solver="periodic", workers=1)
        assert result.status == "optimal"
        found[grain] = int(result.period or 0)
    if found["layer"] >= found["stage"]:
        return []
    return [
        {
            "layers": "x and y on one GPU with room for 3 activations, z on another; all take 1",
            "whole": found["stage"],
            "apart": found["layer"],
        }
    ]


def _problem(times: Times, activations: dict[int, int] | None = None, room: int = ROOM) -> Problem:
    """Return stages of one layer, each on its own GPU."""
    kept = dict.fromkeys(range(len(times)), 1) if activations is None else activations
    layers = tuple(
        Layer(
            forward_ns=forward,
            backward_ns=backward,
            weight_bytes=0,
            activation_bytes=kept.get(stage, 0),
        )
        for stage, (forward, backward) in enumerate(times)
    )
    return Problem(
        chain=Chain(layers=layers),
        platform=Platform(len(times), room),
        scope=Scope(allocation="fixed"),
        stages=tuple(Stage(layers=(s, s), gpus=(s,)) for s in range(len(times))),
    )


def _counts(plan: Plan) -> list[int]:
    found = concurrent_activations(plan)
    return [found[stage, stage] for stage in range(len(plan.stages))]
