"""Whether training with older weights ends with another accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Final

import torch

from schedopt.actions import Actions, make_actions
from schedopt.bench.claims import digits
from schedopt.bench.claims.claim import CDP, Claim, Finding, Part, Picture, Reading, Step, Table
from schedopt.bench.claims.training import make_plan, train
from schedopt.rule import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from schedopt.plan import Plan

CLAIM: Final = Claim(
    id="C10",
    says="CDP-v1 and CDP-v2 train to the accuracy of data parallelism without other "
    "hyperparameters, and CDP-v2 to a better one than CDP-v1.",
    sources=(
        f"{CDP}, Table 2",
        f"{CDP}, section 4, Results",
        f"{CDP}, Appendix D",
    ),
)
STAGES: Final = 4
SIZE: Final = 32
"""Pictures in a micro-batch: a mini-batch has 128, as in the source."""
MOMENTUM, DECAY = 0.9, 5e-4
FALLS: Final = (0.3, 0.6, 0.9)
"""After these shares of the updates the learning rate falls to a fifth, as in the source."""
CHANCE: Final = 0.05
"""A difference that chance makes more often than this is none."""
OWN_RATE: Final = "each rule with the learning rate that is best for it"


@dataclass(frozen=True)
class Effort:
    """How much is trained.

    Parameters
    ----------
    seeds : int
    rates : tuple of float
        Learning rates.
    updates : int
        Of each training.
    longer : int
        At the learning rate that is best for data parallelism also so many times as long.
    """

    seeds: int = 5
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    updates: int = 200
    longer: int = 3


@dataclass(frozen=True)
class Compared:
    """How much more accurate one rule is than another over the same seeds.

    Whether it is beyond chance is told by the exact test of all signs: were the rules alike, each
    difference might as well have the other sign. With 5 seeds all must have the same.

    Parameters
    ----------
    points : tuple of float
        A difference for each seed.
    """

    points: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of all seeds."""
        return mean(self.points)

    @property
    def is_less(self) -> bool:
        """Whether it is less, beyond chance."""
        return chance([-one for one in self.points]) <= CHANCE

    @property
    def is_more(self) -> bool:
        """Whether it is more, beyond chance."""
        return chance(self.points) <= CHANCE

    @property
    def resolved(self) -> float:
        """The least mean difference that would be told from chance with this spread, points."""
        around = [one - self.mean for one in self.points]
        low, high = 0.0, 200.0
        while high - low > 0.005:
            middle = (low + high) / 2
            seen = chance([one + middle for one in around]) <= CHANCE
            low, high = (low, middle) if seen else (middle, high)
        return high

    def to_json(self) -> dict[str, float]:
        """Return points, rounded."""
        return {"mean": round(self.mean, 2), "resolved": round(self.resolved, 2)}


def chance(points: Sequence[float]) -> float:
    """Return how often differences with any signs add up to as much or more."""
    total, sizes = sum(points), [abs(one) for one in points]
    signs = [*product((1, -1), repeat=len(points))]
    reached = sum(
        sum(sign * size for sign, size in zip(row, sizes, strict=True)) >= total - 1e-9
        for row in signs
    )
    return reached / len(signs)


Scores = dict[tuple[str, float], list[float]]
"""Accuracies in per cent, one a seed, by rule and learning rate."""


def rules(stages: int) -> dict[str, Rule]:
    """Return which weights the rules read, a micro-batch for each stage in an update.

    u_{n,j} of CDP-v2 is the newest version where j >= N - n + 1, counted from 1, else the one
    before (Fournier and Oyallon, section 2.2).
    """
    newest = [
        tuple(0 if j >= stages - n + 1 else 1 for j in range(1, stages + 1))
        for n in range(1, stages + 1)
    ]
    return {
        "DP": Rule(update_every=stages, forward_reads="delay", delay=0),
        "CDP-v1": Rule(update_every=stages, forward_reads="delay", delay=1),
        "CDP-v2": Rule(update_every=stages, forward_reads="table", table=tuple(newest)),
    }


