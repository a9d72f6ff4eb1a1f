"""Two moves keep what each GPU has of a chain of like layers, and change where in it that lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schedopt import Platform, Problem, Stage
from schedopt.families import uniform_chain
from schedopt.solving.local_search import moves
from schedopt.solving.local_search.coding import encode
from schedopt.solving.local_search.state import BEGIN, GPU, STAGES, State, new_state
from schedopt.solving.local_search.tables import make_tables

LAYERS, GPUS = 12, 3
Move = Callable[..., int]
Stages = list[tuple[int, int, int]]


def stages_of(state: State) -> Stages:
    """Return the first layer, the layer behind and the GPU of each stage, the last one first."""
    count = int(state.counts[STAGES])
    begins = [int(begin) for begin in state.row[:count, BEGIN]]
    ends = [LAYERS, *begins[:-1]]
    gpus = [int(gpu) for gpu in state.row[:count, GPU]]
    return [*zip(begins, ends, gpus, strict=True)]


def layers_of_gpus(stages: Stages) -> Counter[int]:
    return Counter(gpu for begin, end, gpu in stages for _ in range(begin, end))


def moved(name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, Stages, Stages]]:
    """Return the row, the first row that changed, and the stages before and after 200 moves."""
    for helper in ("_end", "_mostly_little", "below"):
        function: Any = getattr(moves, helper)
        monkeypatch.setattr(moves, helper, function.py_func)
    monkeypatch.setattr(moves, "measure", lambda *_: None)
    move: Move = getattr(moves, name).py_func
    tables = make_tables(Problem(chain=uniform_chain(LAYERS).chain, platform=Platform(GPUS, 10**9)))
    draw = np.random.default_rng(0)
    found: list[tuple[int, int, Stages, Stages]] = []
    state = new_state(tables, LAYERS)
    for _ in range(200):
        cuts = draw.choice(LAYERS - 1, size=int(draw.integers(7)), replace=False) + 1
        ends = [*sorted(map(int, cuts)), LAYERS]
        begins = [0, *ends[:-1]]
        encode(
            [
                Stage(layers=(begin, end - 1), gpus=(int(draw.integers(GPUS)),))
                for begin, end in zip(begins, ends, strict=True)
            ],
            state,
            1,
        )
        before, row = stages_of(state), int(draw.integers(len(ends)))
        found.append((row, move(tables, state, row, draw), before, stages_of(state)))
    return found


@pytest.mark.parametrize("name", ["slide_stages", "swap_stages"])
def test_gpus_keep_as_many_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = 0
    for row, changed, before, after in moved(name, monkeypatch):
        assert (changed < 0) == (after == before)
        assert changed in (-1, row)
        assert after[:row] == before[:row]
        assert all(begin < end for begin, end, _ in after)
        assert after[-1][0] == 0
        assert layers_of_gpus(after) == layers_of_gpus(before)
        changes += changed >= 0
    assert changes > 20


def test_stages_that_slide_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for row, changed, before, after in moved("slide_stages", monkeypatch):
        assert [gpu for *_, gpu in after] == [gpu for *_, gpu in before]
        if changed >= 0:
            begins = zip(before, after, strict=True)
            assert len({new[0] - old[0] for old, new in begins} - {0}) == 1
            assert after[row][0] != before[row][0]


def test_stages_that_swap_have_each_others_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, changed, before, after in moved("swap_stages", monkeypatch):
        if changed >= 0:
            lengths = [[(end - begin, gpu) for begin, end, gpu in each] for each in (before, after)]
            places = [n for n, (old, new) in enumerate(zip(*lengths, strict=True)) if old != new]
            assert len(places) == 2
            first, second = places
            assert lengths[1][first] == lengths[0][second]
            assert lengths[1][second] == lengths[0][first]
