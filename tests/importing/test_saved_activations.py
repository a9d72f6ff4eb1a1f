"""What operators keep, counted by hand, and the two ways to say it held against each other."""

from __future__ import annotations

import pytest

from schedopt.importing.saved_activations import Operator, saved_bytes, stashed_bytes

HIDDEN = 4
MADE = {
    "enc-1st-layernorm": 4,
    "enc-attention-qkv": 12,
    "enc-attention-score": 64,
    "enc-attention-softmax": 64,
    "enc-attention-dropout": 96,
    "enc-attention-context": 4,
    "enc-attention-dense": 4,
    "enc-post-attention-dropout": 6,
    "enc-2nd-layernorm": 4,
    "enc-MLP-GEMM-1": 16,
    "enc-MLP-gelu": 16,
    "enc-MLP-GEMM-2": 4,
    "enc-post-MLP-dropout": 6,
}
"""Of a hidden state of 4 bytes, with scores of 64."""
LAYER = [Operator(name, HIDDEN, made) for name, made in MADE.items()]
ATTENTION = 4 + 4 + 12 + 64 + 64 + 32 + 4
"""The layer's input, what the norm makes, queries keys and values, softmax, dropout and its mask,
what the scores give."""
REST = 2 + 4 + 4 + 16 + 16 + 2
"""Two masks of dropout, the second norm's input and output, both products."""

NEEDS: list[list[int | str]] = [
    [-1], [0], [1], [3], ["4"], [1, 4], [5], ["7"], [7], [8], [9], [10], ["12"]
]  # fmt: skip
"""What the backward of each needs: what others make, by their number, and masks, as text."""


def stashed(*again: int, first: bool = False, last: bool = True) -> int:
    recomputed = [number in again for number in range(len(LAYER))]
    return stashed_bytes(LAYER, recomputed, first=first, last=last)


def test_what_a_layer_keeps() -> None:
    assert stashed() == ATTENTION + REST
    # A stage keeps what it sends, too.
    assert stashed(last=False) == ATTENTION + REST + HIDDEN
    # What enters the first stage are tokens.
    assert stashed(first=True) == ATTENTION + REST - HIDDEN


def test_recompute_keeps_what_enters_its_run() -> None:
    # Scores, softmax, dropout and context again: queries, keys and values enter, and the input of
    # the layer goes past; what comes out is kept by the next product.
    kept = 4 + 4 + 12 + 4 + 2 + 4 + 4 + 16 + 16 + 2
    assert stashed(2, 3, 4, 5) == kept
    # All of it again: the input alone.
    assert stashed(*range(13)) == HIDDEN


def test_operators_of_a_stage_add_up() -> None:
    model = [Operator("encoder-embedding", 1, HIDDEN), *LAYER, *LAYER]
    saved = saved_bytes(model)
    # The input of the first layer is what the embedding made.
    assert sum(kept for kept, _ in saved) == 2 * (ATTENTION + REST)


@pytest.mark.parametrize("begin", range(1, 14))
def test_a_stage_keeps_on_top_what_was_made_before_it(begin: int) -> None:
    model = [Operator("encoder-embedding", 1, HIDDEN), *LAYER, *LAYER]
    stage = model[begin:]
    saved = saved_bytes(model)[begin:]
    ours = saved[0][1] + sum(kept for kept, _ in saved)
    if begin == 1:
        assert ours == stashed_bytes(stage, [False] * len(stage), first=False, last=True)
    tensors: dict[tuple[int, object], int] = {}
    for number in range(begin - 1, 26):
        layer, within = divmod(number, 13)
        for tensor in NEEDS[within]:
            if isinstance(tensor, str):
                size = LAYER[within].made_bytes // 3
                key: tuple[int, object] = (layer, tensor)
            elif tensor == -1:
                size, key = HIDDEN, ((layer, -1) if layer == 0 else (layer - 1, 12))
            else:
                mask = LAYER[tensor].made_bytes // 3 if tensor in (4, 7) else 0
                size, key = LAYER[tensor].made_bytes - mask, (layer, tensor)
            tensors[key] = size
    assert ours == sum(tensors.values())
