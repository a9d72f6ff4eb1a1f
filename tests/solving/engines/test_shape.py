"""What a grid of an engine begins with where time is short."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from schedopt.engine import Engine
from schedopt.solving.engines import shape as shapes
from schedopt.solving.engines.order import CriticalPath
from schedopt.solving.engines.shape import EngineShape
from tests.solving.engines.test_descent import cuts_of
from tests.solving.engines.test_tree import shortest


@pytest.mark.parametrize(
    ("engine", "chunks", "kind"), [("torch", 1, "EngineGraph"), ("megatron", 2, "EngineTree")]
)
@pytest.mark.parametrize("most", [1, 2, 4])
def test_where_time_is_up_no_more_paths_are_looked_for(
    engine: Engine, chunks: int, kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds all the same, and rises to the best cut when it goes on."""
    known: list[CriticalPath] = []
    make = getattr(shapes, kind)

    def note(cuts: Any, *given: Any) -> Any:
        known.extend(next(one for one in given if isinstance(one, dict)))
        return make(cuts, *given)

    monkeypatch.setattr(shapes, kind, note)
    cuts = cuts_of(engine, 3, chunks, 4)
    shape, best, asked = EngineShape(cuts), shortest(cuts), count(1)
    assert best is not None
    for _ in shape.grow(best + 1, lambda: next(asked) >= most):
        pass
    assert len(known) == most
    assert shape.low <= best
    while shape.grows_below(best):
        for _ in shape.grow(best, lambda: False):
            pass
    assert shape.low == best
