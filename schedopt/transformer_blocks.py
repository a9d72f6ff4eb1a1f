"""Embedding, transformer layers, what predicts further tokens, and head: by the names of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from schedopt.chain import Chain
from schedopt.errors import InputError
from schedopt.validation import show

EMBEDDING: Final = -1
"""The place of what comes before transformer layer 0."""


@dataclass(frozen=True)
class Blocks:
    """Where the layers of a chain lie in a transformer.

    Parameters
    ----------
    spans : tuple of (int, int)
        For each layer of the chain the first and the last place that it belongs to: `EMBEDDING`,
        the number of a transformer layer, their count, which are the layers that predict further
        tokens, if there are any, or `head`, which is the head with what is behind.
    count : int
        Transformer layers.
    predictors : int
        Layers that predict a further token each (multi-token prediction).
    """

    spans: tuple[tuple[int, int], ...]
    count: int
    predictors: int = 0

    @property
    def head(self) -> int:
        """The place of the head."""
        return self.count + (self.predictors > 0)

    @property
    def begins(self) -> frozenset[int]:
        """The layers of the chain at which a stage may begin without parting a place."""
        return frozenset(
            number
            for number, (first, _) in enumerate(self.spans)
            if not number or self.spans[number - 1][1] < first
        )

    @property
    def first_predictor(self) -> int | None:
        """The first layer of the chain that predicts a further token, if there is one."""
        layers = (layer for layer, span in enumerate(self.spans) if span[1] == self.count)
        return next(layers) if self.predictors else None

    def places(self, first: int, last: int) -> range:
        """Return what a stage of whole places has, from its first to its last layer."""
        return range(self.spans[first][0], self.spans[last][1] + 1)


@lru_cache(maxsize=16)
def _find(names: tuple[str, ...]) -> Blocks:
    behind = [_predictors_of(name) for name in names]
    predictors = len(set().union(*behind))
    ends = [
        (None, None) if further else tuple(map(_numbered, _paths(name)))
        for name, further in zip(names, behind, strict=True)
    ]
    lists = sorted({found[0] for pair in ends for found in pair if found is not None})
    if len(lists) != 1:
        told = ", ".join(f"{one}.N" for one in lists[:3])
        _refuse(f"their names number {told}" if lists else "no name holds the number of one")
    numbers = [[found[1] for found in pair if found is not None] for pair in ends]
    inside = [number for number, found in enumerate(numbers) if found]
    for number in range(inside[0], inside[-1]):
        if not numbers[number]:
            _refuse(f"layer {number} ({show(names[number])}) lies between them without a number")
    count = max(map(max, filter(None, numbers))) + 1
    spans: list[tuple[int, int]] = []
    for number, found in enumerate(numbers):
        outside = EMBEDDING if number < inside[0] else count + (predictors > 0)
        if behind[number]:
            outside = count
        spans.append((min(found), max(found)) if found else (outside, outside))
    # A layer that reaches out of a block counts as the block, unless nothing else is out there.
    if not inside[0]:
        if None not in ends[0]:
            _refuse("nothing comes before the first of them, so there is no embedding")
        spans[0] = (EMBEDDING, spans[0][1])
    if inside[-1] == len(names) - 1:
        if None not in ends[-1]:
            _refuse("nothing comes behind the last of them, so there is no head")
        spans[-1] = (spans[-1][0], count)
    _check_order(spans, names)
    if behind[-1]:
        _refuse("nothing comes behind what predicts further tokens, so there is no head")
    return Blocks(tuple(spans), count, predictors)


def _predictors_of(name: str) -> set[int]:
    """Return which layers that predict a further token a layer is part of: under ``mtp``."""
    paths = [path for path in _paths(name) if "mtp" in path.split(".")]
    return {found[1] if (found := _numbered(path)) else 0 for path in paths}


def find_blocks(chain: Chain) -> Blocks:
    """Tell embedding, transformer layers and head apart.

    Names are those that a profile gives: the path of a module, perhaps with a range of what lies
    below it (``transformer.h.3: ln_1 to attn``). Transformer layers are what is numbered in one
    list, here ``transformer.h``; before them lies the embedding, behind them the head. A layer that
    runs from a transformer layer into the final norm counts as the transformer layer. A layer
    between the last of them and the head with ``mtp`` in its path predicts a further token.

    Raises
    ------
    InputError
        Where the names do not tell.
    """
    return _find(tuple(layer.name for layer in chain.layers))


def _check_order(spans: Sequence[tuple[int, int]], names: Sequence[str]) -> None:
    """Refuse numbers that go back or leave one out."""
    here = EMBEDDING
    for number, (first, last) in enumerate(spans):
        if first not in (here, here + 1):
            _refuse(f"layer {number} ({show(names[number])}) does not follow number {here}")
        here = last


def _paths(name: str) -> tuple[str, str]:
    """Return the paths of the first and the last module of a layer."""
    below, _, inner = name.rpartition(": ")
    first, _, last = inner.partition(" to ")
    return tuple(  # type: ignore[return-value]
        ".".join(part for part in (below, end) if part) for end in (first, last or first)
    )


def _numbered(path: str) -> tuple[str, int] | None:
    """Return the list that a module is in and its number there."""
    parts = path.split(".")
    for place, part in enumerate(parts):
        if part.isascii() and part.isdigit() and len(part) < 6:
            return ".".join(parts[:place]), int(part)
    return None


def _refuse(why: str) -> NoReturn:
    raise InputError(
        f"the names of the layers do not tell embedding, transformer layers and head apart: {why}",
        field="layers",
        way_out="Name them in the chain as a profile does: embed, model.layers.0, model.layers.1, "
        "..., lm_head",
    )
