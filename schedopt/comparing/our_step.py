"""Our step in a comparison: what is asked, and from which plan of the others it starts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from schedopt.comparing.comparison import Row
from schedopt.errors import InputError
from schedopt.plan import Plan
from schedopt.problem import Problem, training_step, widest_step
from schedopt.profile import Variant
from schedopt.simulation import simulate
from schedopt.solving.options import still_valid


def step_problem(problem: Problem, variants: tuple[Variant, ...], count: int) -> Problem:
    """Return the question for our step: with replicas where the chain says what these send.

    And with tensor groups, where there are variants for them.
    """
    chain, wide = problem.chain, widest_step(problem.chain)
    if not chain.knows_gradients:
        return replace(problem, scope=replace(problem.scope, max_k=None, microbatches=count))
    scope = replace(problem.scope, max_k=None, replicas=wide.replicas, shard=wide.shard)
    if variants:
        scope = replace(scope, tensor=None)
    return training_step(chain, problem.platform, chain.samples_of(count), scope, variants)


def shortest_step(known: Sequence[Row], problems: Sequence[Problem]) -> tuple[str, Plan] | None:
    """Return the shortest step of the rows that answers a problem, with the name of its system."""
    by_chain = {problem.chain.sha256: problem for problem in problems}
    steps: list[tuple[str, Plan]] = []
    for row in known:
        plan = None if row.result is None else row.result.plan
        if plan is not None:
            with suppress(InputError):
                steps.append((row.system.name, _as_step(plan, by_chain[plan.chain.sha256])))
    # Each takes long to be checked.
    for name, step in sorted(steps, key=lambda pair: pair[1].pattern.period_total_ns):
        start = still_valid(step, by_chain[step.chain.sha256])
        if start is not None:
            return name, start
    return None


def _as_step(plan: Plan, problem: Problem) -> Plan:
    """Return a plan of ours for the endless run as a step; all others are what they are."""
    from schedopt.solvers.step import make_step

    count = problem.scope.microbatches
    if count is None or plan.scope.microbatches is not None or not plan.rule.is_given:
        return plan
    return make_step(simulate(plan, count), problem)
