"""The first good cuts on the grids of an engine, from balanced ones on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from schedopt.solving.engine_descent import NEVER, kick
from schedopt.solving.engine_shape import EngineShape
from schedopt.solving.run import Run

PROMISING: Final = 1.25
"""How much longer a balanced cut may be than the best step for better ones to be looked for."""
MOST_LED: Final = 4
"""Grids on which better cuts are looked for beyond the nearest best one."""
MOST_KICKS: Final = 40
"""How often they are, on each."""


def find_seeds(
    shapes: Sequence[EngineShape], run: Run, is_late: Callable[[int], bool]
) -> Iterator[EngineShape]:
    """Yield shapes whose best cut is worth to be laid out.

    All balanced cuts are compared, and the shortest are improved move by move; the best ones then
    from a few random moves away, again and again (iterated local search, Lourenço et al. 2003).

    Parameters
    ----------
    shapes : sequence of EngineShape
    run : Run
        Says when to stop, and how to draw. The first of all is yielded whatever it says.
    is_late : callable
        Whether steps that are no shorter, ns, are of no use.
    """
    found: list[tuple[int, int]] = []
    for number, shape in enumerate(shapes):
        if run.stopped() and found:
            break
        if shape.cuts.may_fit(shape.balanced):
            found.append((shape.cuts.estimate(shape.balanced), number))
    improved: list[tuple[int, int]] = []
    shortest = NEVER
    for estimate, number in sorted(found):
        if improved and (run.stopped() or estimate >= PROMISING * shortest):
            break
        shape = shapes[number]
        shape.descend(shape.balanced, run.stopped)
        if not improved:
            yield shape
        improved.append((shape.known_ns, number))
        shortest = min(shortest, shape.known_ns)
    best = [shapes[number] for _, number in sorted(improved)[:MOST_LED]]
    yield from best
    generator = np.random.default_rng(run.seed)
    for _ in range(MOST_KICKS):
        for shape in best:
            if run.stopped() or is_late(shape.low):
                continue
            known = shape.known_ns
            shape.descend(kick(shape.cuts, shape.best[1], generator), run.stopped)
            if shape.known_ns < known:
                yield shape