def find_accuracies(step: Step, effort: Effort | None = None) -> Finding:
    """Train a small network by each rule, over seeds and learning rates."""
    tried = effort or Effort()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scores = _measure(step, tried)
        rate = best_rate(scores, "DP")
        long = replace(tried, rates=(rate,), updates=tried.longer * tried.updates)
        return judge(scores, _measure(step, long), tried)
    finally:
        torch.set_num_threads(threads)


def _measure(step: Step, effort: Effort) -> Scores:
    scores: Scores = {}
    for name, rule in rules(STAGES).items():
        plan = make_plan(digits.make_network(0), rule, overlap=name != "DP")
        actions = make_actions(plan, STAGES * effort.updates)
        for rate in effort.rates:
            step(f"{name}, learning rate {rate:g}, {effort.updates} updates")
            scores[name, rate] = [
                100 * _score(plan, actions, seed, rate) for seed in range(effort.seeds)
            ]
    return scores


def _score(plan: Plan, actions: Actions, seed: int, rate: float) -> float:
    learnt, tested = digits.load()
    network = digits.make_network(seed)
    batches = learnt.batches(seed, SIZE, actions.micro_batches)

    updates = actions.micro_batches // STAGES
    falls = [round(share * updates) for share in FALLS]

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, rate, momentum=MOMENTUM, weight_decay=DECAY)
        falling = torch.optim.lr_scheduler.MultiStepLR(made, falls, gamma=0.2)
        made.register_step_post_hook(lambda *_: falling.step())
        return made

    weights = train(network, plan, actions, batches, sgd).weights
    return digits.accuracy(network, weights, tested)


def judge(scores: Scores, long: Scores, effort: Effort) -> Finding:
    """Return what scores say of the claim, and those of longer trainings at DP's best rate."""
    best = {name: best_rate(scores, name) for name in dict.fromkeys(name for name, _ in scores)}
    base = best["DP"]
    same = {name: compare(scores, (name, base), ("DP", base)) for name in ("CDP-v1", "CDP-v2")}
    own = {name: compare(scores, (name, best[name]), ("DP", base)) for name in same}
    later = {name: compare(long, (name, base), ("DP", base)) for name in same}
    both = compare(scores, ("CDP-v2", base), ("CDP-v1", base))
    both_own = compare(scores, ("CDP-v2", best["CDP-v2"]), ("CDP-v1", best["CDP-v1"]))
    tried = (
        f"{effort.seeds} seeds, learning rates {', '.join(f'{r:g}' for r in effort.rates)}, "
        f"{effort.updates} updates of 128 digits, a network of {STAGES} stages"
    )

    def case(name: str, found: Compared) -> dict[str, Any]:
        return {"rule": name, "points_over_the_other": found.to_json()}

    return Finding(
        claim=CLAIM,
        parts=[
            *(
                Part(
                    says=f"{name} is not less accurate than data parallelism",
                    readings=[
                        Reading(
                            tried=f"{tried}; at the learning rate that is best for DP",
                            counterexamples=[case(name, same[name])] if same[name].is_less else [],
                        ),
                        Reading(
                            convention=OWN_RATE,
                            tried=tried,
                            counterexamples=[case(name, own[name])] if own[name].is_less else [],
                        ),
                        Reading(
                            convention=f"trained {effort.longer} times as long",
                            tried=f"{effort.seeds} seeds, learning rate {base:g}, "
                            f"{effort.longer * effort.updates} updates",
                            counterexamples=(
                                [case(name, later[name])] if later[name].is_less else []
                            ),
                        ),
                    ],
                )
                for name in same
            ),
            Part(
                says="CDP-v2 is more accurate than CDP-v1",
                readings=[
                    Reading(
                        tried=f"{tried}; at the learning rate that is best for DP",
                        counterexamples=[] if both.is_more else [case("CDP-v2", both)],
                    ),
                    Reading(
                        convention=OWN_RATE,
                        tried=tried,
                        counterexamples=[] if both_own.is_more else [case("CDP-v2", both_own)],
                    ),
                ],
            ),
        ],
        figures={
            "best_rate": best,
            "accuracy_at_best_rate": {
                name: round(mean(scores[name, rate]), 2) for name, rate in best.items()
            },
            "over_dp_at_its_rate": {name: found.to_json() for name, found in same.items()},
            "over_dp_at_own_rates": {name: found.to_json() for name, found in own.items()},
            "over_dp_after_longer_training": {
                name: found.to_json() for name, found in later.items()
            },
            "v2_over_v1_at_own_rates": both_own.to_json(),
        },
        notes=[*_limits(own, effort)],
        tables=[
            _table(scores, effort.rates, f"{effort.updates} updates"),
            _table(long, (base,), f"{effort.longer * effort.updates} updates"),
        ],
        pictures=[
            Picture(
                name="accuracy",
                title="Test accuracy by learning rate, least, mean and most over seeds",
                draw=lambda: _draw(scores, effort),
            )
        ],
    )


