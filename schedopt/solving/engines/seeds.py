"""The first good cuts on the grids of an engine, from balanced ones on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from schedopt.problem import Problem
from schedopt.solving.engines.descent import NEVER, kick, nearest
from schedopt.solving.engines.grid import Grid
from schedopt.solving.engines.layout import count_of_grid
from schedopt.solving.engines.shape import EngineShape
from schedopt.solving.run import Run

PROMISING: Final = 1.25
"""How much longer a balanced cut may be than the best step for better ones to be looked for."""
MOST_LED: Final = 4
"""Grids on which better cuts are looked for beyond the nearest best one."""
MOST_KICKS: Final = 40
"""How often they are, on each."""


def make_shapes(
    problem: Problem,
    grids: Sequence[tuple[int, Grid]],
    make: Callable[[Grid, int], EngineShape],
    run: Run,
) -> tuple[list[EngineShape], list[int]]:
    """Return the shapes of grids, and the bounds of those that are left out when time is up, ns.

    First comes what takes least to lay out, until a balanced cut fits; then those with the least
    bounds. Each grid stands behind what no step on it is shorter than, ns.
    """
    quickest = sorted(
        range(len(grids)), key=lambda n: count_of_grid(problem, grids[n][1], folded=True)
    )
    made: dict[int, EngineShape] = {}
    for number in quickest:
        if run.clock.stop_requested() and not run.needs_plan():
            break
        low, grid = grids[number]
        made[number] = make(grid, low)
        if made[number].cuts.may_fit(made[number].balanced):
            break
    left_out: list[int] = []
    for number in sorted(set(quickest) - set(made), key=lambda n: (grids[n][0], n)):
        low, grid = grids[number]
        if run.stopped():
            left_out.append(max(1, low))
        else:
            made[number] = make(grid, low)
    return [made[number] for number in sorted(made)], left_out


def find_seeds(
    shapes: Sequence[EngineShape],
    run: Run,
    is_late: Callable[[int], bool],
    generator: np.random.Generator,
) -> Iterator[EngineShape]:
    """Yield shapes whose best cut is worth to be laid out.

    All balanced cuts are compared, and the shortest are improved move by move; the best ones then
    from a few random moves away, again and again (iterated local search, Lourenço et al. 2003).
    Called again it goes on: a shape of which a good cut is known begins with that.

    Parameters
    ----------
    shapes : sequence of EngineShape
    run : Run
        Says when to stop. The first of all is yielded whatever it says.
    is_late : callable
        Whether steps that are no shorter, ns, are of no use.
    generator : numpy.random.Generator
        Draws the moves.
    """
    found: list[tuple[int, int]] = []
    improved = any(shape.is_improved for shape in shapes)
    for number, shape in enumerate(shapes):
        if run.stopped() and (found or improved):
            break
        if shape.balanced_ns is not None:
            found.append((shape.balanced_ns, number))
    shortest = min((shape.known_ns for shape in shapes if shape.is_improved), default=NEVER)
    for estimate, number in sorted(found):
        if improved and (run.stopped() or estimate >= PROMISING * shortest):
            break
        shape = shapes[number]
        if shape.is_improved:
            continue
        shape.descend(shape.balanced, run.stopped)
        if not improved:
            yield shape
        improved = True
        shortest = min(shortest, shape.known_ns)
    best = best_of(shapes)
    yield from best
    for _ in range(MOST_KICKS):
        for shape in best:
            if run.stopped() or is_late(shape.low):
                continue
            known = shape.known_ns
            shape.descend(kick(shape.cuts, shape.best[1], generator), run.stopped)
            if shape.known_ns < known:
                yield shape


def best_of(shapes: Sequence[EngineShape]) -> list[EngineShape]:
    """Return the few shapes with the shortest steps known, the shortest first."""
    improved = [shape for shape in shapes if shape.is_improved]
    return sorted(improved, key=lambda shape: shape.known_ns)[:MOST_LED]


def start_from(others: Sequence[EngineShape], shapes: Sequence[EngineShape], run: Run) -> None:
    """Improve the best cuts of another engine, on the grids that differ least from its own."""
    for other in others:
        alike = [
            shape
            for shape in shapes
            if replace(other.grid, recomputed=shape.grid.recomputed) == shape.grid
        ]
        same = [shape for shape in alike if shape.grid == other.grid]
        for shape in same or alike:
            if run.stopped():
                return
            shape.descend(nearest(shape.cuts, other.best[1]), run.stopped)
