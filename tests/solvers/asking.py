"""Asking solvers in tests, and what must hold of every answer."""

from __future__ import annotations

from typing import Any

from schedopt import Chain, Infeasibility, Plan, Platform, Result, Stage, check, solve


def ask(chain: Chain, platform: Platform, **options: Any) -> Result:
    """Solve; what is found is valid, and not below what is proven."""
    result = solve(chain, platform, **options)
    assert check(result) == ()
    if result.period is not None and result.lower_bound is not None:
        assert result.lower_bound <= result.period
    return result


def prove(chain: Chain, platform: Platform, **options: Any) -> Result:
    """Solve; what is found is proven to be the best, or that there is nothing."""
    result = ask(chain, platform, **options)
    assert result.status == ("infeasible" if result.plan is None else "optimal")
    return result


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