def best_rate(scores: Scores, name: str) -> float:
    """Return the learning rate with the best mean accuracy of a rule."""
    return max((rate for rule, rate in scores if rule == name), key=lambda r: mean(scores[name, r]))


def compare(scores: Scores, one: tuple[str, float], other: tuple[str, float]) -> Compared:
    """Compare two rules at learning rates, seed by seed."""
    return Compared(tuple(a - b for a, b in zip(scores[one], scores[other], strict=True)))


def _limits(own: dict[str, Compared], effort: Effort) -> Sequence[str]:
    widths = ", ".join(f"{name} {found.resolved:.2f}" for name, found in own.items())
    return [
        f"What cannot be resolved: over {effort.seeds} seeds with this spread, differences from "
        f"data parallelism of fewer points than these cannot be told from chance (in {CHANCE:.0%} "
        f"of all signs): {widths}. One test picture is {100 / digits.TESTED:g} points. The "
        "differences of the source's table, 0.1 to 0.7 points, are of that size.",
        "Digits of 8 x 8 and a network of four small stages say little of ImageNet; they say "
        "that the delay can cost accuracy, and at which learning rates. Other networks that were "
        "tried before, convolutions without normalisation and linear layers with layer norms, "
        "lost more with CDP-v1, and the linear ones with CDP-v2 too.",
    ]


def _table(scores: Scores, rates: Sequence[float], words: str) -> Table:
    names = dict.fromkeys(name for name, _ in scores)
    return Table(
        title=f"Test accuracy in per cent by learning rate, mean ± standard deviation over seeds, "
        f"{words}",
        header=["rule", *(f"{rate:g}" for rate in rates)],
        rows=[
            (
                name,
                *(
                    f"{mean(scores[name, rate]):.1f} ± {stdev(scores[name, rate]):.1f}"
                    for rate in rates
                ),
            )
            for name in names
        ],
    )


def _draw(scores: Scores, effort: Effort) -> Figure:
    from matplotlib.figure import Figure

    from schedopt.drawing.looks import COLOURS

    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(name for name, _ in scores)):
        found = [scores[name, rate] for rate in effort.rates]
        # A little apart, so that spreads can be told.
        places = [rate * (1 + 0.05 * (number - 1)) for rate in effort.rates]
        means = [mean(one) for one in found]
        reach = [
            [middle - min(one) for middle, one in zip(means, found, strict=True)],
            [max(one) - middle for middle, one in zip(means, found, strict=True)],
        ]
        axes.errorbar(
            places, means, yerr=reach, color=COLOURS[number], marker="o", markersize=4,
            linewidth=1.2, capsize=3, label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(effort.rates, [f"{rate:g}" for rate in effort.rates])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
