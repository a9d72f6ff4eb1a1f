"""Cyclic data parallelism on real models: memory over time, and accuracy by rule."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from schedopt.account import versions
from schedopt.bench.claims import cyclic_memory
from schedopt.bench.claims.cyclic_memory import Curve, curve_by_flops, curve_by_time, not_falling
from schedopt.bench.claims.result import judge
from schedopt.bench.claims.suite import CLAIMS
from schedopt.bench.claims.training import make_plan
from schedopt.profiling import Model, estimate
from tests.bench.claims.results import compute, verdicts

if TYPE_CHECKING:
    from schedopt.bench.claims.cyclic_accuracy import Scores

TRIANGLE = Curve(spans=((1, 0, 4), (1, 1, 3)), length_ns=4)
"""1, 2, 2, 1 bytes over four steps."""
FLAT = Curve(spans=((3, 0, 4),), length_ns=4)


@pytest.fixture(scope="module")
def accuracy() -> Any:
    """Return the module that needs scikit-learn, which is long to import: not to collect tests."""
    pytest.importorskip("sklearn")
    return import_module("schedopt.bench.claims.cyclic_accuracy")


def stack() -> Model:
    """Return three square layers, each of which keeps its input: 4 x 8 numbers."""
    layers = [nn.Linear(8, 8, bias=False) for _ in range(3)]
    return Model(module=nn.Sequential(*layers), inputs=torch.ones(4, 8))


def test_workers_by_hand() -> None:
    assert TRIANGLE.peak(1, cyclic=False) == 2
    assert TRIANGLE.peak(2, cyclic=False) == 2
    # Half a round apart: 1 + 2 at all times.
    assert TRIANGLE.peak(2, cyclic=True) == 1.5
    assert TRIANGLE.peak(4, cyclic=True) == 1.5
    assert FLAT.peak(4, cyclic=True) == 3
    with_more = Curve(TRIANGLE.spans, 4, gradients=((2, 2, 4),)).with_gradients()
    assert with_more.peak(1, cyclic=False) == 4


def test_a_stack_by_hand() -> None:
    """Each layer keeps its input; forwards take 512 operations, backwards twice that.

    The first has no gradient of its input to make.
    """
    curve = curve_by_flops(stack, 10**9)
    assert curve.length_ns == (3 + 2 + 2 + 1) * 2 * 4 * 8 * 8
    assert [size for size, _, _ in curve.spans].count(4 * 8 * 4) == 3
    assert curve.peak(1, cyclic=False) == 3 * 4 * 8 * 4
    assert sum(size for size, _, _ in curve.gradients) == 3 * 8 * 8 * 4
    # The profiler says the same.
    chain = estimate(stack, flops=10**9)
    kept = sum(layer.saved for layer in chain.layers)
    assert curve.peak(1, cyclic=False) == curve_by_time(stack()).peak(1, cyclic=False) == kept


def test_a_storage_that_is_kept_twice_counts_once() -> None:
    class Twice(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.exp() * value

    layers = nn.Sequential(nn.Linear(8, 8, bias=False), Twice())
    model = Model(module=layers, inputs=torch.ones(4, 8))
    # The input; what exp takes, that is the other factor, and what it makes.
    assert curve_by_time(model).peak(1, cyclic=False) == 3 * 4 * 8 * 4


@pytest.mark.parametrize(
    ("over_flops", "over_time", "printed", "expected"),
    [
        (TRIANGLE, TRIANGLE, 0.25, ["yes", "yes", "yes"]),
        (TRIANGLE, TRIANGLE, 0.10, ["if", "yes", "yes"]),
        (TRIANGLE, TRIANGLE, 0.40, ["no", "yes", "yes"]),
        (FLAT, FLAT, 0.25, ["no", "yes", "yes"]),
        (TRIANGLE, FLAT, 0.25, ["yes", "yes", "no"]),
    ],
)
def test_verdicts_on_memory(
    over_flops: Curve,
    over_time: Curve,
    printed: float,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cyclic_memory, "load_model", lambda name: None)
    monkeypatch.setattr(cyclic_memory, "curve_by_flops", lambda load, rate: over_flops)
    monkeypatch.setattr(cyclic_memory, "curve_by_time", lambda model: over_time)
    small: dict[str, Any] = {"workers": (2, 4), "repeats": 1}
    both = {"resnet50": printed, "vit-b16": printed}
    assert verdicts("C8", printed=both, **small) == [expected[0], *expected]
    assert compute("C8", printed=both, **small).computed.pictures[0].draw() is not None


def test_more_memory_for_more_workers_is_seen() -> None:
    few, less, more = (
        {"model": "m", "workers": workers, "in_turn_bytes": size}
        for workers, size in ((2, 5), (4, 4), (4, 6))
    )
    assert not_falling([few, less]) == []
    assert not_falling([few, more]) == [more]


def test_which_weights_the_rules_read(accuracy: Any) -> None:
    """CDP-v2: of 4 x 4 pairs 10 read the newest version (j >= N - n + 1), 6 the one before."""
    stale = {}
    for name, rule in accuracy.rules(accuracy.STAGES).items():
        plan = make_plan(accuracy.make_network(0), rule, overlap=name != "DP")
        stale[name] = versions(plan).forward_staleness
    assert set(stale["DP"].values()) == {0}
    assert set(stale["CDP-v1"].values()) == {1}
    assert {key: delay for key, delay in stale["CDP-v2"].items() if delay} == dict.fromkeys(
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)], 1
    )


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([1.0], 1 / 2),
        ([1.0, 1.0], 1 / 4),
        ([1.0, -1.0], 3 / 4),
        ([0.0, 0.0], 1),
        ([3.0, 2.0, 1.0, 1.0, 1.0], 1 / 32),
    ],
)
def test_chance_by_hand(accuracy: Any, points: list[float], expected: float) -> None:
    assert accuracy.chance(points) == expected


def test_a_difference_counts_if_all_seeds_agree(accuracy: Any) -> None:
    difference = accuracy.Difference
    more, less, mixed = ((1, 1, 2, 1, 1), (-1, -1, -2, -1, -1), (1, 1, 2, 1, -1))
    assert [difference(points).is_more for points in (more, less, mixed)] == [True, False, False]
    assert [difference(points).is_less for points in (more, less, mixed)] == [False, True, False]
    # With this spread a mean just above 1 would make all of them positive.
    assert difference((1, -1, 0, 0, 0)).resolved == pytest.approx(1, abs=0.01)


NAMES = ("DP", "CDP-v1", "CDP-v2")
ALIKE: Scores = {(name, 0.1): [97.0] * 5 for name in NAMES}
WORSE: Scores = {**ALIKE, ("CDP-v1", 0.1): [96.0] * 5, ("CDP-v2", 0.1): [96.0] * 5}


@pytest.mark.parametrize(
    ("v1", "v2", "other_rate", "long", "expected"),
    [
        ([96, 97, 98, 97, 96], [97, 98, 99, 98, 97], 10, WORSE, "holds holds holds"),
        ([90, 91, 92, 91, 90], [97, 98, 99, 98, 97], 10, WORSE, "fails holds holds"),
        ([96, 97, 98, 97, 96], [90, 91, 92, 91, 90], 10, WORSE, "holds fails fails"),
        ([97, 96, 98, 96, 97], [96, 97, 97, 97, 96], 10, WORSE, "holds holds fails"),
        # CDP-v1 may need another learning rate, or longer.
        ([50] * 5, [97] * 5, 97, WORSE, "holds-under-convention holds holds"),
        ([50] * 5, [97] * 5, 10, ALIKE, "holds-under-convention holds holds"),
    ],
)
def test_verdicts_on_accuracy(
    accuracy: Any,
    v1: list[float],
    v2: list[float],
    other_rate: float,
    long: Scores,
    expected: str,
) -> None:
    rows = {"DP": [96.0, 98.0, 97.0, 97.0, 96.0], "CDP-v1": v1, "CDP-v2": v2}
    scores: Scores = {(name, 0.1): row for name, row in rows.items()}
    scores |= {(name, 0.2): [10.0] * 5 for name in NAMES}
    scores["CDP-v1", 0.2] = [float(other_rate)] * 5
    found = judge(CLAIMS["C10"], accuracy.judge_scores(scores, long, 200, 3))
    assert [section.verdict for section in found.sections] == expected.split()
    assert found.computed.pictures[0].draw() is not None
    assert "cannot be resolved" in found.notes[0]


@pytest.mark.nightly
@pytest.mark.usefixtures("accuracy")
def test_a_short_training_is_better_than_guessing() -> None:
    found = compute("C10", seeds=2, rates=(0.1,), updates=12, longer=1)
    assert all(score > 30 for score in found.computed.figures["accuracy_at_best_rate"].values())
    assert len(found.sections) == 3
