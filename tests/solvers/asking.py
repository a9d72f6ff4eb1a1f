"""Asking solvers in tests, and what must hold of every answer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from schedopt import Chain, Infeasibility, Plan, Platform, Result, Stage, check, solve
from schedopt.proofs import Note


def ask(chain: Chain, platform: Platform, **options: Any) -> Result:
    """Solve; what is found is valid, and not below what is proven."""
    result = solve(chain, platform, **options)
    assert check(result) == ()
    if result.period is not None and result.lower_bound is not None:
        assert result.lower_bound <= result.period
    return result


def prove(chain: Chain, platform: Platform, **options: Any) -> Result:
    """Solve; what is found is proven to be the best, or that there is nothing.

    If nothing better was dropped: see `assert_best`.
    """
    result = ask(chain, platform, **options)
    if not lacks_room_for_what_waits(result):
        assert result.status == ("infeasible" if result.plan is None else "optimal")
    return result


def assert_best(result: Result, least: Fraction | int | None) -> None:
    """Hold an answer against the least period of all orders if everything came just in time.

    Where a plan was dropped for what comes before it is read, there may be a longer one, or none.
    """
    if not lacks_room_for_what_waits(result):
        assert result.period == least
        return
    assert least is not None
    assert result.status != "infeasible"
    assert result.period is None or result.period >= least
    assert result.lower_bound is None or result.lower_bound <= least


def lacks_room_for_what_waits(result: Result) -> bool:
    """Whether a better plan was dropped for what comes before it is read."""
    notes = (rung.note for rung in result.ladder)
    return any(isinstance(note, Note) and note.dropped_exact is not None for note in notes)


def plan_of(result: Result) -> Plan:
    """Return the plan that must be there."""
    assert result.plan is not None
    return result.plan


def why(result: Result) -> Infeasibility:
    """Return the proof that there is no plan."""
    assert result.status == "infeasible"
    assert result.infeasibility is not None
    return result.infeasibility


def on(*gpus: int) -> list[Stage]:
    """Return a stage for each layer, on the GPUs that are named."""
    return [Stage(layers=(n, n), gpus=(gpu,)) for n, gpu in enumerate(gpus)]


def even(chain: Chain, count: int) -> list[Stage]:
    """Return as many stages as even as can be, each on a GPU of its own."""
    edges = [len(chain.layers) * i // count for i in range(count + 1)]
    return [Stage(layers=(edges[i], edges[i + 1] - 1), gpus=(i,)) for i in range(count)]
