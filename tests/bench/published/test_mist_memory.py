"""What a stage holds that recomputes, counted by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedopt.bench.published.mist_memory import at_once_bytes, run_by_run_bytes
from tests.importing.test_saved_activations import ATTENTION, LAYER, REST

WHOLE = ATTENTION + REST
UP_TO_CONTEXT = 4 + 4 + 12 + 64 + 32 + 64
"""The layer's input, what the norm makes, queries keys and values, softmax, dropout's mask and
what it makes: what is there when the backward comes to what the scores give."""
GRADIENTS = 4 + 64
"""Of what the scores give, and of what dropout makes: there the sum is largest."""


def test_a_backward_frees_as_it_goes() -> None:
    kept = [False] * 13
    assert run_by_run_bytes(LAYER, kept, 1, 0, last=True) == UP_TO_CONTEXT + GRADIENTS
    assert run_by_run_bytes(LAYER, kept, 3, 0, last=True) == 2 * WHOLE + UP_TO_CONTEXT + GRADIENTS
    assert at_once_bytes(LAYER, kept, 3, 0, last=True) == 3 * WHOLE


def test_one_layer_is_recomputed_at_a_time() -> None:
    again = [True] * 26
    # Each layer keeps its input; when the second is recomputed, that of the first is there, too.
    second = 4 + UP_TO_CONTEXT + GRADIENTS
    assert run_by_run_bytes(LAYER * 2, again, 3, 0, last=True) == 2 * 8 + second
    assert at_once_bytes(LAYER * 2, again, 3, 0, last=True) == 3 * 4 + 2 * WHOLE


def test_the_update_may_need_more() -> None:
    again = [True] * 13
    assert run_by_run_bytes(LAYER, again, 1, 1000, last=True) == 9000
    passing = 8 * 100 + UP_TO_CONTEXT + GRADIENTS
    assert run_by_run_bytes(LAYER, again, 1, 100, last=True) == passing


@given(st.lists(st.booleans(), min_size=26, max_size=26), st.integers(1, 4), st.booleans())
def test_run_by_run_needs_no_more_but_for_gradients(
    again: list[bool], held: int, last: bool
) -> None:
    layers = LAYER * 2
    by_layer = 4 * held
    gradients = 64 + 64
    at_once = at_once_bytes(layers, again, held, 0, last=last)
    assert run_by_run_bytes(layers, again, held, 0, last=last) <= at_once + by_layer + gradients
