"""Layouts of Megatron-LM: what they say, and what is refused with its place."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import InputError
from schedopt.megatron_layout import LayoutChunk, read_layout, write_layout
from tests.budgets import trials
from tests.exporting.engines import parse_layout
from tests.refusals import assert_refused


def chunk(letters: str) -> LayoutChunk:
    return LayoutChunk(
        embedding="E" in letters,
        layers=letters.count("t"),
        mtp=letters.count("m"),
        loss="L" in letters,
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[LayoutChunk, ...]:
    """Draw what lies on each chunk; many of them are alike."""
    size = st.sampled_from([0, 1, 2, 2, 2, 3, 11])
    layers = draw(st.lists(size, min_size=1, max_size=30))
    mtp = draw(st.integers(0, 2))
    last = len(layers) - 1
    return tuple(
        LayoutChunk(
            embedding=number == 0,
            layers=count,
            mtp=mtp if number == last else 0,
            loss=number == last,
        )
        for number, count in enumerate(layers)
    )


BY_HAND = {
    "EtL": (1, ["EtL"]),
    "Et*3|(tt|)*29,m|L": (16, ["Ettt", *["tt"] * 29, "m", "L"]),
    "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL": (8, ["Ett", *["tt"] * 34, "ttt", *["tt"] * 3, "tL"]),
    "Et|t||tttt|(|)*2tmL": (1, ["Et", "t", "", "tttt", "", "", "tmL"]),
    "Et|(tt|)*30L": (16, ["Et", *["tt"] * 30, "L"]),
    "E,t,*,2|L": (2, ["Ett", "L"]),
    "E|*2t|(t*2|t|)*2L": (8, ["E", "", "t", "tt", "t", "tt", "t", "L"]),
}  # fmt: skip
"""Layout, ranks and the letters of each chunk."""


@pytest.mark.parametrize("text", BY_HAND)
def test_layouts_by_hand(text: str) -> None:
    ranks, rows = BY_HAND[text]
    found = read_layout(text, ranks=ranks)
    assert found == tuple(map(chunk, rows))
    assert read_layout(write_layout(found)) == found


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (["EtL"], "EtL"),
        (["Et", "tt", "tt", "tL"], "Et|t*2|t*2|tL"),
        (["Et", "tt", "tt", "tt", "tL"], "Et|(t*2|)*3,tL"),
        (["Ett", "", "", "mL"], "Et*2|||mL"),
    ],
)
def test_the_short_form(rows: list[str], text: str) -> None:
    assert write_layout([*map(chunk, rows)]) == text


@given(chunks=layouts())
@trials(1000)
def test_what_is_written_is_read(chunks: tuple[LayoutChunk, ...]) -> None:
    text = write_layout(chunks)
    assert read_layout(text) == chunks
    assert tuple(map(chunk, parse_layout(text))) == chunks


SIGNS = ["t", "t*2", "|", "m", "(t|)*2", "*", "(", ")", "2", "0", ",", "E", "L", "tt|"]


@given(middle=st.lists(st.sampled_from(SIGNS), max_size=8))
@trials(2000)
def test_what_is_read_means_what_its_spelling_out_says(middle: list[str]) -> None:
    text = f"E{''.join(middle)}L"
    with suppress(InputError):
        assert read_layout(text) == tuple(map(chunk, parse_layout(text)))


@pytest.mark.parametrize(
    ("text", "ranks", "rule"),
    [
        ("", 1, "it is empty"),
        (",,", 1, "it is empty"),
        ("tE|L", 1, "character 1: the embedding (E) is not the first"),
        ("|EtL", 2, "character 1: the embedding (E) is not the first"),
        ("Et|tLt", 1, "character 6: the loss (L) is not the last"),
        ("Et|tL|", 3, "character 6: the loss (L) is not the last"),
        ("Et|LtL", 1, "character 4: the loss (L) is not the last"),
        ("Et|EL", 1, "character 4: the embedding (E) stands there a second time"),
        ("Et|xL", 1, "character 4: 'x' is not known"),
        ("Et |L", 1, "character 3: ' ' is not known"),
        ("Et|2L", 1, "character 4: '2' is not known"),
        ("E(tt|L", 1, "character 2: '(' is never closed"),
        ("Ett|)*2L", 1, "character 5: ')' has no '(' before it"),
        ("E((t|)*2|)*2L", 1, "character 3: brackets lie in brackets"),
        ("E()*2L", 1, "character 2: nothing lies in the brackets"),
        ("E(tt|)L", 1, "character 6: ')' has no number behind it"),
        ("Et*|L", 1, "character 3: '*' has no number behind it"),
        ("Et*-1|L", 1, "character 3: '*' has no number behind it"),
        ("E(*2t|)*2L", 1, "character 3: '*' repeats nothing"),
        ("Et*0|L", 1, "character 3: '0' is no number of repeats"),
        ("E(t|)*0L", 1, "character 6: '0' is no number of repeats"),
        ("Et*2*3|L", 1, "character 5: '*' stands behind a number"),
        ("Et*99999999999|L", 1, "character 3: '99999999999' is no number of repeats"),
        ("Et*65000t*65000|L", 1, "character 9: it has more than 65536 letters"),
        ("E(t*300|)*300L", 1, "character 2: it has more than 65536 letters"),
        ("Etm|tL", 1, "character 5: a transformer layer (t) stands behind an m"),
        ("Et|t|tL", 2, "3 chunks are no multiple of 2 pipeline ranks"),
        ("Et|t|t|m|t*0L", 2, "character 11: '0' is no number of repeats"),
        ("Et|t|tm|L", 2, "character 7: an m lies on rank 0"),
        ("Et|tm||L", 2, "character 5: an m lies in a chunk that is not the last of its rank"),
        ("Et|t|t|t|m|mL", 3, "character 12: not all m lie in the same chunk"),
    ],
)
def test_refused_with_its_place(text: str, ranks: int, rule: str) -> None:
    assert_refused(lambda: read_layout(text, ranks=ranks), "layout", rule)


def test_what_is_no_text_is_refused() -> None:
    assert_refused(lambda: read_layout(None), "layout", "None is not text")  # type: ignore[arg-type]
