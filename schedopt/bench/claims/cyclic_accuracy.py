"""Fournier and Oyallon: whether training with older weights ends with another accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Final

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from schedopt.bench.claims.result import Case, Computed, Picture, Step, Table, announced
from schedopt.bench.claims.training import Network, make_plan, train
from schedopt.rule import Rule
from schedopt.systems.cyclic import freshest, one_ago

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES: Final = 4
SIZE: Final = 32
"""Pictures in a micro-batch: a mini-batch has 128, as in the source."""
MOMENTUM, DECAY = 0.9, 5e-4
FALLS: Final = (0.3, 0.6, 0.9)
"""After these shares of the updates the learning rate falls to a fifth, as in the source."""
TESTED: Final = 500
"""Pictures that are kept from training."""
CHANCE: Final = 0.05
"""A difference that chance makes more often than this does not count."""

Scores = dict[tuple[str, float], list[float]]
"""Accuracies in per cent, one a seed, by rule and learning rate."""


@dataclass(frozen=True)
class Difference:
    """How much more accurate one rule is than another over the same seeds.

    Whether it is beyond chance is told by the exact test of all signs: were the rules alike, each
    difference might as well have the other sign. With 5 seeds all must have the same.
    """

    points: tuple[float, ...]
    """For each seed."""

    @property
    def is_less(self) -> bool:
        """Whether it is less, beyond chance."""
        return chance([-point for point in self.points]) <= CHANCE

    @property
    def is_more(self) -> bool:
        """Whether it is more, beyond chance."""
        return chance(self.points) <= CHANCE

    @property
    def resolved(self) -> float:
        """The least mean difference that would be told from chance with this spread, points."""
        around = [point - mean(self.points) for point in self.points]
        low, high = 0.0, 200.0
        while high - low > 0.005:
            middle = (low + high) / 2
            seen = chance([point + middle for point in around]) <= CHANCE
            low, high = (low, middle) if seen else (middle, high)
        return high

    def to_json(self) -> dict[str, float]:
        """Return points, rounded."""
        return {"mean": round(mean(self.points), 2), "resolved": round(self.resolved, 2)}

    def to_case(self, rule: str) -> Case:
        """Return it as a counterexample."""
        return {"rule": rule, "points_over_the_other": self.to_json()}


def chance(points: Sequence[float]) -> float:
    """Return how often differences with any signs add up to as much or more."""
    total, sizes = sum(points), [abs(point) for point in points]
    signs = [*product((1, -1), repeat=len(points))]
    reached = sum(
        sum(sign * size for sign, size in zip(row, sizes, strict=True)) >= total - 1e-9
        for row in signs
    )
    return reached / len(signs)


def rules(stages: int) -> dict[str, Rule]:
    """Return which weights the rules read, a micro-batch for each stage in an update."""
    return {
        "DP": Rule(update_every=stages, forward_reads="delay", delay=0),
        "CDP-v1": one_ago(stages),
        "CDP-v2": freshest(stages),
    }


def find_accuracies(
    step: Step,
    seeds: int = 5,
    rates: Sequence[float] = (0.01, 0.03, 0.1),
    updates: int = 200,
    longer: int = 3,
) -> Computed:
    """C10: train a small network by each rule, over seeds and learning rates.

    At the learning rate that is best for data parallelism also `longer` times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scores = _measure(step, seeds, rates, updates)
        rate = best_rate(scores, "DP")
        return judge_scores(
            scores, _measure(step, seeds, [rate], longer * updates), updates, longer
        )
    finally:
        torch.set_num_threads(threads)


def _measure(step: Step, seeds: int, rates: Sequence[float], updates: int) -> Scores:
    scores: Scores = {}
    count = STAGES * updates
    (inputs, targets), tested = load_pictures()
    falls = [round(share * updates) for share in FALLS]

    def optimizer(parameters: Any, rate: float) -> torch.optim.Optimizer:
        sgd = torch.optim.SGD(parameters, rate, momentum=MOMENTUM, weight_decay=DECAY)
        falling = torch.optim.lr_scheduler.MultiStepLR(sgd, falls, gamma=0.2)
        sgd.register_step_post_hook(lambda *_: falling.step())
        return sgd

    for name, rule in rules(STAGES).items():
        plan = make_plan(make_network(0), rule, overlap=name != "DP")
        for rate in announced(step, f"{name}, learning rate {{:g}}, {updates} updates", rates):
            scores[name, rate] = []
            for seed in range(seeds):
                order = draw_order(seed, count, len(targets))
                network = make_network(seed)
                weights = train(
                    network,
                    plan,
                    count,
                    lambda i, order=order: (inputs[order[i]], targets[order[i]]),  # type: ignore[misc]
                    partial(optimizer, rate=rate),
                )
                scores[name, rate].append(100 * accuracy(network, weights, *tested))
    return scores


Pictures = tuple[Tensor, Tensor]
"""Of 8 x 8 with values from -1 to 1, and the digits that they show."""


