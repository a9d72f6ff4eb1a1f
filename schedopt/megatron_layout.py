"""Layouts of Megatron-LM's pipelines, read as strictly as it does, and written.

A letter stands for the embedding (E), a transformer layer (t), a layer that predicts a further
token (m, multi-token prediction) and the head with the loss (L); ``|`` parts the chunks, of which
number s is on rank s mod p; ``t*3`` is ``ttt`` and ``(tt|)*3`` is ``tt|tt|tt|``. Brackets do not
lie in brackets, and commas say nothing.

References
----------
Megatron Core developer guide, *Custom pipeline model parallel layout*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final, NoReturn

from schedopt.errors import InputError
from schedopt.validation import STRICT, check_whole, show

FIELD: Final = "layout"
MOST_LETTERS: Final = 1 << 16
"""Of a layout, with all repeats."""
_DIGITS: Final = re.compile(r"[0-9]+")
_RUNS: Final = re.compile(r"(E?)(t*)(m*)(L?)")
_EXAMPLE: Final = "Write it as in Et*3|(t*4|)*6,t*3L"

Letter = tuple[str, int]
"""With its place in the text, counted from 1."""


@dataclass(frozen=True, kw_only=True)
class LayoutChunk:
    """What lies on one virtual stage of a rank.

    Parameters
    ----------
    embedding : bool
    layers : int
        Transformer layers.
    mtp : int
        Layers that predict a further token.
    loss : bool
        The final norm, the head and the loss.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    embedding: bool = False
    layers: int = 0
    mtp: int = 0
    loss: bool = False

    def __post_init__(self) -> None:
        check_whole(self, "layers", high=MOST_LETTERS)
        check_whole(self, "mtp", high=MOST_LETTERS)

    def __str__(self) -> str:
        """Return it in letters: ``Et*3``."""
        counts = (("E", int(self.embedding)), ("t", self.layers), ("m", self.mtp))
        runs = (*counts, ("L", int(self.loss)))
        return "".join(
            letter if count == 1 else f"{letter}*{count}" for letter, count in runs if count
        )


def read_layout(text: str, *, ranks: int | None = None) -> tuple[LayoutChunk, ...]:
    """Return the chunks of a layout, in the order of the model.

    Parameters
    ----------
    text : str
        A value of ``--pipeline-model-parallel-layout``.
    ranks : int, optional
        The pipeline ranks p: then their number must divide that of the chunks, and layers that
        predict a further token must lie in the last chunk of a rank, and not on rank 0.

    Raises
    ------
    InputError
        For what Megatron-LM refuses, or would read otherwise than it looks, with its place.
    """
    if not isinstance(text, str):
        raise InputError(f"{show(text)} is not text", field=FIELD, way_out=_EXAMPLE)
    letters = [*_spell_out(text)]
    _check_order(letters)
    found: list[list[Letter]] = [[]]
    for letter in letters:
        if letter[0] == "|":
            found.append([])
        else:
            found[-1].append(letter)
    if ranks is not None:
        _check_ranks(found, ranks)
    chunks = []
    for row in found:
        match = _RUNS.fullmatch("".join(sign for sign, _ in row))
        assert match is not None
        embedding, layers, mtp, loss = map(len, match.groups())
        chunks.append(
            LayoutChunk(embedding=bool(embedding), layers=layers, mtp=mtp, loss=bool(loss))
        )
    return tuple(chunks)


def write_layout(chunks: Sequence[LayoutChunk]) -> str:
    """Return the layout of chunks, those in a row that are alike once with their number."""
    texts = []
    for text, run in groupby(map(str, chunks)):
        count = len([*run])
        plain, short = f"{text}|" * count, f"({text}|)*{count},"
        texts.append(short if len(short) < len(plain) else plain)
    return "".join(texts).rstrip(",").removesuffix("|")


def _spell_out(text: str) -> Iterator[Letter]:
    """Yield letters and bars with all repeats spelled out."""
    signs = [(sign, place) for place, sign in enumerate(text, start=1) if sign != ","]
    count = 0
    for row in _repeated(signs):
        count += len(row)
        if count > MOST_LETTERS:
            _refuse(row[0][1], f"it has more than {MOST_LETTERS} letters", "Give fewer repeats")
        yield from row


