"""Problems and plans that the claims of several papers are computed from."""

from __future__ import annotations

from functools import cache

from schedopt.account.timeline import Timeline
from schedopt.bench.cases import solve_problem
from schedopt.chain import Chain, Layer
from schedopt.checking import check
from schedopt.plan import Plan
from schedopt.platform import Platform
from schedopt.problem import Problem, Scope
from schedopt.result import Result
from schedopt.stage import Stage
from schedopt.systems.config import SystemConfig

ROOM = 10**9
"""Memory of a GPU where it is no question, bytes."""


def ask(problem: Problem, solver: str | None = None) -> Result:
    """Solve a problem with one thread; without a solver, by what the scope calls for."""
    return solve_problem(problem, solver=solver, workers=1)


def problem_of(
    chain: Chain, platform: Platform, scope: Scope, stages: tuple[Stage, ...] = ()
) -> Problem:
    """Return a problem."""
    return Problem(chain=chain, platform=platform, scope=scope, stages=stages)


def plain_layer(forward_ns: int, backward_ns: int, activation_bytes: int = 0) -> Layer:
    """Return a layer without weights."""
    return Layer(
        forward_ns=forward_ns,
        backward_ns=backward_ns,
        weight_bytes=0,
        activation_bytes=activation_bytes,
    )


def checked(plan: Plan) -> Plan:
    """Return a plan that the check accepts."""
    violations = check(plan)
    assert not violations, violations[0]
    return plan


@cache
def timeline_of(plan: Plan) -> Timeline:
    """Return when the micro-batches of a plan run."""
    return Timeline(plan)


def equal_stages(
    count: int,
    gpus: int,
    times: tuple[int, int] = (1, 1),
    *,
    microbatches: int | None = None,
    parameter_bytes: int = 2,
    output_bytes: int = 1,
    saved_bytes: int | None = None,
    latency_ns: int | None = None,
) -> SystemConfig:
    """Return equal stages of one layer each, by default with as many micro-batches.

    `times` are forward and backward of a stage, ns. Its gradients and its optimizer state are as
    large as its parameters. By default it keeps what it sends, and links take no time.
    """
    layer = Layer(
        forward_ns=times[0],
        backward_ns=times[1],
        weight_bytes=3 * parameter_bytes,
        activation_bytes=output_bytes,
        saved_bytes=saved_bytes,
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes,
        optimizer_bytes=parameter_bytes,
    )
    platform = Platform(gpus, ROOM)
    if latency_ns is not None:
        platform = Platform(gpus, ROOM, bandwidth="1TB/s", latency=latency_ns)
    return SystemConfig(
        chain=Chain(layers=(layer,) * count, name=f"{count} equal stages"),
        platform=platform,
        microbatches=count if microbatches is None else microbatches,
    )