@cache
def load_pictures() -> tuple[Pictures, Pictures]:
    """Return the pictures to train on and to test with, always the same (of scikit-learn)."""
    found = load_digits()
    inputs = torch.tensor(found.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
    targets = torch.tensor(found.target)
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    test, train = order[:TESTED], order[TESTED:]
    return (inputs[train], targets[train]), (inputs[test], targets[test])


def draw_order(seed: int, count: int, pictures: int) -> Tensor:
    """Return the pictures of micro-batches, a row each: one random order of all after the other."""
    draw = torch.Generator().manual_seed(seed)
    rounds = 1 + count * SIZE // pictures
    orders = [torch.randperm(pictures, generator=draw) for _ in range(rounds)]
    return torch.cat(orders)[: count * SIZE].reshape(count, SIZE)


def make_network(seed: int) -> Network:
    """Return two convolutions and two linear layers with random weights, a stage each.

    All but the last are normalised within each picture, so that micro-batches do not mix.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        layers = [
            nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
            nn.Sequential(nn.Conv2d(8, 16, 3, 2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
            nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.LayerNorm(32), nn.ReLU()),
            nn.Linear(32, 10),
        ]
    return Network(layers, nn.functional.cross_entropy)


def accuracy(
    network: Network, weights: Mapping[str, Tensor], inputs: Tensor, targets: Tensor
) -> float:
    """Return the share of pictures that are read right."""
    with torch.no_grad():
        model = nn.Sequential(*network.layers)
        outputs = torch.func.functional_call(model, dict(weights), (inputs,))
        return int((outputs.argmax(1) == targets).sum()) / len(targets)


def best_rate(scores: Scores, name: str) -> float:
    """Return the learning rate with the best mean accuracy of a rule."""
    return max((rate for rule, rate in scores if rule == name), key=lambda r: mean(scores[name, r]))


def _subtract(scores: Scores, one: tuple[str, float], other: tuple[str, float]) -> Difference:
    return Difference(tuple(a - b for a, b in zip(scores[one], scores[other], strict=True)))


def judge_scores(scores: Scores, long: Scores, updates: int, longer: int) -> Computed:
    """Return what scores say of the claim, and those of longer trainings at DP's best rate."""
    names = ("CDP-v1", "CDP-v2")
    seeds, rates = len(next(iter(scores.values()))), [r for name, r in scores if name == "DP"]
    best = {name: best_rate(scores, name) for name in ("DP", *names)}
    base = best["DP"]

    over_dp = {
        "same rate": {name: _subtract(scores, (name, base), ("DP", base)) for name in names},
        "own rate": {name: _subtract(scores, (name, best[name]), ("DP", base)) for name in names},
        "longer": {name: _subtract(long, (name, base), ("DP", base)) for name in names},
    }
    v2_over_v1 = {
        "same rate": _subtract(scores, ("CDP-v2", base), ("CDP-v1", base)),
        "own rate": _subtract(scores, ("CDP-v2", best["CDP-v2"]), ("CDP-v1", best["CDP-v1"])),
    }
    reported = {how: {n: d.to_json() for n, d in found.items()} for how, found in over_dp.items()}
    widths = ", ".join(f"{name} {one.resolved:.2f}" for name, one in over_dp["own rate"].items())
    means = {name: round(mean(scores[name, rate]), 2) for name, rate in best.items()}
    return Computed(
        {
            **{
                f"{name}, {how}": [one.to_case(name)] if one.is_less else []
                for how, found in over_dp.items()
                for name, one in found.items()
            },
            **{
                f"no more, {how}": [] if one.is_more else [one.to_case("CDP-v2")]
                for how, one in v2_over_v1.items()
            },
        },
        {
            "tried": f"{seeds} seeds, learning rates {', '.join(f'{r:g}' for r in rates)}, "
            f"{updates} updates of 128 digits, a network of {STAGES} stages",
            "long_tried": f"{seeds} seeds, learning rate {base:g}, {longer * updates} updates",
            "longer": longer,
        },
        figures={
            "best_rate": best,
            "accuracy_at_best_rate": means,
            "over_dp_at_its_rate": reported["same rate"],
            "over_dp_at_own_rates": reported["own rate"],
            "over_dp_after_longer_training": reported["longer"],
            "v2_over_v1_at_own_rates": v2_over_v1["own rate"].to_json(),
        },
        notes=[
            f"What cannot be resolved: over {seeds} seeds with this spread, differences from data "
            f"parallelism of fewer points than these cannot be told from chance (in {CHANCE:.0%} "
            f"of all signs): {widths}. One test picture is {100 / TESTED:g} points. The "
            "differences of the source's table, 0.1 to 0.7 points, are of that size."
        ],
        tables=[
            _table(scores, rates, f"{updates} updates"),
            _table(long, [base], f"{longer * updates} updates"),
        ],
        pictures=[
            Picture(
                "accuracy",
                "Test accuracy by learning rate, least, mean and most over seeds",
                lambda: _draw(scores, rates),
            )
        ],
    )


def _table(scores: Scores, rates: Sequence[float], words: str) -> Table:
    def cell(found: Sequence[float]) -> str:
        return f"{mean(found):.1f} ± {stdev(found):.1f}"

    return Table(
        "Test accuracy in per cent by learning rate, mean ± standard deviation over seeds, "
        f"{words}",
        ["rule", *(f"{rate:g}" for rate in rates)],
        [
            (name, *(cell(scores[name, rate]) for rate in rates))
            for name in dict.fromkeys(name for name, _ in scores)
        ],
    )


def _draw(scores: Scores, rates: Sequence[float]) -> Figure:
    from matplotlib.figure import Figure

    from schedopt.drawing.styles import COLOURS

    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(name for name, _ in scores)):
        rows = [scores[name, rate] for rate in rates]
        # A little apart, so that spreads can be told.
        places = [rate * (1 + 0.05 * (number - 1)) for rate in rates]
        means = [mean(row) for row in rows]
        below = [middle - min(row) for middle, row in zip(means, rows, strict=True)]
        above = [max(row) - middle for middle, row in zip(means, rows, strict=True)]
        look: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.2, "capsize": 3}
        axes.errorbar(places, means, yerr=[below, above], color=COLOURS[number], label=name, **look)
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("test accuracy, %")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