def _repeated(signs: Sequence[Letter]) -> Iterator[Sequence[Letter]]:
    """Yield what a letter or a pair of brackets stands for, a row for each."""
    here, before = 0, [place for _, place in signs]
    while here < len(signs):
        sign, place = signs[here]
        row: Sequence[Letter]
        if sign == "(":
            inside = [other for other, _ in signs[here + 1 :]]
            if ")" not in inside:
                _refuse(place, "'(' is never closed", "Close it, with a number: (tt|)*3")
            end = here + 1 + inside.index(")")
            row = [*_inside(signs[here + 1 : end], place)]
            here = end + 1
            if here == len(signs) or signs[here][0] != "*":
                _refuse(before[end], "')' has no number behind it", "Write (tt|)*3, or no brackets")
        else:
            row = [_letter(sign, place)]
            here += 1
        if here < len(signs) and signs[here][0] == "*":
            times, here = _number(signs, here)
            if times * len(row) > MOST_LETTERS:
                _refuse(place, f"it has more than {MOST_LETTERS} letters", "Give fewer repeats")
            row = [*row] * times
        yield row


def _inside(signs: Sequence[Letter], place: int) -> Iterator[Letter]:
    """Yield what stands in brackets."""
    if not signs:
        _refuse(place, "nothing lies in the brackets", "Write (tt|)*3")
    for sign, inner in signs:
        if sign == "(":
            _refuse(inner, "brackets lie in brackets", "Spell the outer ones out")
    for row in _repeated(signs):
        yield from row


def _number(signs: Sequence[Letter], star: int) -> tuple[int, int]:
    """Return the number behind a ``*``, and where the text goes on."""
    rest = "".join(sign for sign, _ in signs[star + 1 :])
    digits = _DIGITS.match(rest)
    if digits is None:
        _refuse(signs[star][1], "'*' has no number behind it", "Write t*3 for ttt")
    if len(digits[0]) > len(str(MOST_LETTERS)) or int(digits[0]) == 0:
        _refuse(
            signs[star][1],
            f"{show(digits[0])} is no number of repeats",
            f"Give 1 to {MOST_LETTERS}",
        )
    here = star + 1 + len(digits[0])
    if here < len(signs) and signs[here][0] == "*":
        _refuse(signs[here][1], "'*' stands behind a number", "Repeat a letter or brackets once")
    return int(digits[0]), here


def _letter(sign: str, place: int) -> Letter:
    if sign not in "EtmL|":
        known = {"*": "'*' repeats nothing", ")": "')' has no '(' before it"}
        _refuse(
            place,
            known.get(sign, f"{show(sign)} is not known"),
            "Letters are E (embedding), t (transformer layer), m (multi-token prediction) and L "
            "(loss), and | parts the chunks",
        )
    return sign, place


def _check_order(letters: Sequence[Letter]) -> None:
    """Require one embedding before all, one loss behind all, and no t behind an m."""
    if not letters:
        raise InputError("it is empty", field=FIELD, way_out=_EXAMPLE)
    if letters[0][0] != "E":
        _refuse(letters[0][1], "the embedding (E) is not the first", "Begin with E")
    if letters[-1][0] != "L":
        _refuse(letters[-1][1], "the loss (L) is not the last", "End with L")
    last = ""
    for number, (sign, place) in enumerate(letters):
        if sign == "E" and number:
            _refuse(place, "the embedding (E) stands there a second time", "Give it once")
        if sign == "L" and number < len(letters) - 1:
            _refuse(place, "the loss (L) is not the last", "Give it once, at the end")
        if sign == "t" and last == "m":
            _refuse(place, "a transformer layer (t) stands behind an m", "Put all t before the m")
        last = last if sign == "|" else sign


def _check_ranks(chunks: Sequence[Sequence[Letter]], ranks: int) -> None:
    """Require whole rounds of ranks, and all m in one chunk, the last of a rank but the first."""
    if len(chunks) % ranks:
        raise InputError(
            f"{len(chunks)} chunks are no multiple of {ranks} pipeline ranks",
            field=FIELD,
            way_out=f"Give every rank as many chunks, {ranks} or {2 * ranks} in all",
        )
    found = [(s, place) for s, row in enumerate(chunks) for sign, place in row if sign == "m"]
    for number, place in found:
        if number < len(chunks) - ranks:
            _refuse(place, "an m lies in a chunk that is not the last of its rank", "Move it back")
        if ranks > 1 and number % ranks == 0:
            _refuse(place, "an m lies on rank 0", "Move it to another rank")
        if number != found[0][0]:
            _refuse(place, "not all m lie in the same chunk", "Put them into one")


def _refuse(place: int, rule: str, way_out: str) -> NoReturn:
    raise InputError(f"character {place}: {rule}", field=FIELD, way_out=way_out)
