"""What a step did to the weights, compared with what one process did."""

from __future__ import annotations

import pytest
import torch

from schedopt.running.reference import find_tolerance
from schedopt.running.trained import Trained, difference, lost_in_rounding


def trained(gradient: list[float], weights: list[float]) -> Trained:
    tensors = (torch.tensor(values, dtype=torch.float64) for values in (gradient, weights))
    own, after = tensors
    return Trained({(0, "w"): own}, {"w": after})


ALONE = trained([1.0, -2.0, 1e-9], [0.9, 2.1, -0.1])


@pytest.mark.parametrize(
    ("gradient", "weights", "lost", "apart"),
    [
        # The last gradient is nothing but rounding, so that its sign says nothing.
        ([1.0, -2.0, -1e-9], [0.9, 2.1, 0.1], [False, False, True], 0.0),
        # Another step where the gradient is known counts.
        ([1.0, -2.0, -1e-9], [1.1, 2.1, 0.1], [False, False, True], 0.2 / 2.1),
        ([1.0, -2.0, 1e-9], [0.9, 2.1, 0.1], [False, False, False], 0.2 / 2.1),
        ([1.0, -2.0 * (1 + 1e-9), 1e-9], [0.9, 2.1, -0.1], [False, False, False], 0.0),
    ],
)
def test_steps_along_gradients_that_are_lost_in_rounding_do_not_count(
    gradient: list[float], weights: list[float], lost: list[bool], apart: float
) -> None:
    own = trained(gradient, weights)
    found = lost_in_rounding([own], ALONE, 1e-8)
    assert found["w"].tolist() == lost
    assert difference([own.weights], ALONE.weights, found) == pytest.approx(apart)


def test_of_several_parts_each_says_what_is_lost() -> None:
    parts = [trained([1.0, -2.0, -1e-9], [0.9, 2.1, -0.1]), trained([1.1, -2.0, 1e-9], [])]
    assert lost_in_rounding(parts, ALONE, 1e-8)["w"].tolist() == [True, False, True]
    # A part may have the weights alone.
    alone = Trained({}, {"w": torch.zeros(3)})
    assert lost_in_rounding([alone], ALONE, 1e-8) == {}


@pytest.mark.parametrize(
    ("types", "tolerance"),
    [
        ([torch.bfloat16, torch.float32], 2**-3.5),
        ([torch.float32, torch.float64], 2**-11.5),
        # Norms of transformers round to single precision, 2**-23, in a model of doubles, too.
        ([torch.float64], 2**-19),
    ],
)
def test_models_of_doubles_may_round_to_single_precision(
    types: list[torch.dtype], tolerance: float
) -> None:
    assert find_tolerance(types) == tolerance
